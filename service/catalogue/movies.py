"""The operations on single movies: get, create, update, delete."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Mapping
from datetime import datetime
from enum import Enum, auto
from typing import Any, NamedTuple

import orjson

from service.catalogue.movie import FIELDS, TYPES, Movie
from service.config import Sharing
from service.database.batching import Batcher, SharedRow
from service.database.queries import Expected
from service.database.statements import Statements
from service.errors import (
    Contended,
    Failure,
    Invalid,
    MovieNotFound,
    PreconditionFailed,
    RuleBroken,
    Unavailable,
)


class Condition(NamedTuple):
    """What an update or delete requires of the movie; checked under the row's lock."""

    versions: list[int] | None = None  # the movie's version is one of these
    other_than: list[int] | None = None  # and none of these
    unmodified_since: datetime | None = None  # and it has not changed since, to the second


ALWAYS = Condition()


class Refused(Enum):
    """Why an existing movie was not changed."""

    BY_CONDITION = auto()
    BY_LOCK = auto()  # another session holds the row's lock; try again


Rows = list[SharedRow[Movie | Refused]]

CHANGED = {"locked": bool, "held": bool, **TYPES}
QUERIES: Mapping[str, Expected] = {
    "get_movies": Expected(TYPES, [{"ids": "{}"}], "GET a movie"),
    "create_movies": Expected(
        {"position": int, **TYPES}, [{"movies": "[]"}], "POST a movie", writes=True
    ),
    "update_movies": Expected(CHANGED, [{"changes": "[]"}], "PATCH and PUT a movie", writes=True),
    "delete_movies": Expected(CHANGED, [{"deletions": "[]"}], "DELETE a movie", writes=True),
}

LOCK_RETRY_MIN_S = 0.01
LOCK_RETRY_MAX_S = 0.2


class Catalogue:
    """Get, create, update and delete movies; every method may raise `Unavailable`.

    Requests for the same operation that arrive together share one statement of queries/movies.sql.
    """

    def __init__(self, statements: Statements, sharing: Sharing) -> None:
        self._fetch = statements.fetch
        self._timeout = statements.timeout
        self._positions = itertools.count()
        rows = statements.metrics.shared_statement_rows.labels
        self._gets = Batcher(self._get, sharing, idempotent=True, rows_metric=rows("get_movies"))
        self._creates = Batcher(self._create, sharing, rows_metric=rows("create_movies"))
        self._updates = Batcher(
            self._update, sharing, exclusive=True, rows_metric=rows("update_movies")
        )
        self._deletes = Batcher(
            self._delete, sharing, exclusive=True, rows_metric=rows("delete_movies")
        )

    async def get(self, movie_id: int) -> Movie:
        """Return the movie; raises `MovieNotFound`."""
        return await _movie_or_error(self._gets.submit(movie_id))

    async def create(self, fields: Mapping[str, Any]) -> Movie:
        """Create a movie from all of `FIELDS`; raises `Invalid` if the database refuses it."""
        position = next(self._positions)
        payload = orjson.dumps({"position": position, **fields})
        return await _movie_or_error(self._creates.submit(position, payload))

    async def update(
        self, movie_id: int, changes: Mapping[str, Any], condition: Condition = ALWAYS
    ) -> Movie:
        """Change those of `FIELDS` that are given, in one atomic statement.

        Raises `MovieNotFound`, `PreconditionFailed` or `Invalid`.
        """
        payload = orjson.dumps({"id": movie_id, **changes, **condition._asdict()})
        return await _movie_or_error(self._submit_until_unlocked(self._updates, movie_id, payload))

    async def delete(self, movie_id: int, condition: Condition = ALWAYS) -> Movie:
        """Delete the movie and return it.

        Raises `MovieNotFound`, `PreconditionFailed`, or `Invalid` if a foreign key refers to it.
        """
        payload = orjson.dumps({"id": movie_id, **condition._asdict()})
        return await _movie_or_error(self._submit_until_unlocked(self._deletes, movie_id, payload))

    async def _submit_until_unlocked(
        self, batcher: Batcher[Movie | Refused], movie_id: int, payload: bytes
    ) -> Movie | Refused | None:
        """Submit the row, and again while another session holds the movie's lock."""
        started = time.monotonic()
        delay = LOCK_RETRY_MIN_S
        while (result := await batcher.submit(movie_id, payload)) is Refused.BY_LOCK:
            if time.monotonic() > started + self._timeout:
                raise Contended(f"movie {movie_id} is locked")
            await asyncio.sleep(delay)
            delay = min(2 * delay, LOCK_RETRY_MAX_S)
        return result

    async def _get(self, rows: Rows) -> dict[int, Movie | Refused]:
        try:
            # An array literal; the server parses it faster than `array[...]`.
            ids = "{" + ",".join([str(row.key) for row in rows]) + "}"
            fetched = await self._fetch("get_movies", retry=True, ids=ids)
            return {row[0]: Movie._make(row) for row in fetched}
        except Contended as error:
            # A read waits only for a lock on the whole table, so do not retry rows one by one.
            raise Unavailable(str(error), error.refusal) from error

    async def _create(self, rows: Rows) -> dict[int, Movie | Refused]:
        created = await self._write("create_movies", rows, movies=_to_json(rows))
        return {position: Movie._make(movie) for position, *movie in created}

    async def _update(self, rows: Rows) -> dict[int, Movie | Refused]:
        return _by_id(await self._write("update_movies", rows, changes=_to_json(rows)))

    async def _delete(self, rows: Rows) -> dict[int, Movie | Refused]:
        return _by_id(await self._write("delete_movies", rows, deletions=_to_json(rows)))

    async def _write(self, name: str, rows: Rows, **parameters: Any) -> list[tuple[Any, ...]]:
        shared = len(rows) > 1
        return await self._fetch(name, shared=shared, max_affected=len(rows), **parameters)


def _to_json(rows: Rows) -> str:
    return "[" + b",".join([row.payload for row in rows]).decode() + "]"


def _by_id(fetched: list[tuple[Any, ...]]) -> dict[int, Movie | Refused]:
    results: dict[int, Movie | Refused] = {}
    for is_locked, is_held, *movie in fetched:
        if is_locked:
            results[movie[0]] = Refused.BY_LOCK
        else:
            results[movie[0]] = Movie._make(movie) if is_held else Refused.BY_CONDITION
    return results


async def _movie_or_error(submitted: Awaitable[Movie | Refused | None]) -> Movie:
    try:
        result = await submitted
    except RuleBroken as error:
        raise to_invalid(error) from error
    if result is None:
        raise MovieNotFound
    if isinstance(result, Refused):
        raise PreconditionFailed
    return result


def to_invalid(broken: RuleBroken) -> Invalid:
    """Convert a violated constraint; its field is known if it is named movies_<field>_<rule>."""
    field = next((name for name in FIELDS if broken.rule.startswith(f"movies_{name}_")), "")
    detail = f"breaks the rule {broken.rule}" if broken.rule else "is refused by the database"
    return Invalid([Failure(field, detail)])
