"""Creates a movie once, however often a client repeats the request with the same key.

PostgreSQL decides which request is first, and stores the response with the key
(queries/idempotency.sql, docs/decisions/0012-idempotency-keys.md).
"""

import asyncio
import hashlib
import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import orjson

from service.catalogue.movie import TYPES, Movie
from service.catalogue.movies import to_invalid
from service.config import Sharing
from service.context import RequestContext
from service.database.batching import Batcher, Rows, list_contexts
from service.database.query import Expected
from service.database.statements import Statements
from service.errors import KeyInUse, KeyReused, RuleBroken

RESPONSE = {"position": int, "fingerprint": str, **TYPES}
USED_BY = "POST a movie with an Idempotency-Key"
QUERIES: Mapping[str, Expected] = {
    "create_movies_once": Expected(RESPONSE, [{"requests": "[]"}], USED_BY, writes=True),
    "get_idempotent_responses": Expected(RESPONSE, [{"requests": "[]"}], USED_BY, writes=True),
}

# Between tries, while another request uses the key; after the last try, the client gets a 409.
RETRY_PAUSE_S = 0.05
RETRIES = 5
# Keys per statement: each takes a lock, and all sessions together have
# 6400 by default (max_locks_per_transaction).
MAX_KEYS_PER_STATEMENT = 32


class Response(NamedTuple):
    """The movie that a key created, as it was created, and the fingerprint of the sent fields."""

    fingerprint: str
    movie: Movie


class IdempotentCreates:
    """Creates one movie per key; every method may raise `Unavailable`."""

    def __init__(self, statements: Statements, sharing: Sharing) -> None:
        self._statements = statements
        self._fetch = statements.fetch
        self._metrics = statements.metrics
        self._sharing = sharing
        self._positions = itertools.count()
        self._creates = self._make_batcher("create_movies_once")
        self._responses = self._make_batcher("get_idempotent_responses")
        self._keys_in_use: set[str] = set()  # by creates of this process

    def _make_batcher(self, query: str) -> Batcher[Response]:
        return Batcher(
            partial(self._run, query),
            self._sharing,
            max_rows=MAX_KEYS_PER_STATEMENT,
            idempotent=True,
            rows_metric=self._metrics.shared_statement_rows.labels(query),
        )

    async def _run(self, query: str, rows: Rows[Response]) -> dict[int, Response]:
        fetched = await self._fetch(
            query,
            is_repeatable=True,  # if the first attempt was committed, the keys are used
            max_affected=len(rows),
            waiting=list_contexts(rows),
            requests="[" + b",".join([row.payload for row in rows]).decode() + "]",
        )
        self._statements.require_sent(query, [row[0] for row in fetched], [row.key for row in rows])
        return {
            position: Response(fingerprint, Movie._make(movie))
            for position, fingerprint, *movie in fetched
        }

    async def create(
        self, key: str, fields: Mapping[str, Any], context: RequestContext | None = None
    ) -> tuple[Movie, bool]:
        """Create a movie, or return the movie that the key created before, and True.

        That movie is as it was created; it may have been changed or deleted since. `context`: of
        the request; each client has its own keys, clients without a token share theirs. Raises
        `KeyReused` if the key was used with other fields, `KeyInUse` while another request uses it,
        and `Invalid` if the database refuses the movie; the key then stays unused.
        """
        if context and context.client_id is not None:
            key = f"{context.client_id}\t{key}"  # a key of a client contains no tab
        # Of the parsed fields, not of the body: a client may write the same JSON differently.
        fingerprint = hashlib.sha256(orjson.dumps(fields)).hexdigest()
        position = next(self._positions)
        payload = orjson.dumps(
            {"position": position, "key": key, "fingerprint": fingerprint, **fields}
        )
        for attempt in range(1 + RETRIES):
            if attempt:
                await asyncio.sleep(RETRY_PAUSE_S)
            if created := await self._create_if_unused(key, position, payload, context):
                return created.movie, False
            if first := await self._responses.submit(position, payload, context):
                if first.fingerprint != fingerprint:
                    raise KeyReused
                return first.movie, True
        raise KeyInUse

    async def _create_if_unused(
        self, key: str, position: int, payload: bytes, context: RequestContext | None
    ) -> Response | None:
        """Create the movie; return None if the key is used, or another request uses it now.

        `_keys_in_use` finds other requests of this process. The key's lock in the database would
        find them, too, but not while they wait for a locked table.
        """
        if key in self._keys_in_use:
            return None
        self._keys_in_use.add(key)
        try:
            response = await self._creates.submit(position, payload, context)
        except RuleBroken as error:
            if error.rule == "idempotency_keys_pkey":  # another process has just used it
                return None
            raise to_invalid(error) from error
        finally:
            self._keys_in_use.discard(key)
        if response and response.movie.id is None:
            raise self._statements.report("create_movies_once", "it created no movie")
        return response
