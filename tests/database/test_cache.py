"""Tests the cache of results: what ends an epoch, and what does not."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from conftest import ROOT
from servers import fetch, migrate, run, standby
from support import FAST, Execute, hold, wait_until

from service.app import EXPECTED
from service.changes.feed import DETECT
from service.database import cache as caching
from service.database import embedded, query_files
from service.database.cache import ResultCache
from service.database.caller import NOBODY
from service.database.statements import Statements

ADD = "insert into movies (title, year, runtime, genres) values ('x', 2000, 1, '{x}')"
REPEATABLE = "begin isolation level repeatable read; select from movies; truncate movies; commit"
REBUILD_FEED = """
create table feed as table movie_feed; drop table movie_feed; alter table feed rename to movie_feed
"""
# Of a restored dump: the number is in this server's future.
RESTORE = """
insert into movie_changes (transaction, movie_id, version, kind)
values ('9223372036854775807', 1, 1, 'created')
"""
REPLACE_FILTER = """
create or replace function movie_matches(m movies, filter jsonb) returns boolean
language sql stable return m.year < 2000
"""
OWN_TRIGGER = """
create function act() returns trigger language plpgsql as $$ begin return new; end $$;
create trigger movies_record_audit after insert on movies for each row execute function act()
"""
NEXT_TRANSACTION = "select pg_current_xact_id()"
IsKept = Callable[[], Coroutine[None, None, bool]]


def keep(cache: ResultCache[str], size: int = 1, key: str = "key") -> None:
    """Cache a result that begins and ends now."""
    cache.keep(key, "page", size, cache.start([NOBODY]))


async def get(cache: ResultCache[str], key: str = "key") -> str | None:
    """Return the result if it is cached and current."""
    result, _ = await cache.get(key, NOBODY)
    return result


@pytest.fixture
async def cache(statements: Statements, execute: Execute) -> ResultCache[str]:
    """A cache with a result that was found to be current; there is a movie."""
    execute(ADD)
    cache = ResultCache[str](statements, DETECT, None)
    keep(cache)
    assert await get(cache) is None  # nothing is known before the first check
    keep(cache)
    return cache


@pytest.fixture
def is_kept(cache: ResultCache[str]) -> IsKept:
    """Return a function that tells whether the result is still returned."""

    async def ask() -> bool:
        return await get(cache) == "page"

    return ask


NO_CHANGES = [
    f"begin; {ADD}; rollback",
    f"begin; savepoint s; {ADD}; rollback to savepoint s; commit",
    "update movies set year = year",
    NEXT_TRANSACTION,
    RESTORE,
    OWN_TRIGGER,
]


@pytest.mark.parametrize(
    "change",
    [
        *NO_CHANGES,
        ADD,
        "update movies set year = 2001",
        "delete from movies",
        "truncate movies",
        REPEATABLE,
        f"begin; savepoint s; {ADD}; release savepoint s; commit",
        f"begin; savepoint s; {NEXT_TRANSACTION}; rollback to savepoint s; {ADD}; commit",
        "select switch_movie_feed(false)",
        "begin; select switch_movie_feed(false); select switch_movie_feed(true); commit",
        "update movie_feed set id = gen_random_uuid()",
        "update movie_feed set cleared_to = '3'",
        REBUILD_FEED,
        "checkpoint",
        "alter table movies disable trigger movies_record_updated",
        "drop trigger movies_record_created on movies",
        REPLACE_FILTER,
    ],
)
async def test_a_change_ends_the_epoch(is_kept: IsKept, execute: Execute, change: str) -> None:
    """Whoever makes it; also what makes it impossible to compare transactions. All else does not.

    Each is asked twice, because a check compares with the one before it.
    """
    assert await is_kept()

    execute(change)

    assert [await is_kept(), await is_kept()] == [change in NO_CHANGES] * 2


@pytest.mark.parametrize(("end", "expected"), [("commit", False), ("rollback", True)])
async def test_a_transaction_may_end_after_later_ones(  # noqa: PLR0913 - fixtures, and a case
    cache: ResultCache[str],
    is_kept: IsKept,
    execute: Execute,
    database: str,
    end: str,
    *,
    expected: bool,
) -> None:
    """A check sees that it was running; its number is lower than those that the check compares."""
    with hold(database, ADD) as earlier:
        execute(ADD)
        assert not await is_kept()
        keep(cache)
        execute(NEXT_TRANSACTION)
        assert await is_kept()

        getattr(earlier, end)()

        assert await is_kept() == expected


async def test_a_check_begins_after_the_request(
    is_kept: IsKept, execute: Execute, statements: Statements
) -> None:
    """A check that is under way does not count."""
    sent, slow = asyncio.Event(), asyncio.Event()
    send = statements.fetch

    async def fetch_slowly(*args: object, **options: object) -> object:
        rows = await send(*args, **options)  # type: ignore[arg-type] # as it was called
        sent.set()
        await slow.wait()
        return rows

    statements.fetch = fetch_slowly  # type: ignore[method-assign,assignment]
    early = asyncio.create_task(is_kept())
    await sent.wait()
    execute(ADD)
    late = [asyncio.create_task(is_kept()) for _ in range(5)]
    await asyncio.sleep(0)
    slow.set()

    assert not any(await asyncio.gather(*late))
    await early


async def test_nothing_is_known_without_a_check(
    is_kept: IsKept, database: str, execute: Execute
) -> None:
    """Neither while its table is locked, nor without its privileges or its function."""
    with hold(database, "lock table movie_changes"):
        assert not await is_kept()
    assert await is_kept()
    execute("alter table movie_feed rename to feed")

    assert not await is_kept()


async def test_a_result_is_used_for_a_minute_at_most(
    cache: ResultCache[str], is_kept: IsKept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its start: then whatever the feed does not record is in it."""
    assert caching.MAX_AGE_S == 60  # as docs/dbas.md says
    monkeypatch.setattr(caching, "MAX_AGE_S", 0)
    keep(cache)
    await asyncio.sleep(0)

    assert not await is_kept()


async def test_memory_is_bounded(cache: ResultCache[str], is_kept: IsKept) -> None:
    """The least recently used results go first."""
    keep(cache, caching.MAX_BYTES // 2, "other")
    assert await is_kept()
    keep(cache, caching.MAX_BYTES // 2, "third")

    assert await is_kept()
    assert await get(cache, "other") is None
    assert await get(cache, "third") == "page"


def test_the_state_is_another_one_after_a_crash_and_a_start(folder: Path) -> None:
    """Then PostgreSQL may give numbers of transactions again; a standby returns no row."""
    query = query_files.load(ROOT / "queries", EXPECTED)["detect_changes"]
    sql = query.sql.replace("%(since)s", "null")
    started = "select pg_postmaster_start_time()"

    def get_state(url: str) -> str | None:
        try:
            ((_, state, _),) = run(url, sql)
        except psycopg2.OperationalError:  # while it recovers
            return None
        return str(state)

    with embedded.running(folder / "primary", FAST) as url:
        migrate(url)
        states, started_at = [get_state(url)], fetch(url, started)
        with standby(url, folder / "standby", FAST) as copy:
            run(url, "checkpoint")
            assert run(copy, sql) == []
        with closing(psycopg2.connect(url)) as connection:
            states.append(get_state(url))
            assert get_state(url) == states[-1]
            os.kill(connection.info.backend_pid, signal.SIGKILL)
            wait_until(lambda: get_state(url) not in {None, states[-1]})
        assert fetch(url, started) == started_at
        states.append(get_state(url))
    with embedded.running(folder / "primary", FAST) as url:
        assert get_state(url) not in states
