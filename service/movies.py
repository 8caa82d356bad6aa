"""The catalogue: what a movie is, and how movies are kept; knows no HTTP."""

import itertools
from collections.abc import Awaitable, Mapping
from datetime import datetime
from enum import Enum, auto
from typing import Any, NamedTuple

import orjson

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


class Movie(NamedTuple):
    """A movie as it is kept: a row of the queries, in this order."""

    id: int
    title: str
    year: int
    runtime: int  # minutes
    genres: list[str]
    version: int
    created_at: datetime
    updated_at: datetime


class Condition(NamedTuple):
    """What a change depends on, looked at under the row's lock; None: on nothing."""

    versions: list[int] | None = None  # the movie's is one of these
    other_than: list[int] | None = None  # and none of these
    unmodified_since: datetime | None = None  # and it has not changed since, to the second


ALWAYS = Condition()


class Refused(Enum):
    """In place of a movie: it is there, but its condition did not hold."""

    BY_CONDITION = auto()


Rows = list[Row[Movie | Refused]]

# What a client sends of a movie; the rest is the catalogue's own.
FIELDS = ("title", "year", "runtime", "genres")

COLUMNS = Movie._fields
QUERIES: Mapping[str, Expected] = {
    "get_movies": Expected(("ids",), COLUMNS),
    "create_movies": Expected(("movies",), ("position", *COLUMNS)),
    "update_movies": Expected(("changes",), ("held", *COLUMNS)),
    "delete_movies": Expected(("deletions",), ("held", *COLUMNS)),
}


class Catalogue:
    """Get, create, update and delete movies; every method may raise `Unavailable`.

    Requests of a kind that arrive together share one statement of queries/movies.sql.
    """

    def __init__(self, statements: Statements, sharing: Sharing) -> None:
        self._fetch = statements.fetch
        self._positions = itertools.count()
        self._gets = Batcher(self._get, sharing)
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
        return await _written(self._updates.submit(movie_id, payload))

    async def delete(self, movie_id: int, condition: Condition = ALWAYS) -> Movie:
        """Delete the movie and return what it was.

        Raises `MovieNotFound`, `PreconditionFailed`, or `Invalid` where it is still needed.
        """
        payload = orjson.dumps({"id": movie_id, **condition._asdict()})
        return await _written(self._deletes.submit(movie_id, payload))

    # What carries out a statement for the requests that share it.

    async def _get(self, rows: Rows, _lock_timeout: float) -> dict[int, Movie | Refused]:
        try:
            return _by_id(await self._fetch("get_movies", retry=True, ids=_ids(rows)))
        except Contended as error:
            # A read waits for no row, only for the whole table: apart it would do so again.
            raise Unavailable(str(error)) from error

    async def _create(self, rows: Rows, lock_timeout: float) -> dict[int, Movie | Refused]:
        created = await self._fetch("create_movies", lock_timeout=lock_timeout, movies=_json(rows))
        return {position: Movie._make(movie) for position, *movie in created}

    async def _update(self, rows: Rows, lock_timeout: float) -> dict[int, Movie | Refused]:
        updated = await self._fetch("update_movies", lock_timeout=lock_timeout, changes=_json(rows))
        return _held(updated)

    async def _delete(self, rows: Rows, lock_timeout: float) -> dict[int, Movie | Refused]:
        deleted = await self._fetch(
            "delete_movies", lock_timeout=lock_timeout, deletions=_json(rows)
        )
        return _held(deleted)


def _ids(rows: Rows) -> str:
    """An array literal: the server parses it faster than `array[...]`."""
    return "{" + ",".join([str(row.key) for row in rows]) + "}"


def _json(rows: Rows) -> str:
    return "[" + b",".join([row.payload for row in rows]).decode() + "]"


def _by_id(fetched: list[tuple[Any, ...]]) -> dict[int, Movie | Refused]:
    return {row[0]: Movie._make(row) for row in fetched}


def _held(fetched: list[tuple[Any, ...]]) -> dict[int, Movie | Refused]:
    return {
        movie[0]: Movie._make(movie) if held else Refused.BY_CONDITION for held, *movie in fetched
    }


async def _written(submitted: Awaitable[Movie | Refused | None]) -> Movie:
    try:
        return _found(await submitted)
    except RuleBroken as error:
        raise invalid(error) from error


def _found(movie: Movie | Refused | None) -> Movie:
    if movie is None:
        raise MovieNotFound
    if movie is Refused.BY_CONDITION:
        raise PreconditionFailed
    return movie


def invalid(broken: RuleBroken) -> Invalid:
    """Name the field of a rule of the database, if its name does: movies_<field>_<rule>."""
    named = next((name for name in FIELDS if broken.rule.startswith(f"movies_{name}_")), "")
    detail = f"breaks the rule {broken.rule}" if broken.rule else "is refused by the database"
    return Invalid([Failure(named, detail)])
