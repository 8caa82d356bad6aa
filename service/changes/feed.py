"""The feed of changes: what was created, changed and deleted, in an order that misses nothing.

docs/decisions/0018-feed-of-changes.md.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any, NamedTuple, get_type_hints

from service.database import cache, clearing
from service.database.caller import Caller
from service.database.clearing import Expiry
from service.database.query import Expected
from service.database.replicas import Replicas
from service.database.statements import Statements
from service.errors import CatalogueError, NotFound, Problem, Refusal, Unavailable
from service.movies.movie import COLUMN_TYPES, MOVIES, Movie


class FeedRow(NamedTuple):
    """The first columns of `get_changes`, which queries/changes.sql explains; a change follows."""

    feed: str
    as_of: datetime
    next_transaction: str
    is_expired: bool
    is_last: bool
    transaction: str


class ChangeRow(NamedTuple):
    """The columns of a change; nulls if there is none: then there is one row."""

    change: int  # its id
    kind: str  # created, updated or deleted
    movie_id: int
    change_version: int  # after the change, or the last one
    changed_at: datetime
    deleted_movie: str  # of a deletion, the movie as it was; null if the feed did not keep it
    previous: str  # of an update, the fields that it changed, as they were
    client_id: int  # of a request with a token
    client_name: str  # null if the client is gone
    login: str  # of a change in SQL


DETECT = "detect_changes"  # for lists from memory
OLDEST = {"after": "0", "after_id": 0}  # before all changes that are kept
QUERIES: Mapping[str, Expected] = {
    "get_changes": Expected(
        {**get_type_hints(FeedRow), **get_type_hints(ChangeRow), **COLUMN_TYPES},
        [{"after": None, "after_id": None, "size": 1}],
        "GET the changes, and lists of all movies",
        in_order=True,
    ),
    "get_movie_changes": Expected(
        {"is_known": bool, **get_type_hints(ChangeRow)},
        [{"id": "0", "before": None, "size": 1}],
        "GET the changes of a movie",
        in_order=True,
    ),
    "clear_changes": Expected(
        {"cleared": int, "last_transaction": str, "last_id": int},
        [{"keep_days": 1, **OLDEST, "at_most": 0}],
        clearing.USED_BY,
        writes=True,
    ),
    DETECT: cache.EXPECTED,
    "measure_changes_delay": Expected({"seconds": float}, [{}], clearing.MEASURED),
}
FIRST_OF_CHANGE = len(FeedRow._fields)  # of its columns
FIRST_OF_MOVIE = FIRST_OF_CHANGE + len(ChangeRow._fields)
PAGE_CHANGES = 100
OFF = "the feed is off in the database: run migrate"
END_S = 1.0  # for which the end of the feed is remembered, if it is on


def make_expiry(keep_days: int) -> Expiry:
    """Return how to delete the changes that are older."""
    return Expiry("clear_changes", {"keep_days": keep_days}, OLDEST)


class CursorExpired(CatalogueError):
    """The feed of changes no longer has all changes after the cursor."""

    problem = Problem("cursor-expired", "Cursor expired", 410)
    detail = "the feed no longer has all changes after this cursor; start again with a whole list"


class FeedCursor(NamedTuple):
    """A point in a feed: after the change with this id in a transaction."""

    feed: str
    transaction: int
    change: int

    @property
    def order(self) -> tuple[int, int]:
        """The sort key within its feed."""
        return self.transaction, self.change


END = FeedCursor("", 2**64 - 1, 0)  # after every change


class Change(NamedTuple):
    """A change of a movie; `movie` is the movie as it is now, None if it is gone."""

    cursor: FeedCursor  # after it
    row: ChangeRow
    movie: Movie | None


@dataclass(frozen=True, eq=False)
class ChangePage:
    """Some changes in their order, and the cursor of the next page."""

    changes: Sequence[Change]
    next: FeedCursor
    as_of: datetime  # every change that was committed before is in the feed
    is_expired: bool = False  # changes between the cursor that was sent and these may be missing


class Feed:
    """Returns changes; may raise `Unavailable`.

    What must stay true: a client that follows the cursors sees every change of a movie,
    or its last one, once it is committed; a cursor after which changes may be missing is
    `CursorExpired`.
    """

    def __init__(
        self, statements: Statements, reads: Statements, replicas: Replicas | None = None
    ) -> None:
        self._statements = statements  # on the primary
        self._reads = reads
        self._replicas = replicas
        self._end: FeedCursor | None = None  # as of `_end_read_at`, by the loop's clock
        self._end_read_at = -inf

    async def fetch(
        self, after: FeedCursor | None, caller: Caller, size: int = PAGE_CHANGES
    ) -> ChangePage:
        """Return up to `size` changes after the cursor, or the oldest ones that are kept.

        Raises `CursorExpired` if the cursor is of another feed, or if changes after it may be
        missing.
        """
        page = await self.read(after, [caller], size)
        if after and (page.is_expired or after.feed != page.next.feed):
            raise CursorExpired
        return page

    async def fetch_history(
        self, movie_id: int, before: int | None, size: int, caller: Caller
    ) -> list[ChangeRow]:
        """Return changes of the movie, the newest first; `NotFound` if there is neither."""
        sent = {"id": f"{movie_id}", "before": before and f"{before}", "size": size}
        rows = await self._reads.fetch("get_movie_changes", sent, callers=[caller])
        if not rows:
            raise Unavailable(OFF, Refusal.FEED_OFF)
        if not rows[0][0]:
            raise NotFound(MOVIES.noun)
        return [ChangeRow._make(row[1:]) for row in rows if row[1] is not None]

    async def find_end(self, caller: Caller) -> FeedCursor | None:
        """Return a cursor for the client of a list that is read after this; None: the feed is off.

        What must stay true: the list shows every change before the cursor. An older cursor is no
        fault: the client only reads some changes again. So it is remembered for `END_S`.
        """
        now = asyncio.get_running_loop().time()
        if not self._end or now >= self._end_read_at + END_S:
            self._end, self._end_read_at = await self._read_end(caller), now
        if self._end and self._replicas and (horizon := self._replicas.get_common_horizon()):
            # Whichever replica serves the list shows every transaction below its horizon.
            return min(self._end, self._end._replace(transaction=horizon, change=0))
        return self._end  # the primary serves the list

    async def _read_end(
        self, caller: Caller, statements: Statements | None = None
    ) -> FeedCursor | None:
        """Read the end on the primary; while that is away, on a replica."""
        try:
            return (await self.read(END, [caller], statements=statements)).next
        except Unavailable as error:
            if error.refusal is Refusal.FEED_OFF:
                return None
            if statements or not self._replicas:
                raise
        return await self._read_end(caller, self._reads)

    async def read(
        self,
        after: FeedCursor | None,
        callers: Sequence[Caller] = (),
        size: int = PAGE_CHANGES,
        *,
        statements: Statements | None = None,
    ) -> ChangePage:
        """Return changes after the cursor, whatever its feed is."""
        sent = {
            "after": str(after.transaction) if after else None,
            "after_id": after.change if after else None,
            "size": size,
        }
        rows = await (statements or self._statements).fetch("get_changes", sent, callers=callers)
        if not rows:
            raise Unavailable(OFF, Refusal.FEED_OFF)
        last = FeedRow._make(rows[-1][:FIRST_OF_CHANGE])
        changes = [_make_change(row) for row in rows] if last.transaction else []
        if last.is_last:
            end = FeedCursor(last.feed, int(last.next_transaction), 0)
        elif changes:  # not its end: the query may have returned fewer than it was asked for
            end = changes[-1].cursor
        else:
            raise self._statements.report("get_changes", "it returned none of the next changes")
        return ChangePage(changes, end, last.as_of, last.is_expired)


def _make_change(row: Sequence[Any]) -> Change:
    feed, *_, transaction = row[:FIRST_OF_CHANGE]
    change = ChangeRow._make(row[FIRST_OF_CHANGE:FIRST_OF_MOVIE])
    movie = Movie._make(row[FIRST_OF_MOVIE:]) if row[FIRST_OF_MOVIE] is not None else None
    return Change(FeedCursor(feed, int(transaction), change.change), change, movie)
