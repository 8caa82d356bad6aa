"""Tests liveness and readiness."""

from typing import Any

from conftest import Client, Start

from service import __version__
from service.web.request_cycle.cycle import CYCLE

AWAY = "postgresql://nobody@127.0.0.1:9/nothing"


async def test_the_healthcheck_tells_environment_and_version(start: Start) -> None:
    """GET /v1/healthcheck returns environment and version, without an envelope."""
    client = await start(service__environment="staging")

    response = await client.get("/v1/healthcheck")

    assert response.status == 200
    assert await response.json() == {
        "status": "available",
        "system_info": {"environment": "staging", "version": __version__},
    }


async def test_liveness_does_not_need_the_database(start: Start) -> None:
    """Without the database a process is alive, so that it is not restarted."""
    client = await start(database__url=AWAY)

    alive = await client.get("/v1/healthcheck")
    ready = await client.get("/v1/healthcheck/ready")

    assert alive.status == 200
    assert ready.status == 503
    assert ready.headers["Retry-After"] == "1"
    assert ready.headers["Content-Type"] == "application/problem+json"


async def test_ready_with_the_database_there_and_migrated(client: Client) -> None:
    """GET /v1/healthcheck/ready returns 200."""
    response = await client.get("/v1/healthcheck/ready")

    assert response.status == 200


async def test_not_ready_while_behind_on_migrations(start: Start, empty_database: str) -> None:
    """Without a schema, the service is not ready, and movies are 503, not 500."""
    client = await start(database__url=empty_database)

    ready = await client.get("/v1/healthcheck/ready")
    movie = await client.get("/v1/movies/1")

    assert (ready.status, movie.status) == (503, 503)


async def test_not_ready_when_a_migration_is_taken_back(client: Client, execute: Any) -> None:
    """Readiness checks the migrations each time, not only at the start."""
    before = await client.get("/v1/healthcheck/ready")

    execute(
        "delete from schema_migrations where version = (select max(version) from schema_migrations)"
    )

    assert before.status == 200
    assert (await client.get("/v1/healthcheck/ready")).status == 503


async def test_not_ready_while_draining(client: Client) -> None:
    """A process that will stop is not ready, but still serves."""
    client.server.app[CYCLE].is_draining = True  # type: ignore[attr-defined] # conftest's Service

    assert (await client.get("/v1/healthcheck/ready")).status == 503
    assert (await client.get("/v1/healthcheck")).status == 200
    assert (await client.get("/v1/movies/1")).status == 404
