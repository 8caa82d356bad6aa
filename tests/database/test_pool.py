"""Tests the pool with a real PostgreSQL, over a network that tests can cut or stall."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import aiopg
import psycopg2
import pytest
from link import Link, fetch_value
from metric_values import read_series
from psycopg2.extensions import parse_dsn
from support import Execute, Logs, Patch, approve, until, with_user

from service.config import Config
from service.database import connections
from service.database import pool as pool_module
from service.database.pool import Pool
from service.errors import OperatorError, Unavailable
from service.telemetry.metrics import Metrics

Verify = Callable[[aiopg.Connection], Awaitable[None]]
MakePool = Callable[..., Pool]

PROMPTLY_S = 2.0  # also on a loaded machine


def backend(connection: aiopg.Connection) -> int:
    """Return the process id of the backend."""
    return int(connection.raw.info.backend_pid)


def backends(execute: Execute) -> list[int]:
    """List the backends of all pools of the test's database."""
    rows = execute(
        "select pid from pg_stat_activity"
        " where datname = current_database() and application_name like 'movie-catalogue %'"
    )
    return [pid for (pid,) in rows]


def terminate(execute: Execute, pid: int) -> None:
    """Terminate a backend, as a restart or a DBA does, and wait until it is gone."""
    assert execute("select pg_terminate_backend(%s, 5000)", pid) == [(True,)]


async def borrow(pool: Pool, share: asyncio.Semaphore | None = None) -> None:
    """Acquire a connection and release it."""
    async with pool.connection(share):
        pass


async def hold(pool: Pool, release: asyncio.Event, share: asyncio.Semaphore | None = None) -> None:
    """Acquire a connection and keep it until the event is set."""
    async with pool.connection(share):
        await release.wait()


async def close(pool: Pool) -> None:
    """Close a pool, which must not take long."""
    async with asyncio.timeout(PROMPTLY_S):
        await pool.close(timeout=30)


async def served(pool: Pool) -> None:
    """Try to acquire a connection until it succeeds."""
    async with asyncio.timeout(PROMPTLY_S):
        while True:
            with suppress(Unavailable):
                return await borrow(pool)
            await asyncio.sleep(0.005)


@pytest.fixture
async def make_pool(settings: Callable[..., Config], monkeypatch: Patch) -> AsyncIterator[MakePool]:
    """Make a pool with these settings of [database], closed at the end."""
    pools = []

    def make(verify: Verify = approve, connect_timeout: float = 2, **changes: Any) -> Pool:
        monkeypatch.setattr(connections, "POOL_CONNECT_TIMEOUT_S", connect_timeout)
        changed = settings(**{f"database__{key}": value for key, value in changes.items()})
        limits = {"lists": max(1, changed.database.max_open * 3 // 10)}
        pools.append(Pool(changed.database, verify, Metrics(is_enabled=True), limits))
        return pools[-1]

    yield make
    for pool in pools:
        await pool.close(timeout=0)


# Acquiring and releasing.


async def test_a_connection_is_opened_when_it_is_needed_and_lent_again(make_pool: MakePool) -> None:
    """A new pool is empty; later users reuse the connection, also after an exception."""
    pool = make_pool()
    before = pool.size

    async with pool.connection() as first:
        encoding = await fetch_value(first, "select current_setting('client_encoding')")
    with pytest.raises(ZeroDivisionError):
        async with pool.connection() as second:
            raise ZeroDivisionError
    async with pool.connection() as third:
        pass

    assert (before, encoding) == (0, "UTF8")
    assert first is second is third
    assert (pool.size, pool.idle) == (1, 1)


async def test_waiters_are_served_in_order(make_pool: MakePool) -> None:
    """The longest waiter is next; a user that asks when a connection returns is last."""
    pool = make_pool(max_open=1)
    served = []

    async def use(number: int) -> None:
        async with pool.connection():
            served.append(number)
            await asyncio.sleep(0)

    async with pool.connection():
        waiters = [asyncio.create_task(use(number)) for number in range(5)]
        await asyncio.sleep(0)
    await use(5)
    await asyncio.gather(*waiters)

    assert served == [0, 1, 2, 3, 4, 5]


async def test_a_wait_is_bounded(make_pool: MakePool, execute: Execute) -> None:
    """After `acquire_timeout` the user gets an error, and no connection is opened later."""
    pool = make_pool(max_open=1, acquire_timeout=0.5)

    async with pool.connection() as lent:
        with pytest.raises(Unavailable, match=r"^no database connection became free in 0\.5 s$"):
            await borrow(pool)
        assert (pool.size, pool.idle) == (1, 0)
        terminate(execute, backend(lent))
        await until(lambda: lent.closed)

    assert pool.size == 0


async def test_a_cancellation_at_hand_over_loses_no_connection(make_pool: MakePool) -> None:
    """A connection given to a waiter that is cancelled before it runs goes to the next one."""
    pool = make_pool(max_open=1)

    async with pool.connection() as lent:
        first = asyncio.create_task(borrow(pool))
        second = asyncio.create_task(borrow(pool))
        await asyncio.sleep(0)
    first.cancel()  # the waiter has the connection, but has not run yet
    await asyncio.wait_for(second, PROMPTLY_S)

    with pytest.raises(asyncio.CancelledError):
        await first
    assert not lent.closed
    assert (pool.size, pool.idle) == (1, 1)


# Broken connections.


@pytest.mark.parametrize("sql", ["lock table movies", "select 1 / 0"])
async def test_a_connection_in_a_transaction_is_not_reused(
    make_pool: MakePool, execute: Execute, sql: str
) -> None:
    """A transaction that a user did not end, failed or not, does not reach the next user."""
    pool = make_pool(max_open=1)

    async with pool.connection() as lent, lent.cursor() as cursor:
        await cursor.execute("begin")
        with suppress(psycopg2.errors.DivisionByZero):
            await cursor.execute(sql)
    async with pool.connection() as following:
        execute("set lock_timeout = '2s'; select count(*) from movies")

    assert lent.closed
    assert following is not lent
    assert (pool.size, pool.idle) == (1, 1)


async def test_discarding_leaves_other_connections_alone(make_pool: MakePool) -> None:
    """Closing it does not affect a new connection with the same file descriptor."""
    pool = make_pool()

    async with pool.connection() as kept:
        async with pool.connection() as lent:
            number = lent.raw.fileno()
            await lent.close()
            user = pool.connection()
            other = await user.__aenter__()
            same = other.raw.fileno() == number
        value = await asyncio.wait_for(fetch_value(other, "select 7"), PROMPTLY_S)
        await user.__aexit__(None, None, None)

    assert same
    assert value == 7
    assert not kept.closed


# Connections that are given up.


async def give_up(pool: Pool, share: asyncio.Semaphore | None = None) -> None:
    """Cancel a user whose statement runs; the backend goes on."""
    with pytest.raises(TimeoutError):
        async with pool.connection(share) as connection, asyncio.timeout(0.05):
            await fetch_value(connection, "select pg_sleep(30)")


@pytest.mark.parametrize("is_shared", [True, False])
async def test_the_place_of_a_connection_that_was_given_up_is_free_again_later(
    make_pool: MakePool, monkeypatch: Patch, *, is_shared: bool
) -> None:
    """Until then its backend goes on, as a rule; then one user gets a connection, no second one."""
    monkeypatch.setattr(pool_module, "GIVEN_UP_S", 0.5)
    pool = make_pool(max_open=1, acquire_timeout=0.75)
    share = pool.limits["lists"] if is_shared else None
    loop = asyncio.get_running_loop()
    end, served = asyncio.Event(), list[float]()

    async def use() -> None:
        async with pool.connection(share):
            served.append(loop.time())
            await end.wait()

    await give_up(pool, share)
    began = loop.time()
    counts = (pool.size, pool.idle)
    pool.sample()
    closing = read_series(pool.metrics)["pool_connections{state=closing}"]

    users = [asyncio.create_task(use()) for _ in range(2)]
    (refused, *_), (waiting, *_) = await asyncio.wait(users, return_when=asyncio.FIRST_COMPLETED)
    end.set()
    await waiting

    assert (*counts, closing) == (1, 0, 1)
    assert isinstance(refused.exception(), Unavailable)
    (at,) = served
    assert at >= began + 0.45
    assert (pool.size, pool.idle) == (1, 1)


# Shares of the connections.


async def test_a_share_leaves_connections_for_others(make_pool: MakePool) -> None:
    """However many lists and writes there are, 3 of 10 connections serve others."""
    pool = make_pool(max_open=10, acquire_timeout=30)
    end = asyncio.Event()

    busy = [
        asyncio.create_task(hold(pool, end, share))
        for share in [pool.limits["lists"]] * 20 + [pool.writes] * 20
    ]
    await until(lambda: pool.size == 7)
    async with asyncio.timeout(PROMPTLY_S), pool.connection(), pool.connection(), pool.connection():
        size = pool.size
    end.set()
    await asyncio.gather(*busy)

    assert size == 10
    assert pool.size == pool.idle


async def test_waits_for_a_place_and_a_connection_have_one_timeout(make_pool: MakePool) -> None:
    """Otherwise a request could wait twice as long as `acquire_timeout`."""
    pool = make_pool(max_open=1, acquire_timeout=1)
    ends = [asyncio.Event(), asyncio.Event()]
    users = [asyncio.create_task(hold(pool, ends[0], pool.limits["lists"]))]
    users.append(asyncio.create_task(hold(pool, ends[1])))  # has the connection next
    await until(lambda: pool.size == 1)
    asyncio.get_running_loop().call_later(0.5, ends[0].set)

    async with asyncio.timeout(1.4):
        with pytest.raises(Unavailable):
            await borrow(pool, pool.limits["lists"])

    ends[1].set()
    await asyncio.gather(*users)


async def test_a_statement_without_a_connection_frees_its_place(
    make_pool: MakePool, link: Link
) -> None:
    """So an outage does not use up a share."""
    pool = make_pool(url=link.url, max_open=1)
    await link.cut()
    with pytest.raises(Unavailable):
        await borrow(pool, pool.limits["lists"])

    await link.open()
    async with asyncio.timeout(PROMPTLY_S):
        await served(pool)
        await borrow(pool, pool.limits["lists"])


# What may stay idle.


@pytest.mark.parametrize("max_idle", [0, 1])
async def test_max_idle_closes_surplus_connections(
    make_pool: MakePool, execute: Execute, max_idle: int
) -> None:
    """Three connections are returned; `max_idle` of them stay open."""
    pool = make_pool(max_open=3, max_idle=max_idle)

    async with pool.connection(), pool.connection(), pool.connection():
        pass

    assert (pool.size, pool.idle) == (max_idle, max_idle)
    await until(lambda: len(backends(execute)) == max_idle)


async def test_max_idle_time_keeps_used_connections(make_pool: MakePool) -> None:
    """Of two idle connections, the one that was not used recently is closed first."""
    pool = make_pool(max_idle_time=0.6)
    async with pool.connection() as used, pool.connection() as unused:
        pass

    half = asyncio.get_running_loop().time() + 0.3
    while asyncio.get_running_loop().time() < half:
        await borrow(pool)  # the one returned last
        await asyncio.sleep(0.01)
    await until(lambda: pool.size < 2)

    assert unused.closed
    assert not used.closed
    assert (pool.size, pool.idle) == (1, 1)
    await until(lambda: pool.size == 0)


# The database is away, slow, or full.


async def test_a_waiter_gets_a_free_connection_while_connecting(
    make_pool: MakePool, link: Link
) -> None:
    """While connection attempts hang, a waiter gets a returned connection."""
    pool = make_pool(url=link.url, max_open=5, connect_timeout=30, acquire_timeout=30)

    async with pool.connection() as lent:
        link.stall()
        waiters = [asyncio.create_task(borrow(pool)) for _ in range(3)]
        await until(lambda: link.connects == 2)
    await asyncio.wait_for(asyncio.gather(*waiters), PROMPTLY_S)

    async with asyncio.timeout(PROMPTLY_S), pool.connection() as again:
        assert again is lent


@pytest.mark.parametrize(
    ("connect_timeout", "acquire_timeout", "message"),
    [
        (30, 0.05, "^no database connection became free"),
        (0.05, 30, "^no database: .*: timeout expired$"),
    ],
)
async def test_a_connect_that_hangs_is_given_up(
    make_pool: MakePool, link: Link, connect_timeout: float, acquire_timeout: float, message: str
) -> None:
    """An attempt takes at most `connect_timeout`, and its user waits at most `acquire_timeout`."""
    link.stall()
    pool = make_pool(url=link.url, connect_timeout=connect_timeout, acquire_timeout=acquire_timeout)

    with pytest.raises(Unavailable, match=message):
        await asyncio.wait_for(borrow(pool), PROMPTLY_S)

    await until(lambda: pool.size == (1 if connect_timeout == 30 else 0))


async def test_an_unreachable_database_is_reported_at_once(make_pool: MakePool, link: Link) -> None:
    """If connecting fails, all waiters get the reason at once, without secrets."""
    url = with_user(link.url, "catalogue:s3cret")
    pool = make_pool(url=url, acquire_timeout=30)
    await link.cut()

    async with asyncio.timeout(PROMPTLY_S):
        results = await asyncio.gather(*(borrow(pool) for _ in range(40)), return_exceptions=True)

    assert {type(result) for result in results} == {Unavailable}
    assert "Connection refused" in str(results[0])
    assert "\n" not in str(results[0])
    assert "s3cret" not in str(results[0])


async def test_an_outage_is_logged_once(
    make_pool: MakePool, link: Link, monkeypatch: Patch, logs: Logs
) -> None:
    """The log has the start and end of each outage, however many attempts fail."""
    monkeypatch.setattr(pool_module, "RETRY_S", 0)
    pool = make_pool(url=link.url)

    for _ in range(2):
        await link.cut()
        pool.close_idle()
        for _ in range(20):
            with pytest.raises(Unavailable):
                await borrow(pool)
        await link.open()
        await served(pool)
        pool.close_idle()
        await borrow(pool)

    assert [event["event"] for event in logs] == ["no database", "database reached again"] * 2


async def test_an_outage_costs_few_connects(make_pool: MakePool, link: Link) -> None:
    """However many users ask, one connect begins in `RETRY_S`; meanwhile they are refused."""
    link.stall()
    pool = make_pool(url=link.url, connect_timeout=0.01, acquire_timeout=1)
    loop = asyncio.get_running_loop()
    started = loop.time()

    async def use() -> None:
        while link.connects < 3:
            with pytest.raises(Unavailable):
                await borrow(pool)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(use() for _ in range(10)))

    assert loop.time() - started >= 2 * pool_module.RETRY_S


async def test_connects_that_fail_beside_an_open_connection_are_logged_once(
    make_pool: MakePool, database: str, execute: Execute, monkeypatch: Patch, logs: Logs
) -> None:
    """In each outage, with the reason, such as a full server; no waiter fails."""
    monkeypatch.setattr(pool_module, "RETRY_S", 0.01)
    role = f"barred_{parse_dsn(database)['dbname']}"
    execute(f"create role {role} login")
    pool = make_pool(url=with_user(database, role), max_idle=1, acquire_timeout=30)

    def count_failures() -> float:
        return read_series(pool.metrics)["connect_failures_total"]

    for _ in range(2):
        async with pool.connection():
            enough = count_failures() + 3
            execute(f"alter role {role} nologin")
            waiter = asyncio.create_task(borrow(pool))
            await until(lambda: count_failures() >= enough)  # noqa: B023
            execute(f"alter role {role} login")
            await waiter

    assert [event["event"] for event in logs] == ["connect failed", "database reached again"] * 2
    assert "is not permitted to log in" in logs[0]["reason"]


async def test_the_last_broken_connection_fails_the_waiters(
    make_pool: MakePool, link: Link
) -> None:
    """If the last connection breaks and no other can be opened, waiters get an error."""
    pool = make_pool(url=link.url, max_open=1, acquire_timeout=30)

    async with pool.connection() as lent:
        waiter = asyncio.create_task(borrow(pool))
        await asyncio.sleep(0)
        await link.cut()
        await until(lambda: bool(lent.closed))
    with pytest.raises(Unavailable):
        await asyncio.wait_for(waiter, PROMPTLY_S)


# Verifying.


async def test_connections_are_verified_until_one_is_accepted(
    make_pool: MakePool, execute: Execute, monkeypatch: Patch
) -> None:
    """Before their first use; a refused one is closed, and an accepted database not verified again.

    The cause is kept, so that a wrong query is not reported as an unreachable database.
    """
    monkeypatch.setattr(pool_module, "RETRY_S", 0)
    happened: list[str] = []
    wrong = OperatorError("queries/movies.sql:3: no")

    async def verify(connection: aiopg.Connection) -> None:
        happened.append(await fetch_value(connection, "select 'verified'"))
        if len(happened) < 3:
            raise wrong

    pool = make_pool(verify)

    while len(happened) < 2:
        with pytest.raises(Unavailable, match=r"queries/movies\.sql:3: no") as caught:
            await borrow(pool)
        assert caught.value.__cause__ is wrong
        await until(lambda: backends(execute) == [])
        await asyncio.sleep(0)
    async with pool.connection(), pool.connection():
        happened.append("lent")
    pool.close_idle()
    await borrow(pool)

    assert happened == ["verified", "verified", "verified", "lent"]


# Closing.


async def test_closing_closes_idle_connections(make_pool: MakePool, execute: Execute) -> None:
    """Then the database has no connections, and users get an error; closing twice is allowed."""
    pool = make_pool()
    async with pool.connection(), pool.connection():
        pass

    await close(pool)
    await close(pool)

    assert (pool.size, pool.idle) == (0, 0)
    await until(lambda: backends(execute) == [])
    with pytest.raises(Unavailable, match="the service is stopping"):
        await borrow(pool)
    assert pool.size == 0


async def test_closing_waits_for_used_connections(make_pool: MakePool) -> None:
    """Tasks with a connection may finish; tasks that wait for one get an error."""
    pool = make_pool(max_open=1, acquire_timeout=30)
    end = asyncio.Event()
    await borrow(pool)
    user = asyncio.create_task(hold(pool, end))
    await asyncio.sleep(0)
    waiter = asyncio.create_task(borrow(pool))
    await asyncio.sleep(0)

    closing = asyncio.create_task(close(pool))
    with pytest.raises(Unavailable, match="the service is stopping"):
        await asyncio.wait_for(waiter, PROMPTLY_S)
    is_waiting = not closing.done()
    end.set()
    await asyncio.gather(user, closing)

    assert is_waiting
    assert pool.size == 0


async def test_closing_has_a_timeout(make_pool: MakePool) -> None:
    """A connection that is not returned in time is closed while in use; one given up, at once."""
    pool = make_pool()
    await give_up(pool, pool.writes)
    await close(pool)
    assert pool.size == 0

    pool = make_pool()
    async with pool.connection() as lent:
        await asyncio.wait_for(pool.close(timeout=0.05), PROMPTLY_S)
        assert lent.closed
    assert pool.size == 0


@pytest.mark.parametrize("connects", [0, 1])
async def test_closing_ends_connects_that_hang(
    make_pool: MakePool, link: Link, connects: int
) -> None:
    """Neither a running nor a requested connection attempt delays closing."""
    link.stall()
    pool = make_pool(url=link.url, connect_timeout=30, acquire_timeout=30)
    user = asyncio.create_task(borrow(pool))
    await asyncio.sleep(0)  # the attempt is requested, but has not run yet
    if connects:
        await until(lambda: link.connects)

    await close(pool)

    with pytest.raises(Unavailable):
        await user
    assert pool.size == 0


# Everything at the same time.


async def test_the_pool_is_whole_after_everything(
    make_pool: MakePool, execute: Execute, monkeypatch: Patch
) -> None:
    """After many users, of which some were cancelled, failed or lost their connection.

    No connection is lost or used twice, and `max_open` users get one again.
    """
    monkeypatch.setattr(pool_module, "GIVEN_UP_S", 0.01)
    pool = make_pool(max_open=4, acquire_timeout=0.5)
    in_use: set[int] = set()
    shared = []

    async def use(number: int) -> None:
        async with pool.connection() as connection:
            pid = backend(connection)
            shared.extend([pid] if pid in in_use else [])
            in_use.add(pid)
            try:
                if number % 7 == 0:
                    await connection.close()
                elif number % 7 == 1:
                    terminate(execute, pid)
                elif number % 7 == 2:
                    await fetch_value(connection, "select 1 / 0")
                await fetch_value(connection, "select pg_sleep(0.002)")
            finally:
                in_use.discard(pid)

    users = [asyncio.create_task(use(number)) for number in range(200)]
    for user in users[::5]:
        await asyncio.sleep(0.001)
        user.cancel()
    await asyncio.gather(*users, return_exceptions=True)
    async with asyncio.timeout(PROMPTLY_S):
        async with pool.connection(), pool.connection(), pool.connection(), pool.connection() as x:
            value = await fetch_value(x)

    assert value == 1
    assert shared == []
    assert pool.size == pool.idle == 4
    await until(lambda: len(backends(execute)) == 4)
