"""Caches results until something changes: docs/decisions/0021-lists-from-memory.md."""

import asyncio
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from cachetools import LRUCache

from service.config import Sharing
from service.context import RequestContext
from service.database.batching import MAX_WAITING, Batcher, Rows, list_contexts
from service.database.query import Expected
from service.database.statements import Statements
from service.errors import CatalogueError

Result = TypeVar("Result")

QUERIES: Mapping[str, Expected] = {
    "detect_changes": Expected(
        {"snapshot": str, "state": str, "has_changed": bool},
        [{"since": None}, {"since": "1:2:1"}],
        "lists from memory",
    ),
}
MAX_BYTES = 32 * 1024 * 1024
MAX_AGE_S = 60.0  # bounds what the feed of changes does not record: docs/dbas.md#changes


@dataclass(slots=True, eq=False)
class Epoch:
    """A time without changes, up to the snapshot `since`; `state`: as in `detect_changes`."""

    since: str | None = None
    state: str | None = None


class Cached(NamedTuple, Generic[Result]):
    """A result, its size in bytes, and until when it may be used, by the loop's clock."""

    result: Result
    size: int
    usable_until: float


class ResultCache(Generic[Result]):
    """Caches results of one epoch by their keys, the least recently used up to `MAX_BYTES`.

    What must stay true: a result has every change that was committed before the call of `get`. So
    `get` waits for a statement that begins after the call, which the calls that wait share. If that
    sees a change, or cannot know, a new epoch begins without results; a result belongs to the epoch
    in which its first statement began.

    Without `is_on`, nothing is cached.
    """

    def __init__(self, statements: Statements, sharing: Sharing, *, is_on: bool) -> None:
        self._statements = statements
        self._is_on = is_on
        self._from_memory = statements.metrics.list_pages.labels("memory")
        self._from_database = statements.metrics.list_pages.labels("database")
        self._ended = statements.metrics.pages_ended
        self._checks: Batcher[None] = Batcher(self._check, sharing, max_rows=MAX_WAITING)
        self._epoch = Epoch()
        self._cached: LRUCache[Hashable, Cached[Result]] = LRUCache(MAX_BYTES, attrgetter("size"))

    async def get(self, key: Hashable, context: RequestContext) -> Result | None:
        """Return the result if it is cached and has every change; `context`: of the request."""
        cached, epoch = self._cached.get(key), self._epoch
        if not cached or cached.usable_until < asyncio.get_running_loop().time():
            return None
        try:
            await self._checks.submit(0, context=context)
        except CatalogueError:  # `Statements` has logged it
            return None
        if epoch is not self._epoch:
            return None
        self._from_memory.inc()
        return cached.result

    def start(self) -> tuple[Epoch, float]:
        """Return the start of a result, for `keep`; call it before its first statement."""
        self._from_database.inc()
        return self._epoch, asyncio.get_running_loop().time() + MAX_AGE_S

    def keep(self, key: Hashable, result: Result, size: int, start: tuple[Epoch, float]) -> None:
        """Cache a result of `size` bytes, unless its epoch has ended."""
        epoch, usable_until = start
        if self._is_on and epoch is self._epoch:
            self._cached[key] = Cached(result, size, usable_until)

    def clear(self) -> None:
        """Begin a new epoch, without results."""
        self._begin(Epoch())

    async def _check(self, rows: Rows[None]) -> dict[int, None]:
        """Begin a new epoch if something has changed, or if that is unknown."""
        epoch = self._epoch  # another check may end it meanwhile
        found = await self._statements.fetch(
            "detect_changes",
            {"since": epoch.since},
            expects_timeout=True,
            waiting=list_contexts(rows),
        )
        snapshot, state, has_changed = found[0] if found else (None, None, True)
        if has_changed or state != epoch.state:
            self._begin(Epoch(snapshot, state))
        else:
            epoch.since = snapshot
        return {}

    def _begin(self, epoch: Epoch) -> None:
        self._ended.inc(len(self._cached))
        self._epoch = epoch
        self._cached = LRUCache(MAX_BYTES, attrgetter("size"))
