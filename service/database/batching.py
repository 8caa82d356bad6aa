"""Requests that arrive together share one statement: docs/decisions/0001-share-statements.md.

While a statement runs, rows of new requests wait for the next one, which carries all of them, first
in, first out. On an idle service, a statement is sent at the end of the event loop's current turn.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from service.config import Sharing
from service.context import RequestContext
from service.errors import Contended, Refusal, RuleBroken, StatementFailed, Unavailable
from service.metrics import OFF, Observer

Result = TypeVar("Result")

MAX_RUNNING = 2  # statements of one kind
SLOW_S = 0.02  # a statement that takes longer gets a second one beside it
# A statement takes half of the known rows: more would help only with more than 256 clients.
MAX_ROWS = 128
MAX_WAITING = 1000  # rows of one kind; further requests are refused at once
MAX_BYTES = 1_048_576  # of the bodies of one statement, or one larger body
# Rows with the same exclusive key run one after the other. They may take this share of
# `MAX_WAITING`; otherwise changes of one movie would fill it, and other movies would be refused.
MAX_SHARE_OF_KEY = 0.1


@dataclass(slots=True, eq=False)
class SharedRow(Generic[Result]):
    """One request's part of a statement: `payload` is what the statement needs of it."""

    key: int
    payload: bytes
    context: RequestContext | None  # of the request
    result: asyncio.Future[Result | None]


Rows = Sequence[SharedRow[Result]]
Run = Callable[[Rows[Result]], Awaitable[Mapping[int, Result]]]


def list_contexts(rows: Rows[Result]) -> list[RequestContext]:
    """Return the contexts of the requests that wait for these rows."""
    return [row.context for row in rows if row.context]


class Batcher(Generic[Result]):
    """Shares statements among the requests of one kind.

    `run` executes a statement for some rows and returns the results by key; a key without a
    result gives None. `exclusive`: no key may be twice in a statement, or in two at once.
    `idempotent`: a row may be executed twice. `rows_metric`: of the rows of each shared statement.
    """

    def __init__(  # noqa: PLR0913 - its options
        self,
        run: Run[Result],
        settings: Sharing,
        *,
        max_rows: int = MAX_ROWS,
        exclusive: bool = False,
        idempotent: bool = False,
        rows_metric: Observer = OFF,
    ) -> None:
        self._run = run
        self._exclusive = exclusive
        self._idempotent = idempotent
        self._rows_metric = rows_metric
        self._is_sharing = settings.enabled  # otherwise each row is sent alone, at once
        self._max_rows = max_rows if settings.enabled else 1
        self._max_running = MAX_RUNNING if settings.enabled else MAX_WAITING
        self._max_waiting = MAX_WAITING
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[SharedRow[Result]] = deque()  # of an exclusive key only one
        # By exclusive key, while one of its rows waits or runs: the rows after that one.
        self._queues: dict[int, deque[SharedRow[Result]]] = {}
        self._queued = 0  # rows in all queues
        self._running: dict[asyncio.Task[None], float] = {}  # since when; the oldest first
        self._is_starting = False  # a statement is sent at the end of this turn
        self._second: asyncio.TimerHandle | None = None  # starts a second statement
        self._last_rows = 0  # of the last statement

    def submit(
        self, key: int, payload: bytes = b"", context: RequestContext | None = None
    ) -> Awaitable[Result | None]:
        """Send this row with a statement; return its result, to be awaited.

        Raises what `run` raises for it, or `Unavailable` if too many are waiting, in all or with
        this key, if it is exclusive.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        row: SharedRow[Result] = SharedRow(key, payload, context, self._loop.create_future())
        if (waiting := len(self._waiting) + self._queued) >= self._max_waiting:
            raise Unavailable(f"{waiting} requests are waiting already", Refusal.QUEUE_FULL)
        if not self._exclusive or self._takes_turn(row):
            self._waiting.append(row)
        if not self._is_starting and self._second is None:
            self._start()
        return row.result

    def _takes_turn(self, row: SharedRow[Result]) -> bool:
        """Whether no other row has this key; otherwise let the row wait after those."""
        if (queue := self._queues.get(row.key)) is None:
            self._queues[row.key] = deque()
            return True
        if len(queue) >= max(1, MAX_SHARE_OF_KEY * self._max_waiting):
            raise Unavailable(
                f"{len(queue)} requests with the key {row.key} are waiting already",
                Refusal.QUEUE_FULL,
            )
        queue.append(row)
        self._queued += 1
        return False

    def _end_turns(self, rows: Iterable[SharedRow[Result]]) -> None:
        """Let the next rows with the exclusive keys of these rows wait for a statement."""
        for row in rows:
            if queue := self._queues[row.key]:
                self._waiting.append(queue.popleft())
                self._queued -= 1
            else:
                del self._queues[row.key]

    def _start(self) -> None:
        """Start a statement if rows wait and none is running; or beside only one that is slow."""
        if self._second:
            self._second.cancel()
            self._second = None
        if not self._waiting or self._is_starting or len(self._running) >= self._max_running:
            return
        loop = asyncio.get_running_loop()
        if self._running and self._is_sharing:
            slow_at = next(iter(self._running.values())) + SLOW_S
            if slow_at > loop.time():
                self._second = loop.call_at(slow_at, self._start)
                return
        self._is_starting = True
        self._running[loop.create_task(self._execute())] = loop.time()

    async def _execute(self) -> None:
        """Take rows, run a statement for them, and give each its result or error."""
        self._is_starting = False
        rows = self._take_rows()
        self._start()  # rows that did not fit must not wait for this statement alone
        results: Mapping[int, Result] = {}
        failure: Exception | None = Unavailable(
            "the statement was given up", Refusal.STATEMENT_LOST
        )
        try:
            if rows:
                self._rows_metric.observe(len(rows))
                results = await self._run(rows)
            failure = None
        except Exception as error:  # noqa: BLE001 - the requests must learn it, whatever it is
            if len(rows) > 1 and self._may_be_sent_again(error):
                await self._send_alone(rows)
            failure = error
        finally:
            if self._exclusive:
                self._end_turns(rows)
            del self._running[asyncio.current_task()]  # type: ignore[arg-type] # it is a task
            self._start()  # before the results are returned
            _set_results(rows, results, failure)

    def _take_rows(self) -> list[SharedRow[Result]]:
        """Take half of the known rows, in their order, up to the limits.

        Known are the rows that wait, and those of the last statement, whose clients will soon send
        the next request. The database works on one half while the service responds to the other.
        """
        rows: list[SharedRow[Result]] = []
        size = 0
        most = min((len(self._waiting) + self._last_rows + 1) // 2, self._max_rows)
        while self._waiting and len(rows) < most:
            row = self._waiting[0]
            size += len(row.payload)
            if rows and size > MAX_BYTES:
                break
            self._waiting.popleft()
            if not row.result.done():
                rows.append(row)
            elif self._exclusive:  # its request was cancelled
                self._end_turns([row])
        self._last_rows = len(rows)
        return rows

    def _may_be_sent_again(self, error: Exception) -> bool:
        """Whether the statement may be one row's fault, and was not executed."""
        if isinstance(error, StatementFailed):
            return not error.for_every_row
        if isinstance(error, Unavailable) and not isinstance(error, Contended):
            return False  # the database is away, for example
        return self._idempotent or isinstance(error, RuleBroken | Contended)

    async def _send_alone(self, rows: Rows[Result]) -> None:
        """Send each row alone, once.

        After the first one that is `Unavailable`, no further row is sent: no request waits for more
        than one timeout.
        """
        failure: Exception | None = None
        for row in rows:
            if failure is None and not row.result.done():
                try:
                    _set_results([row], await self._run([row]))
                except Exception as error:  # noqa: BLE001 - as in `_execute`
                    _set_results([row], {}, error)
                    failure = error if isinstance(error, Unavailable) else None
            elif failure:
                _set_results([row], {}, failure)


def _set_results(
    rows: Rows[Result], results: Mapping[int, Result], error: Exception | None = None
) -> None:
    for row in rows:
        if row.result.done():
            continue
        if error:
            row.result.set_exception(error)
        else:
            row.result.set_result(results.get(row.key))
