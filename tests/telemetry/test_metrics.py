"""Tests that each metric changes when it should, in a running service."""

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import AWAY, MOANA, ROOT, Client, Connect, Start
from link import opened
from metric_values import TOKEN, parse, read_metrics
from processes import run
from support import Execute, Patch, add_movies, get_app, hold, list_metrics, set_for_database, until
from wire import exchange

from service import __version__
from service.app import POOL
from service.errors import Refusal
from service.telemetry.logs import get_lines
from service.telemetry.metrics import FILE_BYTES
from service.web import health
from service.web.middleware import CYCLE


def read_responses(client: Client) -> dict[str, float]:
    """Return the number of responses by their labels."""
    name = "request_duration_seconds_count"
    return {
        series.removeprefix(name): value
        for series, value in read_metrics(client).items()
        if series.startswith(name)
    }


async def leave(client: Client, connect: Connect) -> None:
    """Go away in the middle of a body."""
    _, writer = await connect(client)
    writer.write(b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
    await until(lambda: get_app(client)[CYCLE].in_flight)
    writer.close()
    await until(lambda: not get_app(client)[CYCLE].in_flight)


async def test_each_response_is_counted(start: Start, connect: Connect) -> None:
    """Once, with labels that clients cannot choose."""
    client = await start(operations__token=TOKEN)

    await client.get("/v1/movies/1")
    await client.get("/v1/secret/7")
    await exchange(client, b"NONSENSE\r\n\r\n")
    await exchange(client, b"MKCOL /v1/movies HTTP/1.1\r\nHost: a\r\n\r\n")
    await leave(client, connect)

    await until(lambda: sum(read_responses(client).values()) == 5)
    assert read_responses(client) == {
        "{method=GET,route=/v1/movies/{id},status=404}": 1,
        "{method=GET,route=none,status=404}": 1,
        "{method=other,route=none,status=400}": 1,
        "{method=other,route=none,status=405}": 1,
        "{method=POST,route=/v1/movies,status=499}": 1,
    }


async def test_each_statement_is_counted(start: Start, execute: Execute) -> None:
    """With the rows that it was sent for and that it returned, and also if it failed."""
    client = await start(operations__token=TOKEN)
    add_movies(execute, *"abcd")
    names = ("duration_seconds_count", "rows_total", "failures_total")

    await asyncio.gather(*(client.get(f"/v1/movies/{number}") for number in range(1, 6)))
    before = [read_metrics(client)[f"statement_{name}{{query=get_movies}}"] for name in names]
    execute("alter table movies rename to films")
    await client.get("/v1/movies/1")
    after = [read_metrics(client)[f"statement_{name}{{query=get_movies}}"] for name in names]

    assert (1 <= before[0] <= 5, *before[1:]) == (True, 4, 0)
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 0, 1]
    assert read_metrics(client)["shared_statement_rows_sum{query=get_movies}"] == 5 + 1


Act = Callable[[Client, Execute], Awaitable[object]]


@asynccontextmanager
async def lock_movies(client: Client) -> AsyncIterator[None]:
    """Lock the table until the end, once the service has verified the database."""
    pool = get_app(client)[POOL]
    await until(lambda: pool.idle)
    url = client.server.settings.database.url  # type: ignore[attr-defined] # conftest's Service
    with hold(url, "lock table movies"):
        yield


async def get_movie(client: Client, _: Execute) -> None:
    """GET a movie."""
    await client.get("/v1/movies/1")


async def wait_for_a_lock(client: Client, _: Execute) -> None:
    """GET ten movies and a list while their table is locked."""
    async with lock_movies(client):
        gets = [asyncio.create_task(client.get(f"/v1/movies/{id_}")) for id_ in range(1, 11)]
        await until(lambda: get_app(client)[CYCLE].in_flight)
        await asyncio.gather(*gets, client.get("/v1/movies?page_size=2"))


async def take_a_migration_back(client: Client, execute: Execute) -> None:
    """GET the readiness while a migration is missing."""
    execute("delete from schema_migrations")
    await client.get("/v1/healthcheck/ready")


async def write_read_only(client: Client, execute: Execute) -> None:
    """POST a movie to a database that is read-only."""
    set_for_database(execute, "default_transaction_read_only = on")
    while (await client.post("/v1/movies", json=MOANA)).status == 201:
        pass  # on a connection that was opened before


async def check_while_draining(client: Client, _: Execute) -> None:
    """GET the readiness of a process that stops."""
    get_app(client)[CYCLE].is_draining = True
    await client.get("/v1/healthcheck/ready")


BRIEF = {"database__statement_timeout": 0.3}


@pytest.mark.parametrize(
    ("changes", "act", "refusal"),
    [
        ({"database__url": AWAY}, get_movie, Refusal.NO_DATABASE),
        ({"server__request_timeout": 0.1}, wait_for_a_lock, Refusal.REQUEST_TIMEOUT),
        (BRIEF, wait_for_a_lock, Refusal.STATEMENT_TIMEOUT),
        (
            BRIEF | {"database__max_open": 1, "database__acquire_timeout": 0.1},
            wait_for_a_lock,
            Refusal.POOL_TIMEOUT,
        ),
        ({}, take_a_migration_back, Refusal.NOT_READY),
        ({"database__max_idle": 0}, write_read_only, Refusal.STATEMENT_LOST),
        ({}, check_while_draining, Refusal.STOPPING),
    ],
)
async def test_each_503_is_counted_with_its_reason(
    start: Start, execute: Execute, changes: dict[str, Any], act: Act, refusal: Refusal
) -> None:
    """The responses 503 are as many as the refusals, of which one reason is the expected one."""
    client = await start(operations__token=TOKEN, **changes)
    assert read_metrics(client)[f"refusals_total{{reason={refusal}}}"] == 0

    await act(client, execute)

    await until(lambda: read_metrics(client)[f"refusals_total{{reason={refusal}}}"] >= 1)
    after = read_metrics(client)
    refused = sum(value for name, value in after.items() if name.startswith("refusals_total"))
    counted = [name for name in after if re.match(r"request_duration_seconds_count.*=503}", name)]
    assert refused == sum(after[name] for name in counted)


async def test_each_429_is_counted(start: Start) -> None:
    """With the limit that it exceeds."""
    client = await start(operations__token=TOKEN, limits__rate=1, limits__burst=16)
    responses = await asyncio.gather(*(client.get("/v1/movies/1") for _ in range(40)))
    refused = [response.status for response in responses].count(429)

    after = read_metrics(client)

    assert refused > 0
    assert after["limited_total{limit=rate}"] == refused


async def test_pages_of_lists(start: Start, execute: Execute) -> None:
    """By their source, and those in memory that a change has ended."""
    client = await start(operations__token=TOKEN)
    for _ in range(4):  # the first two are fetched: only then it is known that nothing changes
        await client.get("/v1/movies")
    execute("insert into movies (title, year, runtime, genres) values ('a', 2000, 1, '{x}')")
    await client.get("/v1/movies")

    after = read_metrics(client)

    pages = [after[f"list_pages_total{{source={source}}}"] for source in ("memory", "database")]
    assert pages == [2, 3]
    assert after["list_pages_ended_total"] == 2  # one was of the time before the first check


async def test_the_pool_and_requests_in_flight(start: Start) -> None:
    """One statement holds the only connection, another one waits for it."""
    client = await start(operations__token=TOKEN, database__max_open=1)
    await until(
        lambda: (
            "statement_duration_seconds_count{query=estimate_idempotency_keys}"
            in read_metrics(client)
            and read_metrics(client)["pool_connections{state=idle}"] == 1
        )
    )
    idle = read_metrics(client)

    async with lock_movies(client):
        waiting = [
            asyncio.create_task(client.get(f"/v1/movies{path}")) for path in ("/1", "?year=1")
        ]
        await until(lambda: read_metrics(client)["pool_waiting"] == 1)
        busy = read_metrics(client)
    await asyncio.gather(*waiting)

    states = ("open", "idle", "in_use", "closing")
    assert [idle[f"pool_connections{{state={state}}}"] for state in states] == [1, 1, 0, 0]
    assert [busy[f"pool_connections{{state={state}}}"] for state in states] == [1, 0, 1, 0]
    assert (idle["requests_in_flight"], busy["requests_in_flight"]) == (0, 2)
    assert (idle["pool_waiting"], idle["pool_max_open_connections"]) == (0, 1)
    assert read_metrics(client)["pool_wait_seconds_count"] - idle["pool_wait_seconds_count"] == 2
    assert read_metrics(client)["pool_wait_seconds_sum"] > idle["pool_wait_seconds_sum"]


async def test_readiness_is_measured_while_nobody_asks(
    start: Start, database: str, monkeypatch: Patch
) -> None:
    """The gauge follows the database, without any request."""
    monkeypatch.setattr(health, "READY_INTERVAL_S", 0.05)
    async with opened(database) as link:
        client = await start(operations__token=TOKEN, database__url=link.url)

        await until(lambda: read_metrics(client)["ready"] == 1)
        await link.cut()
        await until(lambda: read_metrics(client)["ready"] == 0)
        await link.open()
        await until(lambda: read_metrics(client)["ready"] == 1)


# In one session: two report their statistics in any order.
ADD_KEYS = (
    "insert into idempotency_keys (key, fingerprint)"
    " select n::text, '' from generate_series(1, 7) as n; analyze idempotency_keys"
)


@pytest.mark.parametrize(
    ("sql", "name", "value"),
    [(ADD_KEYS, "idempotency_keys", 7), ("drop index movies_year", "schema_faults", 1)],
)
async def test_what_the_database_has_is_asked_for_at_the_start(
    start: Start, execute: Execute, sql: str, name: str, value: int
) -> None:
    """PostgreSQL's estimate of the keys, and the number of faults of the schema."""
    execute(sql)

    client = await start(operations__token=TOKEN)

    await until(lambda: read_metrics(client).get(name) == value)


async def test_the_process(start: Start, monkeypatch: Patch) -> None:
    """Version and commit, memory, files, and log lines that were dropped."""
    client = await start(
        operations__token=TOKEN, service__environment="staging", service__commit="4a74d18"
    )
    before = read_metrics(client)
    monkeypatch.setattr(get_lines(), "dropped", get_lines().dropped + 3)

    after = read_metrics(client)

    assert after[f"info{{commit=4a74d18,environment=staging,version={__version__}}}"] == 1
    assert after["processes"] == 1
    assert 5 < after["open_files"] < after["max_files"]
    assert after["resident_memory_bytes"] > 10_000_000
    assert after["start_time_seconds"] > 1_700_000_000
    assert after["log_lines_dropped_total"] - before["log_lines_dropped_total"] == 3


async def test_a_blocked_event_loop_is_measured(start: Start) -> None:
    """By a timer, once a second: whatever blocks it delays all requests."""
    client = await start(operations__token=TOKEN)

    def count_late() -> float:
        series = read_metrics(client)
        late = "event_loop_lag_seconds_bucket{le=0.5}"
        return series["event_loop_lag_seconds_count"] - series[late]

    time.sleep(2)  # noqa: ASYNC251 - to block it, for longer than a second

    await until(lambda: count_late() == 1)


async def test_every_metric_is_there_at_once(start: Start, database: str) -> None:
    """After one request of each kind, every metric has a series, and nothing else is there."""
    client = await start(operations__token=TOKEN, database__replica_urls=(database,))
    await client.post("/v1/movies", json=MOANA)
    get_app(client)[CYCLE].metrics.sample()

    text = get_app(client)[CYCLE].metrics.render().decode()

    names = {
        re.sub("_(bucket|sum|count)$", "", f"catalogue_{re.split('{', name)[0]}")
        for name in parse(text)
    }
    assert names == {metric.name for metric in list_metrics()}


MAKE_METRICS = """
import os
from pathlib import Path
from service.telemetry import metrics
folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
made = metrics.Metrics(is_enabled=True, folder=folder)
made.sample()
for query in range(60):
    made.get_statement(f"long_name_of_a_query_{query}")
    made.shared_statement_rows.labels(f"long_name_of_a_query_{query}")
for status in range(400, 440):
    for route in range(20):
        for method in metrics.METHODS:
            made.count_response(method, f"/v1/movies/{route}", status, 0.1, None)
found = [f"{file.name.rpartition('_')[0]} {file.stat().st_size}" for file in folder.iterdir()]
print(made.is_enabled, *found)
"""


def test_a_worker_reserves_the_space_of_its_files(tmp_path: Path) -> None:
    """All that it maps, whatever clients send: a page without space would end it (SIGBUS)."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    _, out, _ = run([sys.executable, "-c", MAKE_METRICS], environment)

    is_on, *files = out.splitlines()[-1].split()
    assert is_on == "True"
    assert dict(zip(files[::2], map(int, files[1::2]), strict=True)) == FILE_BYTES


def test_operators_read_of_every_label_and_reason() -> None:
    """docs/logs.md explains them; the metrics say themselves what they are."""
    text = (ROOT / "docs/logs.md").read_text().split("\n## Metrics\n")[1].split("\n## ")[0]
    labels = {label for metric in list_metrics() for label in metric.labels}

    assert [label for label in sorted(labels) if f"`{label}`" not in text] == []
    assert [reason for reason in Refusal if f"| `{reason}` |" not in text] == []
