"""Reads on replicas: real standbys that are paused, killed and promoted under a service."""

import asyncio
import itertools
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from datetime import datetime
from operator import sub
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import psycopg2
import pytest
from conftest import MOANA, ROOT, Client, Start
from link import opened
from psycopg2.extensions import parse_dsn
from servers import (
    OPTIONS,
    Cluster,
    catch_up,
    count_lines,
    count_runs,
    fetch,
    kill_postgres,
    pause,
    resume,
    run,
    running_cluster,
    standby,
)
from support import (
    Execute,
    Logs,
    Patch,
    add_client,
    add_movies,
    bearer,
    copy_pages,
    copy_stream,
    follow,
    hold,
    make_folder,
    until,
    wait_until,
    with_user,
)

from service.database import embedded, replicas
from service.database.migrations import runner as migrations
from service.database.urls import name_server
from service.web.middleware import CYCLE

POSITION = "Catalogue-Position"
NDJSON = {"Accept": "application/x-ndjson"}
LONG_S = 600.0  # no replica is left out because of its lag
LIMIT_S = 0.6
FUTURE = "9000000000000000000"  # a position that no replica has
READS = {
    "get_movies": ("/v1/movies/1", {}),
    "get_movie_changes": ("/v1/movies/1/changes", {}),
    "sort_movies": ("/v1/movies?page_size={}", {}),  # so that it is not in memory
    "walk_movies": ("/v1/movies", NDJSON),
    "suggest_movies": ("/v1/movies?title=carz&page_size={}", {}),
}
STATE = "get_replica_state"

Serve = Callable[..., Awaitable[Client]]


class Servers(NamedTuple):
    """The URLs of a database on a primary and on its two standbys."""

    primary: str
    first: str
    second: str

    @property
    def standbys(self) -> tuple[str, str]:
        """Those of the standbys."""
        return self.first, self.second

    def count_runs(self, *names: str) -> list[int]:
        """Count the runs of these queries on each server."""
        return [sum(count_runs(url, name) for name in names) for url in self]

    def pause(self) -> None:
        """Pause the replay of both standbys."""
        for url in self.standbys:
            pause(url)

    def catch_up(self) -> None:
        """Wait until the standbys have replayed all that is committed."""
        for url in self.standbys:
            catch_up(self.primary, url)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A primary and two standbys for the tests of this file, which leave them running."""
    folder = make_folder()
    with running_cluster(folder) as cluster:
        yield cluster
    shutil.rmtree(folder)


@pytest.fixture
def servers(cluster: Cluster) -> Iterator[Servers]:
    """A database of the test's own."""
    with cluster.database() as urls:
        yield Servers(*urls)


@pytest.fixture
def database(servers: Servers) -> str:
    """The URL of the database on the primary."""
    return servers.primary


def list_events(logs: Logs, event: str) -> list[str]:
    """Return the replicas of which this was logged."""
    return [each["replica"] for each in logs if each["event"] == event]


@pytest.fixture
def serve(start: Start, servers: Servers, logs: Logs) -> Serve:
    """Start a service that reads on both standbys, and wait until it uses them."""

    async def begin(*urls: str, lag: float = LONG_S, **changes: Any) -> Client:
        given = urls or servers.standbys
        client = await start(database__replica_urls=given, database__max_replica_lag=lag, **changes)
        if not urls:
            await until(lambda: len(list_events(logs, "replica used")) >= len(given))
        return client

    return begin


async def create(client: Client, **fields: object) -> tuple[str, str]:
    """Create a movie; return its path and the position."""
    response = await client.post("/v1/movies", json={**MOANA, **fields})
    assert response.status == 201, await response.text()
    return response.headers["Location"], response.headers[POSITION]


async def read_year(client: Client, path: str, position: str | None = None) -> int:
    """Return the year of a movie."""
    response = await client.get(path, headers={POSITION: position} if position else {})
    assert response.status == 200, await response.text()
    return int((await response.json())["movie"]["year"])


# Where statements run.


async def test_reads_run_on_both_replicas(serve: Serve, servers: Servers, execute: Execute) -> None:
    """Movies by id, lists, suggestions and streams, and none of them on the primary."""
    add_movies(execute, "Up", "Cars")
    servers.catch_up()
    client = await serve()
    before = [servers.count_runs(name)[0] for name in READS]
    sizes = itertools.count(1)

    async def are_shared() -> bool:
        size = next(sizes)
        for path, headers in READS.values():
            response = await client.get(path.format(size), headers=headers)
            assert response.status == 200
            await response.read()
        return all(min(servers.count_runs(name)[1:]) > 0 for name in READS)

    await until(are_shared)

    assert [servers.count_runs(name)[0] for name in READS] == before


async def test_all_else_runs_on_the_primary(
    serve: Serve, servers: Servers, execute: Execute
) -> None:
    """Writes, keys, clients and the feed of changes."""
    client = await serve()
    headers = bearer(add_client(execute, "write"))
    once = {**headers, "Idempotency-Key": "a"}

    for _ in range(2):
        for path, body in (("/v1/movies", MOANA), ("/v1/movies/batch", {"movies": [MOANA]})):
            assert (await client.post(path, json=body, headers=headers)).status == 201
            assert (await client.post(path, json=body, headers=once)).status == 201
    assert (await client.patch("/v1/movies/1", json={"year": 2000}, headers=headers)).status == 200
    assert (await client.put("/v1/movies/1", json=MOANA, headers=headers)).status == 200
    assert (await client.delete("/v1/movies/1", headers=headers)).status == 200
    assert (await client.get("/v1/changes", headers=headers)).status == 200

    names = {
        *("create_movies", "create_movies_once", "get_idempotent_responses"),
        *("update_movies", "delete_movies", "get_changes", "get_clients"),
    }
    for name in names:
        on_primary, *on_standbys = servers.count_runs(name)
        assert (name, on_primary > 0, on_standbys) == (name, True, [0, 0])


async def test_without_replica_urls_nobody_is_asked(
    serve: Serve, start: Start, cluster: Cluster, servers: Servers
) -> None:
    """A service beside it, with another database, asks each of its servers again and again."""
    with cluster.database() as urls:
        alone = Servers(*urls)
        client = await start(database__url=alone.primary)
        verified = alone.count_runs("get_primary_state", STATE)
        await create(client)
        await serve()
        await until(lambda: min(servers.count_runs(STATE)[1:]) > 3)
        await create(client)
        asked = alone.count_runs("get_primary_state", STATE)

    assert asked == verified


# Positions.


async def test_a_position_is_the_transaction_of_the_write(
    serve: Serve, start: Start, execute: Execute
) -> None:
    """Of each kind of write; also without replicas."""
    for client in (await serve(), await start()):
        for method, path, body in (
            ("POST", "/v1/movies", MOANA),
            ("POST", "/v1/movies/batch", {"movies": [MOANA, MOANA]}),
            ("PATCH", "/v1/movies/1", {"year": 2000}),
            ("PATCH", "/v1/movies/1", {"year": 2001}),
            ("PUT", "/v1/movies/1", MOANA),
        ):
            key = {"Idempotency-Key": f"{method} {path} {id(client)}"}
            for headers in ({}, key):
                response = await client.request(method, path, json=body, headers=headers)
                assert response.status in {200, 201}, await response.text()
                ((newest,),) = execute(
                    "select max(transaction)::text from ("
                    "select transaction from movie_changes order by id desc limit 1) as newest"
                )
                without_effect = method == "PATCH" and headers
                if without_effect or (method == "PUT" and headers):
                    assert int(response.headers[POSITION]) >= int(newest)
                else:
                    assert response.headers[POSITION] == newest


async def test_a_lenient_batch_has_the_position_of_its_last_movie(
    serve: Serve, execute: Execute
) -> None:
    """Its movies may be created by several statements."""
    client = await serve()
    headers = {"Prefer": "handling=lenient"}

    for key in ({}, {"Idempotency-Key": "a"}):
        body = {"movies": [MOANA, {**MOANA, "year": 1}, MOANA]}
        response = await client.post("/v1/movies/batch", json=body, headers=headers | key)
        ((newest,),) = execute(
            "select transaction::text from movie_changes order by transaction desc limit 1"
        )
        assert response.status == 207
        assert int(response.headers[POSITION]) >= int(newest)


async def test_a_repeat_or_a_412_has_a_position_that_shows_what_it_says(
    serve: Serve, servers: Servers
) -> None:
    """A client that reads again after it gets what the response was made of."""
    client = await serve()
    once = {"Idempotency-Key": "a"}
    servers.pause()
    first = await client.post("/v1/movies", json=MOANA, headers=once)
    path = first.headers["Location"]
    repeated = await client.post("/v1/movies", json=MOANA, headers=once)
    batches = [
        await client.post("/v1/movies/batch", json={"movies": [MOANA]}, headers=once)
        for _ in range(2)
    ]
    changed = await client.patch(path, json={"year": 2000})
    unchanged = await client.patch(path, json={"year": 2000})
    failed = await client.patch(path, json={"year": 2001}, headers={"If-Match": '"0-0"'})
    deletion = await client.delete(path, headers={"If-Match": '"0-0"'})

    assert [repeated.status, failed.status, deletion.status] == [201, 412, 412]
    found = [
        int(response.headers[POSITION])
        for response in (first, repeated, *batches, changed, unchanged, failed, deletion)
    ]
    assert found == sorted(found)
    assert await read_year(client, path, failed.headers[POSITION]) == 2000


@pytest.mark.parametrize(
    "path",
    ["/v1/movies/1", "/v1/movies?id=1", "/v1/movies?year=1888..", "/v1/movies/1/changes"],
)
async def test_a_position_is_shown_however_it_is_sent(
    serve: Serve, servers: Servers, execute: Execute, path: str
) -> None:
    """Of several, the highest counts; without one, a paused replica serves all but lists."""
    add_movies(execute, "Up")
    servers.catch_up()
    client = await serve()
    servers.pause()
    response = await client.patch("/v1/movies/1", json={"genres": ["new"]})
    position = response.headers[POSITION]

    async def is_new(*headers: tuple[str, str]) -> bool:
        response = await client.get(path, headers=headers)
        assert response.status == 200
        text = await response.text()
        return '"new"' in text or '"updated"' in text

    without = await is_new()
    new = [
        await is_new((POSITION, position)),
        await is_new((POSITION, f"1, {position},2")),
        await is_new((POSITION, position), (POSITION, "1")),
        await is_new((POSITION, "1"), (POSITION, position)),
    ]

    assert without == ("year" in path)
    assert all(new)


async def test_a_position_in_the_future_is_read_on_the_primary(
    serve: Serve, servers: Servers
) -> None:
    """It may be of a server that lost its last transactions, or a mistake: it is no error."""
    client = await serve()
    path, _ = await create(client)
    reads = [(path, "get_movies"), ("/v1/movies", "sort_movies"), ("/v1/genres", "count_genres")]

    for read, name in reads:
        before = servers.count_runs(name)
        response = await client.get(read, headers={POSITION: FUTURE})
        after = servers.count_runs(name)
        assert response.status == 200
        assert [now - then for now, then in zip(after, before, strict=True)] == [1, 0, 0]
    written = await client.patch(path, json={"year": 2000}, headers={POSITION: FUTURE})

    assert written.status == 200
    assert int(written.headers[POSITION]) < int(FUTURE)


WRONG = [
    *("", " ", ",", "x", "-1", "+1", "1.0", "1e3", "0x1", "1 2", "1;2", "1,,x", "1_000", "٣"),
    *("9223372036854775808", "18446744073709551616", "9" * 100, "9" * 5000, '"1"'),
]


async def test_a_wrong_position_is_refused(client: Client) -> None:
    """The 400 says what is expected, also without replicas."""
    for position in WRONG:
        response = await client.get("/v1/movies/1", headers={POSITION: position})
        assert response.status == 400, position
        assert POSITION in (await response.json())["detail"]


async def test_a_transaction_that_ends_after_later_ones_is_not_taken_for_shown(
    serve: Serve, servers: Servers
) -> None:
    """Its position is lower than those of writes that the replicas show."""
    client = await serve()
    path, _ = await create(client)
    with closing(psycopg2.connect(servers.primary)) as dba, dba.cursor() as cursor:
        cursor.execute("update movies set year = 1999 returning pg_current_xact_id()::text")
        ((position,),) = cursor.fetchall()
        await create(client)
        servers.catch_up()
        asked = servers.count_runs(STATE)[1:]
        await until(lambda: min(map(sub, servers.count_runs(STATE)[1:], asked)) > 1)
        servers.pause()
        dba.commit()

    for _ in range(4):
        assert await read_year(client, path, position) == 1999


# Replicas that lag.


async def test_a_paused_replica_is_left_out_until_it_goes_on(
    serve: Serve, servers: Servers, logs: Logs
) -> None:
    """Reads that begin later than the limit after a write show it; one line is logged."""
    client = await serve(lag=LIMIT_S)
    loop, name = asyncio.get_running_loop(), name_server(servers.first)
    path, _ = await create(client)
    servers.catch_up()
    logs.clear()
    pause(servers.first)
    await client.patch(path, json={"year": 2000})
    end = loop.time() + LIMIT_S

    async def is_left_out() -> bool:
        began = loop.time()
        year = await read_year(client, path)
        assert year == 2000 or began <= end
        return name in list_events(logs, "replica left out")

    await until(is_left_out)
    before = servers.count_runs("get_movies")
    for _ in range(20):
        assert await read_year(client, path) == 2000
    after = servers.count_runs("get_movies")
    resume(servers.first)

    async def is_used_again() -> bool:
        await read_year(client, path)
        return servers.count_runs("get_movies")[1] > after[1]

    await until(is_used_again)

    assert after[1] == before[1]
    assert list_events(logs, "replica left out").count(name) == 1


# Lists.

LIST = "/v1/movies?year=1888.."
ListYear = Callable[..., Awaitable[tuple[int, list[int]]]]


@pytest.fixture
def list_year(servers: Servers) -> ListYear:
    """Return the year in a list of one movie, and how many statements fetched it on each server."""

    async def find(client: Client, path: str = LIST) -> tuple[int, list[int]]:
        before = servers.count_runs("sort_movies")
        (movie,) = (await (await client.get(path)).json())["movies"]
        return movie["year"], [*map(sub, servers.count_runs("sort_movies"), before)]

    return find


async def test_a_list_is_never_older_than_its_request(
    serve: Serve, servers: Servers, list_year: ListYear, monkeypatch: Patch
) -> None:
    """While replicas lag, the primary serves it, and otherwise a replica; then it is in memory."""
    monkeypatch.setattr(replicas, "LOOK_FOR_S", 10)
    client = await serve()
    path, _ = await create(client)
    by_primary, by_replicas, from_memory = [1, 0, 0], ([0, 1, 0], [0, 0, 1]), [0, 0, 0]
    servers.pause()
    for year in (2000, 2001):
        await client.patch(path, json={"year": year})
        assert await list_year(client) == (year, by_primary)
        assert await list_year(client) == (year, from_memory)
    for url in servers.standbys:
        resume(url)
    found = []
    for year in range(1900, 1910):
        await client.patch(path, json={"year": year})
        servers.catch_up()
        found.append(await list_year(client))
        assert await list_year(client) == (year, from_memory)

    assert [year for year, _ in found] == [*range(1900, 1910)]
    # The others are rare: another transaction was running, or a replica was asked just before.
    assert sum(runs in by_replicas for _, runs in found) > 5


async def test_a_list_that_may_be_older_is_not_kept(
    serve: Serve, servers: Servers, list_year: ListYear
) -> None:
    """While no check is possible, a replica that lags serves it."""
    client, other = await serve(), f"{LIST}&page_size=9"
    path, _ = await create(client)
    servers.catch_up()
    servers.pause()
    await client.patch(path, json={"year": 2000})
    assert (await list_year(client))[0] == 2000  # from now on, the changes are known

    with hold(servers.primary, "lock table movie_changes"):
        old, [on_primary, *_] = await list_year(client, other)
    new = await list_year(client, other)

    assert (old, on_primary) == (2016, 0)
    assert new == (2000, [1, 0, 0])


# Copies of the catalogue.


async def test_a_copy_from_a_paused_replica_misses_no_change(
    serve: Serve, servers: Servers, execute: Execute
) -> None:
    """Its cursor is in front of all changes that the replica lacks; pages are read elsewhere."""
    add_movies(execute, "Up", "Cars", "Brave")
    servers.catch_up()
    client = await serve()
    servers.pause()
    await client.patch("/v1/movies/3", json={"year": 2001})
    await client.delete("/v1/movies/2")
    path, _ = await create(client)
    before = servers.count_runs("walk_movies")[0]

    for copy, ids in ((copy_stream, {1, 2, 3}), (copy_pages, {1, 3, 4}), (copy_pages, {1, 3, 4})):
        movies, cursor = await copy(client)
        assert set(movies) == ids
        await follow(client, movies, cursor)

        assert movies == dict(execute("select id, version from movies"))
    assert path == "/v1/movies/4"
    assert servers.count_runs("walk_movies")[0] == before


# Replicas that fail.


@asynccontextmanager
async def reading(client: Client, path: str) -> AsyncIterator[list[int]]:
    """Ten clients that read all the time; yield the list of the statuses that they get."""
    statuses: list[int] = []
    stop = asyncio.Event()

    async def read(number: int) -> None:
        while not stop.is_set():
            response = await client.get(path if number % 2 else "/v1/movies?id=1,2")
            await response.read()
            statuses.append(response.status)

    tasks = [asyncio.create_task(read(number)) for number in range(10)]
    yield statuses
    stop.set()
    await asyncio.gather(*tasks)


async def test_genres_of_a_paused_replica_say_of_when_they_are(
    serve: Serve, servers: Servers, execute: Execute
) -> None:
    """Every change before `as_of` is counted."""
    add_movies(execute, "Up")
    servers.catch_up()
    client = await serve()
    servers.pause()
    add_movies(execute, "Cars")
    ((added,),) = execute("select clock_timestamp()")

    found = await (await client.get("/v1/genres")).json()

    assert found["genres"] == [{"genre": "x", "movies": 1}]
    assert datetime.fromisoformat(found["metadata"]["as_of"]) < added


async def test_a_killed_replica_costs_no_request(
    serve: Serve, servers: Servers, cluster: Cluster, logs: Logs
) -> None:
    """It is left out, with one line in the log, and used again when it is back."""
    client = await serve(lag=LIMIT_S)
    path, _ = await create(client)
    servers.catch_up()  # a replica may lack it for a moment
    await until(lambda: servers.count_runs(STATE)[1] > 0)
    async with reading(client, path) as statuses:
        await until(lambda: min(servers.count_runs("get_movies")[1:]) > 10)
        logs.clear()
        await asyncio.to_thread(kill_postgres, servers.first)
        await until(lambda: name_server(servers.first) in list_events(logs, "replica left out"))
        reached = len(statuses)
        await until(lambda: len(statuses) > reached + 50)
        await asyncio.to_thread(cluster.start, "first")
        await until(lambda: servers.count_runs("get_movies")[1] > 0)  # in its new log

    assert set(statuses) == {200}
    assert list_events(logs, "replica left out").count(name_server(servers.first)) == 1


async def test_a_replica_that_is_silent_costs_no_request(
    serve: Serve, servers: Servers, logs: Logs
) -> None:
    """Its machine is gone, or its network: the primary serves what it had begun, too."""
    async with opened(servers.first) as link:
        client = await serve(link.url, lag=LIMIT_S, database__statement_timeout=0.5)
        path, _ = await create(client)
        await until(lambda: list_events(logs, "replica used"))
        async with reading(client, path) as statuses:
            await until(lambda: servers.count_runs("get_movies")[1] > 10)
            logs.clear()
            link.stall()
            await until(lambda: list_events(logs, "replica left out"))
            reached = len(statuses)
            await until(lambda: len(statuses) > reached + 50)

    assert set(statuses) == {200}


SLOW = "from movies as m, (select case when pg_is_in_recovery() then pg_sleep(2.5) end) as slow"


@pytest.fixture
def slow_on_standbys(tmp_path: Path) -> Path:
    """A folder with queries of which some are slow, but only on standbys."""
    for name in ("queries", "migrations"):
        shutil.copytree(ROOT / name, tmp_path / name)
    path = tmp_path / "queries/movies.sql"
    sql = path.read_text()
    assert sql.count("from movies as m\nwhere m.id = any (:ids)") == 1
    path.write_text(sql.replace("from movies as m\nwhere m.id = any", f"{SLOW}\nwhere m.id = any"))
    return tmp_path


async def test_a_read_that_replay_cancels_is_served_by_the_primary(
    serve: Serve, servers: Servers, slow_on_standbys: Path
) -> None:
    """A statement on the primary removed what the read uses, and replay does not wait for it."""
    for url in servers.standbys:
        run(url, "alter system set max_standby_streaming_delay = 0", "select pg_reload_conf()")
    client = await serve(root=slow_on_standbys)
    path, _ = await create(client)
    servers.catch_up()
    running = (
        "select 1 from pg_stat_activity where state = 'active' and query like '%pg_sleep(2.5)%'"
    )
    canceled = "ERROR:  canceling statement due to conflict with recovery"

    try:
        read = asyncio.create_task(read_year(client, path))
        await until(lambda: any(len(run(url, running)) > 1 for url in servers.standbys))
        run(servers.primary, "begin", "lock table movies in access exclusive mode", "commit")
        year = await read
        canceled_on = [count_lines(url, canceled) for url in servers.standbys]
    finally:
        for url in servers.standbys:
            run(url, "alter system reset max_standby_streaming_delay", "select pg_reload_conf()")

    assert year == 2016
    assert sum(canceled_on) == 1


# URLs that name no replica.


@pytest.fixture
def foreign(folder: Path) -> Iterator[str]:
    """The URL of a standby of another primary, with the same schema."""
    with embedded.running(folder / "primary", OPTIONS) as primary:
        migrations.upgrade(primary, ROOT / "migrations", lambda _: None)
        with standby(primary, folder / "standby", OPTIONS) as url:
            yield url


@pytest.fixture
def other(cluster: Cluster) -> Iterator[str]:
    """The URL of another database on a standby, which has the same schema."""
    with cluster.database() as urls:
        yield urls[1]


@pytest.mark.parametrize("kind", ["primary", "foreign", "other", "nothing", "wrong"])
async def test_a_url_without_a_replica_is_left_out(
    serve: Serve, servers: Servers, request: pytest.FixtureRequest, logs: Logs, kind: str
) -> None:
    """One line is logged, and all is served; an idle replica beside it is never left out."""
    if kind in ("foreign", "other"):
        url = request.getfixturevalue(kind)
    else:
        nothing = "postgresql://nobody@127.0.0.1:9/nothing"
        wrong = f"{servers.first}&options=nonsense"
        url = {"primary": servers.primary, "nothing": nothing, "wrong": wrong}[kind]
    if kind == "foreign":
        run(url.replace("%2Fstandby", "%2Fprimary"), "select pg_switch_wal()")
    client = await serve(url, servers.second, lag=LIMIT_S)
    path, _ = await create(client)
    await until(lambda: list_events(logs, "replica used"))
    asked = servers.count_runs(STATE)[2]

    async def is_asked() -> bool:
        assert await read_year(client, path) == 2016
        return servers.count_runs(STATE)[2] > asked + 4

    await until(is_asked)
    left_out = [each for each in logs if each["event"] == "replica left out"]

    assert len(left_out) == 1
    assert left_out[0]["reason"]
    assert len(list_events(logs, "replica used")) == 1
    if kind in ("foreign", "other"):
        assert count_runs(url, "get_movies") == 0


async def test_metrics_say_which_replicas_serve_and_where_reads_go(
    serve: Serve, servers: Servers, logs: Logs
) -> None:
    """A paused replica is left out; the primary, which a cluster lists, too, is neither."""
    client = await serve(*servers, lag=LIMIT_S, operations__token="0123456789abcdef")
    path, _ = await create(client)
    await until(lambda: len(list_events(logs, "replica used")) == 2)
    names = [name_server(url) for url in servers]

    def get_metrics(name: str, label: str) -> dict[str, str]:
        metrics = client.server.app[CYCLE].metrics  # type: ignore[attr-defined] # conftest's Service
        metrics.sample()
        pattern = rf'^catalogue_{name}{{{label}="(.*)"}} (.*)$'
        return dict(re.findall(pattern, metrics.render().decode(), re.MULTILINE))

    used = dict.fromkeys(names, "1.0") | {names[0]: "NaN"}
    await until(lambda: get_metrics("replica_used", "replica") == used)
    pause(servers.first)
    await client.patch(path, json={"year": 2000})  # from now on, it lags
    await until(lambda: get_metrics("replica_used", "replica") == used | {names[1]: "0.0"})
    await until(lambda: names[1] in list_events(logs, "replica left out"))
    before = get_metrics("reads_total", "server")
    read: set[str] = set()

    async def are_counted() -> bool:
        await read_year(client, path)
        await read_year(client, path, FUTURE)
        after = get_metrics("reads_total", "server").items()
        read.update(name for name, value in after if before.get(name) != value)
        return len(read) == 2

    await until(are_counted)
    reasons = {each["replica"]: each["reason"] for each in logs if "reason" in each}

    assert read == {names[2], "primary"}
    assert reasons[names[0]] == "it is the primary"
    assert reasons[names[1]].startswith("it lags")


async def test_the_log_does_not_blame_replicas_for_a_silent_primary(
    serve: Serve, servers: Servers, logs: Logs
) -> None:
    """They are left out, as nobody knows whether they are up to date; the reason says so."""
    async with opened(servers.primary) as link:
        await serve(lag=LIMIT_S, database__url=link.url)
        link.stall()
        await until(lambda: len(list_events(logs, "replica left out")) == 2)

    reasons = {each["reason"] for each in logs if each["event"] == "replica left out"}
    assert reasons == {"the primary cannot be asked: it does not respond"}


async def test_a_primary_that_refuses_the_question_is_not_away(
    serve: Serve, servers: Servers, logs: Logs
) -> None:
    """It is full, for example; but the service writes on its other connections."""
    run(servers.primary, "create role refused superuser login")
    try:
        refused = with_user(servers.primary, "refused")
        client = await serve(lag=LIMIT_S, database__url=refused)
        path, _ = await create(client)
        servers.pause()
        polls = "select pid from pg_stat_activity where query like '%get_primary_state%'"
        others = f"({polls} and pid <> pg_backend_pid()) as p"
        end = f"select pg_terminate_backend(pid, 5000) from {others}"
        run(servers.primary, "alter role refused nologin", end)
        assert (await client.patch(path, json={"year": 1999})).status == 200
        await until(lambda: len(list_events(logs, "replica left out")) >= len(servers.standbys))

        assert await read_year(client, path) == 1999
    finally:
        run(servers.primary, "alter role refused login")


async def test_the_primary_is_found_again_behind_its_address(
    serve: Serve, servers: Servers
) -> None:
    """The address has led to a standby for a moment, as while roles change."""
    async with opened(servers.primary) as link:
        await serve(database__url=link.url)
        link.lead_to(servers.first)
        await link.cut()
        await link.open()
        await until(lambda: servers.count_runs("get_primary_state")[1] > 0)
        before = servers.count_runs("get_primary_state")[0]
        link.lead_to(servers.primary)

        await until(lambda: servers.count_runs("get_primary_state")[0] > before)


# Without the primary.


async def test_reads_go_on_without_the_primary(
    serve: Serve, servers: Servers, cluster: Cluster
) -> None:
    """Longer than the limit; with a position, a read shows that write or is a 503."""
    client = await serve(lag=LIMIT_S)
    path, old = await create(client)
    new = (await client.patch(path, json={"year": 2000})).headers[POSITION]
    servers.catch_up()
    asked = servers.count_runs(STATE)[1]
    await until(lambda: servers.count_runs(STATE)[1] > asked + 1)
    kill_postgres(servers.primary)
    asked = servers.count_runs(STATE)[1]
    statuses = set()

    async def is_asked() -> bool:
        assert await read_year(client, path) == 2000
        for position in (old, new, FUTURE):
            response = await client.get(path, headers={POSITION: position})
            statuses.add(response.status)
            if response.status == 200:
                assert (await response.json())["movie"]["year"] == 2000
        statuses.add((await client.get("/v1/movies", headers={POSITION: FUTURE})).status)
        listed = await client.get("/v1/movies")
        assert (listed.status, "Changes-Cursor" in listed.headers) == (200, True)
        return servers.count_runs(STATE)[1] > asked + 3 * LIMIT_S / 0.25

    await until(is_asked)
    refused = await client.patch(path, json={"year": 2001})
    await asyncio.to_thread(cluster.start, "primary")

    async def is_written() -> bool:
        response = await client.patch(path, json={"year": 2001})
        if response.status != 200:
            return False
        return await read_year(client, path, response.headers[POSITION]) == 2001

    await until(is_written)

    assert statuses <= {200, 503}
    assert 503 in statuses
    assert refused.status == 503


# Failovers.


@pytest.fixture
def own_cluster(folder: Path) -> Iterator[Servers]:
    """Three servers that the test may promote."""
    with running_cluster(folder) as cluster, cluster.database() as urls:
        yield Servers(*urls)


def name_hosts(servers: Servers) -> str:
    """The URL of that one of the servers which is the primary."""
    hosts = ",".join(parse_dsn(url)["host"] for url in servers)
    name = parse_dsn(servers.primary)["dbname"]
    attributes = "port=5432&target_session_attrs=read-write"
    return f"postgresql://catalogue@/{name}?host={quote(hosts, '')}&{attributes}"


def replicate(url: str, primary: str | None) -> None:
    """Make a standby follow another primary, or none, and wait until it does."""
    value = f"host={parse_dsn(primary)['host']} port=5432 user=catalogue" if primary else ""
    run(url, f"alter system set primary_conninfo = '{value}'", "select pg_reload_conf()")
    count = "select count(*) from pg_stat_wal_receiver where status = 'streaming'"
    wait_until(lambda: fetch(url, count) == bool(primary))


def promote(url: str) -> None:
    """Make a standby the primary."""
    run(url, "select pg_promote()")
    wait_until(lambda: not fetch(url, "select pg_is_in_recovery()"))


async def test_a_replica_serves_again_after_a_failover(
    start: Start, own_cluster: Servers, logs: Logs
) -> None:
    """The promoted standby serves only as the primary."""
    servers = own_cluster
    client = await start(
        database__url=name_hosts(servers),
        database__replica_urls=(*servers,),
        database__max_replica_lag=LIMIT_S,
    )
    used = {name_server(url) for url in servers.standbys}
    await until(lambda: used <= {*list_events(logs, "replica used")})
    path, _ = await create(client)
    servers.catch_up()
    kill_postgres(servers.primary)
    logs.clear()
    promote(servers.first)
    replicate(servers.second, servers.first)

    async def is_written() -> bool:
        return (await client.patch(path, json={"year": 2001})).status == 200

    await until(is_written)
    position = (await client.patch(path, json={"year": 2002})).headers[POSITION]
    before = count_runs(servers.second, "get_movies")

    async def is_read() -> bool:
        assert await read_year(client, path, position) == 2002
        return count_runs(servers.second, "get_movies") > before

    await until(is_read)

    assert {*list_events(logs, "replica used")} == {name_server(servers.second)}


async def test_a_failover_that_loses_changes_expires_cursors_at_once(
    start: Start, own_cluster: Servers
) -> None:
    """Before, primary and standbys have the same cursors; afterwards, no checkpoint is needed."""
    servers = own_cluster
    client = await start(database__url=name_hosts(servers))
    reader = await start(database__url=servers.second)
    path, _ = await create(client)
    servers.catch_up()
    replicate(servers.first, None)
    await client.patch(path, json={"year": 1999})
    catch_up(servers.primary, servers.second)

    async def ask(asked: Client, after: str = "") -> tuple[int, Any]:
        response = await asked.get("/v1/changes", params={"after": after} if after else {})
        return response.status, await response.json()

    _, page = await ask(client)
    cursor = page["metadata"]["next_cursor"]
    on_standby = await ask(reader, cursor)
    kill_postgres(servers.primary)
    promote(servers.first)

    async def is_written() -> bool:
        return (await client.patch(path, json={"year": 2001})).status == 200

    await until(is_written)
    await client.patch(path, json={"year": 2002})  # it has the lost transaction's number, or more
    status, problem = await ask(client, cursor)

    assert [change["version"] for change in page["changes"]] == [1, 2]
    assert (on_standby[0], on_standby[1]["changes"]) == (200, [])
    assert (status, problem["title"]) == (410, "Cursor expired")


async def test_a_standby_that_is_ahead_of_the_new_primary_is_left_out(
    start: Start, own_cluster: Servers, logs: Logs
) -> None:
    """It has transactions that are lost, whose numbers the new primary gives to others.

    It replays them only after the failover; and a service may have started before the failover, or
    afterwards.
    """
    servers = own_cluster
    settings = {
        "database__url": name_hosts(servers),
        "database__replica_urls": (*servers,),
        "database__max_replica_lag": LONG_S,
    }
    client = await start(**settings)
    used = {name_server(url) for url in servers.standbys}
    await until(lambda: used <= {*list_events(logs, "replica used")})
    path, _ = await create(client)
    servers.catch_up()
    replicate(servers.first, None)
    pause(servers.second)
    for _ in range(100):
        assert (await client.patch(path, json={"year": 1999})).status == 200
        assert (await client.patch(path, json={"year": 2000})).status == 200
    end = fetch(servers.primary, "select pg_current_wal_flush_lsn()")
    wait_until(lambda: fetch(servers.second, f"select pg_last_wal_receive_lsn() >= '{end}'"))
    asked = count_runs(servers.second, STATE)
    await until(lambda: count_runs(servers.second, STATE) > asked + 1)
    kill_postgres(servers.primary)
    promote(servers.first)

    async def write(year: int) -> str | None:
        response = await client.patch(path, json={"year": year})
        return response.headers.get(POSITION) if response.status == 200 else None

    years, position = itertools.cycle(range(2001, 2020)), None
    while not position:
        position = await write(2001)
    late = await start(**settings)
    seen = []
    for turn in range(6):
        year = next(years)
        position = await write(year)
        asked = count_runs(servers.second, STATE)
        while count_runs(servers.second, STATE) < asked + 2:
            seen.append(await read_year(client, path, position) - year)
            seen.append(await read_year(late, path, position) - year)
        if turn == 1:
            resume(servers.second)
            wait_until(lambda: fetch(servers.second, f"select pg_last_wal_replay_lsn() >= '{end}'"))

    assert fetch(servers.second, "select year from movies") == 2000
    assert {*seen} == {0}
