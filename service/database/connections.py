"""Opens one connection: of aiopg for the pool, of psycopg2 for commands.

No message repeats the URL of a database or what could not be read of it: it holds a password.
https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-URIS
"""

import os
import select
from math import inf
from time import monotonic
from typing import Any

import aiopg
import psycopg2
from psycopg2.extensions import POLL_OK, POLL_READ, make_dsn, parse_dsn

from service import __version__
from service.config import Database
from service.database.driver_errors import describe_error
from service.errors import OperatorError

Session = psycopg2.extensions.connection

CONNECT_TIMEOUT_S = 10.0  # of commands, for each host
SIGNAL_CHECK_S = 1.0  # a signal just before select() does not wake it


def parse_url(url: str) -> dict[str, Any]:
    """Return what the URL says, by libpq's names; `OperatorError` if it cannot be read."""
    try:
        given: dict[str, Any] = parse_dsn(url)
    except psycopg2.ProgrammingError:
        given = {"host": "@"}  # refused below
    # Part of a password that is not escaped ends up as the host, the port or the database's name,
    # which libpq's messages repeat.
    if any("@" in value for key, value in given.items() if key not in ("user", "password")):
        raise OperatorError(
            "the database's URL cannot be read: expected postgresql://user:password@host:port/name,"
            " with @ : / ? # % in the password written as %40 %3A %2F %3F %23 %25"
        )
    return given


def hide_password(url: str) -> str:
    """Describe the database of this URL, without passwords."""
    given = parse_url(url)
    hidden = {name: "***" for name in given if "password" in name}  # sslpassword too
    return str(make_dsn(**{**given, **hidden}))


def application_name() -> str:
    """Name this process, as pg_stat_activity and the server's log show it."""
    return f"movie-catalogue {__version__} {os.getpid()}"


async def connect(settings: Database) -> aiopg.Connection:
    """Open a connection of aiopg, without the queries that its type support would send."""
    given = {"application_name": application_name()} | parse_url(settings.url)
    connection: aiopg.Connection = await aiopg.connect(
        timeout=settings.connect_timeout,
        enable_json=False,
        enable_hstore=False,
        enable_uuid=False,
        **(given | {"client_encoding": "UTF8"}),
    )
    return connection


def open_session(url: str, **options: Any) -> Session:
    """Open a connection that blocks until PostgreSQL responds, with more of libpq's `options`."""
    given = {"connect_timeout": 10} | parse_url(url) | options | {"client_encoding": "UTF8"}
    try:
        session: Session = psycopg2.connect(**given)
    except psycopg2.Error as error:
        raise _make_unreachable_error(error) from None
    return session


def open_polled_session(url: str, **options: Any) -> Session:
    """Open a connection that does not block: `wait` until a statement has ended.

    An asynchronous connect of libpq would wait for the first host for ever, so each is tried.
    """
    given: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT_S} | parse_url(url) | options
    fixed = {"application_name": application_name(), "client_encoding": "UTF8", "async_": True}
    lists = {name: given[name].split(",") for name in ("host", "hostaddr", "port") if name in given}
    for index in range(max(map(len, lists.values()), default=1)):
        host = {name: values[min(index, len(values) - 1)] for name, values in lists.items()}
        try:
            session: Session = psycopg2.connect(**given | host | fixed)
            wait(session, seconds=float(given["connect_timeout"]) or inf)
        except (psycopg2.Error, TimeoutError, ValueError) as error:
            failure = error
        else:
            return session
    raise _make_unreachable_error(failure) from None


def wait(session: Session, states: tuple[int, ...] = (POLL_OK,), *, seconds: float = inf) -> None:
    """Wait until a polled session is in one of these states; Ctrl-C interrupts it."""
    deadline = monotonic() + seconds
    while (state := session.poll()) not in states:
        if monotonic() >= deadline:
            raise TimeoutError("timeout expired")
        # select() gets the session anew: for the next address, libpq opens another socket.
        reading = [session] if state == POLL_READ else []
        writing = [] if reading else [session]
        select.select(reading, writing, [], min(SIGNAL_CHECK_S, seconds))


def _make_unreachable_error(error: BaseException) -> OperatorError:
    return OperatorError(f"the database is unreachable: {describe_error(error, details=True)}")
