"""Creates that happen once however often they are sent, by a key of the client's; knows no HTTP.

https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/. The key, the movie and
the answer are written by one statement (queries/idempotency.sql), so that no crash can come between
them. PostgreSQL decides who comes first, among the requests of one process as among processes.
"""

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from service.catalogue.movie import TYPES, Movie
from service.catalogue.movies import invalid
from service.config import Sharing
from service.database.batching import Batcher, Row
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
}

# Seconds that a request waits for another one with its key: it mostly gets the answer of that one,
# and otherwise learns soon that it takes longer. First for one of this process, and then before
# each look whether one of another process has come to its end.
PATIENCE = 0.25
LOOKS = (0.01, 0.02, 0.04, 0.08, 0.1)
# Keys in a statement, whatever `max_rows` says: each is a lock, of which all sessions together have
# 6400 by default (max_locks_per_transaction).
MAX_ROWS = 32
# Keys that one statement clears: some 20 ms.
PORTION = 1000
# Seconds from one portion to the next while there is more, so that nobody has to wait for all of it
# (some 8,000 keys a second all the same), and when nothing was left.
PAUSE = 0.1
CLEAR_EVERY = 60


class Answer(NamedTuple):
    """What a key was used for.

    `fingerprint`: of the fields that the movie was created with. `replayed`: by an earlier request.
    """

    fingerprint: str
    replayed: bool
    movie: Movie


class OnceOnly:
    """Creates movies, one a key; every method may raise `Unavailable`."""

    def __init__(self, statements: Statements, sharing: Sharing) -> None:
        self._fetch = statements.fetch
        self._positions = itertools.count()
        rows = min(sharing.max_rows, MAX_ROWS)
        self._creates = Batcher(self._create, replace(sharing, max_rows=rows), idempotent=True)
        self._under_way: dict[str, asyncio.Event] = {}  # set when that request is over

    async def create(self, key: str, fields: Mapping[str, Any]) -> tuple[Movie, bool]:
        """Keep a new movie, or return the one that this key was used for and True.

        It is the movie as it was created: it may have changed since, or be gone. Raises
        `KeyReused` where the key was used with other fields, `KeyInUse` while another request with
        it is being carried out, and `Invalid` if the database refuses the movie: then the key stays
        unused.
        """
        # Of the fields, which come in one order, and not of the bytes: a client may write the same
        # JSON in another way.
        fingerprint = hashlib.sha256(orjson.dumps(fields)).hexdigest()
        position = next(self._positions)
        payload = orjson.dumps(
            {"position": position, "key": key, "fingerprint": fingerprint, **fields}
        )
        async with self._turn(key):
            answer = await self._submit(position, payload)
            for pause in LOOKS:
                if answer:
                    break
                await asyncio.sleep(pause)
                answer = await self._submit(position, payload)
        if not answer:
            raise KeyInUse
        if answer.fingerprint != fingerprint:
            raise KeyReused
        return answer.movie, answer.replayed

    async def clear(self) -> int:
        """Delete keys that have expired, up to `PORTION`, and return how many it was."""
        ((cleared,),) = await self._fetch("clear_idempotency_keys", at_most=PORTION)
        return int(cleared)

    @asynccontextmanager
    async def cleared(self) -> AsyncIterator[None]:
        """Have expired keys cleared every `CLEAR_EVERY` seconds while inside.

        Leaving waits for nobody: a portion under way is cleared all the same.
        """
        task = asyncio.create_task(self._keep_clearing())
        try:
            yield
        finally:
            task.cancel()

    async def _keep_clearing(self) -> None:
        more = False
        while True:
            await asyncio.sleep(PAUSE if more else CLEAR_EVERY)
            try:
                more = await self.clear() == PORTION
            except Exception:  # noqa: BLE001 - the next time it may be gone; the statement logs it
                more = False

    @asynccontextmanager
    async def _turn(self, key: str) -> AsyncIterator[None]:
        """Wait for the request that uses the key in this process; `KeyInUse`.

        The database tells, too, unless it is what the other one waits for: a locked table, say.
        Those who have waited go on together, as they will share a statement.
        """
        over = asyncio.Event()
        if other := self._under_way.get(key):
            try:
                async with asyncio.timeout(PATIENCE):
                    await other.wait()
            except TimeoutError:
                raise KeyInUse from None
        self._under_way.setdefault(key, over)
        try:
            yield
        finally:
            if self._under_way.get(key) is over:
                del self._under_way[key]
            over.set()

    async def _submit(self, position: int, payload: bytes) -> Answer | None:
        try:
            return await self._creates.submit(position, payload)
        except RuleBroken as error:
            raise invalid(error) from error

    async def _create(self, rows: list[Row[Answer]]) -> dict[int, Answer]:
        answers = await self._fetch(
            "create_movies_once",
            retry=True,  # if the first one was carried out after all, the keys tell
            shared=len(rows) > 1,
            max_affected=len(rows),
            requests="[" + b",".join([row.payload for row in rows]).decode() + "]",
        )
        return {
            position: Answer(fingerprint, replayed, Movie._make(movie))
            for position, fingerprint, replayed, *movie in answers
        }
