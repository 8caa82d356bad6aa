"""Tests liveness, readiness and the index."""

import pytest
from conftest import AWAY, Client, Start
from support import Capture, Execute, Patch, until

from service import __version__, genres
from service.changes import feed as changes


async def test_the_index_has_paths_that_exist(client: Client) -> None:
    """It has the movies, the reference page and the OpenAPI document."""
    for path in ("/", "/v1"):
        index = await (await client.get(path)).json()
        assert index == {
            "api": "/v1/movies",
            "reference": "/v1/docs",
            "openapi": "/v1/openapi.json",
        }
        for target in index.values():
            assert (await client.get(target)).status == 200


async def test_the_healthcheck_tells_environment_and_version(start: Start) -> None:
    """Without an envelope; the commit, too, if the deployment names it."""
    for commit, named in (("", {}), ("4a74d18", {"commit": "4a74d18"})):
        client = await start(service__environment="staging", service__commit=commit)

        response = await client.get("/v1/healthcheck")

        system = {"environment": "staging", "version": __version__} | named
        assert response.status == 200
        assert await response.json() == {"status": "available", "system_info": system}


async def test_liveness_does_not_need_the_database(start: Start) -> None:
    """Without the database a process is alive, so that it is not restarted; all else is 503."""
    client = await start(database__url=AWAY)

    assert (await client.get("/v1/healthcheck")).status == 200
    for path in ("/v1/healthcheck/ready", "/v1/movies", "/v1/genres"):
        response = await client.get(path)
        assert response.status == 503
        assert response.headers["Retry-After"] == "1"
        assert response.headers["Content-Type"] == "application/problem+json"


async def test_ready_with_migrations_that_dbmate_applied(start: Start, execute: Execute) -> None:
    """It stores their versions alone."""
    execute("alter table schema_migrations drop column applied_at, drop column checksum")

    client = await start()

    assert (await client.get("/v1/healthcheck/ready")).status == 200


async def test_a_change_of_readiness_is_one_line(
    client: Client, execute: Execute, capsys: Capture
) -> None:
    """With its reason, however often somebody asks."""
    execute("create table kept as select * from schema_migrations; truncate schema_migrations")
    for _ in range(3):
        await client.get("/v1/healthcheck/ready")
    execute("insert into schema_migrations select * from kept")
    for _ in range(3):
        await client.get("/v1/healthcheck/ready")

    lines = [line.split("]")[1] for line in capsys.readouterr().out.splitlines() if "ready" in line]
    changes = [line.split()[0] for line in lines if line.split()[0] != "request"]
    assert changes == ["not", "ready"]


@pytest.mark.parametrize("path", ["/v1/movies", "/v1/genres"])
async def test_no_failure_is_remembered_once_the_database_is_ready(
    start: Start, database: str, execute: Execute, monkeypatch: Patch, path: str
) -> None:
    """Lists name the place where the feed goes on at once: without it, clients take it for off."""
    monkeypatch.setattr(changes, "END_S", 60)
    monkeypatch.setattr(genres, "CACHE_MIN_S", 60)
    newest = "version = (select max(version) from schema_migrations)"
    ((version,),) = execute(f"delete from schema_migrations where {newest} returning version")
    client = await start(database__url=database)  # it verifies the database
    before = await client.get(path)

    execute("insert into schema_migrations (version) values (%s)", version)

    async def is_ready() -> bool:
        return (await client.get("/v1/healthcheck/ready")).status == 200

    await until(is_ready)
    after = await client.get(path)
    assert (before.status, after.status) == (503, 200)
    assert ("Changes-Cursor" in after.headers) == (path == "/v1/movies")
