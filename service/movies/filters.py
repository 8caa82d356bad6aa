"""What a list of movies can be filtered and sorted by (docs/decisions/0004-keyset-cursors.md)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from service.database.listing import Place, SortKey, place_parameters
from service.database.query import Expected
from service.movies.movie import COLUMN_TYPES

SORT_FIELDS = ("id", "title", "year", "runtime", "created_at", "updated_at")
SORTS = (*SORT_FIELDS, *(f"-{field}" for field in SORT_FIELDS), "relevance")
SORT_TYPES = {**COLUMN_TYPES, "relevance": int}


class Range(NamedTuple):
    """`low` to `high`, both included; None: no limit.

    `parts`: if only some parts of it match, these parts as an int8multirange of PostgreSQL.
    """

    low: int | datetime | None = None
    high: int | datetime | None = None
    parts: str | None = None


ANY = Range()


@dataclass(frozen=True)
class Filter:
    """The conditions of a list; None and an empty range match every movie."""

    title: str | None = None  # all of these words, in any order; `cas*` is a prefix
    genres: tuple[str, ...] | None = None  # all of these; none contains a comma
    genres_any: tuple[str, ...] | None = None  # at least one of these
    year: Range = ANY
    runtime: Range = ANY
    created_at: Range = ANY  # of times with a zone, as is updated_at
    updated_at: Range = ANY

    def parameters(self) -> dict[str, object]:
        """Return the parameters of the queries."""
        return {
            "title": self.title,
            "genres": ",".join(self.genres) if self.genres else None,
            "genres_any": ",".join(self.genres_any) if self.genres_any else None,
            "year_from": self.year.low,
            "year_to": self.year.high,
            "years": self.year.parts,
            "runtime_from": self.runtime.low,
            "runtime_to": self.runtime.high,
            "runtimes": self.runtime.parts,
            "created_at_from": self.created_at.low,
            "created_at_to": self.created_at.high,
            "updated_at_from": self.updated_at.low,
            "updated_at_to": self.updated_at.high,
        }


EVERYTHING = Filter().parameters()
_NONE = Range(2, 1, "{}")
_NEVER = Range(datetime(2, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC))
NOTHING = Filter("a b*", ("a", "b"), ("a", "b"), _NONE, _NONE, _NEVER, _NEVER).parameters()
_FIRST = place_parameters("id", Place(), 0)
_NEXT = place_parameters("-title", Place(key=SortKey("a", 1)), 0)
_PAGES = [{**NOTHING, **_NEXT}, {**EVERYTHING, **_FIRST}]
QUERIES: Mapping[str, Expected] = {
    "count_movies": Expected(
        {"total": int, "movies": int},
        [{**NOTHING, "most": 0}, {**EVERYTHING, "most": 0}],
        "listing movies: the total of a first page",
    ),
    "sort_movies": Expected(COLUMN_TYPES, _PAGES, "listing movies: a page of few matches"),
    "walk_movies": Expected(
        COLUMN_TYPES, _PAGES, "listing movies: a page of many matches, and streams"
    ),
}
