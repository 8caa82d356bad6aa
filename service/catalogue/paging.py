"""What a list of movies can be asked for, and a page of it: filters, sort orders, places, pages."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from service.catalogue.movie import Movie

SORTS = ("id", "title", "year", "runtime", "-id", "-title", "-year", "-runtime")
EXACT_TOTAL = 10_000  # matches that are counted; beyond, the total is an estimate
NUMBERED_MOVIES = 1_000  # that page numbers reach where more than EXACT_TOTAL match


class Range(NamedTuple):
    """From `low` to `high`, both included; None: no limit."""

    low: int | None = None
    high: int | None = None


ANY = Range()


@dataclass(frozen=True)
class Filter:
    """What a movie must be; None and an empty range: anything."""

    title: str | None = None  # all of its words, in any order; `cas*`: a word that begins so
    genres: tuple[str, ...] | None = None  # all of them; no genre with a comma
    year: Range = ANY
    runtime: Range = ANY

    def parameters(self) -> dict[str, Any]:
        """As the queries take them."""
        return {
            "title": self.title,
            "genres": ",".join(self.genres) if self.genres else None,
            "year_from": self.year.low,
            "year_to": self.year.high,
            "runtime_from": self.runtime.low,
            "runtime_to": self.runtime.high,
        }


class Key(NamedTuple):
    """Where a movie stands in an order: the field that is sorted by, and the id for ties."""

    value: str | int
    id: int


@dataclass(frozen=True)
class Place:
    """Where a page begins: behind so many movies, or next to a key, ahead of it or behind it.

    `total`: how many movies match, if a page before this one has counted them.
    """

    skip: int = 0
    key: Key | None = None
    backwards: bool = False
    total: int | None = None


@dataclass(frozen=True)
class Page:
    """Movies in order, the keys of the pages next to it (None: there is none), and the total."""

    movies: list[Movie]
    previous: Key | None
    next: Key | None
    total: int

    @property
    def total_is_estimate(self) -> bool:
        """Whether the matches were not counted."""
        return self.total > EXACT_TOTAL

    def last_page(self, size: int) -> int:
        """Return the last page that a number reaches, of pages with so many movies."""
        if self.total_is_estimate:
            return NUMBERED_MOVIES // size
        return max(1, -(-self.total // size))
