"""Lists the items of a resource: counts the matches, and fetches a page in the cheaper of two ways.

A page begins after so many items, or at a key: the sort value and id of an item. Only a first page
counts, and its cursors carry the total (docs/decisions/0004-keyset-cursors.md).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

import orjson

from service.database.caller import Caller
from service.database.query import Row
from service.database.resource import Resource
from service.database.statements import Statements
from service.database.streaming import Chunks, Streams
from service.errors import Contended, Failure, WrongParameters

Item = TypeVar("Item")

EXACT_TOTAL = 10_000  # more matches are not counted: the total is an estimate
NUMBERED_ITEMS = 1_000  # page numbers reach so many items if more than EXACT_TOTAL match
MAX_SORTED_MATCHES = 100_000  # sorting so many takes about 0.2 s
SORT_GUARD_S = 0.1  # for a total from a cursor, perhaps forged; 0.1 s more per 20,000 matches
# To find and sort a match costs as much as to walk past so many rows. Measured: 1 to 30, depending
# on the filter.
SORT_COST = 4


class Counted(NamedTuple):
    """How many items match, and about how many there are in the table."""

    matches: int  # an estimate if there are more than `EXACT_TOTAL`
    items: int


class SortKey(NamedTuple):
    """An item's position in a sort order: the value of the sorted field, and the id for ties."""

    value: str | int | datetime
    id: int


@dataclass(frozen=True)
class Place:
    """Where a page begins: after `skip` items, or after `key` (`backwards`: before it).

    `total`: the number of matches, if an earlier page counted them.
    """

    skip: int = 0
    key: SortKey | None = None
    backwards: bool = False
    total: int | None = None

    def get_order(self, sort: str) -> str:
        """Return the order in which the page is read: a page before a key is read backwards."""
        if not self.backwards:
            return sort
        return sort.removeprefix("-") if sort.startswith("-") else f"-{sort}"


class PageTerms(NamedTuple):
    """A page of `size` items at `place`; `filters`: the conditions that are set, by name."""

    filters: Mapping[str, Any]
    sort: str
    place: Place
    size: int


@dataclass(frozen=True)
class Page(Generic[Item]):
    """Items in order, the keys of the neighbouring pages (None: no such page), and the total."""

    items: list[Item]
    previous: SortKey | None
    next: SortKey | None
    total: int

    @property
    def total_is_estimate(self) -> bool:
        """Return whether the total is an estimate."""
        return self.total > EXACT_TOTAL

    def last_page(self, size: int) -> int:
        """Return the last page number, for pages of `size` items."""
        if not size:
            return 1
        if self.total_is_estimate:
            return NUMBERED_ITEMS // size
        return max(1, -(-self.total // size))


@dataclass(eq=False)
class Listing(Generic[Item]):
    """Lists items; may raise `Unavailable`. `streams`: the statements of whole lists.

    The queries are `sort_<table>`, which counts, too, and `walk_<table>`.

    What must stay true: whoever follows the cursors, forwards or backwards, gets each item that
    stays in the list once; both ways to fetch a page give the same rows; the total of a response
    does not contradict its rows.
    """

    resource: Resource[Item]
    statements: Statements
    streams: Streams
    # In the table, as the last count saw it; 0: there was none, so pages by cursor walk.
    _items: int = field(default=0, init=False)

    async def fetch_page(
        self, wanted: PageTerms, callers: Sequence[Caller] = (), counted: Counted | None = None
    ) -> Page[Item]:
        """Return the page; with `size` 0, only the total.

        `counted`: if that is known. Raises `WrongParameters` if the page number is too high for so
        many matches.
        """
        place, size = wanted.place, wanted.size
        terms = wanted._replace(size=size + 1)  # one more shows whether the list goes on
        if place.total is not None and not counted and size:
            # Otherwise the total is wrong: it is forged, or items were deleted or added since.
            with suppress(Contended):
                known = await self._fetch_rows(terms, place.total, callers)
                if 0 < len(known) <= place.total:
                    return self._make_page(wanted, known, place.total)
        terms = terms._replace(place=replace(place, total=None))
        rows: list[Row] | None = None
        if not counted:
            counted, rows = await self._sort(terms, callers, most=EXACT_TOTAL)
        total, self._items = counted
        if not size:
            return Page([], previous=None, next=None, total=total)
        if total > EXACT_TOTAL and place.skip + size > NUMBERED_ITEMS:
            last = NUMBERED_ITEMS // size
            what = f"over {EXACT_TOTAL} {self.resource.table} match"
            detail = f"must be at most {last}, as {what}; use a cursor"
            raise WrongParameters([Failure("page", detail)])
        if rows is None or total > EXACT_TOTAL:
            is_past_end = place.key is None and place.skip >= total
            rows = [] if is_past_end else await self._fetch_rows(terms, total, callers)
        total = correct_total(total, place, size, len(rows))
        return self._make_page(wanted, rows, total)

    def stream(
        self, filters: Mapping[str, Any], sort: str, caller: Caller, has_left: Callable[[], bool]
    ) -> Chunks:
        """Yield the rows of all items that match, in chunks, as `Streams.stream` does."""
        sent = filter_parameter(filters) | place_parameters(sort, Place(), None)
        return self.streams.stream(f"walk_{self.resource.table}", sent, caller, has_left)

    async def _fetch_rows(
        self, terms: PageTerms, total: int, callers: Sequence[Caller]
    ) -> list[Row]:
        """Return the rows of a page: sort the matches, or walk the index of the sort order.

        If the index walk times out, sort the matches: matches that are clustered make the walk
        long. More than `MAX_SORTED_MATCHES` would take longer to sort.
        """
        filters, sort, place, size = terms
        order = place.get_order(sort)
        may_sort = total <= MAX_SORTED_MATCHES
        # The shortest titles come first: a walk would pass all that are shorter than the search.
        is_sorted = may_sort and order == "relevance" and "title" in filters and not place.key
        if not is_sorted and not is_sort_cheaper(total, self._items, place.skip + size):
            started, key = choose_start(filters, order, place.key)
            try:
                return await self.statements.fetch(
                    f"walk_{self.resource.table}",
                    filter_parameter(started)
                    | place_parameters(order, Place(place.skip, key), size),
                    timeout=None if may_sort or place.total else self.statements.timeout,
                    expects_timeout=bool(may_sort or place.total),
                    callers=callers,
                )
            except Contended:
                if not may_sort:
                    raise
        # With all filters: sort_<table> finds every match before it looks at the place.
        return (await self._sort(terms, callers))[1]

    async def _sort(
        self, terms: PageTerms, callers: Sequence[Caller], most: int | None = None
    ) -> tuple[Counted, list[Row]]:
        """Count the matches, and return the rows of a page; none if more than `most` match."""
        filters, sort, place, size = terms
        sent = place_parameters(place.get_order(sort), place, size)
        sent |= filter_parameter(filters) | {"most": most and str(most)}
        name = f"sort_{self.resource.table}"
        guard = SORT_GUARD_S * (1 + place.total / 20_000) if place.total else None
        rows = await self.statements.fetch(
            name, sent, timeout=guard, expects_timeout=bool(guard), callers=callers
        )
        return Counted._make(rows[0][:2]), [row[2:] for row in rows if row[2] is not None]

    def _make_page(self, wanted: PageTerms, rows: Sequence[Row], total: int) -> Page[Item]:
        """Make the page of the first `size` rows; there is one more if the list goes on."""
        _, sort, place, size = wanted
        items = [self.resource.make(row) for row in rows[:size]]
        has_previous, has_next = bool(total and (place.skip or place.key)), len(rows) > size
        if place.backwards:
            items.reverse()
            has_previous, has_next = has_next, has_previous
        return Page(
            items=items,
            previous=_make_edge_key(sort, place, items[:1]) if has_previous else None,
            next=_make_edge_key(sort, place, items[-1:]) if has_next else None,
            total=total,
        )


def filter_parameter(members: Mapping[str, object]) -> dict[str, object]:
    """Return the parameter of the conditions of a list: a JSON object."""
    return {"filter": orjson.dumps(members).decode()}


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


def is_sort_cheaper(matches: int, items: int, rows: int) -> bool:
    """Whether to sort the matches costs less than to walk an index until `rows` of them are found.

    Of the `items` in the table, the walk reads about `rows * items / matches`.
    """
    return SORT_COST * matches * matches <= rows * items


def choose_start(
    filters: Mapping[str, Any], order: str, key: SortKey | None
) -> tuple[Mapping[str, Any], SortKey | None]:
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
        return {name: value for name, value in filters.items() if name != bound}, key
    return filters, None


def correct_total(counted: int, place: Place, size: int, rows: int) -> int:
    """Return a total that agrees with the rows: items may have come or gone since the count.

    `rows`: how many there are; `size` + 1 if the list goes on after the page. The total is
    - at a key, with rows: at least these rows; without rows: as counted;
    - by number, if the list goes on: at least the rows up to here; on the last page: exactly these;
      on an empty page: at most the rows in front of it.
    """
    if rows > size or (rows and place.key):
        return max(counted, place.skip + rows)
    if place.key:
        return counted
    return place.skip + rows if rows else min(counted, place.skip)


def _make_edge_key(sort: str, place: Place, items: Sequence[Any]) -> SortKey | None:
    """Return the key of the page's first or last item.

    If the page is empty because its items were deleted, return the page's own key with its id
    changed by 1, so that the page in the other direction includes the item of the page's key.
    """
    for item in items:
        return SortKey(getattr(item, sort.removeprefix("-")), item.id)
    if not place.key:
        return None
    is_read_downwards = place.get_order(sort).startswith("-")
    return place.key._replace(id=place.key.id + (-1 if is_read_downwards else 1))
