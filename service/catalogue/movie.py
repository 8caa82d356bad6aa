"""The movie: its columns, and its JSON form."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, get_type_hints


class Movie(NamedTuple):
    """A movie as the queries return it; the order of fields is that of the columns."""

    id: int
    title: str
    year: int
    runtime: int  # minutes
    genres: list[str]
    version: int
    created_at: datetime
    updated_at: datetime

    @property
    def relevance(self) -> int:
        """The value that `sort=relevance` sorts by: `search_rank` of the migrations."""
        return len(self.title) * 10**10 - self.year


FIELDS = ("title", "year", "runtime", "genres")  # clients send these; the others are read-only

COLUMNS = Movie._fields
TYPES: Mapping[str, Any] = get_type_hints(Movie)  # of the columns


def movie_json(movie: Movie) -> dict[str, Any]:
    """Return the movie as clients see it: runtime as `<number> mins`, times in UTC."""
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
