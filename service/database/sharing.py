"""Requests that arrive together share one statement: docs/decisions/0001-share-statements.md.

While a statement runs, rows of new requests wait for the next one, which carries all of them, first
in, first out. On an idle service, a statement is sent at the end of the event loop's current turn.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client import Histogram

from service.database.caller import NOBODY, Caller
from service.errors import Contended, Refusal, RuleBroken, StatementFailed, Unavailable
from service.telemetry.metrics import OFF, Off

Result = TypeVar("Result")

MAX_RUNNING = 2  # statements of one kind
SLOW_S = 0.02  # a statement that takes longer gets a second one beside it
# A statement takes half of the rows (`count_rows`): a higher limit helps only from 256 clients on.
MAX_ROWS = 128
# Rows that may wait for the next statements; and those of an exclusive key, each of which waits
# until the one before it is done. Further requests are refused at once.
MAX_WAITING = 1000
MAX_WAITING_FOR_KEY = 100
ALONE_MAX_S = 1.0  # for the rows of a statement that failed, one after the other
MAX_PAYLOAD_BYTES = 1_048_576  # of the payloads of one statement, or one larger payload


@dataclass(slots=True, eq=False)
class SharedRow(Generic[Result]):
    """The row of one request in a shared statement; `payload`: its JSON, if it needs any."""

    key: int
    payload: bytes
    caller: Caller
    result: asyncio.Future[Result | None]


Rows = Sequence[SharedRow[Result]]
Results = Mapping[int, Result | Exception | None]  # of rows, by key
Run = Callable[[Rows[Result]], Awaitable[Results[Result]]]
Outcome = Results[Result] | Exception


def count_rows(sizes: Sequence[int], last_rows: int, max_rows: int, *, takes_all: bool) -> int:
    """Return how many of the waiting rows, first in, first out, the next statement takes.

    `sizes`: of their payloads, in bytes; `last_rows`: of the last statement, whose clients will
    soon send their next requests. A statement takes half of both together: the database works on
    one half while clients get the other half. With `takes_all`, it takes all that wait. In any
    case, at most `max_rows` and `MAX_PAYLOAD_BYTES`, but at least one row.
    """
    most = len(sizes) if takes_all else (len(sizes) + last_rows + 1) // 2
    taken = min(most, max_rows, len(sizes))
    while taken > 1 and sum(sizes[:taken]) > MAX_PAYLOAD_BYTES:
        taken -= 1
    return taken


def list_callers(rows: Rows[Result]) -> list[Caller]:
    """Return the callers of these rows."""
    return [row.caller for row in rows]


def join_payloads(payloads: Iterable[bytes]) -> str:
    """Return the payloads of several rows as one JSON array."""
    return f"[{b','.join(payloads).decode()}]"


def join_ids(ids: Iterable[int]) -> str:
    """Return the ids as an array literal, which the server parses faster than `array[...]`."""
    return f"{{{','.join(map(str, ids))}}}"


class SharedStatements(Generic[Result]):
    """Shares statements among the requests of one kind.

    A row waits in `_next`; if its exclusive key is under way, first in `_later`. A statement takes
    rows (`_take_rows`), is sent (`_send`), and gives them their results; if one of the rows may
    have failed it, each is sent alone.

    What must stay true: each row gets one result or error, also if the statement is cancelled; at
    most `MAX_RUNNING` statements run, and a second one only beside a slow one; of an exclusive key,
    one row is under way; a row is sent again only if its first statement was rolled back, or is
    `is_repeatable`.

    `run` executes a statement for some rows and returns the results, or errors, by key; a key
    without a result gives None. `exclusive`: a key may be in one running statement only, once.
    `is_repeatable`: a row may be executed twice. `rows_metric`: of the rows of each shared
    statement. `takes_all`: all rows have the same result, so one statement takes all of them.
    """

    def __init__(  # noqa: PLR0913 - its options
        self,
        run: Run[Result],
        *,
        max_rows: int = MAX_ROWS,
        exclusive: bool = False,
        is_repeatable: bool = False,
        rows_metric: Histogram | Off = OFF,
        takes_all: bool = False,
    ) -> None:
        self._run = run
        self._takes_all = takes_all
        self._exclusive = exclusive
        self._is_repeatable = is_repeatable
        self._rows_metric = rows_metric
        self._max_rows = max_rows
        self._next: deque[SharedRow[Result]] = deque()  # for the next statement
        # While a row with an exclusive key waits or runs: further rows with this key, by key.
        self._later: dict[int, deque[SharedRow[Result]]] = {}
        self._running: set[asyncio.Task[None]] = set()
        # No other statement starts until this one ends or is slow.
        self._blocking: asyncio.Task[None] | None = None
        self._last_rows = 0  # of the last statement

    def submit(
        self, key: int, payload: bytes = b"", caller: Caller = NOBODY
    ) -> Awaitable[Result | None]:
        """Return the result of this row, to be awaited; `Unavailable` if too many rows wait."""
        if len(self._next) >= MAX_WAITING:
            raise Unavailable("too many requests are waiting already", Refusal.QUEUE_FULL)
        queue = self._choose_queue(key) if self._exclusive else self._next
        row: SharedRow[Result] = SharedRow(key, payload, caller, asyncio.Future())
        queue.append(row)
        if not self._blocking:
            self._start()
        return row.result

    def _choose_queue(self, key: int) -> deque[SharedRow[Result]]:
        """Return the queue for a row with this exclusive key; such rows are sent one by one."""
        if (queue := self._later.get(key)) is None:
            self._later[key] = deque()
            return self._next
        if len(queue) >= MAX_WAITING_FOR_KEY:
            raise Unavailable(f"{len(queue)} are waiting for {key} already", Refusal.QUEUE_FULL)
        return queue

    def _free_keys(self, rows: Rows[Result]) -> None:
        """Let the next rows with these exclusive keys wait for the next statement."""
        for row in rows:
            if queue := self._later[row.key]:
                self._next.append(queue.popleft())
            else:
                del self._later[row.key]

    def _start(self) -> None:
        """Start a statement if rows wait, and none runs, or only one that is slow."""
        if self._next and not self._blocking and len(self._running) < MAX_RUNNING:
            self._blocking = asyncio.get_running_loop().create_task(self._execute())
            self._running.add(self._blocking)

    def _unblock(self, statement: asyncio.Task[None]) -> None:
        """Let another statement start beside this slow one."""
        if self._blocking is statement:
            self._blocking = None
            self._start()

    async def _execute(self) -> None:
        """Take rows, run a statement for them, and give each its result or error."""
        statement: asyncio.Task[None] = asyncio.current_task()  # type: ignore[assignment] # never None
        rows = self._take_rows()
        # If this task is cancelled:
        outcome: Outcome[Result] = Unavailable("it was given up", Refusal.STATEMENT_LOST)
        try:
            asyncio.get_running_loop().call_later(SLOW_S, self._unblock, statement)
            outcome = await self._send_or_divide(rows)
        finally:
            if self._exclusive:
                self._free_keys(rows)
            self._running.discard(statement)
            if self._blocking is statement:
                self._blocking = None
            self._start()  # first: the next one is on its way while clients get these results
            _return_to_requests(rows, outcome)

    def _take_rows(self) -> list[SharedRow[Result]]:
        """Take rows for a statement, and drop those whose requests were cancelled."""
        sizes = [len(row.payload) for row in self._next]
        number = count_rows(sizes, self._last_rows, self._max_rows, takes_all=self._takes_all)
        taken = [self._next.popleft() for _ in sizes[:number]]
        rows = [row for row in taken if not row.result.done()]
        if self._exclusive and len(rows) < number:
            self._free_keys([row for row in taken if row.result.done()])
        self._last_rows = len(rows)
        return rows

    async def _send_or_divide(self, rows: Rows[Result]) -> Outcome[Result]:
        """Send the rows; if one of them may have failed the statement, send each alone."""
        if not rows:
            return {}
        outcome = await self._send(rows)
        if isinstance(outcome, Exception) and self._may_be_one_row(outcome, rows):
            await self._send_alone(rows)  # each has its own result then
        return outcome

    async def _send(self, rows: Rows[Result]) -> Outcome[Result]:
        self._rows_metric.observe(len(rows))
        try:
            return await self._run(rows)
        except Exception as error:  # noqa: BLE001 - any error is raised for the requests
            return error

    def _may_be_one_row(self, error: Exception, rows: Rows[Result]) -> bool:
        """Whether one row may have caused the error, and the rows may be sent again."""
        if len({row.key for row in rows}) < 2:  # noqa: PLR2004 - one row, or all are the same
            return False
        if isinstance(error, StatementFailed):
            return not error.for_every_row
        if isinstance(error, RuleBroken | Contended):
            return True  # it was rolled back
        return self._is_repeatable and not isinstance(error, Unavailable)

    async def _send_alone(self, rows: Rows[Result]) -> None:
        """Send each row alone, once; after an `Unavailable`, the others get it, too.

        A `Contended` is only for its row, unless `ALONE_MAX_S` has passed.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + ALONE_MAX_S
        for row in rows:
            if not row.result.done():
                outcome = await self._send([row])
                is_for_all = isinstance(outcome, Unavailable) and (
                    not isinstance(outcome, Contended) or loop.time() > give_up
                )
                _return_to_requests(rows if is_for_all else [row], outcome)


def _return_to_requests(rows: Rows[Result], outcome: Outcome[Result]) -> None:
    pending = [row for row in rows if not row.result.done()]
    if isinstance(outcome, Exception):
        for row in pending:
            row.result.set_exception(outcome)
    else:
        for row in pending:
            result = outcome.get(row.key)
            if isinstance(result, Exception):
                row.result.set_exception(result)
            else:
                row.result.set_result(result)
