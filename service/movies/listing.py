"""Lists movies: counts the matches, and fetches a page in the cheaper of two ways.

The queries are in queries/listing.sql. A page begins at a key: the sort value and id of a movie.
Only a first page counts, and its cursors carry the total (docs/decisions/0004-keyset-cursors.md).
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from service.context import RequestContext
from service.database.query import Expected, Row
from service.database.statements import RowLists, Statements
from service.errors import Contended, Failure, WrongParameters
from service.movies.movie import COLUMN_TYPES, Movie
from service.movies.paging import (
    EXACT_TOTAL,
    NUMBERED_MOVIES,
    Filter,
    Page,
    Place,
    Range,
    SortKey,
)

MAX_SORTED_MATCHES = 100_000  # sorting so many takes about 0.2 s
# To find and sort a match costs as much as to walk past so many rows: 1 to 30, as measured.
SORT_COST = 4


def place_parameters(order: str, place: Place, size: int | None) -> dict[str, object]:
    """Return the parameters of a page, with times and bigint numbers as text; size None: no end.

    As numbers, they would be constants of two types (integer and bigint), and pg_stat_statements
    would list the query twice.
    """
    return {
        "sort": order,
        "after": str(place.key.value) if place.key else None,
        "after_id": str(place.key.id) if place.key else None,
        "skip": place.skip,
        "size": size,
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
}


class Listing:
    """Lists movies; may raise `Unavailable`. `streams`: the statements of whole lists.

    What must stay true: whoever follows the cursors, forwards or backwards, gets each movie that
    stays in the list once; both ways to fetch a page give the same rows; the total of a response
    does not contradict its rows.
    """

    def __init__(self, statements: Statements, streams: Statements | None = None) -> None:
        self._statements = statements
        self._fetch = statements.fetch
        self._streams = streams or statements
        self._movies = 0  # in the table, as the last count saw it

    async def fetch_page(
        self,
        wanted: Filter,
        sort: str,
        place: Place,
        size: int,
        waiting: Sequence[RequestContext] = (),
    ) -> Page:
        """Return the page of `size` movies at `place`; `sort` is one of `SORTS`.

        `waiting`: the requests that it is for, for logs. Raises `WrongParameters` if the page
        number is too high for so many matches.
        """
        terms = wanted, get_order(sort, place), place, size + 1
        if place.total is not None:
            known = await self._fetch_rows(*terms, place.total, waiting)
            # Otherwise the page contradicts the total: movies were deleted or added since.
            if 0 < len(known) <= place.total:
                return make_page(sort, place, size, known, place.total)
        counted = await self._count(wanted, waiting)
        if counted > EXACT_TOTAL and place.skip + size > NUMBERED_MOVIES:
            last = NUMBERED_MOVIES // size
            detail = f"must be at most {last}, as over {EXACT_TOTAL} movies match; use a cursor"
            raise WrongParameters([Failure("page", detail)])
        is_behind = place.key is None and place.skip >= counted
        rows = [] if is_behind else await self._fetch_rows(*terms, counted, waiting)
        total = correct_total(counted, place, size, len(rows))
        return make_page(sort, place, size, rows, total)

    def stream(self, wanted: Filter, sort: str, context: RequestContext) -> RowLists:
        """Yield the rows of all movies that match, as `Statements.stream` does."""
        parameters = {**wanted.parameters(), **place_parameters(sort, Place(), None)}
        return self._streams.stream("walk_movies", context, parameters)

    async def _count(self, wanted: Filter, waiting: Sequence[RequestContext]) -> int:
        """Return the number of matches, or an estimate if there are more than `EXACT_TOTAL`."""
        parameters = {**wanted.parameters(), "most": EXACT_TOTAL}
        rows = await self._fetch("count_movies", parameters, waiting=waiting)
        ((total, self._movies),) = rows
        return int(total)

    async def _fetch_rows(  # noqa: PLR0913, PLR0917 - the terms of a page
        self,
        wanted: Filter,
        order: str,
        place: Place,
        size: int,
        total: int,
        waiting: Sequence[RequestContext],
    ) -> list[Row]:
        """Return `size` rows at `place`: sort the matches, or walk the index of the sort order.

        If the index walk times out, sort the matches: matches that are clustered make the walk
        long. More than `MAX_SORTED_MATCHES` would take longer to sort.
        """
        filters = wanted.parameters()
        if not is_sort_cheaper(total, self._movies, place.skip + size):
            may_sort = total <= MAX_SORTED_MATCHES
            started, key = choose_start(filters, order, place.key)
            try:
                return await self._fetch(
                    "walk_movies",
                    {**started, **place_parameters(order, Place(place.skip, key), size)},
                    timeout=None if may_sort else self._statements.timeout,
                    expects_timeout=may_sort,
                    waiting=waiting,
                )
            except Contended:
                if not may_sort:
                    raise
        # With all filters: it finds every match before it looks at the place.
        at = place_parameters(order, place, size)
        return await self._fetch("sort_movies", {**filters, **at}, waiting=waiting)


def is_sort_cheaper(matches: int, movies: int, rows: int) -> bool:
    """Whether to sort the matches costs less than to walk an index until `rows` of them are found.

    Of the `movies` in the table, the walk reads about `rows * movies / matches`.
    """
    return SORT_COST * matches * matches <= rows * movies


def choose_start(
    filters: dict[str, Any], order: str, key: SortKey | None
) -> tuple[dict[str, Any], SortKey | None]:
    """Return where the walk starts: at the key, or at the bound of the range if that is farther.

    Only one of the two is sent: otherwise PostgreSQL may start at the nearer one and read all rows
    between the two.
    """
    descending = order.startswith("-")
    bound = f"{order.removeprefix('-')}_{'to' if descending else 'from'}"
    limit = filters.get(bound)
    if key is None or limit is None:
        return filters, key
    if key.value <= limit if descending else key.value >= limit:
        return {**filters, bound: None}, key
    return filters, None


def get_order(sort: str, place: Place) -> str:
    """Return the sort order in which the page is read: a page before a key is read backwards."""
    if not place.backwards:
        return sort
    return sort.removeprefix("-") if sort.startswith("-") else f"-{sort}"


def correct_total(counted: int, place: Place, size: int, rows: int) -> int:
    """Return a total that agrees with the rows: movies may have come or gone since the count.

    `rows`: their number; it is `size` + 1 if the list goes on behind the page.
    """
    if rows > size or (rows and place.key):
        return max(counted, place.skip + rows)
    if place.key:
        return counted
    return place.skip + rows if rows else min(counted, place.skip)


def make_page(sort: str, place: Place, size: int, rows: Sequence[Row], total: int) -> Page:
    """Make the page of the first `size` rows; there is one more if the list goes on."""
    movies = [Movie._make(row) for row in rows[:size]]
    starts_inside, goes_on = bool(total and (place.skip or place.key)), len(rows) > size
    if place.backwards:
        movies.reverse()
        has_previous, has_next = goes_on, starts_inside
    else:
        has_previous, has_next = starts_inside, goes_on
    return Page(
        movies=movies,
        previous=_make_edge_key(sort, place, movies[:1]) if has_previous else None,
        next=_make_edge_key(sort, place, movies[-1:]) if has_next else None,
        total=total,
    )


def _make_edge_key(sort: str, place: Place, movies: list[Movie]) -> SortKey | None:
    """Return the key of the page's first or last movie.

    If the page is empty because its movies were deleted, return the page's own key with its id
    changed by 1, so that the page in the other direction includes the movie of the page's key.
    """
    for movie in movies:
        return SortKey(getattr(movie, sort.removeprefix("-")), movie.id)
    if not place.key:
        return None
    is_read_downwards = get_order(sort, place).startswith("-")
    return place.key._replace(id=place.key.id + (-1 if is_read_downwards else 1))
