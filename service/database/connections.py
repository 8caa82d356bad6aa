"""Opens one connection: of aiopg for the pool, of psycopg2 for commands.

A URL may list several hosts, and a host may have several addresses. An asynchronous connect of
libpq would wait for the first one for ever, and aiopg watches only the first one's socket: so each
address is an attempt of its own, with its own timeout.
"""

import asyncio
import os
import select
from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import Any

import aiopg
import psycopg2
from psycopg2.extensions import POLL_OK, POLL_READ

from service import __version__
from service.config import Database
from service.database.driver_errors import describe_error
from service.database.urls import Server, list_addresses, parse_url
from service.errors import OperatorError

Session = psycopg2.extensions.connection

CONNECT_TIMEOUT_S = 10.0  # of commands, for each host
POOL_CONNECT_TIMEOUT_S = 2.0  # for each address; as long as a request waits for the pool
SIGNAL_CHECK_S = 1.0  # a signal just before select() does not wake it
# Without these, a connection to a machine that has disappeared would last for hours. Within about
# 10 s, it breaks; a URL may set others.
# https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-KEEPALIVES-IDLE
KEEPALIVES = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # ms
}


def application_name() -> str:
    """Name this process, as pg_stat_activity and the server's log show it."""
    return f"movie-catalogue {__version__} {os.getpid()}"


class OpenFiles:
    """Stands for the module `select` in aiopg, which asks it whether a file descriptor is open.

    The real one refuses descriptors from 1,024 on: there may be as many clients.
    """

    @staticmethod
    def select(descriptors: Sequence[int], *_: object) -> None:
        """Raise OSError (EBADF) if the descriptor is closed."""
        os.fstat(descriptors[0])


class Connector:
    """Opens connections of aiopg; begins with the address that it reached last.

    Otherwise, each connect would wait for a first server that has disappeared.
    """

    def __init__(self, settings: Database) -> None:
        self._settings = settings
        self._last: Server = {}
        aiopg.connection.select = OpenFiles  # type: ignore[attr-defined, assignment]

    async def connect(self) -> aiopg.Connection:
        """Open a connection; each address may take `POOL_CONNECT_TIMEOUT_S`.

        Raises `OperatorError` for a wrong URL, otherwise psycopg2.Error.
        """
        timeout = POOL_CONNECT_TIMEOUT_S
        given = (
            KEEPALIVES | {"application_name": application_name()} | parse_url(self._settings.url)
        )
        try:
            async with asyncio.timeout(timeout):
                addresses = await asyncio.to_thread(list_addresses, given)
        except TimeoutError as error:
            raise psycopg2.OperationalError("looking up the hosts: timeout expired") from error
        failures: list[psycopg2.Error] = []
        for address in sorted(addresses, key=lambda address: address != self._last):
            try:
                # Without the queries that aiopg's support of types would send.
                connection: aiopg.Connection = await aiopg.connect(
                    timeout=timeout,
                    enable_json=False,
                    enable_hstore=False,
                    enable_uuid=False,
                    **{**given, **address, "client_encoding": "UTF8"},
                )
            except TimeoutError:
                failures.append(_make_timeout_error(address))
            except psycopg2.Error as error:
                failures.append(error)
            else:
                self._last = address
                return connection
        raise _join_failures(failures)


def open_session(url: str, **options: Any) -> Session:
    """Open a connection that blocks until PostgreSQL responds, with more of libpq's `options`."""
    given = {"connect_timeout": 10} | parse_url(url) | options | {"client_encoding": "UTF8"}
    try:
        session: Session = psycopg2.connect(**given)
    except psycopg2.Error as error:
        raise _make_unreachable_error(error) from None
    return session


def open_polled_session(url: str, **options: Any) -> Session:
    """Open a connection that does not block: `wait` until a statement has ended."""
    given: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT_S} | parse_url(url) | options
    fixed = {"application_name": application_name(), "client_encoding": "UTF8", "async_": True}
    failures: list[psycopg2.Error] = []
    try:
        for address in list_addresses(given):
            try:
                session: Session = psycopg2.connect(**{**given, **address, **fixed})
                wait(session, seconds=float(given["connect_timeout"]) or inf)
            except TimeoutError:
                failures.append(_make_timeout_error(address))
            except psycopg2.Error as error:
                failures.append(error)
            else:
                return session
    except (psycopg2.Error, ValueError) as error:
        raise _make_unreachable_error(error) from None
    raise _make_unreachable_error(_join_failures(failures)) from None


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


def _make_timeout_error(address: Server) -> psycopg2.Error:
    """Describe a timeout in libpq's words."""
    host = address.get("hostaddr") or address.get("host") or "the default socket"
    return psycopg2.OperationalError(f'connection to server at "{host}" failed: timeout expired')


def _join_failures(failures: Sequence[psycopg2.Error]) -> psycopg2.Error:
    """Return one error for the failures of all addresses."""
    if len(failures) == 1:
        return failures[0]
    return psycopg2.OperationalError("; ".join(describe_error(error) for error in failures))


def _make_unreachable_error(error: BaseException) -> OperatorError:
    return OperatorError(f"the database is unreachable: {describe_error(error, details=True)}")
