"""What a list of movies can be filtered and sorted by; its facets, and suggestions.

docs/decisions/0004-keyset-cursors.md, docs/decisions/0017-suggest-searches.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from service.context import RequestContext
from service.database.listing import place_parameters
from service.database.paging import EXACT_TOTAL, Counted, Place, SortKey
from service.database.query import Expected
from service.database.statements import Statements
from service.errors import Unavailable
from service.movies.movie import COLUMN_TYPES, Movie

SORT_FIELDS = ("id", "title", "year", "runtime", "created_at", "updated_at")
SORTS = (*SORT_FIELDS, *(f"-{field}" for field in SORT_FIELDS), "relevance")
FACETS = ("genres", "year", "runtime")
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


_EVERYTHING = Filter().parameters()
_NONE = Range(2, 1, "{}")
_NEVER = Range(datetime(2, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC))
NOTHING = Filter("a b*", ("a", "b"), ("a", "b"), _NONE, _NONE, _NEVER, _NEVER).parameters()
_FIRST = place_parameters("id", Place(), 0)
_NEXT = place_parameters("-title", Place(key=SortKey("a", 1)), 0)
_PAGES = [{**NOTHING, **_NEXT}, {**_EVERYTHING, **_FIRST}]
QUERIES: Mapping[str, Expected] = {
    "count_movies": Expected(
        {"total": int, "movies": int},
        [{**NOTHING, "most": 0}, {**_EVERYTHING, "most": 0}],
        "listing movies: the total of a first page",
    ),
    "sort_movies": Expected(COLUMN_TYPES, _PAGES, "listing movies: a page of few matches"),
    "walk_movies": Expected(
        COLUMN_TYPES, _PAGES, "listing movies: a page of many matches, and streams"
    ),
    "suggest_movies": Expected(
        COLUMN_TYPES, [NOTHING], "listing movies: a search that finds nothing"
    ),
    "count_facets": Expected(
        {"total": int, "in_table": int}
        | {"facet": str, "value": str, "movies": int, "is_estimate": bool},
        [{**each, "facets": ",".join(FACETS), "most": 0} for each in (NOTHING, _EVERYTHING)],
        "listing movies: facets",
    ),
}


class SearchHelp:
    """What helps to search further: suggested movies, and facets.

    `waiting`: the requests that it is for.
    """

    def __init__(self, statements: Statements) -> None:
        self._fetch = statements.fetch

    async def suggest(self, wanted: Filter, waiting: Sequence[RequestContext]) -> list[Movie]:
        """Return up to five movies that match the other filters, the closest titles first.

        The list is empty if the query takes too long, or without a database.
        """
        try:
            rows = await self._fetch(
                "suggest_movies", wanted.parameters(), expects_timeout=True, waiting=waiting
            )
        except Unavailable:
            return []
        return [Movie._make(row) for row in rows]

    async def count_facets(
        self, wanted: Filter, facets: Sequence[str], waiting: Sequence[RequestContext]
    ) -> tuple[Counted, dict[str, Any]]:
        """Return what is counted of the list, and its facets as clients see them.

        Genres by their number of movies, decades and half hours in their order.
        """
        sent = {**wanted.parameters(), "facets": ",".join(facets), "most": EXACT_TOTAL}
        rows = await self._fetch("count_facets", sent, waiting=waiting)
        found: dict[str, Any] = {name: {"is_estimate": False, "values": []} for name in facets}
        for _, _, facet, value, movies, is_estimate in rows:
            if facet:
                found[facet]["is_estimate"] = is_estimate
                found[facet]["values"].append({"value": value, "movies": movies})
        for name, facet in found.items():
            facet["values"].sort(key=_by_movies if name == "genres" else _by_start)
        return Counted._make(rows[0][:2]), found


def _by_movies(value: Mapping[str, Any]) -> tuple[int, str]:
    return -value["movies"], value["value"]


def _by_start(value: Mapping[str, Any]) -> int:
    return int(value["value"].partition("..")[0])
