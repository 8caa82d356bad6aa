"""Tests statements with a real PostgreSQL: their rows, and the error of each failure."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg2
import pytest
from conftest import ROOT, MakeStatements
from structlog.testing import capture_logs
from support import (
    Execute,
    Logs,
    Patch,
    add_movies,
    add_trigger,
    hold,
    set_for_database,
    until,
)

from service.config import Config
from service.database import pool, query_files, statements
from service.database.statements import Statements
from service.errors import Contended, RuleBroken, StatementFailed, Unavailable

PROMPTLY_S = 10.0  # also on a loaded machine

# The queries of these tests, in addition to those of the service.
QUERIES = r"""
-- name: get_backend()
-- set: transaction_read_only = on
select pg_backend_pid();

-- name: get_timeout()
select current_setting('statement_timeout');

-- name: get_settings()
-- set: work_mem = 1234kB
-- set: transaction_read_only = on
select
  current_setting('work_mem'), current_setting('transaction_read_only'),
  current_setting('lock_timeout'), current_setting('catalogue.max_affected', true);

-- name: get_own_timeout()
-- set: statement_timeout = 7s
select current_setting('statement_timeout');

-- name: get_isolation()
select current_setting('transaction_isolation'), current_setting('default_transaction_isolation');

-- name: get_read_isolation()
-- set: transaction_read_only = on
select current_setting('transaction_isolation'), current_setting('default_transaction_isolation');

-- name: divide()
select 1 / 0;

-- name: warn()
-- set: transaction_read_only = on
select warn();

-- name: sleep(seconds)
select 1 from pg_sleep(:seconds);

-- name: count_up_to(number)
-- set: transaction_read_only = on
select count(*) from generate_series(1, :number) as n where n % 7 = 3;

-- name: get_titles()
-- set: transaction_read_only = on
select title from movies order by title;

-- name: add_movie(title, year)
insert into movies (title, year, runtime, genres)
values (:title, :year, 90, '{drama}')
returning title;

-- name: add_movie_slowly(title)
with slept as materialized (select pg_sleep(60))
insert into movies (title, year, runtime, genres)
select :title, 2000, 90, '{drama}' from slept
returning title;

-- name: rename_movies(title)
update movies set title = :title returning title;

-- name: change_years(year)
update movies set year = :year returning year;
"""


class Service(Statements):
    """Statements, with what these tests ask."""

    async def backend(self) -> int:
        """Return the process id of the next connection's backend."""
        ((pid,),) = await self.fetch("get_backend")
        return int(pid)

    async def is_whole(self, size: int = 1) -> bool:
        """Whether no connection is in use, and the idle ones work."""
        counts = (self.pool.size, self.pool.idle)
        await self.backend()
        return counts == (size, size) and (self.pool.size, self.pool.idle) == (size, size)


MakeService = Callable[..., Service]


@pytest.fixture
def make_service(make_statements: MakeStatements, tmp_path: Path) -> MakeService:
    """Return a function that makes statements with these settings."""
    (tmp_path / "test.sql").write_text(QUERIES)
    loaded = query_files.load(tmp_path, {}) | query_files.load(ROOT / "queries", {})
    return partial(make_statements, Service, loaded, slow=0.5)


@pytest.fixture
def service(make_service: MakeService) -> Service:
    """Statements with the settings of config.toml."""
    return make_service()


@pytest.fixture
def terminate(execute: Execute) -> Callable[[], int]:
    """Terminate all connections of pools, as a restart does; return their number."""

    def run() -> int:
        rows = execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and application_name like 'movie-catalogue%'"
        )
        assert all(gone for (gone,) in rows)
        return len(rows)

    return run


async def until_running(execute: Execute, sql: str) -> int:
    """Wait until a statement like this sleeps or waits; return the process id of its backend."""
    running = (
        "select pid from pg_stat_activity where datname = current_database()"
        " and wait_event_type in ('Timeout', 'Lock') and query like %s"
        " and query_start < clock_timestamp() - interval '30 ms'"
    )
    await until(lambda: execute(running, f"%{sql}%"))
    return int(execute(running, f"%{sql}%")[0][0])


def titles(execute: Execute) -> list[str]:
    """List the titles."""
    return [title for (title,) in execute("select title from movies order by title")]


# Statements that take too long.


async def test_a_statement_that_takes_too_long_is_contended(make_service: MakeService) -> None:
    """The task is not cancelled, and the connection can be used again."""
    service = make_service(database__statement_timeout=0.05)
    before = await service.backend()
    task = asyncio.current_task()

    with pytest.raises(Contended, match=r"^sleep \(.*\): canceling statement due to s"):
        await service.fetch("sleep", {"seconds": 60})  # in this task

    assert task
    assert task.cancelling() == 0
    assert await service.backend() == before
    assert await service.is_whole()


async def test_a_timeout_at_the_end_of_a_statement_cancels_no_other(service: Service) -> None:
    """PostgreSQL may notice a timeout when its statement has ended."""
    number, late = 50_000, 0
    for _ in range(100):
        try:
            await service.fetch("count_up_to", {"number": number}, timeout=0.015)
            number = number * 101 // 100 if late else number * 2
        except Contended:
            number = number * 98 // 100
            late += 1
        await service.backend()

    assert late > 3  # the statements took about as long as they may
    assert service.pool.size == 1


async def test_the_timeout_of_the_call_or_file_overrides_the_service(
    service: Service, execute: Execute
) -> None:
    """The call's timeout is first, then the file's; none is the session's."""
    set_for_database(execute, "statement_timeout = '10ms'")
    timeouts = [
        await service.fetch("get_own_timeout", timeout=9),
        await service.fetch("get_own_timeout"),
        await service.fetch("get_timeout", timeout=8),
        await service.fetch("get_timeout"),
    ]

    assert timeouts == [[("9s",)], [("7s",)], [("8s",)], [("3s",)]]


# Rules of the database.


MOANA_2 = ("Moana 2", 2024)
NO_SEQUELS = "alter table movies add constraint movies_no_sequels "
# The title's column is narrower; `search` is computed from it, and the filter of lists uses that.
SHORT_TITLES = "alter table movies drop column search cascade, alter title type varchar(7)"


@pytest.mark.parametrize(
    ("change", "movie", "rule"),
    [
        ("", ("Moana", 1700), "movies_year_1888_or_later"),
        (f"{NO_SEQUELS} check (title !~ '2') not valid", MOANA_2, "movies_no_sequels"),
        (f"{NO_SEQUELS} exclude (title with =) where (title ~ '2')", MOANA_2, "movies_no_sequels"),
        (f"{NO_SEQUELS} unique (title)", MOANA_2, "movies_no_sequels"),
        (
            f"{NO_SEQUELS} foreign key (year) references movies (id) not valid",
            MOANA_2,
            "movies_no_sequels",
        ),
        (SHORT_TITLES, ("Moana II", 2024), ""),
        (SHORT_TITLES, ("Moana", 2**40), ""),
    ],
)
async def test_a_broken_rule_has_its_constraints_name(
    service: Service, execute: Execute, change: str, movie: tuple[str, int], rule: str
) -> None:
    """Also for a constraint that a DBA adds; an error of a column's type has no name."""
    add_movies(execute, "Moana 2", year=1888)
    execute(change or "select")

    with pytest.raises(RuleBroken) as caught:
        await service.fetch("add_movie", {"title": movie[0], "year": movie[1]})

    assert caught.value.rule == rule
    assert titles(execute) == ["Moana 2"]
    assert await service.is_whole()


# Connections that break.


async def test_a_read_on_a_broken_connection_is_retried(
    service: Service, execute: Execute, terminate: Callable[[], int]
) -> None:
    """After a restart of the database, the first read succeeds, with its settings."""
    add_movies(execute, "Moana")
    async with service.pool.connection(), service.pool.connection(), service.pool.connection():
        pass
    ended = terminate()

    settings = await service.fetch("get_settings", is_resent=True, max_affected=5)
    rows = await service.fetch("get_titles")

    assert ended == 3
    assert settings == [("1234kB", "on", "50ms", "5")]
    assert rows == [("Moana",)]
    assert await service.is_whole()


async def test_a_write_that_is_repeatable_is_retried_once(
    service: Service, execute: Execute, terminate: Callable[[], int]
) -> None:
    """If the second connection breaks, too, it is `Unavailable`, as a read would be."""
    user = asyncio.create_task(service.fetch("sleep", {"seconds": 2}, is_repeatable=True))
    first = await until_running(execute, "pg_sleep(2)")
    terminate()
    second = await until_running(execute, "pg_sleep(2)")
    terminate()

    with pytest.raises(Unavailable, match="sleep: FATAL: 57P01: terminating connection"):
        await asyncio.wait_for(user, PROMPTLY_S)

    assert first != second
    assert await service.backend()


async def test_a_read_is_tried_again_on_a_connection_that_was_opened_later(
    service: Service, terminate: Callable[[], int]
) -> None:
    """Not on one that another user returns, or that was being opened: it may be broken, too."""
    async with service.pool.connection() as used:
        await service.backend()
        opening = asyncio.create_task(service.backend())
        await asyncio.sleep(0)
        ended = terminate()
        read = asyncio.create_task(service.fetch("get_backend"))
        await asyncio.sleep(0)

    assert ended >= 2
    assert await asyncio.wait_for(read, PROMPTLY_S)
    assert used.closed
    await asyncio.gather(opening, return_exceptions=True)


async def test_a_write_that_breaks_midway_is_not_tried_again(
    service: Service, execute: Execute, terminate: Callable[[], int]
) -> None:
    """It may have been executed. Idle connections are closed, so the next write works."""
    async with service.pool.connection(), service.pool.connection(), service.pool.connection():
        pass
    user = asyncio.create_task(service.fetch("add_movie_slowly", {"title": "Lost"}))
    await until_running(execute, "pg_sleep(60)")

    terminate()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(user, PROMPTLY_S)
    left = service.pool.size
    await service.fetch("add_movie", {"title": "Moana", "year": 2016})

    assert left == 0
    assert titles(execute) == ["Moana"]
    assert await service.is_whole()


# Other errors of the database.


async def test_a_database_that_is_read_only_no_more_takes_the_next_write(
    service: Service, execute: Execute
) -> None:
    """A session keeps the default that it began with: a refused write replaces all connections."""
    set_for_database(execute, "default_transaction_read_only = on")
    async with service.pool.connection() as used, service.pool.connection():
        await service.backend()
        ((name,),) = execute("select current_database()")
        execute(f"set transaction read write; alter database {name} reset all")

        with pytest.raises(Unavailable, match="read-only"):
            await service.fetch("add_movie", {"title": "Lost", "year": 2016})
    await service.fetch("add_movie", {"title": "Moana", "year": 2016})

    assert used.closed
    assert titles(execute) == ["Moana"]
    assert await service.is_whole()


async def test_a_database_that_stays_read_only_costs_few_connects(
    service: Service, execute: Execute
) -> None:
    """Not one for each write that it refuses."""
    set_for_database(execute, "default_transaction_read_only = on")
    backends = set()
    loop = asyncio.get_running_loop()
    began = loop.time()

    for _ in range(20):
        with pytest.raises(Unavailable, match="read-only"):
            await service.fetch("add_movie", {"title": "Lost", "year": 2016})
        backends.add(await service.backend())

    assert len(backends) <= 1 + (loop.time() - began) / pool.RETRY_S


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
async def test_the_default_isolation_of_a_role_affects_no_statement(
    service: Service, execute: Execute, level: str
) -> None:
    """Statements are made for read committed; the session keeps its default."""
    set_for_database(execute, f"default_transaction_isolation = '{level}'")

    assert await service.fetch("get_isolation") == [("read committed", level)]
    assert await service.fetch("get_read_isolation") == [("read committed", level)]


async def test_a_type_that_changes_fails_one_write_of_each_connection(
    service: Service, execute: Execute
) -> None:
    """A session keeps the plans of a DBA's triggers, which are of the old type."""
    add_movies(execute, "a")
    raise_year = "new.year := greatest(new.year, old.year); return new;"
    add_trigger(execute, raise_year, "before update")
    await service.fetch("change_years", {"year": 2001})
    execute("drop function movie_matches(movies, jsonb)")
    execute("alter table movies alter column year type bigint")

    with pytest.raises(StatementFailed, match="does not match that when preparing the plan"):
        await service.fetch("change_years", {"year": 2002})
    changed = await service.fetch("change_years", {"year": 2003})

    assert changed == [(2003,)]


async def test_a_lock_timeout_of_the_role_is_logged(
    service: Service, execute: Execute, database: str
) -> None:
    """Nothing repeats these statements, such as the clearing of keys."""
    set_for_database(execute, "lock_timeout = '50ms'")
    add_movies(execute, "Moana")
    locked = hold(database, "select from movies for update")
    with locked, capture_logs() as logged, pytest.raises(Contended):
        await service.fetch("rename_movies", {"title": "x"})

    assert [line["event"] for line in logged] == ["statement failed"]


async def test_a_statement_may_have_no_timeout(service: Service) -> None:
    """Neither the server nor the driver ends it: the driver waits 1 s beyond any other timeout."""
    assert await service.fetch("sleep", {"seconds": 1.1}, timeout=0) == [(1,)]


# The limit of changed movies.

THREE = """
insert into movies (title, year, runtime, genres)
select 'Moana ' || n, 2016, 107, '{x}' from generate_series(1, 3) as n
"""


@pytest.mark.parametrize(
    "sql",
    [
        THREE,
        "update movies set year = 2000",
        "delete from movies",
        "with a as (delete from movies returning id) select count(*) from a",
        f"{THREE} on conflict (id) do nothing",
    ],
)
def test_each_kind_of_write_is_limited(execute: Execute, database: str, sql: str) -> None:
    """All kinds count; in psql, where no limit is set, there is none."""
    execute(THREE)
    with closing(psycopg2.connect(database)) as session:
        cursor = session.cursor()
        cursor.execute("set local catalogue.max_affected = 2")
        with pytest.raises(psycopg2.errors.CardinalityViolation, match="at most 2 were requested"):
            cursor.execute(sql)
        session.rollback()

        cursor.execute(sql)
        session.commit()


def test_movies_that_a_dbas_trigger_changes_do_not_count(execute: Execute, database: str) -> None:
    """One movie was requested, and the trigger changes three others."""
    execute(THREE)
    add_trigger(execute, "update movies set runtime = 1; return new;")
    with closing(psycopg2.connect(database)) as session:
        session.cursor().execute(
            "set local catalogue.max_affected = 1;"
            " insert into movies (title, year, runtime, genres) values ('x', 2000, 2, '{x}')"
        )
        session.commit()

    assert execute("select runtime, count(*) from movies group by 1 order by 1") == [(1, 3), (2, 1)]


# Logs.


async def test_a_failed_statement_is_logged_once(service: Service, logs: Logs) -> None:
    """The log has its query, file, line and PostgreSQL's message, but no values."""
    with pytest.raises(StatementFailed):
        await service.fetch("divide", is_repeatable=True)
    with pytest.raises(Contended):
        await service.fetch("sleep", {"seconds": 60}, timeout=0.05)
    with pytest.raises(RuleBroken):  # has no name, so the response says only that it was refused
        await service.fetch("add_movie", {"title": "Moana", "year": 2**40})
    with pytest.raises(RuleBroken):  # is a mistake of the client; the response has the name
        await service.fetch("add_movie", {"title": "Moana", "year": 1700})

    divide, sleep, add = logs
    line = QUERIES[: QUERIES.index("-- name: divide()")].count("\n") + 1
    assert divide.pop("file").endswith(f"/test.sql:{line}")
    assert divide.pop("duration_ms") >= 0
    assert divide == {
        "event": "statement failed",
        "log_level": "warning",
        "query": "divide",
        "reason": "division by zero",
    }
    assert (sleep["event"], sleep["query"]) == ("statement failed", "sleep")
    assert sleep["reason"] == "canceling statement due to statement timeout"
    assert (add["event"], add["query"]) == ("refused by the database", "add_movie")
    assert "out of range" in add["reason"]
    assert str(2**40) not in str(add)


async def test_a_slow_statement_is_logged(
    settings: Callable[..., Config], make_service: MakeService, logs: Logs
) -> None:
    """The log has its query, duration and number of rows, but no values."""
    service = make_service()
    assert settings().log.slow_statement == 0.5

    await service.fetch("get_titles")
    await service.fetch("sleep", {"seconds": 0.51})

    (entry,) = [entry for entry in logs if entry["event"] == "slow statement"]
    assert entry["query"] == "sleep"
    assert entry["duration_ms"] >= 510
    assert entry["rows"] == 1
    assert "0.51" not in str({**entry, "duration_ms": 0})


async def test_a_write_with_notices_is_acknowledged(
    service: Service, execute: Execute, logs: Logs
) -> None:
    """A trigger may say anything, in any way; the log has the start of it, once in a minute."""
    add_trigger(
        execute,
        r"raise warning E'odd year\nLOCATION:  SyncRepWaitForLSN, syncrep.c:123\n';"
        "raise info 'a year SyncRepWaitForLSN %', repeat('x', 9000); return new;",
    )

    await service.fetch("add_movie", {"title": "Moana", "year": 2001})
    await service.fetch("add_movie", {"title": "Moana 2", "year": 2024})

    ((event, query, reason),) = [(e["event"], e["query"], e["reason"]) for e in logs]
    assert (event, query) == ("notice", "add_movie")
    assert "odd year" in reason
    assert "a year SyncRepWaitForLSN x" in reason
    assert len(reason) <= 500
    assert titles(execute) == ["Moana", "Moana 2"]
    assert await service.is_whole()


async def test_a_write_is_acknowledged_after_other_warnings(
    service: Service, execute: Execute, monkeypatch: Patch
) -> None:
    """Warnings of the connect, of a read and of a failed write are not about it."""
    set_for_database(execute, "default_tablespace = 'missing'")
    # As if each `raise` of plpgsql said that a commit was not replicated.
    monkeypatch.setattr(statements, "NOT_REPLICATED", "exec_stmt_raise")
    lost = "raise warning 'lost'"
    warn_and_fail = f"{lost}; raise exception 'b'"
    add_trigger(execute, f"if new.year = 2001 then {warn_and_fail}; end if; return new;")
    execute(f"create function warn() returns void language plpgsql as $$ begin {lost}; end $$")
    async with service.pool.connection() as connection:
        connection.raw.poll()
        warnings = str(connection.notices)
    await service.fetch("add_movie", {"title": "Moana", "year": 2016})
    with pytest.raises(RuleBroken):
        await service.fetch("add_movie", {"title": "Refused", "year": 2001})
    await service.fetch("add_movie", {"title": "Moana", "year": 2016})
    await service.fetch("warn")
    await service.fetch("add_movie", {"title": "Moana", "year": 2016})

    assert 'invalid value for parameter "default_tablespace"' in warnings
    assert titles(execute) == ["Moana"] * 3


@pytest.mark.parametrize("code", ["deadlock_detected", "serialization_failure"])
async def test_a_deadlock_is_contended(service: Service, execute: Execute, code: str) -> None:
    """A statement that PostgreSQL rolled back because of others can be sent again."""
    add_trigger(execute, f"raise {code};")

    with pytest.raises(Contended, match=code):
        await service.fetch("add_movie", {"title": "Moana", "year": 2016})

    assert await service.is_whole()
