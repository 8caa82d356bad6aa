"""Tests the counting of genres and its cache."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from datetime import datetime

import psycopg2
import pytest
from structlog.testing import capture_logs
from support import Execute, approve, until

from service.catalogue import genres as genres_module
from service.catalogue.genres import GenreCounts
from service.config import Config
from service.database import query_files
from service.database.pool import Pool
from service.database.query import suppress_timeout_reports
from service.database.statements import Statements
from service.errors import StatementFailed, Unavailable
from service.query_registry import EXPECTED

MOVIES = "insert into movies (title, year, runtime, genres) "
ONE = MOVIES + "values ('Moana', 2016, 107, '{animation}')"
LONG = 1000.0  # seconds


@pytest.fixture
async def genres(settings: Callable[..., Config]) -> AsyncIterator[GenreCounts]:
    """Return the genre counts of a process."""
    config = settings()
    suppress_timeout_reports(asyncio.get_running_loop())

    pool = Pool(config.database, approve)
    loaded = query_files.load(config.root / "queries", EXPECTED)
    yield GenreCounts(Statements(pool, loaded, config.database.statement_timeout))
    await pool.close(timeout=1)


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the cache time of the counts, in seconds."""

    def change(seconds: float) -> None:
        monkeypatch.setattr(genres_module, "CACHE_MIN_S", seconds)
        monkeypatch.setattr(genres_module, "CACHE_FACTOR", 0)

    return change


Keep = Callable[[float], None]


def count_running(execute: Execute) -> int:
    """Tell how many counts the database is working on."""
    return len(
        execute(
            "select pid from pg_stat_activity where datname = current_database()"
            " and state = 'active' and query like '/* count_genres %'"
        )
    )


# The counts.


async def test_most_movies_first_and_ties_by_code_point(
    genres: GenreCounts, execute: Execute
) -> None:
    """The order is the same in every database, whatever its collation."""
    execute(MOVIES + "values ('x', 2000, 90, '{war,é,a,Z,b}'), ('x', 2000, 90, '{war}')")

    counts = await genres.get()

    assert counts.genres == [("war", 2), ("Z", 1), ("a", 1), ("b", 1), ("é", 1)]


async def test_an_empty_catalogue_has_no_genres(genres: GenreCounts) -> None:
    """It has no genre, but the time of the count."""
    counts = await genres.get()

    assert (counts.genres, counts.total) == ([], 0)
    assert isinstance(counts.as_of, datetime)


async def test_the_most_frequent_are_listed_and_all_are_counted(
    genres: GenreCounts, execute: Execute
) -> None:
    """The list has at most 1000 genres; the total counts all."""
    execute(MOVIES + "select 'x', 2000, 90, array['g' || n] from generate_series(1, 1003) as n")
    execute(MOVIES + "select 'x', 2000, 90, array['g' || n] from generate_series(1001, 1003) as n")

    counts = await genres.get()

    assert counts.genres[:4] == [("g1001", 2), ("g1002", 2), ("g1003", 2), ("g1", 1)]
    assert (len(counts.genres), counts.total) == (1000, 1003)


async def test_every_change_before_as_of_is_counted(genres: GenreCounts, execute: Execute) -> None:
    """The time is that of the database, before the count began."""
    ((before,),) = execute("select now()")
    execute(ONE)
    ((after,),) = execute("select now()")

    counts = await genres.get()

    assert before < after < counts.as_of
    assert counts.genres == [("animation", 1)]


# The time of the count.


async def test_counts_are_kept(genres: GenreCounts, execute: Execute, keep: Keep) -> None:
    """While counts are cached, no query is sent."""
    keep(LONG)
    first = await genres.get()
    execute(ONE)

    assert await genres.get() is first


async def test_counts_that_are_too_old_are_counted_again(
    genres: GenreCounts, execute: Execute, keep: Keep
) -> None:
    """The first request after that gets new counts, so those of a small catalogue are current."""
    keep(0)
    await genres.get()
    execute(ONE)

    assert (await genres.get()).genres == [("animation", 1)]


async def test_counts_are_kept_a_hundred_times_as_long_as_the_count_took(
    genres: GenreCounts, execute: Execute, database: str
) -> None:
    """So counting takes at most 1 % of the time."""
    with closing(psycopg2.connect(database)) as holder:
        holder.cursor().execute("lock table movies")
        first = asyncio.create_task(genres.get())
        await until(lambda: count_running(execute) == 1)
        await asyncio.sleep(0.1)  # the count takes as long
    counts = await first
    execute(ONE)
    loop = asyncio.get_running_loop()
    kept_from = loop.time()
    await asyncio.sleep(1.1)  # longer than the least time, less than a hundred times 0.1 s

    assert await genres.get() is counts
    assert loop.time() < kept_from + 9


async def test_requests_share_a_count(genres: GenreCounts, execute: Execute, database: str) -> None:
    """Requests that wait at the same time cause one count."""
    with closing(psycopg2.connect(database)) as holder:
        holder.cursor().execute("lock table movies")
        waiting = [asyncio.create_task(genres.get()) for _ in range(50)]
        await until(lambda: count_running(execute) > 0)
        running = count_running(execute)

    answers = await asyncio.gather(*waiting)

    assert running == 1
    assert all(answer is answers[0] for answer in answers)


async def test_a_request_that_goes_away_ends_no_count(
    genres: GenreCounts, execute: Execute, database: str
) -> None:
    """A cancelled request does not cancel the count, because others wait for it."""
    with closing(psycopg2.connect(database)) as holder:
        holder.cursor().execute("lock table movies")
        gone, waiting = (asyncio.create_task(genres.get()) for _ in range(2))
        await until(lambda: count_running(execute) == 1)
        gone.cancel()

    assert (await waiting).genres == []


async def test_the_old_counts_are_served_while_a_count_runs(
    genres: GenreCounts, execute: Execute, database: str, keep: Keep
) -> None:
    """A long count delays no request; the first request after it gets the new counts."""
    keep(0)
    old = await genres.get()
    with closing(psycopg2.connect(database)) as holder:
        cursor = holder.cursor()
        cursor.execute("lock table movies")
        cursor.execute(ONE)

        served = [await asyncio.wait_for(genres.get(), 20) for _ in range(3)]

        assert count_running(execute) == 1
        holder.commit()

    assert all(counts is old for counts in served)
    async with asyncio.timeout(10):
        while (new := await genres.get()) is old:  # noqa: ASYNC110 - as until
            await asyncio.sleep(0.01)
    assert new.genres == [("animation", 1)]


async def test_only_the_first_requests_wait_for_a_count(
    genres: GenreCounts, database: str, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later than `MAX_WAIT_S` after its start, requests get the old counts at once."""
    monkeypatch.setattr(genres_module, "MAX_WAIT_S", 1.0)
    keep(0)
    await genres.get()
    with closing(psycopg2.connect(database)) as holder:
        holder.cursor().execute("lock table movies")
        async with asyncio.timeout(20):
            for _ in range(30):
                await genres.get()


# Failures of the count.


async def test_without_counts_a_failure_is_raised(
    genres: GenreCounts, execute: Execute, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next count may start after the duration of the failed one, not 100 times that."""
    keep(0)
    monkeypatch.setattr(genres_module, "CACHE_FACTOR", 1e9)
    execute("alter table movies rename to films")
    with pytest.raises(StatementFailed):
        await genres.get()
    execute("alter table films rename to movies")

    counts = None
    async with asyncio.timeout(10):
        while counts is None:
            with suppress(StatementFailed):
                counts = await genres.get()
            await asyncio.sleep(0.01)
    assert counts.genres == []


async def test_a_failure_is_not_tried_again_at_once(
    genres: GenreCounts, execute: Execute, keep: Keep
) -> None:
    """Otherwise every request would start a long count on a database with a problem."""
    keep(LONG)
    execute("alter table movies rename to films")
    with pytest.raises(StatementFailed):
        await genres.get()
    execute("alter table films rename to movies")

    with pytest.raises(StatementFailed):
        await genres.get()


async def test_the_old_counts_are_served_if_a_count_fails(
    genres: GenreCounts, execute: Execute, keep: Keep
) -> None:
    """`as_of` shows their age."""
    keep(0)
    old = await genres.get()
    execute("alter table movies rename to films")

    assert await genres.get() is old


async def test_a_count_that_was_cancelled_by_hand_is_unavailable(
    genres: GenreCounts, execute: Execute, database: str
) -> None:
    """A DBA may cancel the query."""
    with closing(psycopg2.connect(database)) as holder:
        holder.cursor().execute("lock table movies")
        waiting = asyncio.create_task(genres.get())
        # A cancellation at the start of a statement is retried, because it may be a late one.
        await until(
            lambda: (
                execute(
                    "select pg_cancel_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and query like '/* count_genres %'"
                    " and state = 'active' and clock_timestamp() - query_start > '0.1 s'"
                )
                == [(True,)]
            )
        )

        with pytest.raises(Unavailable):
            await waiting


async def test_a_broken_connection_fails_no_count(
    genres: GenreCounts, execute: Execute, keep: Keep
) -> None:
    """The query is retried on another connection, and nothing is logged."""
    keep(0)
    await genres.get()
    execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    execute(ONE)

    async def is_counted() -> bool:
        return (await genres.get()).total == 1

    with capture_logs() as logged:
        await until(is_counted)

    assert logged == []
