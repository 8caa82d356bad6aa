"""Finding movies: filters, sort orders and pages; knows no HTTP.

A page begins at a key, the sort value and id of a movie: the database walks to it along an index,
so the ten-thousandth page costs no more than the first, and no movie that stays is missed or seen
twice while others come and go (https://use-the-index-luke.com/no-offset). To count how many there
are takes most of the time: a page by cursor is told what was counted on the page before it.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from service import sampling
from service.database.queries import Expected
from service.database.statements import Row, Statements
from service.errors import Contended
from service.movies import COLUMNS, Movie

SORTS = ("id", "title", "year", "runtime", "-id", "-title", "-year", "-runtime")
EXACT = 10_000  # so many are counted; beyond it, the total is the planner's estimate

QUERIES: Mapping[str, Expected] = {
    "list_movies": Expected(
        (
            *("title", "genres", "year_from", "year_to", "runtime_from", "runtime_to"),
            *("sort", "after", "after_id", "skip", "size"),
        ),
        COLUMNS,
    ),
}

# As measured for data in memory: other parts of the planner's own idea of a disk. Of 2 million
# movies, what is slow to find takes three quarters of the time, and nothing takes much longer.
COSTS = (
    "set local seq_page_cost = 0.3; set local random_page_cost = 0.15;"
    # To come to a page of the table once more costs as much as the first time, beside memory.
    " set local effective_cache_size = '1MB';"
    " set local cpu_tuple_cost = 0.05; set local cpu_index_tuple_cost = 0.03;"
    " set local max_parallel_workers_per_gather = 0; "  # a page may take one core, not all
)
EXPLAIN = ("explain (format json) ", "")

# A filter that the planner thinks passes fewer is counted without a look at the sample.
PROMISING = 4_000
RESAMPLE = 60  # seconds; as the catalogue grows, the samples become needlessly large
HOPE = 1.2  # times as many have to be there, as a sample tells, for a closer look
# So many are sorted where a page is deep: it takes no longer than to walk past all others, unless
# that is by id, as they lie in the table.
FEW_WHERE_DEEP = 20_000
HOPELESS_WHERE_DEEP = 16_000  # hardly more than so many are sorted as well, without a closer look
DEEP = 100
# Seconds that a walk may take where there are no more movies than can be sorted instead: to sort so
# many takes some 0.2 s, and a walk past 2 million movies 2 s.
WALK = 0.1
SORTABLE = 100_000
ALL = 2**31


class Range(NamedTuple):
    """From `low` to `high`, both included; None: no limit."""

    low: int | None = None
    high: int | None = None


ANY = Range()


@dataclass(frozen=True)
class Filter:
    """What a movie must be; None and an empty range: anything."""

    title: str | None = None  # all of its words, in any order; `cas*`: a word that begins so
    genres: tuple[str, ...] | None = None  # all of them
    year: Range = ANY
    runtime: Range = ANY


class Key(NamedTuple):
    """Where a movie stands in an order: the field that is sorted by, and the id for ties."""

    value: str | int
    id: int


@dataclass(frozen=True)
class Place:
    """Where a page begins: behind so many movies, or next to a key, ahead of it or behind it.

    `total`, where it is known: how many movies pass, which are not counted again.
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
        """Whether it is the planner's."""
        return self.total > EXACT


class Listing:
    """Lists movies; may raise `Unavailable`."""

    def __init__(self, statements: Statements) -> None:
        self._fetch = statements.fetch
        self._samples: list[sampling.Sample] = []
        self._sampled_at = -inf

    async def page(self, wanted: Filter, sort: str, place: Place, size: int) -> Page:
        """Return the page of `size` movies at `place`; `sort` is one of `SORTS`."""
        filters = _parameters(wanted)
        order = _reversed(sort) if place.backwards else sort
        total, rows = place.total, list[Any]()
        if total is not None:
            rows = await self._uncounted(total, filters, order, place, size + 1)
        if total is None or not rows:  # the movies there have gone since they were counted
            total, rows = await self._counted(filters, order, place, size + 1)
        movies = [Movie._make(row) for row in rows[:size]]
        before, after = bool(total and (place.skip or place.key)), len(rows) > size
        if place.backwards:
            movies.reverse()
            before, after = after, before
        ends = (movies[0], movies[-1]) if movies else None
        return Page(
            movies=movies,
            previous=_edge(sort, place, ends and ends[0]) if before else None,
            next=_edge(sort, place, ends and ends[1]) if after else None,
            total=total,
        )

    async def _counted(
        self, filters: dict[str, Any], order: str, place: Place, size: int
    ) -> tuple[int, list[Any]]:
        """The total, and the page.

        Unless a sample proves that more pass, matches are counted, up to `EXACT` or some more. If
        that is all, the page is sorted out of them.
        """
        estimate = await self._estimate(filters)
        few, hopeless = EXACT, HOPE * EXACT
        if place.skip > DEEP and order not in ("id", "-id"):
            few, hopeless = FEW_WHERE_DEEP, HOPELESS_WHERE_DEEP
        total, rows = few + 1, list[Any]()
        if estimate < PROMISING or not await self._is_many(hopeless, filters):
            total, rows = await self._among(few, filters, order, place, size)
        if total > few:
            rows = await self._uncounted(estimate, filters, order, place, size)
        return (total if total <= EXACT else max(EXACT + 1, estimate)), rows

    async def _is_many(self, hopeless: float, filters: dict[str, Any]) -> bool:
        """Whether samples prove that more than `EXACT` pass.

        Where fewer than `hopeless` seem to, there is no closer look.
        """
        now = time.monotonic()
        if now > self._sampled_at + RESAMPLE:
            self._samples = sampling.samples(await self._estimate(EVERYTHING), EXACT)
            self._sampled_at = now
        for sample in self._samples:
            [(movies, blocks)] = await self._ask(sample.around, filters)
            if blocks >= sample.proof:
                return True
            if movies < hopeless * sample.share:
                break
        return False

    async def _uncounted(
        self, total: int, filters: dict[str, Any], order: str, place: Place, size: int
    ) -> list[Any]:
        """The page, as the planner thinks best: of many, by a walk along the order's index.

        Where that is long, and `total` (or its estimate) not too much, they are all sorted after
        all: where they lie together, far from where the walk begins, as a genre of old does, the
        newest first.
        """
        sortable = total <= SORTABLE
        try:
            return await self._fetch(
                "list_movies",
                retry=True,
                around=(COSTS, ""),
                timeout=WALK if sortable else None,
                **_walk(filters, order, place.key),
                skip=place.skip,
                size=size,
            )
        except Contended:
            if not sortable:
                raise
        _, rows = await self._among(ALL, filters, order, place, size)
        return rows

    async def _among(
        self, few: int, filters: dict[str, Any], order: str, place: Place, size: int
    ) -> tuple[int, list[Any]]:
        """How many pass, up to one more than `few`, and the page if there are not more."""
        fetched = await self._ask(
            _among(few, order),
            filters,
            size=few + 1,
            page_after=str(place.key.value) if place.key else None,
            page_after_id=place.key.id if place.key else None,
            page_skip=place.skip,
            page_size=size,
        )
        return fetched[0][0], [row for _, *row in fetched if row[0] is not None]

    async def _estimate(self, filters: dict[str, Any]) -> int:
        [(explained,)] = await self._ask(EXPLAIN, filters)
        return int(explained[0]["Plan"]["Plan Rows"])

    async def _ask(
        self, around: tuple[str, str], filters: dict[str, Any], **more: Any
    ) -> list[Row]:
        """What goes around list_movies, of all that pass, in no order."""
        parameters = {**filters, **_order(None, None), "skip": 0, "size": None, **more}
        return await self._fetch("list_movies", retry=True, around=around, **parameters)


def _parameters(wanted: Filter) -> dict[str, Any]:
    return {
        "title": wanted.title,
        "genres": list(wanted.genres) if wanted.genres else None,
        "year_from": wanted.year.low,
        "year_to": wanted.year.high,
        "runtime_from": wanted.runtime.low,
        "runtime_to": wanted.runtime.high,
    }


EVERYTHING = _parameters(Filter())


def _order(sort: str | None, key: Key | None) -> dict[str, Any]:
    return {
        "sort": sort,
        "after": str(key.value) if key else None,  # as text, whatever it is
        "after_id": key.id if key else None,
    }


def _walk(filters: dict[str, Any], order: str, key: Key | None) -> dict[str, Any]:
    """Where a walk goes from the key on.

    It begins there, or else where a range of the field that is sorted by does. Only one of the two
    is sent: from the other, PostgreSQL might read all that lies between them.
    """
    descending = order.startswith("-")
    bound = f"{order.removeprefix('-')}_{'to' if descending else 'from'}"
    limit = filters.get(bound)
    if key and limit is not None:
        within = key.value <= limit if descending else key.value >= limit
        if within:
            filters = {**filters, bound: None}
        else:
            key = None
    return {**filters, **_order(order, key)}


def _among(few: int, order: str) -> tuple[str, str]:
    """What goes around list_movies, to count what it finds and have a page of that."""
    field, direction, beyond = order, "asc", ">"
    if order.startswith("-"):
        field, direction, beyond = order[1:], "desc", "<"
    columns = ", ".join(f"m.{column}" for column in COLUMNS)
    return (
        f"{COSTS}with matching as materialized (select f.id, f.{field} as key from (",
        f"""
) as f),
counted as (select count(*) as total from matching),
page as (
  select m.id, m.key
  from matching as m, counted as c
  where c.total <= {few}
    and (%(page_after_id)s is null or (m.key, m.id) {beyond} (%(page_after)s, %(page_after_id)s))
  order by m.key {direction}, m.id {direction}
  limit %(page_size)s offset %(page_skip)s
)
select c.total, {columns}
from counted as c
left join page as p on true
left join movies as m on m.id = p.id
order by p.key {direction}, p.id {direction}""",
    )


def _reversed(sort: str) -> str:
    return sort.removeprefix("-") if sort.startswith("-") else f"-{sort}"


def _edge(sort: str, place: Place, movie: Movie | None) -> Key | None:
    """The key of a page's first or last movie.

    Where the page is empty, as those that stood there are gone: a key right behind its own, so that
    the way back does not leave out the movie that it came from.
    """
    if movie:
        return Key(getattr(movie, sort.removeprefix("-")), movie.id)
    if not place.key:
        return None
    onwards = place.backwards == sort.startswith("-")
    return place.key._replace(id=place.key.id + (1 if onwards else -1))
