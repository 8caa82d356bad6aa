"""Caches results until something changes: docs/decisions/0021-lists-from-memory.md."""

import asyncio
from collections.abc import Hashable, Sequence
from operator import itemgetter
from typing import Generic, TypeVar

from cachetools import LRUCache

from service.database.caller import Caller
from service.database.query import Expected
from service.database.replicas import Replicas
from service.database.sharing import MAX_WAITING, Rows, SharedStatements, list_callers
from service.database.statements import Statements
from service.errors import CatalogueError

Result = TypeVar("Result")
# The results of an epoch, each with its size, and until when it may be used, by the loop's clock.
Epoch = LRUCache[Hashable, tuple[Result, int, float]]
Start = tuple[Epoch[Result], float]

EXPECTED = Expected(
    {"snapshot": str, "state": str, "has_changed": bool},
    [{"since": None}, {"since": "1:2:1"}],
    "lists from memory",
)
MAX_BYTES = 32 * 1024 * 1024
MAX_AGE_S = 60.0  # bounds what the feed of changes does not record: docs/dbas.md#changes


class ResultCache(Generic[Result]):
    """Caches results by their keys until something changes; without `query`, nothing.

    `query` tells that; `EXPECTED` says what it takes and returns.

    What must stay true: a result has every change that was committed before the call of `get`. So
    `get` waits for a statement that begins after the call, which the calls that wait share. If that
    sees a change, or cannot know, a new epoch begins; a result belongs to the epoch in which its
    first statement began, if all its statements show `_transaction`: those on `replicas` may not.
    """

    def __init__(self, statements: Statements, query: str, replicas: Replicas | None) -> None:
        self._statements = statements
        self._query = query
        self._replicas = replicas
        self._from_memory = statements.metrics.list_pages.labels("memory")
        self._from_database = statements.metrics.list_pages.labels("database")
        self._checks: SharedStatements[int] = SharedStatements(self._check, max_rows=MAX_WAITING)
        self._since: str | None = None  # the snapshot of a check
        self._state: str | None = None  # as that check returned it
        self._transaction = 0  # who shows it shows the changes that checks have seen; 0: unknown
        self._epoch: Epoch[Result] = LRUCache(MAX_BYTES, itemgetter(1))

    async def get(self, key: Hashable, caller: Caller) -> tuple[Result | None, Caller]:
        """Return the result if it is cached and has every change, and what a new one must show."""
        epoch, found = self._epoch, self._epoch.get(key)
        if not self._query or not (self._replicas or found):
            return None, caller
        try:
            transaction = await self._checks.submit(0, caller=caller) or 0
        except CatalogueError:  # `Statements` has logged it
            return None, caller
        if found and epoch is self._epoch and found[2] >= asyncio.get_running_loop().time():
            self._from_memory.inc()
            return found[0], caller
        if self._replicas:
            caller = caller._replace(min_transaction=max(caller.min_transaction, transaction))
            await self._replicas.look_for(caller.min_transaction)
        return None, caller

    def start(self, callers: Sequence[Caller]) -> Start[Result] | None:
        """Return the start of a result, for `keep`; call it before its first statement."""
        self._from_database.inc()
        if self._replicas and max(each.min_transaction for each in callers) < self._transaction:
            return None  # a replica may lack what the epoch began with
        return self._epoch, asyncio.get_running_loop().time() + MAX_AGE_S

    def keep(self, key: Hashable, result: Result, size: int, start: Start[Result] | None) -> None:
        """Cache a result of `size` bytes, unless its epoch has ended."""
        if self._query and start and start[0] is self._epoch:
            self._epoch[key] = result, size, start[1]

    def clear(self) -> None:
        """Begin a new epoch, without results."""
        self._statements.metrics.pages_ended.inc(len(self._epoch))
        self._epoch = LRUCache(MAX_BYTES, itemgetter(1))

    async def _check(self, rows: Rows[int]) -> dict[int, int]:
        """Begin a new epoch if something has changed, or if that is unknown."""
        sent = {"since": self._since}
        found = await self._statements.fetch(
            self._query, sent, expects_timeout=True, callers=list_callers(rows)
        )
        snapshot, state, has_changed = found[0] if found else (None, None, True)
        if has_changed or state != self._state:
            self.clear()
            last = int(snapshot.split(":")[1]) - 1 if snapshot else 0  # of those that it may see
            self._transaction = max(last, self._transaction) if state == self._state else last
        # If it began before another check that has ended, the next one sees that one's changes too.
        self._since, self._state = snapshot, state
        return {0: self._transaction}
