"""Finding movies: filters, sort orders and pages; knows no HTTP.

A page begins at a key, the sort value and id of a movie. The database walks to it along an index,
so the ten-thousandth page costs no more than the first, and while others add and remove movies, no
movie that stays is missed or seen twice (https://use-the-index-luke.com/no-offset). Counting takes
most of the time: a first page counts, and its cursors carry the total along.
"""

from collections.abc import Mapping
from typing import Any

from service.catalogue.movie import TYPES, Movie
from service.catalogue.paging import EXACT_TOTAL, NUMBERED_MOVIES, Filter, Key, Page, Place, Range
from service.database.queries import Expected
from service.database.statements import Row, Statements
from service.errors import Contended, Failure, WrongParameters

# Matches that are sorted if a walk along the index takes too long: that many take some 0.2 s.
SORTABLE = 100_000
ANY_NUMBER = 2**31


def _place_parameters(order: str, place: Place, size: int) -> dict[str, Any]:
    """Numbers of type bigint go as text, so that every number is a constant of one type.

    Otherwise pg_stat_statements lists a query once for small numbers and once for large ones.
    """
    return {
        "sort": order,
        "after": str(place.key.value) if place.key else None,
        "after_id": str(place.key.id) if place.key else None,
        "skip": place.skip,
        "size": size,
    }


_EVERYTHING = Filter().parameters()
_NOTHING = Filter("a b*", ("a", "b"), Range(2, 1), Range(2, 1)).parameters()
_FIRST = _place_parameters("id", Place(), 0)
_NEXT = _place_parameters("-title", Place(key=Key("a", 1)), 0)
QUERIES: Mapping[str, Expected] = {
    "sort_movies": Expected(
        {"total": int, **TYPES},
        [{**_NOTHING, **_NEXT, "most": 0}, {**_EVERYTHING, **_FIRST, "most": 0}],
        "listing movies: a first page, or few matches",
    ),
    "estimate_movies": Expected(
        {"total": int}, [_NOTHING, _EVERYTHING], "listing movies: the first page of many matches"
    ),
    "walk_movies": Expected(
        TYPES,
        [{**_NOTHING, **_NEXT}, {**_EVERYTHING, **_FIRST}],
        "listing movies: a page by cursor, or of many matches",
    ),
}


class Listing:
    """Lists movies; may raise `Unavailable`."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    async def page(self, wanted: Filter, sort: str, place: Place, size: int) -> Page:
        """Return the page of `size` movies at `place`; `sort` is one of `SORTS`.

        `WrongParameters`: the page is too far from the first one to be reached by its number.
        """
        filters = wanted.parameters()
        order = _reverse(sort) if place.backwards else sort
        total, rows = place.total, list[Row]()
        if total is not None:
            rows = await self._walk(total, filters, order, place, size + 1)
        if total is None or not rows:  # the movies there have gone since they were counted
            total, rows = await self._count(filters, order, place, size + 1)
        movies = [Movie._make(row) for row in rows[:size]]
        before, after = bool(total and (place.skip or place.key)), len(rows) > size
        if place.backwards:
            movies.reverse()
            before, after = after, before
        return Page(
            movies=movies,
            previous=_edge(sort, place, movies[:1]) if before else None,
            next=_edge(sort, place, movies[-1:]) if after else None,
            total=total,
        )

    async def _count(
        self, filters: dict[str, Any], order: str, place: Place, size: int
    ) -> tuple[int, list[Row]]:
        """Return the total and the page."""
        total, rows = await self._sort(EXACT_TOTAL, filters, order, place, size)
        if total <= EXACT_TOTAL:
            return total, rows
        if place.skip + size - 1 > NUMBERED_MOVIES:
            last = NUMBERED_MOVIES // (size - 1)
            detail = f"must be at most {last}, as over {EXACT_TOTAL} movies match; use a cursor"
            raise WrongParameters([Failure("page", detail)])
        ((estimate,),) = await self._statements.fetch("estimate_movies", retry=True, **filters)
        total = max(EXACT_TOTAL + 1, estimate)
        return total, await self._walk(total, filters, order, place, size)

    async def _walk(
        self, total: int, filters: dict[str, Any], order: str, place: Place, size: int
    ) -> list[Row]:
        """Return the page, read along the index of the order.

        If the walk times out, fetch the matches and sort them: matches that are clustered make the
        walk long. More than `SORTABLE` would take longer to sort.
        """
        filters, key = _begin(filters, order, place.key)
        place = Place(place.skip, key)
        try:
            return await self._statements.fetch(
                "walk_movies",
                retry=True,
                timeout=None if total <= SORTABLE else self._statements.timeout,
                **filters,
                **_place_parameters(order, place, size),
            )
        except Contended:
            if total > SORTABLE:
                raise
        _, rows = await self._sort(ANY_NUMBER, filters, order, place, size)
        return rows

    async def _sort(
        self, most: int, filters: dict[str, Any], order: str, place: Place, size: int
    ) -> tuple[int, list[Row]]:
        """Count the matches, up to `most` + 1; if there are no more than `most`, sort the page."""
        place_parameters = _place_parameters(order, place, size)
        rows = await self._statements.fetch(
            "sort_movies", retry=True, most=most, **filters, **place_parameters
        )
        return rows[0][0], [row[1:] for row in rows if row[1] is not None]


def _begin(
    filters: dict[str, Any], order: str, key: Key | None
) -> tuple[dict[str, Any], Key | None]:
    """Let a walk begin at the key, or at the range of the sorted field if that is farther.

    Only one of the two is sent: PostgreSQL might begin at the other and read all between them.
    """
    descending = order.startswith("-")
    bound = f"{order.removeprefix('-')}_{'to' if descending else 'from'}"
    limit = filters.get(bound)
    if key is None or limit is None:
        return filters, key
    if key.value <= limit if descending else key.value >= limit:
        return {**filters, bound: None}, key
    return filters, None


def _reverse(sort: str) -> str:
    return sort.removeprefix("-") if sort.startswith("-") else f"-{sort}"


def _edge(sort: str, place: Place, movies: list[Movie]) -> Key | None:
    """Return the key of the page's first or last movie.

    Of an empty page, whose movies have gone: a key right behind its own, so that the page before it
    includes the movie that it came from.
    """
    for movie in movies:
        return Key(getattr(movie, sort.removeprefix("-")), movie.id)
    if not place.key:
        return None
    onwards = place.backwards == sort.startswith("-")
    return place.key._replace(id=place.key.id + (1 if onwards else -1))
