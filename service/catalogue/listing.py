"""Lists movies; chooses which of the three queries of queries/listing.sql a page needs.

A page begins at a key: the sort value and id of a movie. Counting takes most of the time: only the
first page counts, and its cursors carry the total (docs/decisions/0004-keyset-cursors.md).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from service.catalogue.movie import TYPES, Movie
from service.catalogue.paging import (
    EXACT_TOTAL,
    NUMBERED_MOVIES,
    Filter,
    Page,
    Place,
    Range,
    SortKey,
)
from service.context import RequestContext
from service.database.query import Expected, Query
from service.database.query_files import read_sql_file
from service.database.statements import Row, RowLists, Statements
from service.errors import Contended, Failure, WrongParameters

MAX_SORTED_MATCHES = 100_000  # sorting so many takes about 0.2 s


def place_parameters(order: str, place: Place, size: int | None) -> dict[str, Any]:
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
_NOTHING = Filter("a b*", ("a", "b"), ("a", "b"), _NONE, _NONE, _NEVER, _NEVER).parameters()
_FIRST = place_parameters("id", Place(), 0)
_NEXT = place_parameters("-title", Place(key=SortKey("a", 1)), 0)
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


def check_filters(queries: Mapping[str, Query]) -> None:
    """Raise `OperatorError` unless the three queries have the same filter, line by line."""
    first: list[str] = []
    for query in (queries[name] for name in QUERIES):
        lines = [line.strip() for line in read_sql_file(query.path).splitlines()]
        try:
            start = lines.index("-- filter", query.line, query.lines[-1])
            end = lines.index("-- end of filter", start, query.lines[-1]) + 1
        except ValueError as error:
            what = "expected its filter between the lines `-- filter` and `-- end of filter`"
            raise query.make_error(f"{query.name}: {what}") from error
        first = first or lines[start:end]
        pairs = zip(lines[start:end], first, strict=False)
        for line, (found, wanted) in enumerate(pairs, start + 1):
            if found != wanted:
                what = f"expected `{wanted}`, as in sort_movies: change the filters of all three"
                raise query.make_error(what, line)


class Listing:
    """Lists movies; may raise `Unavailable`. `streams`: the statements of whole lists."""

    def __init__(self, statements: Statements, streams: Statements | None = None) -> None:
        self._statements = statements
        self._streams = streams or statements

    async def fetch_page(
        self,
        wanted: Filter,
        sort: str,
        place: Place,
        size: int,
        context: RequestContext | None = None,
    ) -> Page:
        """Return the page of `size` movies at `place`; `sort` is one of `SORTS`.

        `context`: of the request, for logs. Raises `WrongParameters` if the page number is too high
        for so many matches.
        """
        order = sort
        if place.backwards:
            order = sort.removeprefix("-") if sort.startswith("-") else f"-{sort}"
        fetch = partial(self._statements.fetch, waiting=[context] if context else [])
        pages = _Pages(fetch, self._statements.timeout, wanted.parameters(), order, size + 1)
        total, rows = place.total, list[Row]()
        if total is not None:
            rows = await pages.walk(total, place)
        # Count again if the page contradicts the total: movies were deleted or added since.
        if total is None or not 0 < len(rows) <= total:
            total, rows = await pages.count_and_fetch(place)
        movies = [Movie._make(row) for row in rows[:size]]
        has_previous, has_next = bool(total and (place.skip or place.key)), len(rows) > size
        if place.backwards:
            movies.reverse()
            has_previous, has_next = has_next, has_previous
        return Page(
            movies=movies,
            previous=_make_edge_key(sort, place, movies[:1]) if has_previous else None,
            next=_make_edge_key(sort, place, movies[-1:]) if has_next else None,
            total=total,
        )

    def stream(self, wanted: Filter, sort: str, context: RequestContext) -> RowLists:
        """Yield the rows of all movies that match, as `Statements.stream` does."""
        parameters = {**wanted.parameters(), **place_parameters(sort, Place(), None)}
        return self._streams.stream("walk_movies", context, **parameters)

    async def has_match(self, wanted: Filter, context: RequestContext, seconds: float) -> bool:
        """Whether a movie matches; `Contended` if it takes longer than `seconds`."""
        parameters = {**wanted.parameters(), **place_parameters("id", Place(), 0), "most": 0}
        fetch = self._statements.fetch
        rows = await fetch("sort_movies", timeout=seconds, waiting=[context], **parameters)
        return bool(rows[0][0])


@dataclass(frozen=True)
class _Pages:
    """Fetches a page for one request, of `size` rows."""

    fetch: Callable[..., Awaitable[list[Row]]]
    timeout: float
    filters: dict[str, Any]
    order: str
    size: int

    async def count_and_fetch(self, place: Place) -> tuple[int, list[Row]]:
        """Count the matches; return the total and the page."""
        total, rows = await self._sort(EXACT_TOTAL, place, self.filters)
        if total <= EXACT_TOTAL:
            return total, rows
        if place.skip + self.size - 1 > NUMBERED_MOVIES:
            last = NUMBERED_MOVIES // (self.size - 1)
            detail = f"must be at most {last}, as over {EXACT_TOTAL} movies match; use a cursor"
            raise WrongParameters([Failure("page", detail)])
        ((estimate,),) = await self.fetch("estimate_movies", **self.filters)
        total = max(EXACT_TOTAL + 1, estimate)
        return total, await self.walk(total, place)

    async def walk(self, total: int, place: Place) -> list[Row]:
        """Return the page by walking the index of the sort order.

        If the index walk times out, fetch the matches and sort them: matches that are clustered
        make the walk long. More than `MAX_SORTED_MATCHES` would take longer to sort.
        """
        filters, key = choose_start(self.filters, self.order, place.key)
        place = Place(place.skip, key)
        try:
            return await self.fetch(
                "walk_movies",
                timeout=None if total <= MAX_SORTED_MATCHES else self.timeout,
                **filters,
                **place_parameters(self.order, place, self.size),
            )
        except Contended:
            if total > MAX_SORTED_MATCHES:
                raise
        _, rows = await self._sort(2**31, place, filters)  # however many match
        return rows

    async def _sort(
        self, most: int, place: Place, filters: dict[str, Any]
    ) -> tuple[int, list[Row]]:
        """Count up to `most` + 1 matches; if there are at most `most`, sort them into the page."""
        parameters = {**filters, **place_parameters(self.order, place, self.size)}
        rows = await self.fetch("sort_movies", most=most, **parameters)
        return rows[0][0], [row[1:] for row in rows if row[1] is not None]


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


def _make_edge_key(sort: str, place: Place, movies: list[Movie]) -> SortKey | None:
    """Return the key of the page's first or last movie.

    If the page is empty because its movies were deleted, return the page's own key with its id
    changed by 1, so that the page in the other direction includes the movie of the page's key.
    """
    for movie in movies:
        return SortKey(getattr(movie, sort.removeprefix("-")), movie.id)
    if not place.key:
        return None
    is_ascending = place.backwards == sort.startswith("-")
    return place.key._replace(id=place.key.id + (1 if is_ascending else -1))
