"""Requests that arrive together share one statement.

While a statement is under way, the rows that requests ask for collect, for the next statement to
carry. Nobody waits for company: with nothing under way, a statement leaves at the end of the event
loop's current turn. So an idle service answers as fast as one without this, and a busy one sends
few statements with many rows, of which each costs the database a fraction.

A statement takes half of the rows in sight: of those that wait, and those of the last one, whose
clients are about to ask again where many clients keep it busy. So the database works on one half
while the service answers the other. If all went together, each of the two would wait for the other
in turn: with 64 clients, and a fast database beside the service, that cost a fifth of the requests.

A row that comes in between waits for the statement under way, and then for its own: with a few
clients and a database far away that is longer than with a statement for each request.

It is what DataLoader does for reads (https://github.com/graphql/dataloader) and group commit for
writes (https://www.postgresql.org/docs/current/runtime-config-wal.html#GUC-COMMIT-DELAY), in one
mechanism:

- A row leaves after its request arrived, so a read sees every write that was acknowledged before.
- A result is handed out after its own statement has committed, never before.
- A row that breaks a statement breaks it for itself alone: the others are sent again apart, until
  one of them times out, as then the whole table may be locked. None is carried out twice, unless
  that does no harm: what may have been carried out already is not sent again.
- Nobody's leaving cancels a statement. A row whose request has timed out before never leaves.
- A statement that is stuck holds up the next ones for `PATIENCE` and no longer.
- What waits is bounded, in rows; what does not fit is refused at once.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Generic, TypeVar

from service.config import Sharing
from service.errors import Contended, RuleBroken, StatementFailed, Unavailable

Result = TypeVar("Result")

# Seconds that rows wait behind a statement before another one is sent beside it; after so long
# without any, it has been quiet.
PATIENCE = 0.02
# Up to so many rows in sight have a statement each: at two connections that is a fourth faster.
FEW = 2


@dataclass(slots=True, eq=False)
class Row(Generic[Result]):
    """One request's part of a statement: `payload` is what the statement needs of it."""

    key: int
    payload: bytes
    result: asyncio.Future[Result | None]


Run = Callable[[list[Row[Result]]], Awaitable[Mapping[int, Result]]]


class Batcher(Generic[Result]):
    """Shares statements among the requests of one kind.

    `run` carries out a statement for some rows and returns the results by key; a key without a
    result gives None. `exclusive`: no key may stand twice in a statement, or in two at once.
    `idempotent`: a row may be carried out twice.
    """

    def __init__(
        self,
        run: Run[Result],
        settings: Sharing,
        *,
        exclusive: bool = False,
        idempotent: bool = False,
    ) -> None:
        self._run = run
        self._settings = settings
        self._exclusive = exclusive
        self._idempotent = idempotent
        self._waiting: deque[Row[Result]] = deque()
        self._busy: set[int] = set()  # keys under way, where they are exclusive
        self._under_way: dict[asyncio.Task[None], float] = {}  # since when, the youngest last
        self._last = 0  # rows of the last statement
        self._ended = -inf  # when one last did
        self._leaving = False  # a statement leaves at the end of this turn
        self._alarm: asyncio.TimerHandle | None = None
        self._places = asyncio.Semaphore(settings.max_under_way)  # for rows that are sent apart
        self._stuck = (-inf, Unavailable())  # since when, and why, the others are not tried

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()  # asked for once: it costs a system call

    async def submit(self, key: int, payload: bytes = b"") -> Result | None:
        """Have this row carried along and return its result.

        Raises what `run` raises for it, or `Unavailable` where too many are waiting.
        """
        row: Row[Result] = Row(key, payload, self._loop.create_future())
        if not self._settings.enabled:
            return (await self._run([row])).get(key)
        if len(self._waiting) >= self._settings.max_waiting:
            raise Unavailable(f"{len(self._waiting)} requests are waiting already")
        self._waiting.append(row)
        if not self._leaving and self._alarm is None:
            self._consider()
        return await row.result

    def _consider(self) -> None:
        """Have a statement leave, unless one is young enough to be waited for."""
        if self._alarm:
            self._alarm.cancel()
            self._alarm = None
        if not self._waiting or self._leaving:
            return
        under_way = len(self._under_way)
        if not under_way or (under_way == 1 and self._last + len(self._waiting) <= FEW):
            self._leave()
        elif under_way < self._settings.max_under_way:
            ripe = next(reversed(self._under_way.values())) + PATIENCE
            if ripe <= self._loop.time():
                self._leave()
            else:
                self._alarm = self._loop.call_at(ripe, self._consider)

    def _leave(self) -> None:
        """Have a statement leave at the end of this turn, when its task begins."""
        self._leaving = True
        task = self._loop.create_task(self._begin())
        self._under_way[task] = self._loop.time()

    async def _begin(self) -> None:
        self._leaving = False
        if rows := self._take():
            self._consider()  # what did not fit must not wait for this one alone
            await self._carry(rows)
        else:  # all of them are gone, or wait for one that is under way
            del self._under_way[asyncio.current_task(self._loop)]  # type: ignore[arg-type] # it is a task

    def _take(self) -> list[Row[Result]]:
        """Take half of those in sight, first come first served, and no more than fit.

        After a quiet time nobody is about to ask again, and those who come together go together.
        They count for half as many then, or they would come back and leave together for ever.
        """
        rows: list[Row[Result]] = []
        later: list[Row[Result]] = []
        size = 0
        quiet = len(self._under_way) == 1 and self._loop.time() > self._ended + PATIENCE
        most = len(self._waiting) if quiet else (len(self._waiting) + self._last + 1) // 2
        most = min(most, self._settings.max_rows)
        while self._waiting and len(rows) < most:
            row = self._waiting.popleft()
            if row.result.done():  # its request has gone
                continue
            if row.key in self._busy:
                later.append(row)
                continue
            size += len(row.payload)
            if rows and size > self._settings.max_bytes:
                self._waiting.appendleft(row)
                break
            rows.append(row)
            if self._exclusive:
                self._busy.add(row.key)
        self._waiting.extendleft(reversed(later))
        self._last = len(rows) // 2 if quiet else len(rows)
        return rows

    async def _carry(self, rows: list[Row[Result]]) -> None:
        try:
            try:
                results = await self._run(rows)
            except Exception as error:
                if len(rows) == 1 or not self._may_be_sent_again(error):
                    raise
                await self._apart(rows)
                return
            finally:
                self._end(rows)  # the next statement leaves before these are answered
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must learn it
            _fail(rows, error)
        except BaseException:
            _fail(rows, Unavailable("the statement was given up"))  # nobody may wait for ever
            raise
        else:
            _hand_out(results, rows)

    def _end(self, rows: list[Row[Result]]) -> None:
        if self._exclusive:
            self._busy.difference_update(row.key for row in rows)
        del self._under_way[asyncio.current_task(self._loop)]  # type: ignore[arg-type] # it is a task
        self._ended = self._loop.time()
        self._consider()

    def _may_be_sent_again(self, error: Exception) -> bool:
        """Whether the statement may be one row's fault, and was not carried out."""
        if isinstance(error, StatementFailed):
            return not error.for_every_row
        if isinstance(error, Unavailable) and not isinstance(error, Contended):
            return False  # the database is away, say
        return self._idempotent or isinstance(error, RuleBroken | Contended)

    async def _apart(self, rows: list[Row[Result]]) -> None:
        """Send each row alone, some at a time.

        Once one has timed out, of whichever statement, or met no database, no more are tried of
        those that are here by then: nobody waits for more than a round of timeouts.
        """
        began = self._loop.time()

        async def alone(row: Row[Result]) -> None:
            async with self._places:
                since, stuck = self._stuck
                if began < since:
                    _fail([row], stuck)
                elif not row.result.done():
                    try:
                        _hand_out(await self._run([row]), [row])
                    except Exception as error:  # noqa: BLE001 - as in `_carry`
                        if isinstance(error, Unavailable):
                            self._stuck = (self._loop.time(), error)
                        _fail([row], error)

        await asyncio.gather(*(alone(row) for row in rows))


def _hand_out(results: Mapping[int, Result], rows: list[Row[Result]]) -> None:
    for row in rows:
        if not row.result.done():
            row.result.set_result(results.get(row.key))


def _fail(rows: list[Row[Result]], error: Exception) -> None:
    for row in rows:
        if not row.result.done():
            row.result.set_exception(error)
