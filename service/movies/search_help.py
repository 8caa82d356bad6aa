"""Suggested movies, and facets: docs/decisions/0017-suggest-searches.md."""

from collections.abc import Mapping, Sequence
from typing import Any

from service.database.caller import Caller
from service.database.listing import EXACT_TOTAL, Counted, filter_parameter
from service.database.query import Expected
from service.database.statements import Statements
from service.errors import Unavailable
from service.movies.movie import COLUMN_TYPES, Movie
from service.movies.parameters import EVERYTHING, FACETS, NOTHING

QUERIES: Mapping[str, Expected] = {
    "suggest_movies": Expected(
        COLUMN_TYPES, [NOTHING], "listing movies: a search that finds nothing", in_order=True
    ),
    "count_facets": Expected(
        {"total": int, "in_table": int}
        | {"facet": str, "value": str, "movies": int, "is_estimate": bool},
        [{**each, "facets": ",".join(FACETS), "most": 0} for each in (NOTHING, EVERYTHING)],
        "listing movies: facets",
    ),
}


async def suggest(
    statements: Statements, filters: Mapping[str, Any], callers: Sequence[Caller]
) -> list[Movie]:
    """Return up to five movies, the closest titles first; none if it is slow or fails."""
    sent = filter_parameter(filters)
    try:
        rows = await statements.fetch("suggest_movies", sent, expects_timeout=True, callers=callers)
    except Unavailable:
        return []
    return [Movie._make(row) for row in rows]


async def count_facets(
    statements: Statements,
    filters: Mapping[str, Any],
    facets: Sequence[str],
    callers: Sequence[Caller],
) -> tuple[Counted, dict[str, Any]]:
    """Return the count, and the facets: genres by their movies, ranges by their start."""
    sent = {"facets": ",".join(facets), "most": EXACT_TOTAL, **filter_parameter(filters)}
    rows = await statements.fetch("count_facets", sent, callers=callers)
    found: dict[str, Any] = {name: {"is_estimate": False, "values": []} for name in facets}
    for _, _, facet, value, movies, is_estimate in rows:
        if facet:
            found[facet]["is_estimate"] = is_estimate
            found[facet]["values"].append({"value": value, "movies": movies})
    for name, facet in found.items():
        if name == "genres":
            facet["values"].sort(key=lambda each: (-each["movies"], each["value"]))
        else:  # ranges, by their start
            facet["values"].sort(key=lambda each: int(each["value"].partition("..")[0]))
    return Counted._make(rows[0][:2]), found
