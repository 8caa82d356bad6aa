"""How many movies each genre has; knows no HTTP.

Counting reads the whole table, so each process keeps the answer for 100 times as long as the count
took: counting takes at most 1 % of the time, and a small catalogue is always current.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from service.database.queries import Expected
from service.database.statements import Statements
from service.errors import Unavailable

QUERIES: Mapping[str, Expected] = {
    "count_genres": Expected(
        {"genre": str, "movies": int, "total_records": int, "as_of": datetime, "seconds": float},
        [{}],
        "GET the genres",
    ),
}

KEPT_TIMES = 100  # as long as the count took
KEPT_AT_LEAST_S = 1.0
# Requests wait so long for a count before they get the old answer: a small catalogue is counted by
# then.
WAIT_S = 0.05


class Counts(NamedTuple):
    """The most frequent genres (1000 at most) with their movies, most movies first.

    `total`: of all genres. `as_of`: every change that was committed before it is counted, in UTC.
    """

    genres: list[tuple[str, int]]
    total: int
    as_of: datetime


class Genres:
    """The genres of the catalogue, as last counted by this process."""

    def __init__(self, statements: Statements) -> None:
        self._fetch = statements.fetch
        self._counting: asyncio.Task[None] | None = None
        self._started_at = 0.0  # of the last count, by the loop's clock
        self._kept_until = 0.0
        self._counts: Counts | None = None
        self._error: Exception | None = None  # of the last count

    async def get(self) -> Counts:
        """Return the counts; `Unavailable` or `StatementFailed` if there are none yet.

        Requests share one count. While it runs, and if it fails, they get the old counts.
        """
        now = asyncio.get_running_loop().time()
        if not self._counting and now >= self._kept_until:
            self._started_at = now
            self._counting = asyncio.create_task(self._count())
        if self._counting:
            wait = None if self._counts is None else max(0, self._started_at + WAIT_S - now)
            await asyncio.wait([self._counting], timeout=wait)
        if self._counts is None:
            raise self._error or Unavailable("the count of genres was given up")
        return self._counts

    async def _count(self) -> None:
        """Count, and keep the answer or the error."""
        loop = asyncio.get_running_loop()
        try:
            rows = await self._fetch("count_genres", retry=True)
            *_, total, as_of, seconds = rows[0]
            genres = [(genre, movies) for genre, movies, *_ in rows if genre is not None]
            self._counts = Counts(genres, total, as_of.astimezone(UTC))
            pause = KEPT_TIMES * seconds
        except Exception as error:  # noqa: BLE001 - those who wait must learn it, whatever it is
            self._error = error
            pause = loop.time() - self._started_at
        self._kept_until = loop.time() + max(KEPT_AT_LEAST_S, pause)
        self._counting = None
