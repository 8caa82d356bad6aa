"""Tests the statements that a page of movies needs, and timeouts of the walk."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any

import psycopg2
import pytest
from support import Execute, approve

from service.catalogue import listing, paging
from service.catalogue.listing import Listing
from service.catalogue.paging import SORTS, Filter, Page, Place, Range, SortKey
from service.config import Config
from service.database import query_files
from service.database.pool import Pool
from service.database.query import suppress_timeout_reports
from service.database.statements import Row, Statements
from service.errors import Contended, Unavailable, WrongParameters
from service.query_registry import EXPECTED

EVERYTHING = Filter()
RARE = Filter(year=Range(2000, 2000))
FIRST = Place()
SIZE = 3


class Recorded(Statements):
    """Statements that record their names; some of them time out."""

    sent: list[str]
    slow = ""

    async def fetch(self, name: str, **options: Any) -> list[Row]:
        """Run the statement, or let it time out."""
        self.sent.append(name)
        if name == self.slow:
            if options["timeout"] is None:  # the query's own
                raise Contended("canceling statement due to statement timeout")
            assert options["timeout"] == self.timeout
        return await super().fetch(name, **options)


@pytest.fixture
async def statements(settings: Callable[..., Config]) -> AsyncIterator[Recorded]:
    """Statements on the test's database."""
    config = settings()
    suppress_timeout_reports(asyncio.get_running_loop())

    pool = Pool(config.database, approve)
    loaded = query_files.load(config.root / "queries", EXPECTED)
    statements = Recorded(pool, loaded, config.database.statement_timeout)
    statements.sent = []
    yield statements
    await pool.close(timeout=1)


@pytest.fixture
def catalogue(execute: Execute, monkeypatch: pytest.MonkeyPatch) -> None:
    """Insert 20 movies, half of them of 2000; totals are exact to 12, page numbers end at 15."""
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select 'x', 2000 + n % 2, 1, '{a}' from generate_series(1, 20) as n"
    )
    execute("vacuum analyze movies")
    for module in (listing, paging):
        monkeypatch.setattr(module, "EXACT_TOTAL", 12)
        monkeypatch.setattr(module, "NUMBERED_MOVIES", 15)


Ask = Callable[..., Any]


@pytest.fixture
def ask(statements: Recorded, catalogue: None) -> Ask:  # noqa: ARG001 - the movies that are asked for
    """Return a page, and the names of its statements."""

    async def page(
        wanted: Filter,
        place: Place = FIRST,
        sort: str = "id",
    ) -> tuple[Page, list[str]]:
        statements.sent.clear()
        return await Listing(statements).fetch_page(wanted, sort, place, SIZE), [*statements.sent]

    return page


def ids(page: Page) -> list[int]:
    """Return the ids of a page's movies."""
    return [movie.id for movie in page.movies]


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (EVERYTHING, [1, 2, 3]),
        (Filter(title="b"), [2]),
        (Filter(genres=("y",)), [2]),
        (Filter(year=Range(2001, None)), [2, 3]),
        (Filter(year=Range(None, 2001)), [1, 2]),
        (Filter(runtime=Range(101, None)), [2, 3]),
        (Filter(runtime=Range(None, 101)), [1, 2]),
    ],
)
async def test_the_three_queries_have_the_same_filters(
    execute: Execute, statements: Recorded, wanted: Filter, matches: list[int]
) -> None:
    """A range includes its limits. Of so few movies, the estimate is exact."""
    execute(
        "insert into movies (title, year, runtime, genres)"
        " values ('a', 2000, 100, '{x}'), ('b', 2001, 101, '{y}'), ('c', 2002, 102, '{z}')"
    )
    filters, page = wanted.parameters(), listing.place_parameters("id", FIRST, SIZE)

    counted = await statements.fetch("sort_movies", most=SIZE, **filters, **page)
    walked = await statements.fetch("walk_movies", **filters, **page)
    estimated = await statements.fetch("estimate_movies", **filters)

    assert [row[:2] for row in counted] == [(len(matches), movie_id) for movie_id in matches]
    assert [row[0] for row in walked] == matches
    assert estimated == [(len(matches),)]


async def test_a_first_page_of_few_takes_one_statement(ask: Ask) -> None:
    """It counts and sorts them."""
    page, sent = await ask(RARE)

    assert sent == ["sort_movies"]
    assert (ids(page), page.total, page.total_is_estimate) == ([2, 4, 6], 10, False)


async def test_a_first_page_of_many_takes_three(ask: Ask) -> None:
    """It counts up to the limit, estimates the total and walks."""
    page, sent = await ask(EVERYTHING)

    assert sent == ["sort_movies", "estimate_movies", "walk_movies"]
    assert (ids(page), page.total, page.total_is_estimate) == ([1, 2, 3], 20, True)


@pytest.mark.parametrize("wanted", [RARE, EVERYTHING])
async def test_a_page_by_cursor_takes_one(ask: Ask, wanted: Filter) -> None:
    """Its total comes with the cursor."""
    first, _ = await ask(wanted)

    page, sent = await ask(wanted, Place(key=first.next, total=first.total))

    assert sent == ["walk_movies"]
    assert ids(page) == ([8, 10, 12] if wanted is RARE else [4, 5, 6])
    assert page.total == first.total


async def test_a_page_by_cursor_whose_movies_have_gone_counts_anew(ask: Ask) -> None:
    """The page is empty, and its total is a new count."""
    page, sent = await ask(RARE, Place(key=SortKey(20, 20), total=99))

    assert sent == ["walk_movies", "sort_movies"]
    assert (ids(page), page.total) == ([], 10)


async def test_a_walk_that_takes_too_long_is_replaced_by_a_sort(
    ask: Ask, statements: Recorded
) -> None:
    """The page is the same."""
    statements.slow = "walk_movies"

    first, sent = await ask(EVERYTHING, sort="-id")
    page, sent_next = await ask(EVERYTHING, Place(key=first.next, total=first.total), sort="-id")

    assert sent == ["sort_movies", "estimate_movies", "walk_movies", "sort_movies"]
    assert sent_next == ["walk_movies", "sort_movies"]
    assert (ids(first), first.total) == ([20, 19, 18], 20)
    assert ids(page) == [17, 16, 15]


@pytest.mark.parametrize("sort", SORTS)
async def test_a_page_by_cursor_is_the_same_walked_or_sorted(
    ask: Ask, statements: Recorded, sort: str
) -> None:
    """This is so in every order; the movie of the cursor is not on the page."""
    first, _ = await ask(EVERYTHING, sort=sort)
    place = Place(key=first.next, total=first.total)
    walked, _ = await ask(EVERYTHING, place, sort)
    statements.slow = "walk_movies"

    page, sent = await ask(EVERYTHING, place, sort)

    assert sent == ["walk_movies", "sort_movies"]
    assert ids(page) == ids(walked)
    assert not {*ids(page)} & {*ids(first)}


async def test_a_walk_of_more_than_can_be_sorted_has_more_time(
    ask: Ask, statements: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout of config.toml, and not that of the query."""
    monkeypatch.setattr(listing, "MAX_SORTED_MATCHES", 19)
    statements.slow = "walk_movies"

    page, sent = await ask(EVERYTHING)

    assert sent == ["sort_movies", "estimate_movies", "walk_movies"]
    assert ids(page) == [1, 2, 3]


async def test_a_walk_of_more_than_can_be_sorted_may_time_out(
    ask: Ask, database: str, statements: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not replaced by a sort."""
    monkeypatch.setattr(listing, "MAX_SORTED_MATCHES", 19)
    monkeypatch.setattr(statements, "timeout", 0.05)
    with closing(psycopg2.connect(database)) as holder:
        holder.cursor().execute("lock table movies")

        with pytest.raises(Unavailable):
            await ask(EVERYTHING, Place(key=SortKey(1, 1), total=20))

    assert statements.sent == ["walk_movies"]


@pytest.mark.parametrize(("skip", "pages"), [(12, True), (13, False)])
async def test_numbers_reach_so_far(ask: Ask, skip: int, *, pages: bool) -> None:
    """Of many movies, a page beyond the last number is refused before any walk."""
    if pages:
        page, _ = await ask(EVERYTHING, Place(skip=skip))
        assert ids(page) == [13, 14, 15]
        return
    with pytest.raises(WrongParameters):
        await ask(EVERYTHING, Place(skip=skip))


async def test_of_few_numbers_reach_all(ask: Ask) -> None:
    """The last page, and an empty one behind it."""
    last, _ = await ask(RARE, Place(skip=9))
    behind, _ = await ask(RARE, Place(skip=12))

    assert (ids(last), last.next) == ([20], None)
    assert ids(behind) == []
