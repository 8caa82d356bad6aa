"""How many movies each genre has, counted now and then; knows no HTTP.

Counting reads the whole table, so no request does it: the counts are kept in a table of their own,
and a task of every process has them brought up to date. The database sees to it that only one of
them counts at a time, and only when movies has changed (queries/genres.sql).
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import NamedTuple

from service.config import Genres as Settings
from service.config import Sharing
from service.database.batching import Batcher, Row
from service.database.queries import Expected
from service.database.statements import Statements
from service.errors import Contended, Unavailable
from service.logs import Outage

QUERIES: Mapping[str, Expected] = {
    "get_genres": Expected((), ("genre", "movies", "total_records", "as_of")),
    "get_movies_mark": Expected((), ("mark",)),
    "count_genres": Expected(("older_than", "mark"), ("counted",)),
}

# Of `recount_every`: a look that is older is due for another. A little less than one, or a process
# would now and then come a moment too early and leave it for a whole round.
DUE = 0.9
# Of `recount_every`: how long a count may take.
COUNT_TIMEOUT = 10


class Counts(NamedTuple):
    """The most frequent genres (1000 at most) with their movies, most movies first.

    `total`: of all genres. `as_of`: every change that was committed before it is counted, in UTC.
    """

    genres: list[tuple[str, int]]
    total: int
    as_of: datetime


class Genres:
    """The genres of the catalogue, as last counted."""

    def __init__(self, statements: Statements, settings: Settings, sharing: Sharing) -> None:
        self._fetch = statements.fetch
        self._every = settings.recount_every
        self._gets = Batcher(self._get, sharing, idempotent=True)
        self.outage = Outage("genres not counted", "genres counted again")

    async def get(self) -> Counts:
        """Return the counts; `Unavailable`, also when nothing was ever counted."""
        counts = await self._gets.submit(0)
        if counts is None:  # a DBA emptied genre_counting: the next count puts it right
            raise Unavailable("the genres have not been counted yet")
        return counts

    async def recount(self) -> bool:
        """Count again where the counts are old and movies has changed; whether this call did.

        Raises `Unavailable`: the database is away or read-only, or counting took too long.
        """
        # In a statement of its own, before the one that counts: queries/genres.sql says why.
        ((mark,),) = await self._fetch("get_movies_mark", retry=True)
        counted = await self._fetch(
            "count_genres",
            timeout=self._every * COUNT_TIMEOUT,
            older_than=self._every * DUE,
            mark=mark,
        )
        return counted == [(True,)]

    async def try_recount(self) -> None:
        """Recount, and log a failure unless the time before was one too."""
        try:
            await self.recount()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next time it may be gone
            self.outage.failed(error)
        else:
            self.outage.succeeded()

    @asynccontextmanager
    async def recounted(self) -> AsyncIterator[None]:
        """Have them recounted, at once and then every `recount_every` seconds, while inside.

        Leaving waits for nobody: a count under way goes on in the database and is kept.
        """
        task = asyncio.create_task(self._keep_recounting())
        try:
            yield
        finally:
            task.cancel()

    async def _keep_recounting(self) -> None:
        while True:
            await self.try_recount()
            await asyncio.sleep(self._every)

    async def _get(self, rows: list[Row[Counts]]) -> dict[int, Counts]:
        try:
            fetched = await self._fetch("get_genres", retry=True)
        except Contended as error:
            # A read waits for no row, only for the whole table: apart it would do so again.
            raise Unavailable(str(error)) from error
        if not fetched:
            return {}
        _, _, total, as_of = fetched[0]
        genres = [(genre, movies) for genre, movies, _, _ in fetched if genre is not None]
        return {row.key: Counts(genres, total, as_of.astimezone(UTC)) for row in rows}
