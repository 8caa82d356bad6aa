"""Creates that happen once however often they are sent, identified by a key from the client.

One statement (queries/idempotency.sql) writes the key and the movie, and PostgreSQL decides which
request is first. A repeat sends the movie's fields again, so its response needs only the id and the
time of the first one: docs/decisions/0012-idempotency-keys.md.
"""

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from service.catalogue.movie import TYPES, Movie
from service.catalogue.movies import to_invalid
from service.config import Sharing
from service.context import RequestContext
from service.database.batching import Batcher, Rows, list_contexts
from service.database.queries import Expected
from service.database.statements import Statements
from service.errors import KeyInUse, KeyReused, RuleBroken

QUERIES: Mapping[str, Expected] = {
    "create_movies_once": Expected(
        {"position": int, "fingerprint": str, "replayed": bool, **TYPES},
        [{"requests": "[]"}],
        "POST a movie with an Idempotency-Key",
        writes=True,
    ),
    "clear_idempotency_keys": Expected(
        {"cleared": int}, [{"at_most": 0}], "clearing expired keys, once a minute", writes=True
    ),
    "estimate_idempotency_keys": Expected({"keys": int}, [{}], "a metric, once a minute"),
}

# Pauses of a request while another one uses its key; after the last, the client gets a 409.
RETRY_DELAYS_S = (0.01, 0.02, 0.04, 0.08, 0.1)
# Keys per statement, whatever `max_rows` says: each takes a lock, and all sessions together have
# 6400 by default (max_locks_per_transaction).
MAX_KEYS_PER_STATEMENT = 32
# Expired keys are deleted in batches (1000 take about 20 ms), with short pauses while there are
# more: about 8,000 keys a second, without delaying requests.
CLEAR_BATCH_ROWS = 1000
CLEAR_BATCH_PAUSE_S = 0.1
CLEAR_INTERVAL_S = 60


class StoredResponse(NamedTuple):
    """The movie that a key created, as it was then.

    `fingerprint`: of the fields that were sent. `is_replayed`: an earlier request created it.
    """

    fingerprint: str
    is_replayed: bool
    movie: Movie


class OnceOnly:
    """Creates one movie per key; every method may raise `Unavailable`."""

    def __init__(self, statements: Statements, sharing: Sharing) -> None:
        self._fetch = statements.fetch
        self._positions = itertools.count()
        rows = min(sharing.max_rows, MAX_KEYS_PER_STATEMENT)
        metrics = statements.metrics
        self._keys_metric = metrics.idempotency_keys if metrics.is_enabled else None
        self._creates = Batcher(
            self._create,
            replace(sharing, max_rows=rows),
            idempotent=True,
            rows_metric=metrics.shared_statement_rows.labels("create_movies_once"),
        )
        self._keys_in_use: set[str] = set()

    async def create(
        self,
        key: str,
        fields: Mapping[str, Any],
        context: RequestContext | None = None,
    ) -> tuple[Movie, bool]:
        """Create a movie, or return the movie that the key created before, and True.

        That movie is as it was created; it may have been changed or deleted since. `context`: of
        the request; each client has its own keys, those without a token share theirs. Raises
        `KeyReused` if the key was used with other fields, `KeyInUse` while another request uses it,
        and `Invalid` if the database refuses the movie; the key then stays unused.
        """
        if context and context.client_id is not None:
            key = f"{context.client_id}\t{key}"  # nobody can send a key with a tab
        # Of the fields, in a fixed order, as a client may write the same JSON differently.
        fingerprint = hashlib.sha256(orjson.dumps(fields)).hexdigest()
        position = next(self._positions)
        row = {"position": position, "key": key, "fingerprint": fingerprint, **fields}
        response = await self._submit_in_turn(key, position, orjson.dumps(row), context)
        if response.fingerprint != fingerprint:
            raise KeyReused
        return response.movie, response.is_replayed

    async def _submit_in_turn(
        self, key: str, position: int, payload: bytes, context: RequestContext | None
    ) -> StoredResponse:
        """Submit the row; wait while another request uses the key, here or in another process.

        The database would report a request of this process, too, but not while that request waits
        for a locked table. Requests that have waited share one statement.
        """
        is_first = key not in self._keys_in_use
        self._keys_in_use.add(key)
        try:
            for delay in (0, *RETRY_DELAYS_S):
                await asyncio.sleep(delay)
                if is_first or key not in self._keys_in_use:
                    response = await self._submit(position, payload, context)
                    if response:
                        return response
        finally:
            if is_first:
                self._keys_in_use.discard(key)
        raise KeyInUse

    async def clear(self) -> int:
        """Delete up to `CLEAR_BATCH_ROWS` expired keys and return how many were deleted."""
        ((cleared,),) = await self._fetch("clear_idempotency_keys", at_most=CLEAR_BATCH_ROWS)
        return int(cleared)

    async def estimate(self) -> None:
        """Set the metric of stored keys, if metrics are on."""
        if self._keys_metric is not None:
            ((keys,),) = await self._fetch("estimate_idempotency_keys", retry=True)
            self._keys_metric.set(keys)

    @asynccontextmanager
    async def clear_regularly(self) -> AsyncIterator[None]:
        """Clear expired keys every `CLEAR_INTERVAL_S` while the context is entered.

        Leaving does not wait: a statement that is running finishes by itself.
        """
        task = asyncio.create_task(self._keep_clearing())
        try:
            yield
        finally:
            task.cancel()

    async def _keep_clearing(self) -> None:
        has_more = False
        while True:
            if not has_more:
                with suppress(Exception):  # it is only a metric; the statement logs it
                    await self.estimate()
            await asyncio.sleep(CLEAR_BATCH_PAUSE_S if has_more else CLEAR_INTERVAL_S)
            has_more = False
            with suppress(Exception):  # tried again after the interval; the statement logs it
                has_more = await self.clear() == CLEAR_BATCH_ROWS

    async def _submit(
        self, position: int, payload: bytes, context: RequestContext | None
    ) -> StoredResponse | None:
        try:
            return await self._creates.submit(position, payload, context)
        except RuleBroken as error:
            raise to_invalid(error) from error

    async def _create(self, rows: Rows[StoredResponse]) -> dict[int, StoredResponse]:
        responses = await self._fetch(
            "create_movies_once",
            retry=True,  # harmless: if the first attempt was committed, the keys are known
            shared=len(rows) > 1,
            max_affected=len(rows),
            waiting=list_contexts(rows),
            requests="[" + b",".join([row.payload for row in rows]).decode() + "]",
        )
        return {
            position: StoredResponse(fingerprint, is_replayed, Movie._make(movie))
            for position, fingerprint, is_replayed, *movie in responses
        }
