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
from math import inf

import aiopg
import structlog
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from service.config import Database
from service.database.connections import Connector
from service.database.driver_errors import describe_error
from service.errors import OperatorError, Refusal, Unavailable
from service.metrics import Metrics

log = structlog.get_logger()

# Pause between failed connects. With no connection left, requests are refused meanwhile: an outage
# costs a few connects and one line in the log.
REFUSE_S = 0.25
CLOSED_HERE = 1  # psycopg2's connection.closed; 2: broken, and closed by libpq
# The place of a connection that was given up stays taken for so long: its backend goes on until its
# statement times out, or PostgreSQL notices that the connection is closed.
GIVEN_UP_S = 4.0
# Connections that are younger are not closed because of what their server's settings were before.
RENEW_MIN_S = 1.0
# Statements that may wait for a place of a share. A place that is free again after 6 ms serves so
# many within `acquire_timeout` (2 s).
MAX_WAITING_PER_PLACE = 300


class Share:
    """The connections that one kind of statements may use at once, and a bounded queue for them."""

    def __init__(self, places: int) -> None:
        self._places = asyncio.Semaphore(places)
        self._max_waiting = places * MAX_WAITING_PER_PLACE
        self.waiting = 0  # statements, for a place

    async def take_place(self, give_up_at: float) -> None:
        """Wait for a place; `Unavailable` at once if too many wait, or at `give_up_at`."""
        if self.waiting >= self._max_waiting:
            raise Unavailable(
                f"{self.waiting} statements of this kind are waiting already", Refusal.QUEUE_FULL
            )
        self.waiting += 1
        try:
            async with asyncio.timeout_at(give_up_at):
                await self._places.acquire()
        except TimeoutError as error:
            raise Unavailable(
                "no connection for this kind of statements became free", Refusal.POOL_TIMEOUT
            ) from error
        finally:
            self.waiting -= 1

    def free_place(self) -> None:
        """Let the next one have the place."""
        self._places.release()


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
        self._given_up = 0  # places of connections that were given up
        self._trusted_since = 0.0  # by the loop's clock; older connections may have broken
        self._pause: asyncio.TimerHandle | None = None  # before the next connect
        self._idle: deque[tuple[aiopg.Connection, float]] = deque()  # the longest idle one first
        self._waiters: deque[asyncio.Future[aiopg.Connection]] = deque()
        self._reaper: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()

    @property
    def size(self) -> int:
        """Connections that are open or being opened, and places of those that were given up."""
        return len(self._opened) + len(self._connecting) + self._given_up

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
        connections.labels("closing").set(self._given_up)
        waiting = len(self._waiters) + self.lists.waiting + self.writes.waiting
        self.metrics.pool_waiting.set(waiting)
        self.metrics.pool_max_open.set(self._settings.max_open)

    @asynccontextmanager
    async def connection(self, share: Share | None = None) -> AsyncIterator[aiopg.Connection]:
        """Lend a connection; `Unavailable` if none becomes free within `acquire_timeout`.

        aiopg closes it at a timeout or a cancellation, but its backend goes on: the connection and
        its place in `share` count for `GIVEN_UP_S` more.
        """
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        give_up_at = asked_at + self._settings.acquire_timeout
        free_place = share.free_place if share else None
        try:
            if share:
                await share.take_place(give_up_at)
            try:
                connection = await self._acquire(give_up_at)
            except BaseException:
                if free_place:
                    free_place()
                raise
        finally:
            self.metrics.pool_wait.observe(loop.time() - asked_at)
        try:
            yield connection
        finally:
            if connection.raw.closed == CLOSED_HERE and not self._is_closing:
                self._given_up += 1
                loop.call_later(GIVEN_UP_S, self._end_given_up, free_place)
            elif free_place:
                free_place()
            self._release(connection)

    def _end_given_up(self, free_place: Callable[[], None] | None) -> None:
        self._given_up -= 1
        if free_place:
            free_place()
        self._open_more()

    def distrust(self) -> None:
        """Lend no connection that was opened before now: if one has broken, others may have too."""
        self._trusted_since = asyncio.get_running_loop().time()
        self.close_idle()

    def renew(self, connection: aiopg.Connection) -> None:
        """Close a connection whose settings or cached plans may be out of date, and older ones.

        Only itself if it is new: then the others would not be any better.
        """
        age = asyncio.get_running_loop().time() - self._opened[connection]
        self._opened[connection] = -inf
        if age > RENEW_MIN_S:
            self.distrust()

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
                while self._opened or self._connecting:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            for connection in list(self._opened):
                self._discard(connection)

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
            self._opened[task.result()] = began
            self._release(task.result())

    def _refuse_or_pause(self, error: BaseException) -> None:
        """Refuse requests for a while, unless another connection may still serve the waiters."""
        if self._is_closing:
            return
        loop = asyncio.get_running_loop()
        if self._opened or self._connecting:  # PostgreSQL may be full, for example
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
