"""The commands `python -m service clients`, for the clients that use the API with a token.

Tokens and the list go to stdout, messages to stderr.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

import click
import orjson

from service.clients.clients import hash_token, make_token
from service.config import Config
from service.database import query_files, transactions
from service.database.embedded import with_database
from service.database.query import Expected
from service.database.transactions import Transaction
from service.errors import OperatorError
from service.web.route import Scope

MAX_NAME = 100  # characters, as the table allows
MINUTE = "%Y-%m-%d %H:%M UTC"
TAKES_EFFECT = "every process of the service notices within 35 s"
report = partial(click.echo, err=True)

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
COMMAND = "python -m service clients"
UNKNOWN_NAME = 'no client is called "{}": see python -m service clients list'
_expect = partial(Expected, used_by=COMMAND, writes=True, by_command=True)
QUERIES: Mapping[str, Expected] = {
    "list_clients": _expect(LISTED, [{}], writes=False, in_order=True),
    "reserve_client_ids": _expect({"id": int}, [{"number": 0}]),
    "add_clients": _expect({"id": int}, [{"clients": "[]"}]),
    "lock_client": _expect(
        {"id": int, "refused_since": str, "former_token_until": str}, [{"client_name": ""}]
    ),
    "rotate_client": _expect({}, [{"id": 0, "token_hash": "", "former_token_until": None}]),
    "revoke_client": _expect({"id": int}, [{"client_name": ""}]),
}


def _check_name(_: click.Context, __: click.Parameter, name: str) -> str:
    # Stricter than the table, whose check depends on the locale: a terminal must show the name.
    if not name.isprintable() or name != name.strip() or not 1 <= len(name) <= MAX_NAME:
        raise click.BadParameter(
            f"{name!a}: expected 1 to {MAX_NAME} printable characters,"
            " without a space at either end"
        )
    return name


def _parse_scopes(_: click.Context, __: click.Parameter, text: str) -> list[Scope]:
    known = {scope.name.lower(): scope for scope in Scope if scope}
    names = {name.strip() for name in text.split(",")}
    if unknown := sorted(names - known.keys()):
        raise click.BadParameter(
            f"{unknown[0]!r} is no scope: expected one or more of {','.join(known)}"
        )
    return sorted(known[name] for name in names)


def _parse_expiry(_: click.Context, __: click.Parameter, text: str | None) -> datetime | None:
    """Return a time from now on, in UTC; a date is the start of that day, as in SQL."""
    if text is None:
        return None
    now = datetime.now(UTC)
    units = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}
    try:
        if match := re.fullmatch("([0-9]{1,6})(s|min|h|d)", text):
            time = now + timedelta(**{units[match[2]]: int(match[1])})
        else:
            time = datetime.strptime(f"{text}Z", "%Y-%m-%d%z")
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{text!r}: expected a duration like 90d, 12h, 30min or 10s, or a date like 2027-01-31"
            " (until it starts in UTC)"
        ) from error
    if time <= now:
        raise click.BadParameter(f"{text!r} is in the past")
    return time


name_argument = click.argument("name", callback=_check_name)


@click.group()
def clients() -> None:
    """Manage clients and their tokens.

    A client is a program that uses the API with a token. These commands use the database of the
    service (DATABASE_URL), as the role that owns its tables. docs/operators/run.md has examples.
    """


@clients.command()
@name_argument
@click.option(
    "--scopes",
    required=True,
    callback=_parse_scopes,
    metavar="SCOPE,...",
    help="read; write, which includes read; admin, which includes write.",
)
@click.option(
    "--expires",
    "expires_at",
    callback=_parse_expiry,
    metavar="WHEN",
    help="90d, or 2027-01-31 (its start in UTC).  [default: never]",
)
@click.pass_obj
def add(config: Config, name: str, scopes: list[Scope], expires_at: datetime | None) -> None:
    """Add a client and print its token.

    The token goes to stdout alone. Keep it: it is not stored and cannot be shown again.
    """
    with _begin(config) as transaction:
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
            raise OperatorError(
                f'the name "{name}" is taken: choose another one; see {COMMAND} list'
            )
        _show_and_commit(token, transaction)
    until = f"expires at {expires_at:{MINUTE}}" if expires_at else "never expires"
    report(f'added "{name}" with id {client_id}; its token is shown only now and {until}')


@clients.command("list")
@click.pass_obj
def list_clients(config: Config) -> None:
    """List the clients with their last use.

    Times are in UTC. "former token until" says how long the token before a rotation still works.
    """
    with _begin(config, start=transactions.BEGIN_READING) as transaction:
        listed = transaction.run("list_clients")
    rows = [[heading.replace("_", " ") for heading in LISTED]]
    rows += [[_format_cell(value) for value in row] for row in listed]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _format_cell(value: object) -> str:
    text = ",".join(value) if isinstance(value, list) else str(value or "-")
    return text if text.isprintable() else ascii(text)


@clients.command()
@name_argument
@click.option(
    "--grace",
    "former_token_until",
    callback=_parse_expiry,
    metavar="WHEN",
    help="How long the former token works, like 1h.  [default: not at all]",
)
@click.pass_obj
def rotate(config: Config, name: str, former_token_until: datetime | None) -> None:
    """Give a client a new token and print it.

    The id, the scopes and the expiry of the client stay. The former token is refused from now on,
    or after --grace.
    """
    with _begin(config) as transaction:
        rows = transaction.run("lock_client", {"client_name": name})
        if not rows:
            raise OperatorError(UNKNOWN_NAME.format(name))
        ((client_id, refused_since, works_until),) = rows
        if refused_since:
            raise OperatorError(
                f'"{name}" was revoked or expired at {refused_since} UTC: restore it in SQL first'
                " (docs/dbas.md), or add a new client"
            )
        if former_token_until and works_until:  # it would end an earlier grace before its time
            raise OperatorError(
                f'the former token of "{name}" works until {works_until} UTC: wait'
                " until then, or rotate without --grace, which stops both tokens"
            )
        token = make_token(client_id)
        stored = {"token_hash": hash_token(token), "former_token_until": former_token_until}
        transaction.run("rotate_client", {"id": client_id, **stored})
        _show_and_commit(token, transaction)
    if former_token_until:
        report(f'the former token of "{name}" works until {former_token_until:{MINUTE}}')
    else:
        report(f'the former token of "{name}" is refused from now on: {TAKES_EFFECT}')


@clients.command()
@name_argument
@click.pass_obj
def revoke(config: Config, name: str) -> None:
    """Refuse all tokens of a client.

    The client stays in the list. docs/dbas.md says how to restore it in SQL.
    """
    with _begin(config) as transaction:
        if not transaction.run("revoke_client", {"client_name": name}):
            raise OperatorError(UNKNOWN_NAME.format(name))
        transaction.commit()
    report(f'revoked "{name}": {TAKES_EFFECT}')


@contextmanager
def _begin(config: Config, *, start: str = transactions.BEGIN_WRITING) -> Iterator[Transaction]:
    with with_database(config) as ready:
        queries = query_files.load(config.queries, QUERIES)
        with transactions.begin(ready.database.url, queries, start=start) as transaction:
            yield transaction


def _show_and_commit(token: str, transaction: Transaction) -> None:
    """Print the token, then commit: if it cannot be printed, nothing changes."""
    try:
        # Not through sys.stdout: Python would flush it again at exit, and report the error again.
        os.write(sys.stdout.fileno(), f"{token}\n".encode())
    except (OSError, AttributeError) as error:  # AttributeError: closed before the start
        raise OperatorError("nothing was changed: the token cannot be written to stdout") from error
    transaction.commit()
