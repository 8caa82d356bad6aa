"""Opens connections to the servers of a URL: of aiopg for the pool, of psycopg2 for commands.

A URL may list several hosts, and a host may have several addresses. An asynchronous connect of
libpq has no timeout for the first address, and aiopg watches only the socket of the first address.
So the pool tries the addresses one after the other, each with its own timeout.
"""

import asyncio
import ctypes
import os
import re
import socket
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import aiopg
import psycopg2
from psycopg2 import _psycopg
from psycopg2.errors import QueryCanceled

from service import __version__
from service.config import Database
from service.database.query import describe_error
from service.database.urls import ServerAddress, is_socket, list_servers, parse_url
from service.errors import OperatorError

Session = psycopg2.extensions.connection
# The libpq that psycopg2 has loaded. https://www.psycopg.org/docs/connection.html#connection.pgconn_ptr
LIBPQ = ctypes.CDLL(_psycopg.__file__)
PQERRORS_VERBOSE = 2

COMMAND_CONNECT_TIMEOUT_S = 10  # for each host
POOL_CONNECT_TIMEOUT_S = 2.0  # for each address; as long as a request waits for the pool
# What libpq, PostgreSQL or PgBouncer say of a wrong value in the URL: another try is useless.
WRONG_VALUE = re.compile(
    r"invalid \w+ value|definition of service|parse network address"
    "|parameter|command-line argument|requires a value"
)
# With these, a connection to a machine that has disappeared breaks within about 10 s, not after
# hours. The URL may set other values.
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


def open_session(url: str, **options: Any) -> Session:
    """Open a connection that blocks until PostgreSQL responds; `options`: more for libpq."""
    given = {"connect_timeout": COMMAND_CONNECT_TIMEOUT_S} | parse_url(url) | options
    try:
        session: Session = psycopg2.connect(**{**given, "client_encoding": "UTF8"})
    except psycopg2.Error as error:
        reason = describe_error(error, details=True)
        raise OperatorError(f"the database is unreachable: {reason}") from None
    return session


def require_utf8_database(session: Session) -> None:
    """Raise `OperatorError` unless the encoding is UTF8; with SQL_ASCII, searches miss rows."""
    encoding = session.info.parameter_status("server_encoding")
    if encoding not in ("UTF8", None):  # None: a proxy does not say
        raise OperatorError(
            f"the database's encoding is {encoding}, but the service needs UTF8: create another one"
            " with: create database NAME encoding 'UTF8' locale 'C' template template0"
        )


class Connection(aiopg.Connection):
    """Raises `QueryCanceled` if PostgreSQL cancels a statement, for example at its timeout.

    aiopg would raise `CancelledError`, as if the task were cancelled, and report it to the loop.
    What must stay true: a cancelled task ends as cancelled, whatever PostgreSQL says meanwhile; a
    connection whose response nobody waits for is closed.
    """

    async def _poll(self, waiter: asyncio.Future[None], timeout: float) -> None:  # noqa: ASYNC109 - aiopg's
        """Wait for PostgreSQL's response, in place of the method of aiopg 1.4.0.

        It differs in four places: it asserts nothing; `close` is not awaited, as it does not wait;
        `QueryCanceled` is raised as it is, unless the task is cancelled, too; and it is not
        reported to the loop.
        """
        self._ready(self._weakref)  # as aiopg: sends and reads what is possible now
        try:
            await asyncio.wait_for(waiter, timeout)
        except (asyncio.CancelledError, TimeoutError):
            self.close()
            raise
        except QueryCanceled:
            # Both at once: the task must end.
            if (task := asyncio.current_task()) and task.cancelling():
                raise asyncio.CancelledError from None
            raise
        finally:
            self._waiter = None


class Connector:
    """Opens connections; tries the address that it reached last first, as others may be silent."""

    def __init__(self, settings: Database) -> None:
        self._url = settings.url
        self._last: ServerAddress = {}
        # aiopg uses the module `select` only to see whether a descriptor is open. The real one
        # refuses descriptors from 1,024 on, and a process may have more clients.
        open_files = SimpleNamespace(select=lambda descriptors, *_: os.fstat(descriptors[0]))
        aiopg.connection.select = open_files  # type: ignore[assignment, attr-defined]

    async def connect(self) -> Connection:
        """Open a connection; `OperatorError` for a wrong URL, otherwise psycopg2.Error."""
        given = KEEPALIVES | {"application_name": application_name()} | parse_url(self._url)
        try:
            async with asyncio.timeout(POOL_CONNECT_TIMEOUT_S):
                addresses = await asyncio.to_thread(list_addresses, given)
        except TimeoutError as error:
            raise psycopg2.OperationalError("looking up the hosts: timeout expired") from error
        failures: list[str] = []
        for address in sorted(addresses, key=lambda address: address != self._last):
            try:
                connection = await _open({**given, **address})
            except TimeoutError:
                server = address.get("hostaddr") or address.get("host") or "the default socket"
                failures.append(f'connection to server at "{server}" failed: timeout expired')
            except psycopg2.Error as error:
                failures.append(describe_error(error))
            else:
                self._last = address
                return connection
        reason = "; ".join(failures)
        if WRONG_VALUE.search(reason):
            raise OperatorError(f"the database's URL is wrong: {reason}")
        raise psycopg2.OperationalError(reason)


def list_addresses(given: Mapping[str, object]) -> list[ServerAddress]:
    """List the servers of a parsed URL, each once for each of its addresses; may block.

    With `host` and `hostaddr`, libpq looks nothing up, and TLS still checks the name. A name that
    is not found is left out; if none is found, raises psycopg2.OperationalError.
    """
    addresses: list[ServerAddress] = []
    failure = None
    for server in list_servers(given):
        if server.get("hostaddr") or is_socket(server):
            addresses.append(server)
            continue
        try:
            found = socket.getaddrinfo(server["host"], None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            what = f"the name {server['host']} has no address: {error}"
            failure = psycopg2.OperationalError(what)
        else:
            addresses += [{**server, "hostaddr": str(address[0])} for *_, address in found]
    if failure and not addresses:
        raise failure
    return addresses


async def _open(parameters: Mapping[str, Any]) -> Connection:
    """Open a connection, and wait for a response: PgBouncer accepts it even without its server."""
    connection = Connection(
        None,
        POOL_CONNECT_TIMEOUT_S,
        # aiopg would send queries to support these types.
        enable_json=False,
        enable_hstore=False,
        enable_uuid=False,
        **{**parameters, "client_encoding": "UTF8"},
    )
    await connection
    async with connection.cursor() as cursor:  # an error closes the connection
        await cursor.execute("select")
    # A notice then names its file in PostgreSQL's source, in every language.
    LIBPQ.PQsetErrorVerbosity(ctypes.c_void_p(connection.raw.pgconn_ptr), PQERRORS_VERBOSE)
    return connection
