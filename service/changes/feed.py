"""The feed of changes: what was created, changed and deleted, in an order that misses nothing.

docs/decisions/0018-feed-of-changes.md.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from operator import attrgetter, itemgetter
from typing import NamedTuple

from service.context import RequestContext
from service.database.query import Expected
from service.database.statements import Statements
from service.errors import CatalogueError, Problem, Refusal, Unavailable
from service.movies.movie import COLUMN_TYPES, Movie, parse_movie

QUERIES: Mapping[str, Expected] = {
    "get_changes": Expected(
        {
            "feed": str,
            "as_of": datetime,
            "next_transaction": str,
            "is_expired": bool,
            "is_last": bool,
            "transaction": str,
            "change": int,
            "kind": str,
            "movie_id": int,
            "change_version": int,
            "changed_at": datetime,
            "deleted_movie": str,
            **COLUMN_TYPES,
        },
        [{"after": None, "after_id": None, "size": 1}],
        "GET the changes, and lists of all movies",
    ),
}

PAGE_CHANGES = 100
POLL_S = 0.2  # while requests wait for changes
END_S = 5.0  # for which the end of the feed is remembered, if it is on; replicas then show it
MAX_WAITING = 1000  # requests; further ones are refused


class CursorExpired(CatalogueError):
    """The feed of changes no longer has all changes after the cursor."""

    problem = Problem("cursor-expired", "Cursor expired", 410)
    detail = "the feed no longer has all changes after this cursor; start again with a whole list"


class FeedCursor(NamedTuple):
    """A point in a feed: after the change with this id in a transaction."""

    feed: str
    transaction: int
    change: int


END = FeedCursor("", 2**64 - 1, 0)  # after every change


class FeedEnd(NamedTuple):
    """The end of the feed, and a transaction that a list must show to begin there."""

    cursor: FeedCursor | None  # None if the feed is off, or cannot be read
    min_transaction: int


class Change(NamedTuple):
    """A change of a movie; `movie` is the movie as it is now, None if it is gone.

    `deleted_movie`: of a deletion, the movie as it was; None if the feed did not keep it.
    """

    cursor: FeedCursor  # after it
    kind: str  # created, updated or deleted
    movie_id: int
    version: int  # after the change, or the last one
    changed_at: datetime
    deleted_movie: Movie | None
    movie: Movie | None


@dataclass(frozen=True, eq=False)
class ChangePage:
    """Some changes in their order, and the cursor where the feed goes on."""

    changes: Sequence[Change]
    next: FeedCursor
    as_of: datetime  # every change that was committed before is in the feed


class Feed:
    """Returns changes; may raise `Unavailable`.

    What must stay true: a client that goes on from cursor to cursor sees every change of a movie,
    or its last one, once it is committed; a cursor after which changes may be missing is
    `CursorExpired`.
    """

    def __init__(self, statements: Statements, *, has_replicas: bool = False) -> None:
        self._statements = statements
        self._has_replicas = has_replicas
        self._end: FeedCursor | None = None  # as of `_end_read_at`, by the loop's clock
        self._end_read_at = -inf
        self._waiting: dict[asyncio.Future[ChangePage], FeedCursor] = {}
        self._asking: asyncio.Task[None] | None = None

    async def fetch(
        self, after: FeedCursor | None, context: RequestContext, limit: int = PAGE_CHANGES
    ) -> ChangePage:
        """Return up to `limit` changes after the cursor, or the oldest ones that are kept.

        `context`: of the request, for logs. Raises `CursorExpired` if the cursor is of another
        feed, or if changes after it may be missing.
        """
        page, is_expired = await self._read(after, [context], limit)
        if after and (is_expired or after.feed != page.next.feed):
            raise CursorExpired
        return page

    async def find_end(self, context: RequestContext) -> FeedEnd:
        """Return a cursor before every change that a list now lacks.

        It is up to `END_S` old: an older cursor only makes the client read some changes again.
        """
        now = asyncio.get_running_loop().time()
        if not self._end or now >= self._end_read_at + END_S:
            try:
                page, _ = await self._read(END, [context])
            except Unavailable as error:
                # While the primary is away, replicas serve lists without a cursor.
                if error.refusal is not Refusal.FEED_OFF and not self._has_replicas:
                    raise
                return FeedEnd(None, min_transaction=0)
            self._end, self._end_read_at = page.next, now
        # The cursor is before its transaction: the list must show those before.
        return FeedEnd(self._end, self._end.transaction - 1)

    async def wait(self, after: FeedCursor, seconds: float) -> ChangePage | None:
        """Wait until there are changes after the cursor; None if there are none in so many seconds.

        One statement, `POLL_S` after the last one, asks for all requests that wait.
        """
        if len(self._waiting) >= MAX_WAITING:
            raise Unavailable("too many requests wait for changes", Refusal.QUEUE_FULL)
        news = asyncio.get_running_loop().create_future()
        self._waiting[news] = after
        self._asking = self._asking or asyncio.create_task(self._ask_for_all())
        try:
            await asyncio.wait([news], timeout=seconds)
        finally:
            del self._waiting[news]
        return news.result() if news.done() else None

    async def _ask_for_all(self) -> None:
        try:
            while self._waiting:
                lowest = min(self._waiting.values(), key=itemgetter(1, 2))
                try:
                    page, _ = await self._read(lowest)
                except Exception as error:  # noqa: BLE001 - each request gets it
                    self._return(error, lowest)
                else:
                    self._return(page, lowest)
                await asyncio.sleep(POLL_S)
        finally:
            self._asking = None

    def _return(self, found: ChangePage | Exception, lowest: FeedCursor) -> None:
        """Return to each request that waits the changes after its cursor, if there are any.

        The changes after `lowest` were read: a request that came meanwhile with a cursor
        before it waits for the next ones. Requests with the same changes get the same page, which
        is then encoded once: 1,000 copies could have 600 MB.
        """
        pages: dict[int, ChangePage] = {}  # by the first of their changes
        for news, after in self._waiting.items():
            if news.done() or after[1:] < lowest[1:]:
                continue
            if isinstance(found, Exception):
                news.set_exception(found)
            elif after.feed != found.next.feed:
                news.set_exception(CursorExpired())
            else:
                start = bisect_right(found.changes, after, key=attrgetter("cursor"))
                if changes := found.changes[start:]:
                    page = ChangePage(changes, found.next, found.as_of)
                    news.set_result(pages.setdefault(start, page))

    async def _read(
        self,
        after: FeedCursor | None,
        waiting: Sequence[RequestContext] = (),
        limit: int = PAGE_CHANGES,
    ) -> tuple[ChangePage, bool]:
        """Return changes, and whether some after the cursor may be missing."""
        rows = await self._statements.fetch(
            "get_changes",
            {
                "after": str(after.transaction) if after else None,
                "after_id": after.change if after else None,
                "size": limit,
            },
            waiting=waiting,
        )
        if not rows:
            raise Unavailable("the feed is off in the database: run migrate", Refusal.FEED_OFF)
        feed, as_of, end, is_expired, is_last, *_ = rows[-1]
        changes = list[Change]()
        for _, _, _, _, _, transaction, number, *fields in rows:
            if number is None:  # the only row: there are no changes
                break
            cursor = FeedCursor(feed, int(transaction), number)
            deleted = parse_movie(fields[4]) if fields[4] else None
            movie = Movie._make(fields[5:]) if fields[5] is not None else None
            changes.append(Change._make([cursor, *fields[:4], deleted, movie]))
        if is_last:
            cursor = FeedCursor(feed, int(end), 0)
        elif changes:  # not its end: the query may have returned fewer than it was asked for
            cursor = changes[-1].cursor
        else:
            raise self._statements.report("get_changes", "it returned none of the next changes")
        return ChangePage(changes, cursor, as_of), is_expired
