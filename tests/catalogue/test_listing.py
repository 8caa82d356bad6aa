"""Tests the statements that a page of movies needs, and timeouts of the walk."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from conftest import ROOT
from support import Execute, approve, hold

from service.app import EXPECTED, load_queries
from service.catalogue import listing, paging
from service.catalogue.listing import Listing
from service.catalogue.paging import SORTS, Filter, Page, Place, Range, SortKey
from service.config import Config
from service.database import query_files
from service.database.pool import Pool
from service.database.query import suppress_timeout_reports
from service.database.statements import Row, Statements
from service.errors import Contended, OperatorError, Unavailable, WrongParameters

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
EVERYTHING = Filter()
RARE = Filter(year=Range(2000, 2000))
FIRST = Place()
SIZE = 3


class Recorded(Statements):
    """Statements that record their names; some of them time out."""

    sent: list[str]
    slow_query = ""

    async def fetch(self, name: str, **options: Any) -> list[Row]:
        """Run the statement, or let it time out."""
        self.sent.append(name)
        if name == self.slow_query:
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
        wanted: Filter, place: Place = FIRST, sort: str = "id"
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
        (Filter(genres_any=("x", "z")), [1, 3]),
        (Filter(year=Range(2001, None)), [2, 3]),
        (Filter(year=Range(None, 2001)), [1, 2]),
        (Filter(runtime=Range(101, None)), [2, 3]),
        (Filter(runtime=Range(None, 101)), [1, 2]),
        (Filter(year=Range(2000, 2002, "{[2000,2000],[2002,2002]}")), [1, 3]),
        (Filter(runtime=Range(100, 102, "{[100,100],[102,102]}")), [1, 3]),
        (Filter(created_at=Range(NEW_YEAR, None)), [2, 3]),
        (Filter(created_at=Range(None, NEW_YEAR)), [1, 2]),
        (Filter(updated_at=Range(NEW_YEAR, None)), [1, 2]),
        (Filter(updated_at=Range(None, NEW_YEAR)), [2, 3]),
    ],
)
async def test_the_three_queries_have_the_same_filters(
    execute: Execute, statements: Recorded, wanted: Filter, matches: list[int]
) -> None:
    """A range includes its limits. Of so few movies, the estimate is exact."""
    execute(
        "insert into movies (title, year, runtime, genres, created_at, updated_at) values"
        " ('a', 2000, 100, '{x}', '2025-12-31 23:59:59.999999Z', '2026-01-01 00:00:00.000001Z'),"
        " ('b', 2001, 101, '{y}', '2026-01-01 00:00Z', '2026-01-01 00:00Z'),"
        " ('c', 2002, 102, '{z}', '2026-01-01 00:00:00.000001Z', '2025-12-31 23:59:59.999999Z')"
    )
    filters, page = wanted.parameters(), listing.place_parameters("id", FIRST, SIZE)

    counted = await statements.fetch("sort_movies", most=SIZE, **filters, **page)
    walked = await statements.fetch("walk_movies", **filters, **page)
    estimated = await statements.fetch("estimate_movies", **filters)

    assert [row[:2] for row in counted] == [(len(matches), movie_id) for movie_id in matches]
    assert [row[0] for row in walked] == matches
    assert estimated == [(len(matches),)]


COUNT_FEW = ["sort_movies"]
COUNT_MANY = ["sort_movies", "estimate_movies", "walk_movies"]
WALK = ["walk_movies"]


@pytest.mark.parametrize(
    ("wanted", "place", "names", "movies", "total"),
    [
        (RARE, FIRST, COUNT_FEW, [2, 4, 6], 10),
        (RARE, Place(key=SortKey(6, 6), total=10), WALK, [8, 10, 12], 10),
        (RARE, Place(key=SortKey(20, 20), total=99), WALK + COUNT_FEW, [], 10),  # others have gone
        (RARE, Place(skip=9), COUNT_FEW, [20], 10),
        (RARE, Place(skip=12), COUNT_FEW, [], 10),
        (EVERYTHING, FIRST, COUNT_MANY, [1, 2, 3], 20),
        (EVERYTHING, Place(key=SortKey(3, 3), total=20), WALK, [4, 5, 6], 20),
        (EVERYTHING, Place(skip=12), COUNT_MANY, [13, 14, 15], 20),
    ],
)
async def test_a_page_takes_few_statements(  # noqa: PLR0913, PLR0917 - the cases
    ask: Ask,
    wanted: Filter,
    place: Place,
    names: list[str],
    movies: list[int],
    total: int,
) -> None:
    """Few matches are counted and sorted, many estimated and walked; a cursor has the total."""
    page, sent = await ask(wanted, place)

    assert sent == names
    assert (ids(page), page.total, page.total_is_estimate) == (movies, total, total == 20)


async def test_an_estimate_is_more_than_was_counted(ask: Ask, execute: Execute) -> None:
    """Although the sample may have too few matches: a smaller total would be called exact."""
    execute("update pg_class set reltuples = 1e9 where oid = 'movies'::regclass")  # samples no page

    page, sent = await ask(EVERYTHING)

    assert sent == COUNT_MANY
    assert (page.total, page.total_is_estimate) == (13, True)


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

    assert sent_first == [*COUNT_MANY, "sort_movies"]
    assert sent == ["walk_movies", "sort_movies"]
    assert sorted_first == first
    assert ids(page) == ids(walked)
    assert not {*ids(page)} & {*ids(first)}


async def test_a_walk_of_more_than_can_be_sorted_has_more_time(
    ask: Ask, database: str, statements: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout of config.toml, and not that of the query; then it is not replaced by a sort."""
    monkeypatch.setattr(listing, "MAX_SORTED_MATCHES", 19)
    statements.slow_query = "walk_movies"

    page, sent = await ask(EVERYTHING)

    assert (ids(page), sent) == ([1, 2, 3], COUNT_MANY)
    monkeypatch.setattr(statements, "timeout", 0.05)
    with hold(database, "lock table movies"), pytest.raises(Unavailable):
        await ask(EVERYTHING, Place(key=SortKey(1, 1), total=20))
    assert statements.sent == WALK


async def test_a_number_beyond_the_last_is_refused(ask: Ask, statements: Recorded) -> None:
    """Of many movies, before any walk."""
    with pytest.raises(WrongParameters):
        await ask(EVERYTHING, Place(skip=13))

    assert statements.sent == COUNT_FEW


# The filter of the three queries.


@pytest.mark.parametrize("query", [0, 1, 2])
@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (("m.year <= :", "m.year < :"), "expected `and (:year_to::integer is null or m.year <"),
        (("-- end of", "and m.id > 9\n-- end of"), "expected `"),  # a condition more
        (("-- filter\n", "\n"), "expected its filter between the lines `-- filter` and"),
    ],
)
def test_a_filter_that_differs_is_refused(
    settings: Callable[..., Config], tmp_path: Path, query: int, edit: tuple[str, str], reason: str
) -> None:
    """With file and line, and what to write there."""
    config = settings(root=tmp_path)
    file = copytree(ROOT / "queries", tmp_path / "queries") / "listing.sql"
    head, *parts = file.read_text().split("-- name:")
    assert parts[query].count(edit[0]) == 1
    parts[query] = parts[query].replace(*edit)
    file.write_text("-- name:".join([head, *parts]))

    with pytest.raises(OperatorError) as caught:
        load_queries(config)

    place, _, what = str(caught.value).partition(": ")
    name, line = place.split(":")
    assert name == "queries/listing.sql"
    assert reason in what
    if query and "::" in reason:
        assert "m.year < :" in file.read_text().splitlines()[int(line) - 1]


def test_the_same_change_of_all_three_filters_is_accepted(
    settings: Callable[..., Config], tmp_path: Path
) -> None:
    """A column of a DBA's own can be a condition, too."""
    file = copytree(ROOT / "queries", tmp_path / "queries") / "listing.sql"
    file.write_text(file.read_text().replace("-- end of", "and m.director is null\n-- end of"))

    loaded = load_queries(settings(root=tmp_path))

    assert all("m.director is null" in loaded[name].sql for name in listing.QUERIES)
