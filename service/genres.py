"""The genres: counts the movies of each, and shows the counts at /v1/genres.

Counting reads the whole table. So each process caches the counts for 100 times as long as the count
took, at least 1 s: it spends at most 1 % of its time on counting.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from aiohttp import web
from marshmallow.fields import List, Nested

from service.database.caller import NOBODY, Caller
from service.database.query import Expected
from service.database.statements import Statements
from service.errors import Contended, Refusal, Unavailable
from service.web.context import CONTEXT
from service.web.describe import IF_NONE_MATCH, describe_json, field, make_schema, time_field
from service.web.query_strings import reject_query_string
from service.web.responses import cacheable_response, encode_json, make_content
from service.web.route import Operation, Route, Scope

QUERIES: Mapping[str, Expected] = {
    "count_genres": Expected(
        {"genre": str, "movies": int, "total_records": int, "as_of": datetime, "seconds": float},
        [{}],
        "GET the genres",
        in_order=True,
    )
}

CACHE_FACTOR = 100  # times the duration of the count
CACHE_MIN_S = 1.0
# A request waits this long for a new count, then it gets the old one.
COUNT_WAIT_S = 0.05
MAX_STALE_S = 60.0  # how long counts are used after the cache time; a count is faster


class Counts(NamedTuple):
    """The most frequent genres (at most 1000), each with its number of movies.

    `total`: the number of all genres. `as_of`: every earlier commit is counted (UTC).
    """

    genres: list[tuple[str, int]]
    total: int
    as_of: datetime


class GenreCounts:
    """The movies per genre, as last counted here; the data may be `max_lag` seconds older."""

    def __init__(self, statements: Statements, max_lag: float = 0) -> None:
        self._statements = statements
        self._max_lag = timedelta(seconds=max_lag)
        self._counting: asyncio.Task[None] | None = None
        self._started_at = 0.0  # of the last count, by the loop's clock
        self._cached_until = 0.0
        self._usable_until = 0.0
        self._counts: Counts | None = None
        self._error: Exception = Unavailable("no count has ended", Refusal.STATEMENT_LOST)

    async def get(self, caller: Caller = NOBODY) -> Counts:
        """Return the counts; requests share one query.

        While the query runs, or if it fails, requests get the old counts for `MAX_STALE_S` more.
        Then, and without old counts, they wait; raises `Unavailable` or `StatementFailed`.
        """
        now = asyncio.get_running_loop().time()
        if not self._counting and now >= self._cached_until:
            self._started_at = now
            self._counting = asyncio.create_task(self._count(caller))
        if self._counting:
            is_usable = now < self._usable_until
            wait = max(0, self._started_at + COUNT_WAIT_S - now) if is_usable else None
            await asyncio.wait([self._counting], timeout=wait)
        if self._counts is None or now >= self._usable_until:
            raise self._error.with_traceback(None)  # each raise would add to the former one
        return self._counts

    async def _count(self, caller: Caller) -> None:
        """Count, and store the counts or the error."""
        loop = asyncio.get_running_loop()
        try:
            rows = await self._statements.fetch("count_genres", callers=[caller])
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


Genre = make_schema(
    "Genre",
    genre=field("the name of the genre", "drama"),
    movies=field("the number of movies of this genre", 120, minimum=1),
)
GenreMetadata = make_schema(
    "GenreMetadata",
    total_records=field("the number of all genres", 1, minimum=0),
    as_of=time_field("every change before this time is counted"),
)
GenreList = make_schema("GenreList", genres=List(Nested(Genre)), metadata=Nested(GenreMetadata))
LIST_GENRES = Operation(
    "list_genres",
    "List the genres",
    "Returns the genres with their numbers of movies, the most frequent first, at most 1,000; case"
    " and accents make no other genre. A large catalogue is counted about once a minute.",
    describe_json("The genres.", GenreList, ("ETag",)),
    (IF_NONE_MATCH,),
)


@dataclass(frozen=True)
class Genres:
    """The handlers of /v1/genres."""

    genres: GenreCounts
    cache_seconds: int

    async def list(self, request: web.Request) -> web.StreamResponse:
        """200, every genre with its number of movies, and the time of the count."""
        reject_query_string(request)
        counts = await self.genres.get(request[CONTEXT].caller)
        payload = {
            "genres": [{"genre": genre, "movies": movies} for genre, movies in counts.genres],
            "metadata": {"total_records": counts.total, "as_of": counts.as_of},
        }
        content = make_content(encode_json(payload))
        return cacheable_response(request, content, cache_seconds=self.cache_seconds)


def make_routes(genres: Genres) -> list[Route]:
    """Return the routes; 1,000 genres take 0.3 ms of CPU time."""
    return [Route("GET", "/v1/genres", genres.list, Scope.READ, LIST_GENRES, cost=3)]
