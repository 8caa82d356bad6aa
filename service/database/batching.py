"""Requests that arrive together share one statement: docs/decisions/0001-share-statements.md.

While a statement runs, rows of new requests wait for the next one, which carries all of them. On an
idle service, a statement is sent at the end of the event loop's current turn.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Generic, TypeVar

from service.config import Sharing
from service.errors import Contended, Refusal, RuleBroken, StatementFailed, Unavailable
from service.metrics import OFF, Observer
from service.tracing import WAITING, WAITING_CLIENTS

if TYPE_CHECKING:
    from service.spans import RequestSpan

Result = TypeVar("Result")

# Rows wait so long for a running statement before another one is sent beside it. The service
# counts as quiet when so long no statement has ended.
WAIT_FOR_STATEMENT_S = 0.02
# Up to so many rows each get a statement of their own: with two connections, a fourth faster.
UNSHARED_ROWS = 2
# Rows with the same exclusive key run one after the other. They may take this share of
# `max_waiting`; otherwise changes of one movie would fill it, and other movies would be refused.
MAX_SHARE_OF_KEY = 0.1


@dataclass(slots=True, eq=False)
class SharedRow(Generic[Result]):
    """One request's part of a statement: `payload` is what the statement needs of it."""

    key: int
    payload: bytes
    result: asyncio.Future[Result | None]
    spans: tuple["RequestSpan", ...] = ()  # of the request, if it is traced
    clients: tuple[str, ...] = ()  # of the request, for the log


Run = Callable[[list[SharedRow[Result]]], Awaitable[Mapping[int, Result]]]


class Batcher(Generic[Result]):
    """Shares statements among the requests of one kind.

    `run` executes a statement for some rows and returns the results by key; a key without a
    result gives None. `exclusive`: no key may be twice in a statement, or in two at once.
    `idempotent`: a row may be executed twice. `rows_metric`: of the rows of each shared statement.
    """

    def __init__(
        self,
        run: Run[Result],
        settings: Sharing,
        *,
        exclusive: bool = False,
        idempotent: bool = False,
        rows_metric: Observer = OFF,
    ) -> None:
        self._run = run
        self._settings = settings
        self._exclusive = exclusive
        self._idempotent = idempotent
        self._rows_metric = rows_metric
        self._waiting: deque[SharedRow[Result]] = deque()  # of an exclusive key only one
        # By exclusive key, while one of its rows waits or runs: the rows after that one.
        self._queues: dict[int, deque[SharedRow[Result]]] = {}
        self._queued = 0  # rows in all queues
        self._running: dict[asyncio.Task[None], float] = {}  # since when; the youngest is last
        self._is_starting = False  # a statement is sent at the end of this turn
        self._timer: asyncio.TimerHandle | None = None  # for the next statement
        self._last_rows = 0  # of the last statement
        self._last_end = -inf  # of a statement
        self._slots = asyncio.Semaphore(settings.max_under_way)  # for rows that are sent alone
        # Of a row that was sent alone: when, and why.
        self._last_failure = (-inf, Unavailable("no failure", Refusal.STATEMENT_LOST))

    async def submit(self, key: int, payload: bytes = b"") -> Result | None:
        """Send this row with a statement and return its result.

        Raises what `run` raises for it, or `Unavailable` if too many are waiting, in all or with
        this key, if it is exclusive.
        """
        result = asyncio.get_running_loop().create_future()
        row: SharedRow[Result] = SharedRow(
            key, payload, result, WAITING.get(), WAITING_CLIENTS.get()
        )
        if not self._settings.enabled:
            return (await self._run([row])).get(key)
        if (waiting := len(self._waiting) + self._queued) >= self._settings.max_waiting:
            raise Unavailable(f"{waiting} requests are waiting already", Refusal.QUEUE_FULL)
        if self._exclusive:
            self._queue(row)
        else:
            self._waiting.append(row)
        if not self._is_starting and self._timer is None:
            self._start_or_wait()
        return await row.result

    def _queue(self, row: SharedRow[Result]) -> None:
        """Let the row wait, after other rows with its key if there are any."""
        if (queue := self._queues.get(row.key)) is None:
            self._queues[row.key] = deque()
            self._waiting.append(row)
            return
        if len(queue) >= max(1, MAX_SHARE_OF_KEY * self._settings.max_waiting):
            raise Unavailable(
                f"{len(queue)} requests with the key {row.key} are waiting already",
                Refusal.QUEUE_FULL,
            )
        queue.append(row)
        self._queued += 1

    def _let_next_wait(self, key: int) -> None:
        """Move the next row with this exclusive key from its queue to the waiting rows."""
        if queue := self._queues[key]:
            self._waiting.append(queue.popleft())
            self._queued -= 1
        else:
            del self._queues[key]

    def _start_or_wait(self) -> None:
        """Start a statement, unless one is young enough to be waited for."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if not self._waiting or self._is_starting:
            return
        loop = asyncio.get_running_loop()
        running = len(self._running)
        if running and not (running == 1 and self._last_rows + len(self._waiting) <= UNSHARED_ROWS):
            if running >= self._settings.max_under_way:
                return
            waited = next(reversed(self._running.values())) + WAIT_FOR_STATEMENT_S
            if waited > loop.time():
                self._timer = loop.call_at(waited, self._start_or_wait)
                return
        self._is_starting = True
        self._running[loop.create_task(self._execute())] = loop.time()

    async def _execute(self) -> None:
        """Take rows, run a statement for them, and give each its result or error."""
        self._is_starting = False
        rows = self._take_rows()
        if not rows:  # all of them are cancelled
            self._forget_task()
            return
        self._start_or_wait()  # rows that did not fit must not wait for this statement alone
        results: Mapping[int, Result] = {}
        failure: Exception | None = Unavailable(
            "the statement was given up", Refusal.STATEMENT_LOST
        )
        self._rows_metric.observe(len(rows))
        try:
            results = await self._run_traced(rows)
            failure = None
        except Exception as error:  # noqa: BLE001 - the requests must learn it, whatever it is
            failure = error
            if len(rows) > 1 and self._may_be_sent_again(error):
                await self._send_alone(rows)
        finally:
            if self._exclusive:
                for row in rows:
                    self._let_next_wait(row.key)
            self._forget_task()
            self._last_end = asyncio.get_running_loop().time()
            self._start_or_wait()  # before the results are returned
            _set_results(rows, results, failure)

    def _run_traced(self, rows: list[SharedRow[Result]]) -> Awaitable[Mapping[int, Result]]:
        """Run a statement; the task has the context of one request, but all of them wait for it."""
        WAITING.set(tuple(chain.from_iterable([row.spans for row in rows])))
        WAITING_CLIENTS.set(tuple(chain.from_iterable([row.clients for row in rows])))
        return self._run(rows)

    def _forget_task(self) -> None:
        del self._running[asyncio.current_task()]  # type: ignore[arg-type] # it is a task

    def _take_rows(self) -> list[SharedRow[Result]]:
        """Take half of the known rows, in their order, up to the limits of the settings.

        Known are the rows that wait, and those of the last statement, whose clients will soon send
        the next request. The database works on one half while the service responds to the other.

        After a quiet time, no such client is left: take all. Record half the size, so that clients
        split into two alternating batches.
        """
        rows: list[SharedRow[Result]] = []
        size = 0
        quiet_since = self._last_end + WAIT_FOR_STATEMENT_S
        is_quiet = len(self._running) == 1 and asyncio.get_running_loop().time() > quiet_since
        half = (len(self._waiting) + self._last_rows + 1) // 2
        most = min(len(self._waiting) if is_quiet else half, self._settings.max_rows)
        while self._waiting and len(rows) < most:
            row = self._waiting.popleft()
            if row.result.done():  # its request was cancelled
                if self._exclusive:
                    self._let_next_wait(row.key)
                continue
            size += len(row.payload)
            if rows and size > self._settings.max_bytes:
                self._waiting.appendleft(row)
                break
            rows.append(row)
        self._last_rows = len(rows) // 2 if is_quiet else len(rows)
        return rows

    def _may_be_sent_again(self, error: Exception) -> bool:
        """Whether the statement may be one row's fault, and was not executed."""
        if isinstance(error, StatementFailed):
            return not error.for_every_row
        if isinstance(error, Unavailable) and not isinstance(error, Contended):
            return False  # the database is away, for example
        return self._idempotent or isinstance(error, RuleBroken | Contended)

    async def _send_alone(self, rows: list[SharedRow[Result]]) -> None:
        """Send each row alone, some at a time.

        Once one has failed as `Unavailable`, of whichever statement, those that came here before
        are not tried any more: no request waits for more than one round of timeouts.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def send(row: SharedRow[Result]) -> None:
            async with self._slots:
                failed_at, failure = self._last_failure
                if began < failed_at:
                    _set_results([row], {}, failure)
                elif not row.result.done():
                    try:
                        _set_results([row], await self._run_traced([row]))
                    except Exception as error:  # noqa: BLE001 - as in `_execute`
                        if isinstance(error, Unavailable):
                            self._last_failure = (loop.time(), error)
                        _set_results([row], {}, error)

        await asyncio.gather(*(send(row) for row in rows))


def _set_results(
    rows: list[SharedRow[Result]], results: Mapping[int, Result], error: Exception | None = None
) -> None:
    for row in rows:
        if row.result.done():
            continue
        if error:
            row.result.set_exception(error)
        else:
            row.result.set_result(results.get(row.key))
