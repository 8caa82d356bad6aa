"""The catalogue: what a movie is, and how movies are kept; knows no HTTP."""

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
from service.database.batching import Batcher, Row
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
    """What a change depends on, looked at under the row's lock; None: on nothing."""

    versions: list[int] | None = None  # the movie's is one of these
    other_than: list[int] | None = None  # and none of these
    unmodified_since: datetime | None = None  # and it has not changed since, to the second


ALWAYS = Condition()


class Refused(Enum):
    """In place of a movie: it is there, but it was left alone."""

    BY_CONDITION = auto()
    BY_LOCK = auto()  # for now: a DBA's transaction has it, or another process for a moment


Rows = list[Row[Movie | Refused]]

QUERIES: Mapping[str, Expected] = {
    "get_movies": Expected(TYPES, [{"ids": "{}"}], "GET a movie"),
    "create_movies": Expected(
        {"position": int, **TYPES}, [{"movies": "[]"}], "POST a movie", writes=True
    ),
    "update_movies": Expected(
        {"locked": bool, "held": bool, **TYPES},
        [{"changes": "[]"}],
        "PATCH and PUT a movie",
        writes=True,
    ),
    "delete_movies": Expected(
        {"locked": bool, "held": bool, **TYPES},
        [{"deletions": "[]"}],
        "DELETE a movie",
        writes=True,
    ),
}

# Seconds until a movie that was locked is asked for again: the first time, and at most.
SOON, LATER = 0.01, 0.2


class Catalogue:
    """Get, create, update and delete movies; every method may raise `Unavailable`.

    Requests of a kind that arrive together share one statement of queries/movies.sql.
    """

    def __init__(self, statements: Statements, sharing: Sharing) -> None:
        self._fetch = statements.fetch
        self._timeout = statements.timeout
        self._positions = itertools.count()
        self._gets = Batcher(self._get, sharing, idempotent=True)
        self._creates = Batcher(self._create, sharing)
        self._updates = Batcher(self._update, sharing, exclusive=True)
        self._deletes = Batcher(self._delete, sharing, exclusive=True)

    async def get(self, movie_id: int) -> Movie:
        """Return the movie; `MovieNotFound`."""
        return _found(await self._gets.submit(movie_id))

    async def create(self, fields: Mapping[str, Any]) -> Movie:
        """Keep a new movie, with all of `FIELDS`; `Invalid` if the database refuses it."""
        position = next(self._positions)
        payload = orjson.dumps({"position": position, **fields})
        return await _written(self._creates.submit(position, payload))

    async def update(
        self, movie_id: int, changes: Mapping[str, Any], condition: Condition = ALWAYS
    ) -> Movie:
        """Change those of `FIELDS` that are given, at once.

        Raises `MovieNotFound`, `PreconditionFailed` or `Invalid`.
        """
        payload = orjson.dumps({"id": movie_id, **changes, **condition._asdict()})
        return await _written(self._once_free(self._updates, movie_id, payload))

    async def delete(self, movie_id: int, condition: Condition = ALWAYS) -> Movie:
        """Delete the movie and return what it was.

        Raises `MovieNotFound`, `PreconditionFailed`, or `Invalid` where it is still needed.
        """
        payload = orjson.dumps({"id": movie_id, **condition._asdict()})
        return await _written(self._once_free(self._deletes, movie_id, payload))

    async def _once_free(
        self, batcher: Batcher[Movie | Refused], movie_id: int, payload: bytes
    ) -> Movie | Refused | None:
        """Submit, again and again while somebody else holds the movie's lock."""
        started = time.monotonic()
        pause = SOON
        while (answer := await batcher.submit(movie_id, payload)) is Refused.BY_LOCK:
            if time.monotonic() > started + self._timeout:
                raise Contended(f"movie {movie_id} is locked")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LATER)
        return answer

    # What carries out a statement for the requests that share it.

    async def _get(self, rows: Rows) -> dict[int, Movie | Refused]:
        try:
            return _by_id(await self._fetch("get_movies", retry=True, ids=_ids(rows)))
        except Contended as error:
            # A read waits for no row, only for the whole table: apart it would do so again.
            raise Unavailable(str(error)) from error

    async def _create(self, rows: Rows) -> dict[int, Movie | Refused]:
        created = await self._write("create_movies", rows, movies=_json(rows))
        return {position: Movie._make(movie) for position, *movie in created}

    async def _update(self, rows: Rows) -> dict[int, Movie | Refused]:
        return _changed(await self._write("update_movies", rows, changes=_json(rows)))

    async def _delete(self, rows: Rows) -> dict[int, Movie | Refused]:
        return _changed(await self._write("delete_movies", rows, deletions=_json(rows)))

    async def _write(self, name: str, rows: Rows, **parameters: Any) -> list[tuple[Any, ...]]:
        shared = len(rows) > 1
        return await self._fetch(name, shared=shared, max_affected=len(rows), **parameters)


def _ids(rows: Rows) -> str:
    """An array literal: the server parses it faster than `array[...]`."""
    return "{" + ",".join([str(row.key) for row in rows]) + "}"


def _json(rows: Rows) -> str:
    return "[" + b",".join([row.payload for row in rows]).decode() + "]"


def _by_id(fetched: list[tuple[Any, ...]]) -> dict[int, Movie | Refused]:
    return {row[0]: Movie._make(row) for row in fetched}


def _changed(fetched: list[tuple[Any, ...]]) -> dict[int, Movie | Refused]:
    changed: dict[int, Movie | Refused] = {}
    for locked, held, *movie in fetched:
        if locked:
            changed[movie[0]] = Refused.BY_LOCK
        else:
            changed[movie[0]] = Movie._make(movie) if held else Refused.BY_CONDITION
    return changed


async def _written(submitted: Awaitable[Movie | Refused | None]) -> Movie:
    try:
        return _found(await submitted)
    except RuleBroken as error:
        raise invalid(error) from error


def _found(movie: Movie | Refused | None) -> Movie:
    if movie is None:
        raise MovieNotFound
    if isinstance(movie, Refused):
        raise PreconditionFailed
    return movie


def invalid(broken: RuleBroken) -> Invalid:
    """Name the field of a rule of the database, if its name does: movies_<field>_<rule>."""
    named = next((name for name in FIELDS if broken.rule.startswith(f"movies_{name}_")), "")
    detail = f"breaks the rule {broken.rule}" if broken.rule else "is refused by the database"
    return Invalid([Failure(named, detail)])
