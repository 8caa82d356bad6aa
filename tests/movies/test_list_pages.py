"""Tests the statements that a page of movies needs, and timeouts of the walk."""

from collections.abc import Callable
from typing import Any

import pytest
from conftest import MakeStatements
from support import Execute, Patch, hold

from service.database import listing
from service.database.listing import Listing, Page, PageTerms, Place, SortKey
from service.database.query import NO_PARAMETERS, Parameters, Row
from service.database.statements import Statements
from service.database.streaming import Streams
from service.errors import Contended, Unavailable
from service.movies.movie import MOVIES, Movie
from service.movies.parameters import SORTS, Filter
from service.web.query_strings import Range

EVERYTHING = Filter()
RANGE = {"year_from": 1990, "year_to": 1999, "runtime_to": 90}
HALF = Filter(year=Range(2000, 2000))
FEW = Filter(runtime=Range(3, 6))
FIRST = Place()
SIZE = 3


class Recorded(Statements):
    """Statements that record their names; some of them time out."""

    sent: list[str]
    parameters: Parameters
    slow_query = ""
    after_count: Callable[[], object] = staticmethod(lambda: None)

    async def fetch(
        self, name: str, parameters: Parameters = NO_PARAMETERS, **options: Any
    ) -> list[Row]:
        """Run the statement, or let it time out."""
        self.sent.append(name)
        self.parameters = parameters
        if name == self.slow_query:
            timeout = options["timeout"] or self.queries[name].timeout or self.timeout
            if timeout < 1:  # the query's own, or that of a cursor's total
                raise Contended("canceling statement due to statement timeout")
            assert timeout == self.timeout
        rows = await super().fetch(name, parameters, **options)
        if name == "sort_movies" and parameters["most"]:
            self.after_count()
        return rows


@pytest.mark.parametrize(
    ("sort", "value", "without"),
    [
        ("year", 1989, None),
        ("year", 1990, "year_from"),
        ("year", 1995, "year_from"),
        ("-year", 2000, None),
        ("-year", 1999, "year_to"),
        ("-year", 1995, "year_to"),
        ("runtime", 95, ""),
        ("id", 5, ""),
    ],
)
def test_a_walk_starts_at_the_farther_of_key_and_range(
    sort: str, value: int, without: str | None
) -> None:
    """The other one is not sent; `without`: the bound that the key replaces."""
    key = SortKey(value, 1)
    filters = {name: bound for name, bound in RANGE.items() if name != without}

    assert listing.choose_start(RANGE, sort, key) == (filters, None if without is None else key)
    assert listing.choose_start(RANGE, sort, None) == (RANGE, None)


@pytest.fixture
def statements(make_statements: MakeStatements) -> Recorded:
    """Statements on the test's database."""
    statements: Recorded = make_statements(Recorded)
    statements.sent = []
    return statements


@pytest.fixture
def catalogue(execute: Execute, monkeypatch: Patch) -> None:
    """Insert 20 movies, half of them of 2000; totals are exact to 12, page numbers end at 15."""
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select 'x', 2000 + n % 2, n, '{a}' from generate_series(1, 20) as n"
    )
    execute("vacuum analyze movies")
    monkeypatch.setattr(listing, "EXACT_TOTAL", 12)
    monkeypatch.setattr(listing, "NUMBERED_ITEMS", 15)


Ask = Callable[..., Any]


@pytest.fixture
def ask(statements: Recorded, catalogue: None) -> Ask:  # noqa: ARG001 - the movies that are asked for
    """Return a page, and the names of its statements."""
    movies = Listing(MOVIES, statements, Streams(statements))

    async def page(
        wanted: Filter, place: Place = FIRST, sort: str = "id"
    ) -> tuple[Page[Movie], list[str]]:
        statements.sent.clear()
        terms = PageTerms(wanted.as_json(), sort, place, SIZE)
        return await movies.fetch_page(terms), [*statements.sent]

    return page


def ids(page: Page[Movie]) -> list[int]:
    """Return the ids of a page's movies."""
    return [movie.id for movie in page.items]


WALK = ["walk_movies"]
SORT = ["sort_movies"]  # which counts, too


@pytest.mark.parametrize(
    ("wanted", "place", "names", "movies", "total"),
    [
        (FEW, FIRST, SORT, [3, 4, 5], 4),
        (FEW, Place(skip=6), SORT, [], 4),
        (HALF, FIRST, SORT, [2, 4, 6], 10),
        (HALF, Place(key=SortKey(6, 6), total=10), WALK, [8, 10, 12], 10),
        (HALF, Place(key=SortKey(20, 20), total=99), WALK + SORT, [], 10),  # gone
        (EVERYTHING, Place(key=SortKey(3, 3), total=20), WALK, [4, 5, 6], 20),
        (EVERYTHING, Place(skip=12), SORT + WALK, [13, 14, 15], 20),
    ],
)
async def test_a_page_takes_few_statements(  # noqa: PLR0913, PLR0917 - the cases
    ask: Ask, wanted: Filter, place: Place, names: list[str], movies: list[int], total: int
) -> None:
    """Few matches are sorted, many are found by walking; a cursor has the total."""
    page, sent = await ask(wanted, place)

    assert sent == names
    assert (ids(page), page.total, page.total_is_estimate) == (movies, total, total == 20)


async def test_an_estimate_is_more_than_was_counted(ask: Ask, execute: Execute) -> None:
    """Although the sample may have too few matches: a smaller total would be called exact."""
    execute("update pg_class set reltuples = 1e9 where oid = 'movies'::regclass")  # samples no page

    page, _ = await ask(EVERYTHING)

    assert (page.total, page.total_is_estimate) == (13, True)


async def test_the_total_fits_the_page(ask: Ask, statements: Recorded, execute: Execute) -> None:
    """Although movies are deleted between the count and the page of many matches."""
    edits = iter([f"delete from movies where runtime > {last}" for last in (12, 3)])
    statements.after_count = lambda: execute(next(edits))

    none, _ = await ask(EVERYTHING, Place(skip=12))
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select title, year, 4, genres from movies"
    )
    fewer, _ = await ask(EVERYTHING)

    assert (ids(none), none.total) == ([], 12)
    assert (ids(fewer), fewer.total, fewer.next) == ([1, 2, 3], 3, None)


async def test_a_search_in_the_order_of_relevance_is_sorted_at_once(
    ask: Ask, monkeypatch: Patch
) -> None:
    """A walk would pass all shorter titles; only if more match than can be sorted is it shorter."""
    wanted = Filter(title="x")

    sorted_page, sent = await ask(wanted, sort="relevance")
    _, by_cursor = await ask(wanted, Place(key=sorted_page.next, total=20), "relevance")
    monkeypatch.setattr(listing, "MAX_SORTED_MATCHES", 19)
    walked_page, sent_for_more = await ask(wanted, sort="relevance")

    assert sent == SORT + SORT
    assert by_cursor == WALK
    assert sent_for_more == SORT + WALK
    assert sorted_page == walked_page


@pytest.mark.parametrize(
    ("matches", "movies", "rows", "is_cheaper"),
    [
        (0, 0, 21, True),
        (724, 100_000, 21, True),
        (725, 100_000, 21, False),
        (3_240, 2_000_000, 21, True),
        (3_241, 2_000_000, 21, False),
        (9_000, 100_000, 9_021, True),  # the last page by number
        (10, 0, 21, False),  # the size of the table is not known yet
    ],
)
def test_the_cheaper_way_to_a_page(
    matches: int, movies: int, rows: int, *, is_cheaper: bool
) -> None:
    """To sort few matches, or to walk until enough of many are found."""
    assert listing.is_sort_cheaper(matches, movies, rows) is is_cheaper


@pytest.mark.parametrize("sort", SORTS)
async def test_a_walk_that_takes_too_long_is_replaced_by_a_sort(
    ask: Ask, statements: Recorded, sort: str
) -> None:
    """The first page and a later one are the same in every order, without the cursor's movie."""
    first, _ = await ask(EVERYTHING, sort=sort)
    place = Place(key=first.next, total=first.total)
    walked, _ = await ask(EVERYTHING, place, sort)
    statements.slow_query = "walk_movies"

    sorted_first, sent_first = await ask(EVERYTHING, sort=sort)
    page, sent = await ask(EVERYTHING, place, sort)

    assert sent_first == [*SORT, *WALK, *SORT]
    assert sent == WALK + SORT
    assert sorted_first == first
    assert ids(page) == ids(walked)
    assert not {*ids(page)} & {*ids(first)}


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize(
    ("wanted", "total", "slow_query", "names"),
    [
        *((EVERYTHING, total, "sort_movies", [*SORT, *SORT, *WALK]) for total in (1, 2, 4)),
        (FEW, 10**15, "walk_movies", [*WALK, *SORT]),
    ],
)
async def test_a_forged_total_does_not_choose_a_slow_way(  # noqa: PLR0913, PLR0917 - the cases
    ask: Ask,
    statements: Recorded,
    wanted: Filter,
    total: int,
    slow_query: str,
    names: list[str],
    sort: str,
) -> None:
    """If the way that suits the total of a cursor takes too long, the matches are counted."""
    first, _ = await ask(wanted, sort=sort)
    honest, _ = await ask(wanted, Place(key=first.next, total=first.total), sort)
    statements.slow_query = slow_query

    page, sent = await ask(wanted, Place(key=first.next, total=total), sort)

    assert sent == names
    assert page == honest


async def test_a_walk_of_more_than_can_be_sorted_has_more_time(
    ask: Ask, database: str, statements: Recorded, monkeypatch: Patch
) -> None:
    """The timeout of config.toml, and not that of the query; then it is not replaced by a sort."""
    monkeypatch.setattr(listing, "MAX_SORTED_MATCHES", 19)
    statements.slow_query = "walk_movies"

    page, sent = await ask(EVERYTHING)

    assert (ids(page), sent) == ([1, 2, 3], SORT + WALK)
    monkeypatch.setattr(statements, "timeout", 0.05)
    with hold(database, "lock table movies"), pytest.raises(Unavailable):
        await ask(EVERYTHING, Place(key=SortKey(1, 1), total=20))
    assert statements.sent == WALK + SORT
