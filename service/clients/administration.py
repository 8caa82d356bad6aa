"""Adds, rotates and revokes clients in a transaction, for `python -m service clients`."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial

import orjson

from service.clients.clients import hash_token, make_token
from service.database.query import Expected
from service.database.transactions import Transaction
from service.errors import OperatorError
from service.web.route import Scope

# The columns of the list. Times are texts; null: never, or not revoked.
LISTED: Mapping[str, object] = {
    "id": int,
    "name": str,
    "scopes": list[str],
    "expires_at": str,
    "revoked_at": str,
    "former_token_until": str,
    "last_used_on": str,
    "created_on": str,
}
USED_BY = "python -m service clients"
_expect = partial(Expected, used_by=USED_BY, writes=True, by_command=True)
QUERIES: Mapping[str, Expected] = {
    "list_clients": _expect(LISTED, [{}], writes=False),
    "reserve_client_ids": _expect({"id": int}, [{"number": 0}]),
    "add_clients": _expect({"id": int}, [{"clients": "[]"}]),
    "lock_client": _expect(
        {"id": int, "refused_since": str, "former_token_until": str}, [{"client_name": ""}]
    ),
    "rotate_client": _expect({}, [{"id": 0, "token_hash": "", "former_token_until": None}]),
    "revoke_client": _expect({"id": int}, [{"client_name": ""}]),
}


def add_client(
    transaction: Transaction, name: str, scopes: Sequence[Scope], expires_at: datetime | None
) -> tuple[int, str]:
    """Add a client; return its id and its token. `OperatorError` if the name is taken."""
    ((client_id,),) = transaction.run("reserve_client_ids", {"number": 1})
    token = make_token(client_id)
    client = {
        "id": client_id,
        "name": name,
        "token_hash": hash_token(token),
        "scopes": [scope.name.lower() for scope in scopes],
        "expires_at": expires_at,
    }
    if not transaction.run("add_clients", {"clients": orjson.dumps([client]).decode()}):
        raise OperatorError(f'the name "{name}" is taken: choose another one; see {USED_BY} list')
    return client_id, token


def rotate_token(transaction: Transaction, name: str, former_token_until: datetime | None) -> str:
    """Make and return a new token; the former one works until that time, or not at all (None).

    `OperatorError` if the client was revoked or has expired, or if a grace is requested while an
    earlier grace lasts: the token of the earlier one would stop before its time.
    """
    rows = transaction.run("lock_client", {"client_name": name})
    if not rows:
        raise _make_unknown_error(name)
    ((client_id, refused_since, works_until),) = rows
    if refused_since:
        raise OperatorError(
            f'"{name}" was revoked or expired at {refused_since} UTC: restore it in SQL first'
            " (docs/dbas.md), or add a new client"
        )
    if former_token_until and works_until:
        raise OperatorError(
            f'the former token of "{name}" works until {works_until} UTC: wait'
            " until then, or rotate without --grace, which stops both tokens"
        )
    token = make_token(client_id)
    transaction.run(
        "rotate_client",
        {
            "id": client_id,
            "token_hash": hash_token(token),
            "former_token_until": former_token_until,
        },
    )
    return token


def revoke_client(transaction: Transaction, name: str) -> None:
    """Refuse all tokens of a client; `OperatorError` if no client has this name."""
    if not transaction.run("revoke_client", {"client_name": name}):
        raise _make_unknown_error(name)


def _make_unknown_error(name: str) -> OperatorError:
    return OperatorError(f'no client is called "{name}": see {USED_BY} list')
