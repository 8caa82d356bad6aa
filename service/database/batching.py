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
- A row that breaks a statement breaks it for itself alone: the others are sent again, each apart.
  Those that are free go first, and the locked ones wait until one of them times out, as then the
  whole table may be locked.
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
from service.errors import Contended, TimedOut, Unavailable

Result = TypeVar("Result")

# Seconds that rows wait behind a statement before another one is sent beside it; after so long
# without any, it has been quiet.
PATIENCE = 0.02
# Seconds that a statement waits for locks where many wait for it; then its rows are sent apart.
LOCK_TIMEOUT = 0.25
# And that each of those does, for the first time: long enough for one that nobody has locked.
GLANCE = 0.01
# Up to so many rows in sight have a statement each: at two connections that is a fourth faster.
FEW = 2


@dataclass(slots=True, eq=False)
class Row(Generic[Result]):
    """One request's part of a statement: `payload` is what the statement needs of it."""

    key: int
    payload: bytes
    result: asyncio.Future[Result | None]


Run = Callable[[list[Row[Result]], float], Awaitable[Mapping[int, Result]]]


class Batcher(Generic[Result]):
    """Shares statements among the requests of one kind.

    `run` carries out a statement for some rows and returns the results by key; a key without a
    result gives None. It waits for locks as many seconds as it is told, and raises `Contended`;
    where that is 0, as long as for anything. `exclusive`: no key may stand twice in a
    statement, or in two at once.
    """

    def __init__(self, run: Run[Result], settings: Sharing, *, exclusive: bool = False) -> None:
        self._run = run
        self._settings = settings
        self._exclusive = exclusive
        self._waiting: deque[Row[Result]] = deque()
        self._busy: dict[int, Row[Result]] = {}  # by key, under way, where keys are exclusive
        self._under_way: dict[asyncio.Task[None], float] = {}  # since when, the youngest last
        self._last = 0  # rows of the last statement
        self._ended = -inf  # when one last did
        self._leaving = False  # a statement leaves at the end of this turn
        self._alarm: asyncio.TimerHandle | None = None
        self._places = asyncio.Semaphore(settings.max_under_way)  # for rows that are sent apart

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()  # asked for once: it costs a system call

    async def submit(self, key: int, payload: bytes = b"") -> Result | None:
        """Have this row carried along and return its result.

        Raises what `run` raises for it, or `Unavailable` where too many are waiting.
        """
        row: Row[Result] = Row(key, payload, self._loop.create_future())
        if not self._settings.enabled:
            return (await self._run([row], 0)).get(key)
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
                self._busy[row.key] = row
        self._waiting.extendleft(reversed(later))
        self._last = len(rows) // 2 if quiet else len(rows)
        return rows

    async def _carry(self, rows: list[Row[Result]]) -> None:
        try:
            try:
                results = await self._run(rows, LOCK_TIMEOUT if len(rows) > 1 else 0)
            except Exception as error:
                if len(rows) == 1 or _is_everybodys(error):
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
        self._free(rows)
        del self._under_way[asyncio.current_task(self._loop)]  # type: ignore[arg-type] # it is a task
        self._ended = self._loop.time()
        self._consider()

    def _free(self, rows: list[Row[Result]]) -> None:
        if self._exclusive:
            for row in rows:
                if self._busy.get(row.key) is row:  # and no other statement's by now
                    del self._busy[row.key]

    async def _apart(self, rows: list[Row[Result]]) -> None:
        """Send each row alone, some at a time: first for a glance, then those that were locked.

        Once one has timed out, no more are tried.
        """
        locked: list[Row[Result]] = []
        stuck: list[Contended] = []

        async def alone(row: Row[Result], lock_timeout: float) -> None:
            async with self._places:
                if stuck:
                    _fail([row], stuck[0])
                if row.result.done():
                    return
                try:
                    results = await self._run([row], lock_timeout)
                except Contended as error:
                    if lock_timeout and not isinstance(error, TimedOut):
                        locked.append(row)
                    else:
                        stuck.append(error)
                        _fail([row], error)
                except Exception as error:  # noqa: BLE001 - as in `_carry`
                    _fail([row], error)
                else:
                    _hand_out(results, [row])
                if row.result.done():
                    self._free([row])  # the next change of it need not wait for the locked ones
                    self._consider()

        await asyncio.gather(*(alone(row, GLANCE) for row in rows))
        await asyncio.gather(*(alone(row, 0) for row in locked))


def _is_everybodys(error: Exception) -> bool:
    """Whether an error is not one row's fault: the database is away, say."""
    return isinstance(error, Unavailable) and not isinstance(error, Contended)


def _hand_out(results: Mapping[int, Result], rows: list[Row[Result]]) -> None:
    for row in rows:
        if not row.result.done():
            row.result.set_result(results.get(row.key))


def _fail(rows: list[Row[Result]], error: Exception) -> None:
    for row in rows:
        if not row.result.done():
            row.result.set_exception(error)
