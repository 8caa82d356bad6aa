"""aiopg connections under `max_open`, `max_idle` and `max_idle_time`, with a queue of waiters.

The settings mean what they mean in Go's database/sql
(https://pkg.go.dev/database/sql#DB.SetMaxOpenConns).
docs/decisions/0002-own-connection-pool.md: why not aiopg's own pool.

`_open_connections` opens a connection; then it is lent or idle, until `_discard` forgets it.
`_return` is the only way to a waiter, for new connections and for those that come back.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from math import inf

import aiopg
import structlog
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from service.config import Database
from service.database.connections import Connector
from service.database.query import describe_error
from service.errors import OperatorError, Refusal, Unavailable
from service.telemetry.metrics import Metrics

log = structlog.get_logger()

# The pause after a failed connect. If no connection is open, requests are refused during the pause:
# an outage costs a few connects and one line in the log. It is also the minimum time between two
# calls of `distrust` that have an effect.
RETRY_S = 0.25
# How long a connection that was closed during a statement counts toward `max_open`: its backend
# runs until the statement times out, or PostgreSQL notices that the connection is closed. One that
# runs longer is not counted any more: a stream that sorts, a commit that waits for a standby.
GIVEN_UP_S = 4.0
CLOSE_POLL_S = 0.01
CLOSE_TIMEOUT_S = 2.0  # for statements in flight when the process stops
CLOSED_HERE = 1  # psycopg2's connection.closed; 2: broken, and closed by libpq


class Pool:
    """Lends connections to the tasks of one event loop.

    A connection is
    - lent: it is in `_opened`, and neither idle nor closed here;
    - idle: it is in `_idle`, too;
    - distrusted: it is lent, and was opened before `_trusted_since`: discarded when it comes back;
    - given up: it was closed here, at a timeout or a cancellation, and stays in `_opened` for
      `GIVEN_UP_S`, as its backend keeps running;
    - discarded: it is forgotten, and closed if it was not.

    What must stay true: there are at most `max_open` backends, with those whose statement was given
    up in the last `GIVEN_UP_S`; a connection is lent to one task at a time, after it was verified,
    and while it is idle and trusted; a free slot or connection goes to the task that has waited
    longest; after `close`, no connection is open.

    `verify` is called with each new connection until it has succeeded once: no query runs
    before the schema is verified. None: that is not necessary.

    `limits`: how many connections each kind of slow statement may use at once, besides `writes`,
    which may use 40 % of `max_open`. The rest is for reads by id and readiness checks, so that
    these wait neither for slow reads nor for writes that wait for a lost standby.
    """

    def __init__(
        self,
        settings: Database,
        verify: Callable[[aiopg.Connection], Awaitable[None]] | None,
        metrics: Metrics | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self.metrics = metrics or Metrics(is_enabled=False)
        self.limits = {name: asyncio.Semaphore(most) for name, most in (limits or {}).items()}
        self.writes = asyncio.Semaphore(max(1, settings.max_open * 4 // 10))
        self.waiting = 0  # tasks that wait for a limit or a connection
        self._settings = settings
        self._connector = Connector(settings)
        self._verify = verify
        self._opened: dict[aiopg.Connection, float] = {}  # when its connect began
        self._trusted_since = -inf  # older connections are not lent again
        self._idle: deque[tuple[aiopg.Connection, float]] = deque()  # the longest idle one first
        self._reaper: asyncio.TimerHandle | None = None  # closes connections that are idle too long
        self._waiters: deque[asyncio.Future[aiopg.Connection]] = deque()
        self._opener: asyncio.Task[None] | None = None  # opens connections for the waiters
        # Raised for all who ask: in the pause after a failed connect, and after `close`.
        self._error_for_all: Unavailable | None = None
        self._reported = ""  # "connect" or "outage": what is in the log, until no connect fails
        self._is_closing = False

    @property
    def size(self) -> int:
        """Connections that are open, being opened, or given up in the last `GIVEN_UP_S`."""
        return len(self._opened) + (self._opener is not None and not self._opener.done())

    @property
    def idle(self) -> int:
        """Open connections that are not in use."""
        return len(self._idle)

    @property
    def is_verified(self) -> bool:
        """Whether the schema was verified."""
        return self._verify is None

    @property
    def is_connected(self) -> bool:
        """Whether a connection is open, and not broken."""
        return any(not connection.closed for connection in self._opened)

    def sample(self) -> None:
        """Set the gauges of the metrics."""
        given_up = sum(connection.raw.closed == CLOSED_HERE for connection in self._opened)
        connections = self.metrics.pool_connections
        connections.labels("open").set(self.size)
        connections.labels("idle").set(self.idle)
        connections.labels("in_use").set(len(self._opened) - self.idle - given_up)
        connections.labels("closing").set(given_up)
        self.metrics.pool_waiting.set(self.waiting)
        self.metrics.pool_max_open.set(self._settings.max_open)

    @asynccontextmanager
    async def connection(
        self, limit: asyncio.Semaphore | None = None
    ) -> AsyncIterator[aiopg.Connection]:
        """Lend a connection; `Unavailable` if none becomes free within `acquire_timeout`.

        aiopg closes it at a timeout or a cancellation, but its backend runs on: the connection
        counts for `GIVEN_UP_S` more, and so does its slot of `limit`.
        """
        connection = await self._acquire(limit)
        try:
            yield connection
        finally:
            if connection.raw.closed == CLOSED_HERE and not self._is_closing:
                loop = asyncio.get_running_loop()
                loop.call_later(GIVEN_UP_S, self._return, connection, limit)
            else:
                self._return(connection, limit)

    def distrust(self) -> None:
        """Stop lending the connections that were opened before now, at most once in `RETRY_S`.

        If one connection has broken, or its server is read-only now, or its cached plans are out of
        date, the same is probably true for the others.
        """
        now = asyncio.get_running_loop().time()
        if now - self._trusted_since >= RETRY_S:
            self._trusted_since = now
            self.close_idle()

    def close_idle(self) -> None:
        """Close all idle connections."""
        while self._idle:
            self._discard(self._idle.pop()[0])

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:  # noqa: ASYNC109 - no cancellation
        """Close; waiters fail, connections in use have `timeout` seconds to be returned."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        self._is_closing = True
        for ended in (self._reaper, self._opener):
            if ended:
                ended.cancel()
        self._refuse(Unavailable("the service is stopping", Refusal.STOPPING))
        self.close_idle()
        for connection in [*self._opened]:
            if connection.closed:  # given up
                self._discard(connection)
        while self.size and loop.time() < end:  # noqa: ASYNC110 - an event would be one more state
            await asyncio.sleep(CLOSE_POLL_S)
        for connection in [*self._opened]:
            self._discard(connection)

    async def _acquire(self, limit: asyncio.Semaphore | None) -> aiopg.Connection:
        """Wait for the limit, then for a connection; measure that."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        self.waiting += 1
        try:
            async with asyncio.timeout(self._settings.acquire_timeout):
                if limit:
                    await limit.acquire()
                try:
                    return await self._take_connection()
                except BaseException:
                    if limit:
                        limit.release()
                    raise
        except TimeoutError as error:
            reason = f"no database connection became free in {self._settings.acquire_timeout:g} s"
            raise Unavailable(reason, Refusal.POOL_TIMEOUT) from error
        finally:
            self.waiting -= 1
            self.metrics.pool_wait.observe(loop.time() - asked_at)

    async def _take_connection(self) -> aiopg.Connection:
        """Return the connection that was used last, or wait for one."""
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.closed:
                return connection
            self._discard(connection)
        if self._error_for_all:
            raise self._error_for_all.with_traceback(None)
        waiter: asyncio.Future[aiopg.Connection] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._open_more()
        try:
            return await waiter
        except BaseException:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.cancelled() and not waiter.exception():
                # Just as this task gives up, it got a connection: the next waiter can use it.
                self._return(waiter.result())
            raise

    def _return(self, connection: aiopg.Connection, limit: asyncio.Semaphore | None = None) -> None:
        """Release the limit; lend the connection to the next waiter, keep it, or close it."""
        if limit:
            limit.release()
        is_trusted = self._opened.get(connection, -inf) > self._trusted_since
        # The status of a broken connection is "unknown".
        is_idle = connection.raw.info.transaction_status == TRANSACTION_STATUS_IDLE
        if not is_idle or not is_trusted or self._is_closing:
            self._discard(connection)
            return
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if len(self._idle) >= self._settings.max_idle:
            self._discard(connection)
            return
        self._idle.append((connection, asyncio.get_running_loop().time()))
        if not self._reaper:
            self._close_expired()

    def _close_expired(self) -> None:
        """Close connections that were idle for `max_idle_time`; schedule the next check."""
        loop = asyncio.get_running_loop()
        max_idle_time = self._settings.max_idle_time
        while self._idle and self._idle[0][1] <= loop.time() - max_idle_time:
            self._discard(self._idle.popleft()[0])
        self._reaper = None
        if self._idle:
            self._reaper = loop.call_at(self._idle[0][1] + max_idle_time, self._close_expired)

    def _discard(self, connection: aiopg.Connection) -> None:
        """Forget the connection, close it if it is open, and let a new one take its place."""
        self._opened.pop(connection, None)
        # Never close it twice: aiopg would stop watching a file descriptor that another connection
        # may have by now.
        if connection.raw.closed != CLOSED_HERE:
            connection.close()
        self._open_more()

    def _needs_more(self) -> bool:
        return bool(self._waiters) and len(self._opened) < self._settings.max_open

    def _open_more(self) -> None:
        """Open connections, unless the task that does so is running."""
        if self._needs_more() and (not self._opener or self._opener.done()):
            self._opener = asyncio.create_task(self._open_connections())

    async def _open_connections(self) -> None:
        """Open connections, one after the other, while tasks wait and `max_open` allows it."""
        loop = asyncio.get_running_loop()
        while self._needs_more():
            began = loop.time()
            try:
                connection = await self._open_connection()
            except Exception as error:  # noqa: BLE001 - raised for the waiters
                self._handle_failure(error)
                await asyncio.sleep(RETRY_S)
                self._error_for_all = None
            else:
                self._opened[connection] = began
                self._return(connection)
                # While others wait, the next connect may fail again, on a full server.
                if self._reported and not self._needs_more():
                    self._reported = ""
                    log.info("database reached again")

    async def _open_connection(self) -> aiopg.Connection:
        connection = await self._connector.connect()
        try:
            if self._verify:
                await self._verify(connection)
                self._verify = None
        except BaseException:
            connection.close()
            raise
        return connection

    def _handle_failure(self, error: Exception) -> None:
        """Log why a connect failed, once; refuse the waiters unless a connection is open."""
        self.metrics.connect_failures.inc()
        reason = describe_error(error)
        if self.is_connected:  # the server may just be full: an open connection may become free
            if not self._reported:
                self._reported = "connect"
                log.warning("connect failed", reason=reason)
            return
        # It was reached, but a migration is missing, or a query file is wrong.
        is_not_ready = isinstance(error, Unavailable | OperatorError)
        if self._reported != "outage":
            self._reported = "outage"
            if is_not_ready:
                log.warning("not ready", reason=reason)
            else:
                log.error("no database", reason=reason)
        refusal = Refusal.NOT_READY if is_not_ready else Refusal.NO_DATABASE
        unavailable = Unavailable(f"no database: {reason}", refusal)
        unavailable.__cause__ = error
        self._refuse(unavailable)

    def _refuse(self, refusal: Unavailable) -> None:
        """Raise this for all waiters now, and keep it in `_error_for_all` for later ones."""
        self._error_for_all = refusal
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(refusal)
