"""The counting of genres, by several processes and beside DBAs, on a real database."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import aiopg
import psycopg2
import pytest
from conftest import ROOT, Client, Start
from test_faults import until

from service.app import EXPECTED, GENRES
from service.config import Config
from service.database import migration_files, queries
from service.database.pool import Pool
from service.database.statements import Statements
from service.errors import Contended, Unavailable
from service.genres import Genres

Execute = Callable[..., list[tuple[Any, ...]]]
MOVIES = "insert into movies (title, year, runtime, genres) "
ONE = MOVIES + "values ('Moana', 2016, 107, '{animation}')"
# A count of this genre cannot end before the transaction of this does.
HOLD = "insert into genre_counts values ('{}', 0)"
# With this in front, what the session did is in the statistics as soon as it is answered.
AT_ONCE = "select pg_stat_force_next_flush(); "


class Process:
    """What one process of the service has of genres, without the task that recounts."""

    def __init__(self, config: Config) -> None:
        self.pool = Pool(config.database, _approve)
        loaded = queries.load(config.root / "queries", EXPECTED)
        statements = Statements(self.pool, loaded, config.database.statement_timeout)
        self.fetch = statements.fetch
        self.genres = Genres(statements, config.genres, config.sharing)

    async def counts(self) -> dict[str, int]:
        """The counts as they are kept."""
        return dict((await self.genres.get()).genres)


async def _approve(_: aiopg.Connection) -> None:
    """Find every database good."""


MakeProcess = Callable[..., Process]


@pytest.fixture
async def make_process(settings: Callable[..., Config]) -> AsyncIterator[MakeProcess]:
    """Make what a process has, with these settings; its pool is closed at the end."""
    processes = []

    def make(**changes: Any) -> Process:
        processes.append(Process(settings(**changes)))
        return processes[-1]

    yield make
    for process in processes:
        await process.pool.close(timeout=0)


@pytest.fixture
def process(make_process: MakeProcess) -> Process:
    """What a process has, with the settings of config.toml."""
    return make_process()


@pytest.fixture
def age(execute: Execute) -> Callable[[], None]:
    """Make the last look one of a minute ago, so that another one is due."""

    def run() -> None:
        execute(
            "update genre_counting set looked_at = now() - interval '1 minute',"
            " counted_at = counted_at - interval '1 minute'"
        )

    return run


Age = Callable[[], None]


# What is counted.


async def test_movies_of_before_the_migration_are_counted_by_it(
    process: Process, execute: Execute
) -> None:
    """The table that a release finds is counted before its new code starts."""
    folder = ROOT / "migrations"
    (file,) = (m for m in migration_files.read(folder) if m.name == "create_genre_counts")
    assert file.down
    execute(file.down.sql)
    execute(MOVIES + "select 'x', 2000, 90, '{drama,war}' from generate_series(1, 3)")
    execute(MOVIES + "values ('x', 2000, 90, '{drama}')")

    execute(file.up.sql)

    counts = await process.genres.get()
    assert (counts.genres, counts.total) == ([("drama", 4), ("war", 3)], 2)


async def test_most_movies_first_and_ties_by_code_point(process: Process, execute: Execute) -> None:
    """The order is the same in every database, whatever its collation."""
    execute(MOVIES + "values ('x', 2000, 90, '{war,é,a,Z,b}'), ('x', 2000, 90, '{war}')")

    await process.genres.recount()

    counts = await process.genres.get()
    assert counts.genres == [("war", 2), ("Z", 1), ("a", 1), ("b", 1), ("é", 1)]


async def test_a_count_brings_every_genre_up_to_date(
    process: Process, execute: Execute, age: Age
) -> None:
    """Genres that came, grew, shrank, stayed and went, in one count."""
    execute(MOVIES + "values ('a', 2000, 90, '{grows,stays,shrinks}'), ('b', 2000, 90, '{went}')")
    execute(MOVIES + "values ('c', 2000, 90, '{shrinks}')")
    await process.genres.recount()
    execute(AT_ONCE + "update movies set genres = '{grows,came}' where title <> 'a'")
    age()

    await process.genres.recount()

    assert await process.counts() == {"grows": 3, "came": 2, "stays": 1, "shrinks": 1}
    assert (await process.genres.get()).total == 4


async def test_an_emptied_catalogue_has_no_genres(
    process: Process, execute: Execute, age: Age
) -> None:
    """No genre is left with a count of 0."""
    execute(ONE)
    await process.genres.recount()
    execute(AT_ONCE + "delete from movies")
    age()

    await process.genres.recount()

    counts = await process.genres.get()
    assert (counts.genres, counts.total) == ([], 0)


async def test_the_most_frequent_are_kept_and_all_are_told(
    process: Process, execute: Execute
) -> None:
    """Whatever clients invent, no more than 1000 genres are handed out."""
    execute(MOVIES + "select 'x', 2000, 90, array['g' || n] from generate_series(1, 1003) as n")
    execute(MOVIES + "select 'x', 2000, 90, array['g' || n] from generate_series(1001, 1003) as n")

    await process.genres.recount()

    counts = await process.genres.get()
    assert counts.genres[:4] == [("g1001", 2), ("g1002", 2), ("g1003", 2), ("g1", 1)]
    assert (len(counts.genres), counts.total) == (1000, 1003)


async def test_a_genre_too_long_to_keep_stops_nothing(process: Process, execute: Execute) -> None:
    """A name that no index can hold is left out: the others are counted."""
    noise = "(select string_agg(md5(n::text), '') from generate_series(1, 1000) as n)"
    execute(MOVIES + f"select 'x', 2000, 90, array['drama', {noise}, repeat('é', 250)]")

    await process.genres.recount()

    assert await process.counts() == {"drama": 1, "é" * 250: 1}


# When it is counted.


async def test_a_table_that_has_not_changed_is_not_counted(
    process: Process, execute: Execute, age: Age
) -> None:
    """A look finds the mark of the last count, and moves as_of on to 15 s before itself."""
    execute(AT_ONCE + ONE)
    first = await process.genres.recount()
    age()
    ((counted_at,),) = execute("select counted_at from genre_counting")

    again = await process.genres.recount()

    ((looked_at, unmoved),) = execute("select looked_at, counted_at from genre_counting")
    assert (first, again, unmoved) == (True, False, counted_at)
    assert (await process.genres.get()).as_of == looked_at - timedelta(seconds=15)
    assert datetime.now(UTC) - looked_at < timedelta(seconds=15)


@pytest.mark.parametrize(("mark", "scans"), [("its own", 0), ("another", 1)])
async def test_a_table_that_has_not_changed_is_not_read(
    process: Process, database: str, mark: str, scans: int
) -> None:
    """As PostgreSQL's own statistics of the transaction tell."""
    await process.genres.recount()
    query = queries.load(ROOT / "queries", EXPECTED)["count_genres"]
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute("select mark from genre_counting")
        ((its_own,),) = cursor.fetchall()
        given = its_own if mark == "its own" else mark
        cursor.execute(query.sql, {"older_than": 0, "mark": given})
        cursor.execute("select seq_scan from pg_stat_xact_user_tables where relname = 'movies'")
        assert cursor.fetchall() == [(scans,)]


@pytest.mark.parametrize(
    "change",
    [
        ONE,
        "update movies set genres = '{war}'",
        "delete from movies",
        "truncate movies",
        "alter table movies rename to old; create table movies (like old including all)",
        f"select pg_stat_reset(); {ONE}",  # the counters are as they were
        f"select pg_stat_reset_single_table_counters('movies'::regclass); {ONE}",
        "update genre_counting set mark = null",
        "update genre_counting set counted_at = counted_at - interval '1 hour'",
    ],
)
async def test_whatever_may_have_changed_is_counted(
    process: Process, execute: Execute, age: Age, change: str
) -> None:
    """A DBA's change of any kind, statistics that begin anew, and at the latest an hour."""
    execute(AT_ONCE + ONE)
    await process.genres.recount()
    execute(AT_ONCE + change)
    age()

    counted = await process.genres.recount()

    kept = await process.counts()
    rows = execute("select g, count(*) from movies as m, unnest(m.genres) as g group by g")
    assert counted
    assert kept == dict(rows)


async def test_statistics_that_cannot_be_relied_on_are_not(
    process: Process, execute: Execute, age: Age, database: str
) -> None:
    """Where PostgreSQL does not count changes, every look reads the table."""
    name = psycopg2.extensions.parse_dsn(database)["dbname"]
    execute(f"alter database {name} set track_counts = off")
    await process.genres.recount()
    age()

    assert await process.genres.recount()


async def test_a_change_after_the_mark_is_never_missed(
    process: Process, execute: Execute, age: Age
) -> None:
    """What was committed between the mark and the count may not be in it: it is counted again."""
    ((mark,),) = await process.fetch("get_movies_mark")
    execute(AT_ONCE + ONE)
    await process.fetch("count_genres", older_than=0, mark=mark)
    execute("delete from genre_counts")  # as if the count had been a moment earlier
    age()

    assert await process.genres.recount()
    assert await process.counts() == {"animation": 1}


async def test_a_look_soon_after_another_does_nothing(process: Process, execute: Execute) -> None:
    """However many processes there are, they look once in `recount_every`."""
    await process.genres.recount()
    before = execute("select * from genre_counting")
    execute(AT_ONCE + ONE)

    counted = await process.genres.recount()

    assert not counted
    assert execute("select * from genre_counting") == before


async def test_a_clock_that_was_put_back(process: Process, execute: Execute) -> None:
    """A last look that lies in the future does not stop the counting until then."""
    execute("update genre_counting set looked_at = now() + interval '1 day'")

    assert await process.genres.recount()


# Who counts.


async def test_of_many_at_once_one_counts(make_process: MakeProcess, execute: Execute) -> None:
    """Five processes that find the counts old at the same time."""
    execute(ONE)
    processes = [make_process() for _ in range(5)]

    counted = await asyncio.gather(*(process.genres.recount() for process in processes))

    assert sorted(counted) == [False, False, False, False, True]
    assert await processes[0].counts() == {"animation": 1}


async def test_nobody_waits_for_who_is_counting(process: Process, database: str) -> None:
    """While another one is at it, a process goes its way."""
    with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
        cursor.execute("select from genre_counting for update")

        counted = await asyncio.wait_for(process.genres.recount(), 2)

    assert not counted


async def test_writers_do_not_wait_for_a_count(
    make_process: MakeProcess, execute: Execute, database: str
) -> None:
    """Movies are written while a count is under way, and it counts without them."""
    process = make_process()
    with closing(psycopg2.connect(database)) as dba, dba.cursor() as cursor:
        execute(MOVIES + "values ('x', 2000, 90, '{drama}')")
        cursor.execute(HOLD.format("drama"))
        counting = asyncio.create_task(process.genres.recount())
        await until(lambda: is_waiting(execute), 5)
        execute("set statement_timeout = '2s'; " + ONE + "; update movies set year = 2001")
        dba.rollback()
        assert await counting

    assert await process.counts() == {"drama": 1}


async def is_waiting(execute: Execute) -> bool:
    """Whether a count waits for a lock."""
    return execute(
        "select count(*) from pg_stat_activity where datname = current_database()"
        " and wait_event_type = 'Lock' and query like '%%genre_counting%%'"
    ) == [(1,)]


async def test_a_count_that_breaks_off_leaves_no_trace(
    process: Process, execute: Execute, database: str
) -> None:
    """Its process or connection dies half way: the next look counts."""
    execute(ONE)
    with closing(psycopg2.connect(database)) as dba, dba.cursor() as cursor:
        cursor.execute(HOLD.format("animation"))
        counting = asyncio.create_task(process.genres.recount())
        await until(lambda: is_waiting(execute), 5)
        execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and wait_event_type = 'Lock'"
        )
        with pytest.raises(Unavailable):
            await counting

    assert await process.genres.recount()
    assert await process.counts() == {"animation": 1}


async def test_a_count_may_take_ten_rounds(make_process: MakeProcess, database: str) -> None:
    """Then PostgreSQL stops it, whatever requests may take."""
    process = make_process(genres__recount_every=0.05, database__statement_timeout=0.1)
    with closing(psycopg2.connect(database)) as dba, dba.cursor() as cursor:
        await process.genres.get()  # so that connecting does not count
        cursor.execute("lock table movies in access exclusive mode")
        started = time.monotonic()
        with pytest.raises(Contended):
            await process.genres.recount()

    assert 0.5 <= time.monotonic() - started < 1.5


async def test_emptied_tables_are_filled_again(process: Process, execute: Execute) -> None:
    """A DBA's script that truncates everything: not counted yet, then counted."""
    execute(ONE)
    execute("truncate genre_counts, genre_counting")

    with pytest.raises(Unavailable, match="not been counted yet"):
        await process.genres.get()
    await process.genres.recount()  # puts the row back, for the next one to hold
    await process.genres.recount()

    assert await process.counts() == {"animation": 1}


async def test_a_failure_is_logged_once(
    process: Process, execute: Execute, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a standby, or while the database is away: one line until it works again, and one then."""
    name = psycopg2.extensions.parse_dsn(database)["dbname"]
    execute(f"alter database {name} set default_transaction_read_only = on")
    for _ in range(3):
        await process.genres.try_recount()
    execute(
        f"set transaction read write; alter database {name} set default_transaction_read_only = off"
    )
    process.pool.distrust_idle()  # the setting is for new connections

    for _ in range(3):
        await process.genres.try_recount()

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "genres not counted" in lines[0]
    assert "read-only transaction" in lines[0]
    assert "genres counted again" in lines[1]


# The task of a service.


async def test_a_service_counts_from_its_start(start: Start, execute: Execute) -> None:
    """Counts that are old when it starts are brought up to date at once."""
    execute(ONE)
    client = await start(genres__recount_every=60)

    async def is_counted() -> bool:
        return bool((await (await client.get("/v1/genres")).json())["genres"])

    await until(is_counted, 5)


async def test_a_service_goes_on_counting(start: Start, execute: Execute) -> None:
    """It looks again and again, also after a look has failed."""
    client = await start(genres__recount_every=0.05)
    execute("alter table genre_counting rename column mark to trace")

    async def is_failing() -> bool:
        return genres_of(client).outage.lasts

    await until(is_failing, 5)
    execute("alter table genre_counting rename column trace to mark")
    execute(AT_ONCE + ONE)

    async def is_counted() -> bool:
        return bool((await genres_of(client).get()).genres)

    await until(is_counted, 5)


async def test_a_count_holds_up_neither_start_nor_end(
    start: Start, execute: Execute, database: str
) -> None:
    """A service starts, answers and stops while its count is under way; that one is kept."""
    execute(ONE)
    with closing(psycopg2.connect(database)) as dba, dba.cursor() as cursor:
        cursor.execute(HOLD.format("animation"))
        client = await start()
        await until(lambda: is_waiting(execute), 5)
        response = await client.get("/v1/genres")
        started = time.monotonic()
        await client.close()
        took = time.monotonic() - started

    async def is_counted() -> bool:
        return execute("select * from genre_counts") == [("animation", 1)]

    assert response.status == 200
    assert took < 1
    await until(is_counted, 5)


def genres_of(client: Client) -> Genres:
    """The genres of a service under test."""
    return client.server.app[GENRES]  # type: ignore[attr-defined, no-any-return] # conftest's Service
