"""The terms of a list: filters, sort orders, the place where a page begins, and the page."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from service.movies.movie import Movie

SORT_FIELDS = ("id", "title", "year", "runtime", "created_at", "updated_at")
SORTS = (*SORT_FIELDS, *(f"-{field}" for field in SORT_FIELDS), "relevance")
EXACT_TOTAL = 10_000  # more matches are not counted: the total is an estimate
NUMBERED_MOVIES = 1_000  # page numbers reach so many movies if more than EXACT_TOTAL match


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


class SortKey(NamedTuple):
    """A movie's position in a sort order: the value of the sorted field, and the id for ties."""

    value: str | int | datetime
    id: int


@dataclass(frozen=True)
class Place:
    """Where a page begins: after `skip` movies, or after `key` (`backwards`: before it).

    `total`: the number of matches, if an earlier page counted them.
    """

    skip: int = 0
    key: SortKey | None = None
    backwards: bool = False
    total: int | None = None


@dataclass(frozen=True)
class Page:
    """Movies in order, the keys of the neighbouring pages (None: no such page), and the total."""

    movies: list[Movie]
    previous: SortKey | None
    next: SortKey | None
    total: int

    @property
    def total_is_estimate(self) -> bool:
        """Return whether the total is an estimate."""
        return self.total > EXACT_TOTAL

    def last_page(self, size: int) -> int:
        """Return the last page number, for pages of `size` movies."""
        if self.total_is_estimate:
            return NUMBERED_MOVIES // size
        return max(1, -(-self.total // size))
