"""The movie: a row of the queries, and what clients see of it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, get_type_hints


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
TYPES: Mapping[str, Any] = get_type_hints(Movie)  # of the columns


def movie_json(movie: Movie) -> dict[str, Any]:
    """The movie as clients see it: runtime as `<number> mins`, times in UTC."""
    return {
        "id": movie.id,
        "title": movie.title,
        "year": movie.year,
        "runtime": f"{movie.runtime} mins",
        "genres": movie.genres,
        "version": movie.version,
        "created_at": movie.created_at,
        "updated_at": movie.updated_at,
    }
