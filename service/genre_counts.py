"""Counts the movies of each genre.

Counting reads the whole table. So each process caches the counts for 100 times as long as the count
took, at least 1 s: it spends at most 1 % of its time on counting.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from service.context import RequestContext
from service.database.query import Expected
from service.database.statements import Statements
from service.errors import Contended, Refusal, Unavailable

QUERIES: Mapping[str, Expected] = {
    "count_genres": Expected(
        {"genre": str, "movies": int, "total_records": int, "as_of": datetime, "seconds": float},
        [{}],
        "GET the genres",
    ),
}

CACHE_FACTOR = 100  # times the duration of the count
CACHE_MIN_S = 1.0
# A request waits so long for a new count, then it gets the old one; a small catalogue takes less.
MAX_WAIT_S = 0.05
MAX_STALE_S = 60.0  # after the cache time, nobody gets the counts: a count takes no longer


class Counts(NamedTuple):
    """The most frequent genres (at most 1000), each with its number of movies.

    `total`: the number of all genres. `as_of`: every earlier commit is counted (UTC).
    """

    genres: list[tuple[str, int]]
    total: int
    as_of: datetime


class GenreCounts:
    """The number of movies per genre, as last counted by this process.

    `max_lag`: how much older than the count what was counted may be, in seconds.
    """

    def __init__(self, statements: Statements, max_lag: float = 0) -> None:
        self._statements = statements
        self._max_lag = timedelta(seconds=max_lag)
        self._counting: asyncio.Task[None] | None = None
        self._started_at = 0.0  # of the last count, by the loop's clock
        self._cached_until = 0.0
        self._usable_until = 0.0
        self._counts: Counts | None = None
        self._error: Exception = Unavailable("no count has ended", Refusal.STATEMENT_LOST)

    async def get(self, context: RequestContext | None = None) -> Counts:
        """Return the counts; requests share one query. `context`: of the request, for logs.

        While the query runs, or if it fails, requests get the old counts for `MAX_STALE_S` more.
        Then, and without old counts, they wait; raises `Unavailable` or `StatementFailed`.
        """
        now = asyncio.get_running_loop().time()
        if not self._counting and now >= self._cached_until:
            self._started_at = now
            self._counting = asyncio.create_task(self._count([context] if context else []))
        if self._counting:
            is_usable = now < self._usable_until
            wait = max(0, self._started_at + MAX_WAIT_S - now) if is_usable else None
            await asyncio.wait([self._counting], timeout=wait)
        if self._counts is None or now >= self._usable_until:
            raise self._error.with_traceback(None)  # each raise would add to the former one
        return self._counts

    async def _count(self, waiting: list[RequestContext]) -> None:
        """Count, and store the counts or the error."""
        loop = asyncio.get_running_loop()
        try:
            rows = await self._statements.fetch("count_genres", waiting=waiting)
            if not rows:
                raise self._statements.report("count_genres", "it returned no row")  # noqa: TRY301
            *_, total, as_of, seconds = rows[0]
            genres = [(genre, movies) for genre, movies, *_ in rows if genre is not None]
            self._counts = Counts(genres, total, as_of.astimezone(UTC) - self._max_lag)
            pause = max(CACHE_MIN_S, CACHE_FACTOR * seconds)
            self._usable_until = loop.time() + pause + MAX_STALE_S
        except Exception as error:  # noqa: BLE001 - waiting requests must get any error
            self._error = self._statements.report("count_genres", error)
            pause = max(CACHE_MIN_S, loop.time() - self._started_at)
            if isinstance(error, Unavailable) and not isinstance(error, Contended):
                pause = 0  # it has not counted, and the database may be ready by the next request
        self._cached_until = loop.time() + pause
        self._counting = None
