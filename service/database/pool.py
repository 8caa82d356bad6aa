"""aiopg connections under `max_open`, `max_idle` and `max_idle_time`, with a queue of waiters.

The semantics are those of Go's database/sql (https://pkg.go.dev/database/sql#DB.SetMaxOpenConns):
connects run in tasks of their own, and whatever becomes free first, a new connection or a returned
one, goes to the waiter that has waited longest. docs/decisions/0002-own-connection-pool.md: why not
aiopg's own pool.

A backend counts toward `max_open` until it has ended: closing its connection does not stop its
statement, and no timeout ends a commit that waits for a lost synchronous standby.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import NamedTuple

import aiopg
import psycopg2
import structlog
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from service.config import Database
from service.database.connections import Connector
from service.database.driver_errors import describe_error
from service.database.shares import Share
from service.errors import OperatorError, Refusal, Unavailable
from service.metrics import Metrics

log = structlog.get_logger()

# Pause between failed connects. With no connection left, requests are refused meanwhile: an outage
# costs a few connects and one line in the log.
REFUSE_S = 0.25
CLOSED_HERE = 1  # psycopg2's connection.closed; 2: broken, and closed by libpq
# A closed connection counts for at most so long. Keepalives notice a machine that has disappeared,
# but not a server that hangs, or a proxy that keeps connections to a dead server.
ABANDONED_MAX_S = 300.0
READ_BYTES = 65536
# The settings of a server that refused a write are not asked for again before this.
RENEW_MIN_S = 1.0


class Backend(NamedTuple):
    """What may still run on the server after its connection was closed."""

    server: object  # its address
    forget: Callable[[], None]


class Pool:
    """Lends connections as the settings say, to the tasks of one event loop.

    A new connection goes through `verify` before its first use until that has returned True once:
    no query runs before the schema is verified.

    `lists` and `writes`: 30 and 40 % of `max_open`. The rest is for reads by id and readiness
    checks: they wait neither for slow lists nor for writes that wait for a lost standby.
    """

    def __init__(
        self,
        settings: Database,
        verify: Callable[[aiopg.Connection], Awaitable[bool]],
        metrics: Metrics | None = None,
    ) -> None:
        self.metrics = metrics or Metrics(is_enabled=False)
        self.metrics.add_sampler(self.sample)
        self._settings = settings
        self._connector = Connector(settings)
        self._verify = verify
        self._is_verified = False
        self._is_closing = False
        self._refusal: tuple[float, BaseException] | None = None  # in an outage: until when, why
        self.lists = Share(max(1, settings.max_open * 3 // 10))
        self.writes = Share(max(1, settings.max_open * 4 // 10))
        self._opened: dict[aiopg.Connection, float] = {}  # when its connect began
        self._connecting: dict[asyncio.Task[aiopg.Connection], float] = {}
        self._backends: dict[socket.socket, Backend] = {}  # of closed connections
        self._trusted_since = -inf  # older connections may have broken
        self._pause: asyncio.TimerHandle | None = None  # before the next connect
        self._idle: deque[tuple[aiopg.Connection, float]] = deque()  # the longest idle one first
        self._waiters: deque[asyncio.Future[aiopg.Connection]] = deque()
        self._reaper: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()

    @property
    def size(self) -> int:
        """Connections that are open or being opened, or whose backend has not ended yet."""
        return len(self._opened) + len(self._connecting) + len(self._backends)

    @property
    def idle(self) -> int:
        """Open connections that are not in use."""
        return len(self._idle)

    def sample(self) -> None:
        """Set the gauges of the metrics."""
        opened, idle = len(self._opened), len(self._idle)
        connections = self.metrics.pool_connections
        connections.labels("open").set(self.size)
        connections.labels("idle").set(idle)
        connections.labels("in_use").set(opened - idle)
        connections.labels("closing").set(len(self._backends))
        waiting = len(self._waiters) + self.lists.waiting + self.writes.waiting
        self.metrics.pool_waiting.set(waiting)
        self.metrics.pool_max_open.set(self._settings.max_open)

    @asynccontextmanager
    async def connection(self, share: Share | None = None) -> AsyncIterator[aiopg.Connection]:
        """Lend a connection; `Unavailable` if none becomes free within `acquire_timeout`.

        aiopg closes it at a timeout or a cancellation, but its backend goes on: the connection and
        its place in `share` count until the server has closed the connection, too.
        """
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        free_place = share.free_place if share else lambda: None
        try:
            if share:
                await share.take_place(self._settings.acquire_timeout)
            try:
                connection, duplicate = await self._lend(asked_at + self._settings.acquire_timeout)
            except BaseException:
                free_place()
                raise
        finally:
            self.metrics.pool_wait.observe(loop.time() - asked_at)
        try:
            yield connection
        finally:
            if connection.raw.closed == CLOSED_HERE and not self._is_closing:
                del self._opened[connection]
                self._watch_backend(duplicate, free_place)
            else:
                duplicate.close()
                free_place()
            self._release(connection)

    async def _lend(self, give_up_at: float) -> tuple[aiopg.Connection, socket.socket]:
        """Acquire a connection, and duplicate its socket, which stays when aiopg closes its own.

        Not of an idle one: when that breaks, epoll would report the duplicate again and again.
        """
        while True:
            connection = await self._acquire(give_up_at)
            try:
                return connection, _duplicate_socket(connection)
            except psycopg2.Error:  # it broke just now
                self._release(connection)
            except OSError as error:  # too many files are open
                self._release(connection)
                raise Unavailable(
                    f"no database connection can be used: {error}", Refusal.POOL_TIMEOUT
                ) from error

    def _watch_backend(self, connected: socket.socket, free_place: Callable[[], None]) -> None:
        """Count a backend until it has closed its end of the connection."""
        loop = asyncio.get_running_loop()
        server = _find_server(connected)
        # A part of the statement may not have been sent: the backend must not wait for the rest.
        with suppress(OSError):
            connected.shutdown(socket.SHUT_WR)

        def forget() -> None:
            self._backends.pop(connected)
            loop.remove_reader(connected)
            timer.cancel()
            connected.close()
            free_place()
            self._emptied.set()
            self._open_more()

        def read() -> None:
            try:
                is_open = bool(connected.recv(READ_BYTES))
            except BlockingIOError:
                return
            except OSError:
                is_open = False
            if not is_open:
                forget()

        self._backends[connected] = Backend(server, forget)
        timer = loop.call_later(ABANDONED_MAX_S, forget)
        loop.add_reader(connected, read)

    def distrust(self) -> None:
        """Lend no connection that was opened before now: if one has broken, others may have too."""
        self._trusted_since = asyncio.get_running_loop().time()
        self.close_idle()

    def renew(self, connection: aiopg.Connection) -> None:
        """Close a connection whose settings or cached plans may be out of date, and the idle ones.

        Only itself if it is new: then the others would not be any better.
        """
        age = asyncio.get_running_loop().time() - self._opened[connection]
        connection.close()
        if age > RENEW_MIN_S:
            self.close_idle()

    def close_idle(self) -> None:
        """Close all idle connections."""
        while self._idle:
            self._discard(self._idle.pop()[0])

    async def close(self, timeout: float) -> None:  # noqa: ASYNC109 - a bound, not a cancellation
        """Close; waiters fail, connections in use have `timeout` seconds to be returned."""
        self._is_closing = True
        for timer in (self._reaper, self._pause):
            if timer:
                timer.cancel()
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
            for connection in list(self._opened):
                self._discard(connection)
            for backend in list(self._backends.values()):
                backend.forget()

    async def _acquire(self, give_up_at: float) -> aiopg.Connection:
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
            async with asyncio.timeout_at(give_up_at):
                return await waiter
        except BaseException as error:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.done() and not waiter.cancelled() and not waiter.exception():
                # Lent in the moment of giving up: the next waiter can use it.
                self._release(waiter.result())
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    f"no database connection became free in {self._settings.acquire_timeout:g} s",
                    Refusal.POOL_TIMEOUT,
                ) from error
            raise

    def _release(self, connection: aiopg.Connection) -> None:
        is_trusted = self._opened.get(connection, -inf) >= self._trusted_since
        # The status of a broken one is "unknown".
        is_idle = connection.raw.info.transaction_status == TRANSACTION_STATUS_IDLE
        if is_idle and is_trusted and not self._is_closing:
            self._lend_or_keep(connection)
        else:
            self._discard(connection)

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
        self._opened.pop(connection, None)
        # Never a second time: aiopg would stop watching a file descriptor that by now may be
        # another connection's.
        if connection.raw.closed != CLOSED_HERE:
            connection.close()
        self._emptied.set()
        self._open_more()

    def _open_more(self) -> None:
        if self._pause:
            return
        while self.size < self._settings.max_open and len(self._connecting) < len(self._waiters):
            task = asyncio.create_task(self._connect_and_verify())
            self._connecting[task] = asyncio.get_running_loop().time()
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
        began = self._connecting.pop(task)
        self._emptied.set()
        if task.cancelled():
            self._refuse_or_pause(asyncio.CancelledError())
        elif error := task.exception():
            self._refuse_or_pause(error)
        else:
            if self._refusal:
                log.info("database reached again")
                self._refusal = None
            connection = task.result()
            self._opened[connection] = began
            self._forget_other_servers(connection)
            self._release(connection)

    def _forget_other_servers(self, connection: aiopg.Connection) -> None:
        """Count no backends of another server than this connection's: `max_open` is for one server.

        After a failover, the backends of a server that hangs would keep their places for minutes.
        """
        if not self._backends:
            return
        with suppress(OSError, psycopg2.Error), _duplicate_socket(connection) as connected:
            server = _find_server(connected)
            for backend in list(self._backends.values()):
                if backend.server != server:
                    backend.forget()

    def _refuse_or_pause(self, error: BaseException) -> None:
        """Refuse requests for a while, unless another connection may still serve the waiters."""
        if self._is_closing:
            return
        loop = asyncio.get_running_loop()
        if self.size:  # PostgreSQL may be full, for example
            self._pause = self._pause or loop.call_later(REFUSE_S, self._resume)
            return
        if not self._refusal:
            log.error("no database", reason=describe_error(error))
        self._refusal = (loop.time() + REFUSE_S, error)
        self._fail_waiters(error)

    def _resume(self) -> None:
        self._pause = None
        self._open_more()

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


def _duplicate_socket(connection: aiopg.Connection) -> socket.socket:
    return socket.socket(fileno=os.dup(connection.raw.fileno()))


def _find_server(connected: socket.socket) -> object:
    """Return the address of the server; None if the connection has ended."""
    try:
        return connected.getpeername()
    except OSError:
        return None


STOPPING = RuntimeError("the service is stopping")


def _make_no_database_error(error: BaseException) -> Unavailable:
    if error is STOPPING:
        refusal = Refusal.STOPPING
    else:  # a migration is missing or a file is wrong, or there is no connection
        is_behind = isinstance(error, Unavailable | OperatorError)
        refusal = Refusal.NOT_READY if is_behind else Refusal.NO_DATABASE
    unavailable = Unavailable(f"no database: {describe_error(error)}", refusal)
    unavailable.__cause__ = error
    return unavailable
