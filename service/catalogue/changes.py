"""The feed of changes: what was created, changed and deleted, in an order that misses nothing.

docs/decisions/0018-feed-of-changes.md.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from service.catalogue.movie import TYPES, Movie
from service.config import Sharing
from service.context import RequestContext
from service.database.batching import Batcher, Rows, list_contexts
from service.database.query import Expected
from service.database.statements import Row, Statements
from service.errors import CursorExpired, Refusal, Unavailable

QUERIES: Mapping[str, Expected] = {
    "get_changes": Expected(
        {
            "position": int,
            "feed": str,
            "horizon": str,
            "is_cleared": bool,
            "transaction": str,
            "change": int,
            "kind": str,
            "movie_id": int,
            "change_version": int,
            "changed_at": datetime,
            **TYPES,
        },
        [{"requests": "[]", "size": 1}],
        "GET the changes, and lists of all movies",
    ),
}

PAGE_CHANGES = 100
MAX_TRANSACTION = 2**64 - 1
# Requests per statement: together, their pages may have 1,600 movies.
MAX_REQUESTS = 16
POLL_S = 0.2  # while requests wait for changes
MAX_WAITING = 1000  # requests; further ones are refused


class Place(NamedTuple):
    """A place in a feed: behind the change with this id in a transaction."""

    feed: str
    transaction: int
    change: int


class Change(NamedTuple):
    """A change of a movie; `movie` is the movie as it is now, None if it is gone."""

    kind: str  # created, updated or deleted
    movie_id: int
    version: int  # after the change, or the last one
    changed_at: datetime
    movie: Movie | None


class ChangePage(NamedTuple):
    """Some changes in their order, and the place where the feed goes on."""

    changes: list[Change]
    next: Place


class Feed:
    """Returns changes; may raise `Unavailable`."""

    def __init__(self, statements: Statements, sharing: Sharing) -> None:
        self._statements = statements
        self._numbers = itertools.count()
        self._batcher: Batcher[list[Row]] = Batcher(
            self._fetch,
            sharing,
            max_rows=MAX_REQUESTS,
            idempotent=True,
            rows_metric=statements.metrics.shared_statement_rows.labels("get_changes"),
        )
        self._waiting: dict[asyncio.Future[None], Place] = {}
        self._asking: asyncio.Task[None] | None = None

    async def fetch(self, after: Place | None, context: RequestContext | None = None) -> ChangePage:
        """Return the next changes behind the place, or the oldest ones that are kept.

        `context`: of the request, for logs. Raises `CursorExpired` if the place is of another feed,
        or if changes behind it were cleared.
        """
        rows = await self._ask(after, context)
        if not rows:
            raise Unavailable("the feed is off in the database: run migrate", Refusal.NOT_READY)
        feed, horizon, is_cleared, transaction, change, *_ = rows[-1]
        if after and (is_cleared or after.feed != feed):
            raise CursorExpired
        place = Place(feed, int(horizon), 0)
        if len(rows) == PAGE_CHANGES:
            place = Place(feed, int(transaction), change)
        return ChangePage([_make_change(*row[5:]) for row in rows if row[4] is not None], place)

    async def find_end(self, context: RequestContext) -> Place | None:
        """Return the place behind all changes that can be read now; None if the feed is off."""
        rows = await self._ask(Place("", MAX_TRANSACTION, 0), context)
        return Place(rows[0][0], int(rows[0][1]), 0) if rows else None

    async def wait(self, after: Place, seconds: float) -> bool:
        """Wait until there may be changes behind the place; False after so many seconds."""
        if len(self._waiting) >= MAX_WAITING:
            raise Unavailable("too many requests wait for changes", Refusal.QUEUE_FULL)
        news = asyncio.get_running_loop().create_future()
        self._waiting[news] = after
        self._asking = self._asking or asyncio.create_task(self._ask_for_all())
        try:
            await asyncio.wait([news], timeout=seconds)
        finally:
            del self._waiting[news]
        return news.done()

    async def _ask_for_all(self) -> None:
        """Look for changes behind the first place, for all requests that wait."""
        while self._waiting:
            try:
                has_news = bool((await self.fetch(min(self._waiting.values()))).changes)
            except Exception:  # noqa: BLE001 - each request looks itself, and gets its own error
                has_news = True
            for news in self._waiting if has_news else ():
                if not news.done():
                    news.set_result(None)
            await asyncio.sleep(POLL_S)
        self._asking = None

    def _ask(
        self, after: Place | None, context: RequestContext | None
    ) -> Awaitable[list[Row] | None]:
        number = next(self._numbers)
        request: dict[str, int | str] = {"position": number}
        if after:
            request |= {"after": str(after.transaction), "after_id": after.change}
        return self._batcher.submit(number, orjson.dumps(request), context)

    async def _fetch(self, rows: Rows[list[Row]]) -> dict[int, list[Row]]:
        """Run the statement; return the rows of each request without its number."""
        requests = "[" + b",".join([row.payload for row in rows]).decode() + "]"
        fetched = await self._statements.fetch(
            "get_changes", waiting=list_contexts(rows), requests=requests, size=PAGE_CHANGES
        )
        found: dict[int, list[Row]] = {}
        for number, *row in fetched:
            found.setdefault(number, []).append(tuple(row))
        self._statements.require_sent("get_changes", [*found], [row.key for row in rows])
        return found


def _make_change(
    kind: str, movie_id: int, version: int, changed_at: datetime, *movie: Any
) -> Change:
    is_there = movie[0] is not None
    return Change(kind, movie_id, version, changed_at, Movie._make(movie) if is_there else None)
