"""aiopg connections under `max_open`, `max_idle` and `max_idle_time`, with a queue of waiters.

The semantics are those of Go's database/sql (https://pkg.go.dev/database/sql#DB.SetMaxOpenConns):
connects run in tasks of their own, and whatever becomes free first, a new connection or a returned
one, goes to the waiter that has waited longest. docs/decisions/0002-own-connection-pool.md: why not
aiopg's own pool.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiopg
import structlog
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from service.config import Database
from service.database.connections import Connector
from service.database.driver_errors import describe_error
from service.errors import Unavailable

log = structlog.get_logger()

# After a failed connect with no connection left, requests are refused at once for so long: an
# outage costs a few connects and one line in the log.
REFUSE_S = 0.25


class Pool:
    """Lends connections as the settings say, to the tasks of one event loop.

    A new connection goes through `verify` before its first use until that has returned True once:
    no query runs before the schema is verified.
    """

    def __init__(
        self, settings: Database, verify: Callable[[aiopg.Connection], Awaitable[bool]]
    ) -> None:
        self._settings = settings
        self._connector = Connector(settings)
        self._verify = verify
        self._is_verified = False
        self._is_closing = False
        self._refusal: tuple[float, BaseException] | None = None  # in an outage: until when, why
        self._connections: set[aiopg.Connection] = set()
        self._connecting: set[asyncio.Task[aiopg.Connection]] = set()
        self._idle: deque[tuple[aiopg.Connection, float]] = deque()  # the longest idle one first
        self._waiters: deque[asyncio.Future[aiopg.Connection]] = deque()
        self._reaper: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()

    @property
    def size(self) -> int:
        """Connections that are open or being opened."""
        return len(self._connections) + len(self._connecting)

    @property
    def idle(self) -> int:
        """Open connections that are not in use."""
        return len(self._idle)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[aiopg.Connection]:
        """Lend a connection; `Unavailable` if none becomes free within `acquire_timeout`."""
        connection = await self._acquire()
        try:
            yield connection
        finally:
            self._release(connection)

    def close_idle(self) -> None:
        """Close all idle connections: if one has broken, those opened before may have too."""
        while self._idle:
            self._discard(self._idle.pop()[0])

    async def close(self, timeout: float) -> None:  # noqa: ASYNC109 - a bound, not a cancellation
        """Close; waiters fail, connections in use have `timeout` seconds to be returned."""
        self._is_closing = True
        if self._reaper:
            self._reaper.cancel()
        self._fail_waiters(STOPPING)
        for task in list(self._connecting):
            task.cancel()
        self.close_idle()
        try:
            async with asyncio.timeout(timeout):
                while self.size:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            for connection in list(self._connections):
                self._discard(connection)

    async def _acquire(self) -> aiopg.Connection:
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.closed:
                return connection
            self._discard(connection)
        loop = asyncio.get_running_loop()
        if self._is_closing:
            raise _make_no_database_error(STOPPING)
        if self._refusal and loop.time() < self._refusal[0]:
            raise _make_no_database_error(self._refusal[1])
        waiter: asyncio.Future[aiopg.Connection] = loop.create_future()
        self._waiters.append(waiter)
        self._open_more()
        try:
            async with asyncio.timeout(self._settings.acquire_timeout):
                return await waiter
        except BaseException as error:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.done() and not waiter.cancelled() and not waiter.exception():
                # Lent in the moment of giving up: the next waiter can use it.
                self._release(waiter.result())
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    f"no database connection became free in {self._settings.acquire_timeout:g} s"
                ) from error
            raise

    def _release(self, connection: aiopg.Connection) -> None:
        # The status of a broken one is "unknown".
        if self._is_closing or connection.raw.info.transaction_status != TRANSACTION_STATUS_IDLE:
            self._discard(connection)
        else:
            self._lend_or_keep(connection)

    def _lend_or_keep(self, connection: aiopg.Connection) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if len(self._idle) < self._settings.max_idle:
            self._idle.append((connection, asyncio.get_running_loop().time()))
            self._schedule_reaper()
        else:
            self._discard(connection)

    def _discard(self, connection: aiopg.Connection) -> None:
        self._connections.discard(connection)
        # Never a second time: aiopg would stop watching a file descriptor that by now may be
        # another connection's. (1: closed here; 2: broken, and closed by libpq.)
        if connection.raw.closed != 1:
            connection.close()
        self._emptied.set()
        self._open_more()

    def _open_more(self) -> None:
        while self.size < self._settings.max_open and len(self._connecting) < len(self._waiters):
            task = asyncio.create_task(self._connect_and_verify())
            self._connecting.add(task)
            task.add_done_callback(self._add_connection)

    async def _connect_and_verify(self) -> aiopg.Connection:
        connection = await self._connector.connect()
        try:
            self._is_verified = self._is_verified or await self._verify(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _add_connection(self, task: asyncio.Task[aiopg.Connection]) -> None:
        self._connecting.discard(task)
        self._emptied.set()
        if task.cancelled():
            self._refuse_without_connection(asyncio.CancelledError())
        elif error := task.exception():
            self._refuse_without_connection(error)
        else:
            if self._refusal:
                log.info("database reached again")
                self._refusal = None
            self._connections.add(task.result())
            self._release(task.result())

    def _refuse_without_connection(self, error: BaseException) -> None:
        """Refuse requests for a while, unless another connection may still serve the waiters."""
        if self._is_closing or self.size:
            return
        if not self._refusal:
            log.error("no database", reason=describe_error(error))
        self._refusal = (asyncio.get_running_loop().time() + REFUSE_S, error)
        self._fail_waiters(error)

    def _fail_waiters(self, error: BaseException) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(_make_no_database_error(error))

    def _schedule_reaper(self) -> None:
        if self._idle and not self._reaper:
            when = self._idle[0][1] + self._settings.max_idle_time
            self._reaper = asyncio.get_running_loop().call_at(when, self._reap)

    def _reap(self) -> None:
        self._reaper = None
        expired = asyncio.get_running_loop().time() - self._settings.max_idle_time
        while self._idle and self._idle[0][1] <= expired:
            self._discard(self._idle.popleft()[0])
        self._schedule_reaper()


STOPPING = RuntimeError("the service is stopping")


def _make_no_database_error(error: BaseException) -> Unavailable:
    unavailable = Unavailable(f"no database: {describe_error(error)}")
    unavailable.__cause__ = error
    return unavailable
