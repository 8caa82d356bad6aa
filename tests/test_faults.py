"""Tests failures of the database, as clients see them, and the recovery."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from conftest import MOANA, ROOT, Client, Start
from metric_values import TOKEN, read_metrics
from psycopg2 import OperationalError
from servers import PGBOUNCER, kill_postgres, pgbouncer, run
from support import Execute, Logs, get_app, set_for_database, until

from service.app import POOL
from service.database import embedded
from service.database.migrations import runner as migrations

RECOVERED_S = 40.0  # 10 s on an idle machine, as the drills require

BACKENDS = (
    "select pid from pg_stat_activity where datname = current_database()"
    " and application_name like 'movie-catalogue%'"
)


async def assert_whole(client: Client, max_open: int) -> None:
    """Assert that all connections of the pool can be used at once, and are returned."""
    pool = get_app(client)[POOL]
    gathered = asyncio.Barrier(max_open)

    async def use() -> None:
        async with pool.connection() as connection, connection.cursor() as cursor:
            await cursor.execute("select 1")
            await gathered.wait()

    await asyncio.wait_for(asyncio.gather(*(use() for _ in range(max_open))), 30)
    await until(lambda: pool.size == pool.idle == min(max_open, 5))  # max_idle


async def creates(client: Client) -> bool:
    """Create a movie, and return whether that succeeds."""
    return (await client.post("/v1/movies", json=MOANA)).status == 201


@asynccontextmanager
async def load(client: Client, path: str) -> AsyncIterator[Counter[int]]:
    """Twenty clients that read and write all the time; counts the statuses they get."""
    statuses: Counter[int] = Counter()
    stop = asyncio.Event()

    async def work(number: int) -> None:
        while not stop.is_set():
            if number % 2:
                response = await client.get(path)
            else:
                response = await client.patch(path, json={"year": 2000 + number})
            statuses[response.status] += 1
            if response.status == 503:
                assert response.headers["Retry-After"] == "1"
                assert response.headers["Content-Type"] == "application/problem+json"
            await response.read()

    tasks = [asyncio.create_task(work(number)) for number in range(20)]
    try:
        yield statuses
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def test_the_database_killed_under_load(start: Start, folder: Path) -> None:
    """After kill -9: soon 503, liveness stays 200, and requests succeed soon after its return.

    So they do in a service that was started meanwhile.
    """
    with ExitStack() as users:
        url = users.enter_context(embedded.running(folder))
        migrations.upgrade(url, ROOT / "migrations", lambda _: None)
        client = await start(database__url=url)
        created = await client.post("/v1/movies", json=MOANA)
        path = created.headers["Location"]

        async def answers(status: int) -> bool:
            return (await client.get(path)).status == status

        async with load(client, path) as statuses:
            await until(lambda: answers(200))
            kill_postgres(url)
            async with asyncio.timeout(RECOVERED_S):
                await until(lambda: answers(503))
            alive = await client.get("/v1/healthcheck")
            ready = await client.get("/v1/healthcheck/ready")
            late = await start(database__url=url)
            before = await late.post("/v1/movies", json=MOANA)
            await asyncio.to_thread(users.enter_context, embedded.running(folder))
            async with asyncio.timeout(RECOVERED_S):
                await until(lambda: answers(200))
                await until(lambda: creates(late))

        assert (alive.status, ready.status, before.status) == (200, 503, 503)
        assert set(statuses) == {200, 503}
        assert (await client.get("/v1/healthcheck/ready")).status == 200
        await assert_whole(client, 10)


@pytest.mark.skipif(not PGBOUNCER, reason="pgbouncer is not installed")
async def test_the_database_killed_behind_pgbouncer(start: Start, folder: Path, logs: Logs) -> None:
    """It accepts connections and refuses statements, which then were not sent: no database.

    One line says so, and no statement is lost, on idle connections and on new ones.
    """
    with ExitStack() as users:
        url = users.enter_context(embedded.running(folder / "server"))
        migrations.upgrade(url, ROOT / "migrations", lambda _: None)
        through = users.enter_context(pgbouncer(url, folder))
        client = await start(database__url=through, operations__token=TOKEN)
        await until(lambda: creates(client))
        await assert_whole(client, 10)

        kill_postgres(url)
        with pytest.raises(OperationalError):  # then PgBouncer has noticed it
            await asyncio.to_thread(run, through, "select 1")
        for _ in range(3):
            requests = [client.post("/v1/movies", json=MOANA), client.get("/v1/movies/1")]
            responses = await asyncio.gather(*requests)
            assert [response.status for response in responses] == [503, 503]
        await asyncio.to_thread(users.enter_context, embedded.running(folder / "server"))
        async with asyncio.timeout(RECOVERED_S):
            await until(lambda: creates(client))

    events = [line["event"] for line in logs if line["log_level"] in {"warning", "error"}]
    # Once more if a connection fails while PostgreSQL starts again.
    assert 1 <= events.count("no database") <= 2
    # A statement of the service itself may run when PostgreSQL is killed.
    assert events.count("statement lost") <= 1
    assert "statement failed" not in events
    assert read_metrics(client).get("refusals_total{reason=statement_lost}", 0) <= 1


@contextmanager
def stopped_backends(execute: Execute) -> Iterator[int]:
    """Stop all backends of the service; yield how many. In the end, those that remain go on."""
    pids = [pid for (pid,) in execute(BACKENDS)]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield len(pids)
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):  # it has ended
                os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(("method", "status"), [("POST", 201), ("GET", 200)])
async def test_a_server_that_stops_for_a_while(
    start: Start, execute: Execute, method: str, status: int
) -> None:
    """One silent statement is enough to replace all connections that were idle."""
    client = await start(database__statement_timeout=1)
    path = (await client.post("/v1/movies", json=MOANA)).headers["Location"]
    await assert_whole(client, 10)

    with stopped_backends(execute) as count:
        url = path if method == "GET" else "/v1/movies"
        statuses = [(await client.request(method, url, json=MOANA)).status for _ in range(3)]

    assert count >= 5  # max_idle; another one may just be ending
    assert statuses == [503, status, status]


async def test_a_read_only_database(start: Start, execute: Execute) -> None:
    """During a failover writes are 503 and reads are served, also by a service that starts then."""
    running = await start()
    path = (await running.post("/v1/movies", json=MOANA)).headers["Location"]
    set_for_database(execute, "default_transaction_read_only = on")
    await assert_whole(running, 10)  # the first look at the genres is over
    get_app(running)[POOL].close_idle()  # the setting is for new connections

    for client in (running, await start()):
        reads = [await client.get(url) for url in (path, "/v1/healthcheck/ready")]
        write = await client.post("/v1/movies", json=MOANA)

        assert [response.status for response in reads] == [200, 200]
        assert write.status == 503


async def test_a_movie_that_a_dbas_table_still_needs(client: Client, execute: Execute) -> None:
    """A foreign key that a DBA adds makes DELETE a 422 with its name, and the movie stays."""
    paths = [(await client.post("/v1/movies", json=MOANA)).headers["Location"] for _ in range(3)]
    needed = int(paths[1].rpartition("/")[2])
    execute("create table reviews (movie bigint constraint reviewed references movies)")
    execute("insert into reviews values (%s)", needed)

    answers = await asyncio.gather(*(client.delete(path) for path in paths))

    assert [answer.status for answer in answers] == [200, 422, 200]
    assert (await answers[1].json())["errors"] == [
        {"pointer": "#", "detail": "breaks the rule reviewed"}
    ]
    assert (await client.get(paths[1])).status == 200
