"""The catalogue: what a movie is, and how movies are kept; knows no HTTP."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from service.database.queries import Expected
from service.database.statements import Row, Statements
from service.errors import Failure, Invalid, MovieNotFound, RuleBroken


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


# What a client sends of a movie; the rest is the catalogue's own.
FIELDS = ("title", "year", "runtime", "genres")

COLUMNS = Movie._fields
QUERIES: Mapping[str, Expected] = {
    "get_movies": Expected(("ids",), COLUMNS),
    "create_movies": Expected(("movies",), ("position", *COLUMNS)),
    "update_movies": Expected(("changes",), COLUMNS),
    "delete_movies": Expected(("ids",), COLUMNS),
}


class Catalogue:
    """Get, create, update and delete movies; every method may raise `Unavailable`."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    async def get(self, movie_id: int) -> Movie:
        """Return the movie; `MovieNotFound`."""
        rows = await self._statements.fetch("get_movies", retry=True, ids=[movie_id])
        return _only(rows)

    async def create(self, fields: Mapping[str, Any]) -> Movie:
        """Keep a new movie, with all of `FIELDS`; `Invalid` if the database refuses it."""
        movies = orjson.dumps([{"position": 0, **fields}]).decode()
        try:
            rows = await self._statements.fetch("create_movies", movies=movies)
        except RuleBroken as error:
            raise _invalid(error) from error
        return Movie._make(rows[0][1:])

    async def update(self, movie_id: int, changes: Mapping[str, Any]) -> Movie:
        """Change those of `FIELDS` that are given, at once; `MovieNotFound`, `Invalid`."""
        rows_of_changes = orjson.dumps([{"id": movie_id, **changes}]).decode()
        try:
            rows = await self._statements.fetch("update_movies", changes=rows_of_changes)
        except RuleBroken as error:
            raise _invalid(error) from error
        return _only(rows)

    async def delete(self, movie_id: int) -> Movie:
        """Delete the movie and return what it was; `MovieNotFound`."""
        return _only(await self._statements.fetch("delete_movies", ids=[movie_id]))


def _only(rows: list[Row]) -> Movie:
    if not rows:
        raise MovieNotFound
    return Movie._make(rows[0])


def _invalid(broken: RuleBroken) -> Invalid:
    """Name the field of a rule of the database, if its name does: movies_<field>_<rule>."""
    named = next((name for name in FIELDS if broken.rule.startswith(f"movies_{name}_")), "")
    detail = f"breaks the rule {broken.rule}" if broken.rule else "is refused by the database"
    return Invalid([Failure(named, detail)])
