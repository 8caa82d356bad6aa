"""Creates a movie or a batch once, however often a client sends the request with the same key.

PostgreSQL decides which request is first, and stores the response with the key
(queries/idempotency.sql, docs/decisions/0012-idempotency-keys.md).
"""

import asyncio
import hashlib
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import orjson

from service.database import clearing
from service.database.caller import NOBODY, Caller
from service.database.clearing import Expiry
from service.database.query import Expected, Row
from service.database.resource import REFUSALS, NothingWritten, Written
from service.database.sharing import Rows, SharedStatements, join_payloads, list_callers
from service.database.statements import Statements
from service.database.store import Store
from service.errors import CatalogueError, KeyInUse, KeyReused, RuleBroken
from service.movies.movie import COLUMN_TYPES, MOVIES, Movie

FOUND = {"transaction": int, "request": int, "position": int}
CREATE, GET = "create_movies_once", "get_idempotent_responses"
KEY_IS_USED = "idempotency_keys_pkey"  # another process has just used it
_expect = partial(
    Expected,
    samples=[{"requests": "[]"}],
    used_by="POST with an Idempotency-Key",
    writes=True,
    own_tables=(*MOVIES.own_tables, "idempotency_keys"),
    lost_race=KEY_IS_USED,
)
QUERIES: Mapping[str, Expected] = {
    CREATE: _expect(FOUND | {"outcome": str, **COLUMN_TYPES}),
    GET: _expect(FOUND | {"fingerprint": str, **COLUMN_TYPES}),
    "clear_idempotency_keys": Expected(
        {"cleared": int}, [{"at_most": 0}], clearing.USED_BY, writes=True
    ),
    "estimate_idempotency_keys": Expected({"keys": int}, [{}], clearing.MEASURED),
}
EXPIRY = Expiry("clear_idempotency_keys")

# Between tries, while another request uses the key; after the last try, the client gets a 409.
KEY_RETRY_S = 0.05
RETRIES = 5
# Each key takes a lock; all sessions together have 6400 by default (max_locks_per_transaction).
MAX_KEYS_PER_STATEMENT = 32
FROM_OTHER_RELEASE = (
    "only another release of the service can read what this Idempotency-Key created"
)
# In front of the keys of a batch and of its movies: a key that is sent contains no tab.
BATCH_KEY = "batch\t"


class KeyResponse(NamedTuple):
    """The movies that a key created; `fingerprint`: of the request that did, None: this one."""

    movies: list[Written[Movie]]
    fingerprint: str | None = None


KeyResult = KeyResponse | CatalogueError
Attempt = Callable[[], Awaitable[KeyResponse | None]]


class IdempotentCreates:
    """Creates a movie or a batch, with a key once; every method may raise `Unavailable`.

    What must stay true: a key creates once, also if several processes use it at once; each later
    request gets the first response; if nothing was created, the key stays unused.
    """

    def __init__(self, store: Store[Movie], statements: Statements) -> None:
        self._store = store
        self._statements = statements
        self._requests = itertools.count()  # their numbers
        self._creates, self._responses = (
            SharedStatements[KeyResponse](
                partial(self._run, query),
                max_rows=MAX_KEYS_PER_STATEMENT,
                is_repeatable=True,
                rows_metric=statements.metrics.shared_statement_rows.labels(query),
            )
            for query in (CREATE, GET)
        )
        self._keys_in_use: set[str] = set()  # by creates of this process

    async def _run(self, query: str, rows: Rows[KeyResponse]) -> dict[int, KeyResult]:
        payloads = {row.key: row.payload for row in rows}
        return await self._fetch(query, payloads, 1, list_callers(rows))

    async def _create_batch(
        self, request: int, payload: bytes, size: int, caller: Caller
    ) -> KeyResponse | None:
        """Create a batch by a statement of its own: shared, it would delay single movies."""
        found = await self._fetch(CREATE, {request: payload}, size, [caller])
        result = found.get(request)
        if isinstance(result, Exception):
            raise result
        return result

    async def _fetch(
        self, query: str, payloads: Mapping[int, bytes], size: int, callers: Sequence[Caller]
    ) -> dict[int, KeyResult]:
        """Return the result of each request; `size`: how many movies each one has."""
        fetched = await self._statements.fetch(
            query,
            {"requests": join_payloads(payloads.values())},
            is_repeatable=True,  # if the first attempt was committed, the keys are used
            is_resent=True,
            max_affected=size * len(payloads),
            callers=callers,
        )
        fetched.sort(key=itemgetter(1, 2))
        found = {request: [*each] for request, each in groupby(fetched, itemgetter(1))}
        self._statements.require_sent(query, [*found], payloads)
        return {request: self._read(query, size, each) for request, each in found.items()}

    def _read(self, query: str, size: int, rows: Sequence[Row]) -> KeyResult:
        """Return the result of one request from its rows; `size`: movies sent."""
        # The response of a key may be that of another batch, of more or fewer movies.
        expected = size if query == CREATE else len(rows)
        if [row[2] for row in rows] != [*range(expected)]:
            return self._statements.report(query, "it returned other movies than were sent")
        response = KeyResponse([Written("created", Movie._make(row[4:]), row[0]) for row in rows])
        if query == GET:
            return response._replace(fingerprint=rows[0][3])
        refusals = [
            MOVIES.refuse(row[0], row[3], row[4]) if row[3] in REFUSALS else None for row in rows
        ]
        return MOVIES.find_refusal(refusals) or response

    async def create(
        self, key: str, fields: Mapping[str, object], caller: Caller = NOBODY
    ) -> tuple[Written[Movie], bool]:
        """Create a movie, or return the movie that the key created before, and True.

        That movie is as it was created. Each client has its own keys; clients without a token have
        the same ones. Raises `KeyReused` if the key was used with other fields, `KeyInUse` while
        another request uses it, and what `Store.create` raises.
        """
        try:
            (movie,), is_replayed = await self._create_once(key, [fields], caller)
        except NothingWritten as none:
            raise none.errors[0] from None
        except RuleBroken as error:
            raise MOVIES.to_invalid(error) from error
        return movie, is_replayed

    async def create_all(
        self, key: str | None, movies: Sequence[Mapping[str, object]], caller: Caller
    ) -> tuple[list[Written[Movie]], bool]:
        """Create all movies of a batch in one statement, or none; otherwise as `create`."""
        if key is None:
            return await self._store.create_all(movies, caller), False
        return await self._create_once(f"{BATCH_KEY}{key}", movies, caller, is_batch=True)

    async def _create_once(
        self,
        key: str,
        movies: Sequence[Mapping[str, object]],
        caller: Caller,
        *,
        is_batch: bool = False,
    ) -> tuple[list[Written[Movie]], bool]:
        """Create if the key is unused; otherwise get its response, and True."""
        # Each client has its own keys; one that is sent has no tab.
        own_key = key if caller.client_id is None else f"{caller.client_id}\t{key}"
        # Of the parsed fields, not of the body: a client may write the same JSON differently.
        content = orjson.dumps(movies if is_batch else movies[0])
        fingerprint = hashlib.sha256(content).hexdigest()
        request = next(self._requests)
        asked = {"request": request, "key": own_key}
        sent = {
            **asked,
            "client": caller.client_id,
            "fingerprint": fingerprint,
            "is_batch": is_batch,
            "movies": [{"position": position, **fields} for position, fields in enumerate(movies)],
        }
        create: Attempt
        if is_batch:
            create = partial(self._create_batch, request, orjson.dumps(sent), len(movies), caller)
        else:
            create = partial(self._creates.submit, request, orjson.dumps(sent), caller)
        get = partial(self._responses.submit, request, orjson.dumps(asked), caller)
        for attempt in range(1 + RETRIES):
            if attempt:
                await asyncio.sleep(KEY_RETRY_S)
            if created := await self._create_if_unused(own_key, create):
                return created.movies, False
            if first := await self._store.resender.send(get):
                if first.fingerprint != fingerprint:
                    raise KeyReused
                if any(each.item.id is None for each in first.movies):
                    raise KeyInUse(FROM_OTHER_RELEASE)
                return first.movies, True
        raise KeyInUse("another request with this Idempotency-Key is still running")

    async def _create_if_unused(self, key: str, create: Attempt) -> KeyResponse | None:
        """Create; return None if the key is used, or another request uses it now.

        `_keys_in_use` finds other requests of this process. The key's lock in the database would
        find them, too, but not while they wait for a locked table.
        """
        if key in self._keys_in_use:
            return None
        self._keys_in_use.add(key)
        try:
            response = await self._store.resender.send(create)
        except RuleBroken as error:
            if error.rule == KEY_IS_USED:
                return None
            raise
        finally:
            self._keys_in_use.discard(key)
        if response and any(each.item.id is None for each in response.movies):
            raise self._statements.report(CREATE, "it created no movie")
        return response
