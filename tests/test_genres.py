"""Tests GET /v1/genres: the counting of genres, its cache, and the response."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import pytest
from conftest import Start
from support import Execute, Patch, hold, until

from service import genres as genres_module
from service.database.statements import Statements
from service.errors import StatementFailed
from service.genres import GenreCounts

MOVIES = "insert into movies (title, year, runtime, genres) "
ONE = MOVIES + "values ('Moana', 2016, 107, '{animation}')"
LOCK = "lock table movies"
RENAME = "alter table {} rename to {}"


@pytest.fixture
def genres(statements: Statements) -> GenreCounts:
    """Return the genre counts of a process."""
    return GenreCounts(statements)


@pytest.fixture
def keep(monkeypatch: Patch) -> Callable[[float], None]:
    """Set the cache time of the counts, in seconds."""

    def change(seconds: float) -> None:
        monkeypatch.setattr(genres_module, "CACHE_MIN_S", seconds)
        monkeypatch.setattr(genres_module, "CACHE_FACTOR", 0)

    return change


Keep = Callable[[float], None]


# The counts that the database has been working on for a while.
RUNNING = (
    "from pg_stat_activity where datname = current_database() and state = 'active'"
    " and query like '/* count_genres %' and clock_timestamp() - query_start > '0.1 s'"
)


# The counts.


async def test_spellings_are_one_genre_as_the_filter_finds_them(
    genres: GenreCounts, execute: Execute
) -> None:
    """Under the most frequent spelling; a movie with two of them counts once."""
    for spellings in (["Drama"], ["Drama", "drama"], ["drámA", "Sci-Fi"], [" drama", "sci-fi"]):
        execute(MOVIES + "values ('x', 2000, 90, %s)", spellings)
    execute(MOVIES + "values ('x', 2000, 90, '{Musical}'), ('x', 2000, 90, '{Music}')")

    counts = await genres.get()

    assert counts.genres == [("Drama", 4), ("Sci-Fi", 2), ("Music", 1), ("Musical", 1)]
    assert counts.total == 4
    for genre, movies in counts.genres:
        found = "select count(*) from movies where search @@ genres_query(array[%s])"
        assert execute(found, genre) == [(movies,)]


async def test_the_most_frequent_are_listed_and_all_are_counted(
    genres: GenreCounts, execute: Execute
) -> None:
    """The list has at most 1000 genres; the total counts all."""
    execute(MOVIES + "select 'x', 2000, 90, array['g' || n] from generate_series(1, 1003) as n")
    execute(MOVIES + "select 'x', 2000, 90, array['g' || n] from generate_series(1001, 1003) as n")

    counts = await genres.get()

    assert counts.genres[:4] == [("g1001", 2), ("g1002", 2), ("g1003", 2), ("g1", 1)]
    assert (len(counts.genres), counts.total) == (1000, 1003)


# The time of the count.


async def test_counts_are_kept_until_they_are_too_old(
    genres: GenreCounts, execute: Execute, keep: Keep
) -> None:
    """The first request after that gets new counts, so those of a small catalogue are current."""
    keep(0)
    await genres.get()
    execute(ONE)
    keep(1000)

    counts = await genres.get()

    assert counts.genres == [("animation", 1)]
    execute(ONE)
    assert await genres.get() is counts


async def test_counts_are_kept_a_hundred_times_as_long_as_the_count_took(
    genres: GenreCounts, execute: Execute, database: str, monkeypatch: Patch
) -> None:
    """So counting takes at most 1 % of the time."""
    monkeypatch.setattr(genres_module, "CACHE_MIN_S", 0)
    loop = asyncio.get_running_loop()
    started = loop.time()
    with hold(database, LOCK):
        first = asyncio.create_task(genres.get())
        await until(lambda: execute(f"select 1 {RUNNING}"))  # so they are kept for more than 10 s
    counts = await first
    execute(ONE)

    await asyncio.sleep(2 * (loop.time() - started))  # longer than the count took

    assert await genres.get() is counts


async def test_requests_share_a_count(genres: GenreCounts, execute: Execute, database: str) -> None:
    """Requests that wait at the same time cause one count, which goes on if one of them leaves."""
    with hold(database, LOCK):
        gone, *waiting = [asyncio.create_task(genres.get()) for _ in range(50)]
        await until(lambda: execute(f"select 1 {RUNNING}"))
        gone.cancel()
        running = execute(f"select count(*) {RUNNING}")

    first, *others = await asyncio.gather(*waiting)

    assert running == [(1,)]
    assert all(counts is first for counts in others)


async def test_the_old_counts_are_served_while_a_count_runs(
    genres: GenreCounts, execute: Execute, database: str, keep: Keep
) -> None:
    """A long count delays no request; the first request after it gets the new counts."""
    keep(0)
    old = await genres.get()
    with hold(database, LOCK) as other:
        other.cursor().execute(ONE)

        served = [await asyncio.wait_for(genres.get(), 20) for _ in range(3)]

        await until(lambda: execute(f"select 1 {RUNNING}"))
        other.commit()

    assert all(counts is old for counts in served)
    await until(partial(has_counted, genres, 1))


async def has_counted(genres: GenreCounts, total: int) -> bool:
    """Whether so many genres are counted now."""
    with suppress(StatementFailed):
        return (await genres.get()).total == total
    return False


async def test_counts_that_are_too_old_wait_for_the_new_ones(
    genres: GenreCounts, execute: Execute, database: str, keep: Keep, monkeypatch: Patch
) -> None:
    """After a pause, however long the count takes: their age has a bound."""
    keep(0)
    monkeypatch.setattr(genres_module, "MAX_STALE_S", 0)
    await genres.get()
    execute(ONE)
    with hold(database, LOCK):
        waiting = asyncio.create_task(genres.get())
        await until(lambda: execute(f"select 1 {RUNNING}"))  # for longer than `MAX_WAIT_S`
        assert not waiting.done()

    assert (await waiting).genres == [("animation", 1)]


# Failures of the count.


async def test_without_counts_a_failure_is_raised(
    genres: GenreCounts, execute: Execute, keep: Keep
) -> None:
    """It is not tried again at once: each request would cost a long count."""
    keep(1000)
    execute(RENAME.format("movies", "films"))
    with pytest.raises(StatementFailed):
        await genres.get()
    execute(RENAME.format("films", "movies"))

    with pytest.raises(StatementFailed):
        await genres.get()


async def test_a_failed_count_is_tried_again(
    genres: GenreCounts, execute: Execute, keep: Keep, monkeypatch: Patch
) -> None:
    """After as long as it took, not a hundred times that."""
    keep(0)
    monkeypatch.setattr(genres_module, "CACHE_FACTOR", 1e9)
    execute(RENAME.format("movies", "films"))
    with pytest.raises(StatementFailed):
        await genres.get()
    execute(RENAME.format("films", "movies"))

    await until(partial(has_counted, genres, 0))


@pytest.mark.parametrize("max_stale_s", [60, 0])
async def test_old_counts_are_served_if_a_count_fails_until_they_are_too_old(
    genres: GenreCounts, execute: Execute, keep: Keep, monkeypatch: Patch, max_stale_s: int
) -> None:
    """`as_of` shows their age; then a client sees the error instead."""
    keep(0)
    monkeypatch.setattr(genres_module, "MAX_STALE_S", max_stale_s)
    old = await genres.get()
    execute(RENAME.format("movies", "films"))

    if max_stale_s:
        assert await genres.get() is old
    else:
        with pytest.raises(StatementFailed):
            await genres.get()


# GET /v1/genres.


async def test_every_genre_with_its_movies(start: Start, execute: Execute) -> None:
    """GET returns 200, the genres with the most movies first, the total, and the time.

    Ties are by code point, whatever the collation of the database.
    """
    before = datetime.now(UTC)
    for genres in ("{Zen,drama}", "{drama}", "{crime}"):
        execute(MOVIES + "values ('x', 2000, 1, %s)", genres)
    client = await start()

    response = await client.get("/v1/genres")
    answer = await response.json()

    assert response.status == 200
    assert response.headers["Content-Type"] == "application/json"
    assert answer["genres"] == [
        {"genre": "drama", "movies": 2},
        {"genre": "Zen", "movies": 1},
        {"genre": "crime", "movies": 1},
    ]
    assert list(answer) == ["genres", "metadata"]
    assert list(answer["metadata"]) == ["total_records", "as_of"]
    assert answer["metadata"]["total_records"] == 3
    assert before < datetime.fromisoformat(answer["metadata"]["as_of"]) < datetime.now(UTC)
    assert (await response.text()).startswith('{\n  "genres": [\n    {\n      "genre": "drama",\n')
