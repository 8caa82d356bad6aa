"""A primary with synchronous standbys: no write is acknowledged before it is replicated."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from conftest import MOANA, Client, Start
from servers import fetch, migrate, run
from support import Patch, until

from service.app import POOL
from service.database import embedded
from service.database import pool as pool_module

MAX_OPEN = 6
WAITING = "wait_event = 'SyncRep' and application_name like 'movie-catalogue%'"


def set_standby(url: str, name: str) -> None:
    """Make commits wait for a standby of this name; empty: for none."""
    run(url, f"alter system set synchronous_standby_names = '{name}'", "select pg_reload_conf()")
    is_waiting = not name
    while not is_waiting:  # the checkpointer learns it a little later
        with ThreadPoolExecutor() as thread, closing(psycopg2.connect(url)) as session:
            session.autocommit = True
            emit = "select pg_logical_emit_message(true, '', '')"
            commit = thread.submit(session.cursor().execute, emit)
            if wait([commit], 0.2).not_done:
                is_waiting = True
                session.cancel()
                wait([commit])


@pytest.fixture
def primary(folder: Path) -> Iterator[str]:
    """A migrated database on a server of its own."""
    with embedded.running(folder) as url:
        migrate(url)
        yield url
        set_standby(url, "")


@pytest.fixture
async def client(start: Start, primary: str) -> Client:
    """A client of a service with small timeouts."""
    return await start(
        database__url=primary,
        database__max_open=MAX_OPEN,
        database__statement_timeout=0.3,
        database__acquire_timeout=2,
    )


async def test_a_lost_standby_costs_writes_and_nothing_else(
    client: Client, primary: str, monkeypatch: Patch
) -> None:
    """Writes get 503; reads are served; afterwards all is well."""
    monkeypatch.setattr(pool_module, "GIVEN_UP_S", 0.5)
    path = (await client.post("/v1/movies", json=MOANA)).headers["Location"]
    set_standby(primary, "lost")
    statuses = []

    async def write(number: int) -> None:
        created = await client.post("/v1/movies", json={**MOANA, "title": f"{number}"})
        patched = await client.patch(path, json={"year": 1900 + number})
        statuses.extend([created.status, patched.status])

    writers = [asyncio.create_task(write(number)) for number in range(4)]
    reads = []
    while not all(writer.done() for writer in writers):
        reads.append((await client.get(path)).status)
        reads.append((await client.get("/v1/healthcheck/ready")).status)
    stuck = fetch(primary, f"select count(*) from pg_stat_activity where {WAITING}")
    set_standby(primary, "")
    pool = client.server.app[POOL]  # type: ignore[attr-defined] # conftest's Service
    await until(lambda: pool.size == pool.idle)
    after = await client.post("/v1/movies", json=MOANA)

    assert set(statuses) == {503}
    assert set(reads) == {200}
    assert stuck > 0
    assert after.status == 201


async def test_a_write_whose_wait_is_cancelled_is_not_acknowledged(
    client: Client, primary: str
) -> None:
    """PostgreSQL commits it and warns: neither it nor its repetition is acknowledged."""
    path = (await client.post("/v1/movies", json=MOANA)).headers["Location"]
    set_standby(primary, "lost")
    cancel = f"select pg_cancel_backend(pid) from pg_stat_activity where {WAITING}"

    async def send(method: str, path: str, year: int, **headers: str) -> int:
        """Send a write and have a DBA cancel its wait."""
        body = {**MOANA, "year": year}
        task = asyncio.create_task(client.request(method, path, json=body, headers=headers))
        while not task.done():
            await asyncio.to_thread(run, primary, cancel)
            await asyncio.sleep(0.01)
        return (await task).status

    statuses = []
    for _ in range(2):  # the second time, the first one is visible
        statuses.append(await send("PATCH", path, 2001))
        statuses.append(await send("POST", "/v1/movies", 2002, **{"Idempotency-Key": '"a"'}))
    committed = fetch(primary, "select count(*) from movies")
    set_standby(primary, "")
    body, key = {**MOANA, "year": 2002}, {"Idempotency-Key": '"a"'}
    repeated = await client.post("/v1/movies", json=body, headers=key)

    assert set(statuses) == {503}
    assert committed == 2
    assert repeated.status == 201
    assert fetch(primary, "select count(*) from movies") == 2
