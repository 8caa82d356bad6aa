"""Creates a movie or a batch once, however often a client sends the request with the same key.

PostgreSQL decides which request is first, and stores the response with the key
(queries/idempotency.sql, docs/decisions/0012-idempotency-keys.md).
"""

import asyncio
import hashlib
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple, cast

import orjson

from service.context import RequestContext
from service.database.query import Expected, Row
from service.database.sharing import Rows, SharedStatements, join_payloads, list_contexts
from service.database.statements import Statements
from service.database.store import REFUSALS, Store, raise_refusals
from service.errors import CatalogueError, KeyInUse, KeyReused, RuleBroken
from service.movies.movie import COLUMN_TYPES, MOVIES, Movie

CREATED = {"transaction": int, "position": int, "outcome": str, **COLUMN_TYPES}
RESPONSE = {"transaction": int, "position": int, "fingerprint": str, **COLUMN_TYPES}
USED_BY = "POST a movie with an Idempotency-Key"
QUERIES: Mapping[str, Expected] = {
    "create_movies_once": Expected(CREATED, [{"requests": "[]"}], USED_BY, writes=True),
    "get_idempotent_responses": Expected(RESPONSE, [{"requests": "[]"}], USED_BY, writes=True),
    "create_batch_once": Expected(
        CREATED,
        [{"key": "", "fingerprint": "", "movies": "[]"}],
        f"{USED_BY} (batch)",
        writes=True,
    ),
    "get_batch_response": Expected(RESPONSE, [{"key": ""}], f"{USED_BY} (batch)", writes=True),
}

CREATES = ("create_movies_once", "create_batch_once")
# Between tries, while another request uses the key; after the last try, the client gets a 409.
RETRY_PAUSE_S = 0.05
RETRIES = 5
# Each key takes a lock; all sessions together have 6400 by default (max_locks_per_transaction).
MAX_KEYS_PER_STATEMENT = 32
UNREADABLE = "only another release of the service can read what this Idempotency-Key created"
# In front of the keys of a batch and of its movies: a key that is sent contains no tab.
BATCH_KEY = "batch\t"


class Response(NamedTuple):
    """The movies that a key created, as they were created.

    `fingerprint`: of what was sent when they were created before; None: they were created now.
    """

    movies: list[Movie]
    fingerprint: str | None = None


Run = Callable[[], Awaitable[Response | None]]


class IdempotentCreates:
    """Creates a movie or a batch, with a key once; every method may raise `Unavailable`.

    What must stay true: a key creates once, also if several processes use it at once; each later
    request gets the first response; if nothing was created, the key stays unused.
    """

    def __init__(self, store: Store[Movie], statements: Statements) -> None:
        self._store = store
        self._statements = statements
        self._metrics = statements.metrics
        self._numbers = itertools.count()
        self._creates = self._share("create_movies_once")
        self._responses = self._share("get_idempotent_responses")
        self._keys_in_use: set[str] = set()  # by creates of this process

    def _share(self, query: str) -> SharedStatements[Response]:
        return SharedStatements(
            partial(self._run, query),
            max_rows=MAX_KEYS_PER_STATEMENT,
            is_repeatable=True,
            rows_metric=self._metrics.shared_statement_rows.labels(query),
        )

    async def _run(self, query: str, rows: Rows[Response]) -> dict[int, Response | CatalogueError]:
        fetched = await self._statements.fetch(
            query,
            {"requests": join_payloads([row.payload for row in rows])},
            is_repeatable=True,  # if the first attempt was committed, the keys are used
            max_affected=len(rows),
            waiting=list_contexts(rows),
        )
        self._statements.require_sent(query, [row[1] for row in fetched], [row.key for row in rows])
        return {row[1]: _read(query, row) for row in fetched}

    async def create(
        self, key: str, fields: Mapping[str, object], context: RequestContext | None = None
    ) -> tuple[Movie, bool]:
        """Create a movie, or return the movie that the key created before, and True.

        That movie is as it was created. Each client has its own keys; clients without a token have
        the same ones. Raises `KeyReused` if the key was used with other fields, `KeyInUse` while
        another request uses it, and what `Store.create` raises.
        """
        own_key, fingerprint = _identify(key, fields, context)
        number = next(self._numbers)
        payload = orjson.dumps(
            {"position": number, "key": own_key, "fingerprint": fingerprint, **fields}
        )
        create = partial(self._creates.submit, number, payload, context)
        get = partial(self._responses.submit, number, payload, context)
        try:
            (movie,), is_replayed = await self._create_once(
                "create_movies_once", own_key, fingerprint, create, get
            )
        except RuleBroken as error:
            raise MOVIES.to_invalid(error) from error
        return movie, is_replayed

    async def create_all(
        self, key: str | None, movies: Sequence[Mapping[str, object]], context: RequestContext
    ) -> tuple[list[Movie], bool]:
        """Create all movies of a batch in one statement, or none; otherwise as `create`.

        Raises `NoneWritten` or `RuleBroken`.
        """
        if key is None:
            return await self._store.create_all(movies, context), False
        own_key, fingerprint = _identify(f"{BATCH_KEY}{key}", movies, context)
        payload = orjson.dumps([{"position": n, **fields} for n, fields in enumerate(movies)])
        keyed = {"key": own_key, "fingerprint": fingerprint, "movies": payload.decode()}
        create = partial(self._run_batch, "create_batch_once", keyed, len(movies), context)
        get = partial(self._run_batch, "get_batch_response", {"key": own_key}, len(movies), context)
        return await self._create_once("create_batch_once", own_key, fingerprint, create, get)

    async def _run_batch(
        self, query: str, parameters: Mapping[str, str], number: int, context: RequestContext
    ) -> Response | None:
        """Run a query for so many movies; if a first attempt was committed, its key is used.

        Raises `NoneWritten`.
        """
        rows = await self._statements.fetch(
            query,
            parameters,
            is_repeatable=True,
            max_affected=number,
            waiting=[context],
        )
        # The key may have been used with another batch, of more or fewer movies.
        expected = len(rows) if query == "get_batch_response" else number
        self._statements.require_sent(query, [row[1] for row in rows], range(expected))
        if 0 < len(rows) < expected:
            raise self._statements.report(query, "it returned too few movies")
        rows.sort(key=itemgetter(1))
        if not rows:
            return None
        read = [_read(query, row) for row in rows]
        raise_refusals(read)
        responses = cast("list[Response]", read)
        movies = [movie for response in responses for movie in response.movies]
        return Response(movies, responses[0].fingerprint)

    async def _create_once(
        self, query: str, key: str, fingerprint: str, create: Run, get: Run
    ) -> tuple[list[Movie], bool]:
        """Create if the key is unused; otherwise get its response, and True.

        `query`: the name of what `create` runs, for an error.
        """
        for attempt in range(1 + RETRIES):
            if attempt:
                await asyncio.sleep(RETRY_PAUSE_S)
            if created := await self._create_if_unused(query, key, create):
                return created.movies, False
            if first := await self._store.repeat(get):
                if first.fingerprint != fingerprint:
                    raise KeyReused
                if any(movie.id is None for movie in first.movies):
                    raise KeyInUse(UNREADABLE)
                return first.movies, True
        raise KeyInUse("another request with this Idempotency-Key is still running")

    async def _create_if_unused(self, query: str, key: str, create: Run) -> Response | None:
        """Create; return None if the key is used, or another request uses it now.

        `_keys_in_use` finds other requests of this process. The key's lock in the database would
        find them, too, but not while they wait for a locked table.
        """
        if key in self._keys_in_use:
            return None
        self._keys_in_use.add(key)
        try:
            response = await self._store.repeat(create)
        except RuleBroken as error:
            if error.rule == "idempotency_keys_pkey":  # another process has just used it
                return None
            raise
        finally:
            self._keys_in_use.discard(key)
        if response and any(movie.id is None for movie in response.movies):
            raise self._statements.report(query, "it created no movie")
        return response


def _read(query: str, row: Row) -> Response | CatalogueError:
    """Return what a row says: of a create, its outcome; of a key that was used, its response."""
    _, _, text, *movie = row
    if query not in CREATES:
        return Response([Movie._make(movie)], fingerprint=text)
    return MOVIES.refuse(text, movie[0]) if text in REFUSALS else Response([Movie._make(movie)])


def _identify(key: str, content: object, context: RequestContext | None) -> tuple[str, str]:
    """Return the key with its client, and the fingerprint of what is sent with it."""
    client_id = context.client_id if context else None
    own_key = key if client_id is None else f"{client_id}\t{key}"  # a key that is sent has no tab
    # Of the parsed fields, not of the body: a client may write the same JSON differently.
    return own_key, hashlib.sha256(orjson.dumps(content)).hexdigest()
