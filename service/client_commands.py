"""The commands `python -m service clients`, for the clients that use the API with a token.

A token goes to stdout alone, everything else to stderr.
"""

import os
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import click

from service.access.administration import (
    ListedClient,
    add_client,
    list_clients,
    revoke_client,
    rotate_token,
)
from service.access.clients import Scope
from service.config import Config
from service.database.embedded import with_database
from service.errors import OperatorError
from service.queries import load_queries

DURATION = re.compile("([0-9]{1,6})(s|min|h|d)")
UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}
DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
EXPECTED_DURATION = "a duration like 90d, 12h, 30min or 10s"
TAKES_EFFECT = "every process of the service notices within 35 s"


def _check_name(ctx: click.Context, parameter: click.Parameter, name: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in name):  # bytes that are not UTF-8
        raise click.BadParameter("expected UTF-8", ctx, parameter)
    return name


def _parse_scopes(ctx: click.Context, parameter: click.Parameter, text: str) -> list[Scope]:
    known = {scope.name.lower(): scope for scope in Scope if scope}
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise click.BadParameter(
                f"{name!r} is no scope: expected one or more of {','.join(known)}", ctx, parameter
            )
    return sorted({known[name] for name in names})


def _parse_duration(text: str) -> timedelta | None:
    match = DURATION.fullmatch(text)
    return timedelta(**{UNITS[match[2]]: int(match[1])}) if match else None


def _parse_grace(ctx: click.Context, parameter: click.Parameter, text: str) -> float:
    grace = _parse_duration(text)
    if grace is None:
        raise click.BadParameter(f"{text!r}: expected {EXPECTED_DURATION}", ctx, parameter)
    return grace.total_seconds()


def _parse_expiry(
    ctx: click.Context, parameter: click.Parameter, text: str | None
) -> datetime | None:
    """Return the time in UTC; a date is the start of that day, as in SQL."""
    if text is None:
        return None
    now = datetime.now(UTC)
    try:
        duration = _parse_duration(text)
        expiry = now + duration if duration is not None else _parse_time(text)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{text!r}: expected a date like 2027-01-31 (until it starts in UTC),"
            f" a time like 2027-01-31T18:00+01:00, or {EXPECTED_DURATION}",
            ctx,
            parameter,
        ) from error
    if expiry <= now:
        raise click.BadParameter(f"{text!r} is in the past", ctx, parameter)
    return expiry


def _parse_time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if DATE.fullmatch(text):
        return time.replace(tzinfo=UTC)
    if not time.tzinfo:
        raise ValueError("a time without a zone")
    return time.astimezone(UTC)


name_argument = click.argument("name", callback=_check_name)


@click.group()
def clients() -> None:
    """Manage clients and their tokens.

    A client is a program that uses the API with a token. These commands use the database of the
    service (DATABASE_URL), as the role that owns its tables. docs/operators.md has examples.
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
    help="2027-01-31 (its start in UTC), 2027-01-31T18:00+01:00, or 90d.  [default: never]",
)
@click.pass_obj
def add(config: Config, name: str, scopes: list[Scope], expires_at: datetime | None) -> None:
    """Add a client and print its token.

    The token goes to stdout alone. Keep it: it is not stored and cannot be shown again.
    """
    with with_database(config) as ready:
        client_id = add_client(
            ready.database.url,
            load_queries(config),
            _print_token,
            name=name,
            scopes=scopes,
            expires_at=expires_at,
        )
    until = f"expires at {expires_at:%Y-%m-%d %H:%M} UTC" if expires_at else "never expires"
    _report(f'added "{name}" with id {client_id}; its token is shown only now and {until}')


@clients.command("list")
@click.pass_obj
def list_(config: Config) -> None:
    """List the clients with their last use.

    Times are in UTC. "former token until" says how long the token before a rotation still works.
    """
    with with_database(config) as ready:
        listed = list_clients(ready.database.url, load_queries(config))
    if not listed:
        _report("no clients: python -m service clients add NAME --scopes read")
        return
    for line in _format_table(listed):
        click.echo(line)


@clients.command()
@name_argument
@click.option(
    "--grace",
    callback=_parse_grace,
    default="0s",
    show_default=True,
    metavar="DURATION",
    help="How long the former token works, like 1h.",
)
@click.pass_obj
def rotate(config: Config, name: str, grace: float) -> None:
    """Give a client a new token and print it.

    The id, the scopes and the expiry of the client stay. The former token is refused from now on,
    or after --grace.
    """
    with with_database(config) as ready:
        former_token_until = rotate_token(
            ready.database.url, load_queries(config), _print_token, name, grace=grace
        )
    if former_token_until:
        _report(f'the former token of "{name}" works until {former_token_until} UTC')
    else:
        _report(f'the former token of "{name}" is refused from now on: {TAKES_EFFECT}')


@clients.command()
@name_argument
@click.pass_obj
def revoke(config: Config, name: str) -> None:
    """Refuse all tokens of a client.

    The client stays in the list. docs/dbas.md says how to restore it in SQL.
    """
    with with_database(config) as ready:
        since = revoke_client(ready.database.url, load_queries(config), name)
    if since:
        _report(f'"{name}" has been revoked since {since} UTC')
    else:
        _report(f'revoked "{name}": {TAKES_EFFECT}')


def _print_token(token: str) -> None:
    """Print the token to stdout; `OperatorError` if nobody can have seen it."""
    try:
        if sys.stdout is None:  # closed before the start; its number may be another file's now
            raise OSError("it is closed")  # noqa: TRY301 - reported as the others
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), f"{token}\n".encode())  # Python flushes nothing at exit
    except OSError as error:
        raise OperatorError(
            f"nothing was changed: stdout, for the token: {error.strerror or error}"
        ) from error


def _report(text: str) -> None:
    click.echo(text, err=True)


def _format_table(listed: Iterable[ListedClient]) -> list[str]:
    """Return a line for each client below a line of headings."""
    rows = [
        ("name", "id", "scopes", "expires", "revoked", "former token until", "last used", "added")
    ] + [
        (
            client.name if client.name.isprintable() else ascii(client.name),
            str(client.id),
            ",".join(client.scopes),
            client.expires_at or "never",
            client.revoked_at or "-",
            client.former_token_until or "-",
            client.last_used_on or "never",
            client.created_on,
        )
        for client in listed
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
