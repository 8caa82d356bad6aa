"""Adds, lists, rotates and revokes clients: what `python -m service clients` does.

A token is shown before the commit: if that fails, nothing has changed. A change that fails later
leaves a token that is not valid.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple

import orjson

from service.access.clients import Scope
from service.access.tokens import hash_token, make_token
from service.database import transactions
from service.database.queries import Expected, Query
from service.database.transactions import Transaction
from service.errors import OperatorError

Show = Callable[[str], object]  # shows a token to the operator, and raises if it cannot


class ListedClient(NamedTuple):
    """A client as `list` shows it; times are texts, `None` for never."""

    id: int
    name: str
    scopes: list[str]
    expires_at: str | None
    revoked_at: str | None
    former_token_until: str | None
    last_used_on: str | None
    created_on: str


class LockedClient(NamedTuple):
    """A client that is being changed; times are texts, `None` if they do not apply now."""

    id: int
    revoked_at: str | None
    expired_at: str | None
    former_token_until: str | None


LISTED = dict.fromkeys(ListedClient._fields, str) | {"id": int, "scopes": list[str]}
LOCKED = dict.fromkeys(LockedClient._fields, str) | {"id": int}
USED_BY = "python -m service clients"
QUERIES: Mapping[str, Expected] = {
    "list_clients": Expected(LISTED, [{}], USED_BY, by_command=True),
    "reserve_client_ids": Expected(
        {"id": int}, [{"number": 0}], USED_BY, writes=True, by_command=True
    ),
    "add_clients": Expected(
        {"id": int}, [{"clients": "[]"}], USED_BY, writes=True, by_command=True
    ),
    "lock_client": Expected(LOCKED, [{"client_name": ""}], USED_BY, writes=True, by_command=True),
    "rotate_client": Expected(
        {"former_token_until": str},
        [{"id": 0, "token_hash": "", "grace": 0}],
        USED_BY,
        writes=True,
        by_command=True,
    ),
    "revoke_client": Expected({}, [{"id": 0}], USED_BY, writes=True, by_command=True),
}

MAX_NAME = 100  # characters, as the table allows
LIST = "python -m service clients list"


def add_client(  # noqa: PLR0913 - its columns
    url: str,
    queries: Mapping[str, Query],
    show: Show,
    *,
    name: str,
    scopes: list[Scope],
    expires_at: datetime | None,
) -> int:
    """Add a client, show its token and return its id.

    `OperatorError` if the name is not printable or taken, or if the database refuses.
    """
    # Stricter than the table, whose check depends on the locale: a terminal must show the name.
    if not name.isprintable() or name != name.strip() or not 1 <= len(name) <= MAX_NAME:
        raise OperatorError(
            f"the name {name!a}: expected 1 to {MAX_NAME} printable characters,"
            " without a space at either end"
        )
    with transactions.begin(url, queries) as transaction:
        ((client_id,),) = transaction.run("reserve_client_ids", number=1)
        token = make_token(client_id)
        client = {
            "id": client_id,
            "name": name,
            "token_hash": hash_token(token),
            "scopes": [scope.name.lower() for scope in scopes],
            "expires_at": expires_at,
        }
        if not transaction.run("add_clients", clients=orjson.dumps([client]).decode()):
            raise OperatorError(f'the name "{name}" is taken: choose another one; see {LIST}')
        show(token)
        transaction.commit()
    return int(client_id)


def list_clients(url: str, queries: Mapping[str, Query]) -> list[ListedClient]:
    """Return all clients by name."""
    with transactions.begin(url, queries, read_only=True) as transaction:
        return [ListedClient._make(row) for row in transaction.run("list_clients")]


def rotate_token(
    url: str, queries: Mapping[str, Query], show: Show, name: str, *, grace: float
) -> str | None:
    """Show a new token; the former one works for `grace` seconds, until the returned time in UTC.

    Older ones stop. `OperatorError` if the new token would be refused, and for a grace while an
    earlier one lasts, because a token that is still in use would stop before the time it was given.
    """
    with transactions.begin(url, queries) as transaction:
        client = _lock(transaction, name)
        if client.revoked_at:
            raise OperatorError(
                f'"{name}" was revoked at {client.revoked_at} UTC: restore it in SQL first'
                " (docs/dbas.md), or add a new client"
            )
        if client.expired_at:
            raise OperatorError(
                f'"{name}" expired at {client.expired_at} UTC: set another expiry in SQL first'
                " (docs/dbas.md), or add a new client"
            )
        if grace and client.former_token_until:
            raise OperatorError(
                f'the former token of "{name}" works until {client.former_token_until} UTC: wait'
                " until then, or rotate without --grace, which stops both tokens"
            )
        token = make_token(client.id)
        ((former_token_until,),) = transaction.run(
            "rotate_client", id=client.id, token_hash=hash_token(token), grace=grace
        )
        show(token)
        transaction.commit()
    return str(former_token_until) if former_token_until else None


def revoke_client(url: str, queries: Mapping[str, Query], name: str) -> str | None:
    """Refuse all tokens of a client; return since when it was revoked already, if it was."""
    with transactions.begin(url, queries) as transaction:
        client = _lock(transaction, name)
        if not client.revoked_at:
            transaction.run("revoke_client", id=client.id)
            transaction.commit()
        return client.revoked_at


def _lock(transaction: Transaction, name: str) -> LockedClient:
    rows = transaction.run("lock_client", client_name=name)
    if not rows:
        raise OperatorError(f'no client is called "{name}": see {LIST}')
    return LockedClient._make(rows[0])
