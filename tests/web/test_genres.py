"""Tests GET /v1/genres."""

from datetime import UTC, datetime
from typing import Any

import psycopg2
import pytest
from conftest import MOANA, Client, Start
from support import Execute

from service.catalogue import genres as genres_module

AWAY = "postgresql://nobody@127.0.0.1:9/nothing"


@pytest.fixture(autouse=True)
def keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the cache of the counts."""
    monkeypatch.setattr(genres_module, "CACHE_MIN_S", 0)
    monkeypatch.setattr(genres_module, "CACHE_FACTOR", 0)
    monkeypatch.setattr(genres_module, "MAX_WAIT_S", 10)


async def genres(client: Client) -> list[dict[str, Any]]:
    """Return the genres of the service."""
    response = await client.get("/v1/genres")
    assert response.status == 200
    return list((await response.json())["genres"])


async def test_every_genre_with_its_movies(client: Client) -> None:
    """GET returns 200, the genres with the most movies first, the total, and the time."""
    before = datetime.now(UTC)
    for kinds in (["war", "drama"], ["drama"], ["crime"]):
        await client.post("/v1/movies", json={**MOANA, "genres": kinds})

    response = await client.get("/v1/genres")
    answer = await response.json()

    assert response.status == 200
    assert response.headers["Content-Type"] == "application/json"
    assert answer["genres"] == [
        {"genre": "drama", "movies": 2},
        {"genre": "crime", "movies": 1},
        {"genre": "war", "movies": 1},
    ]
    assert list(answer) == ["genres", "metadata"]
    assert list(answer["metadata"]) == ["total_records", "as_of"]
    assert answer["metadata"]["total_records"] == 3
    assert before < datetime.fromisoformat(answer["metadata"]["as_of"]) < datetime.now(UTC)
    assert (await response.text()).startswith('{\n  "genres": [\n    {\n      "genre": "drama",\n')


async def test_the_total_also_counts_unlisted_genres(client: Client, execute: Execute) -> None:
    """The list ends after 1000 genres; clients see that from the total."""
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select 'x', 2000, 90, array['g' || n] from generate_series(1, 1001) as n"
    )

    answer = await (await client.get("/v1/genres")).json()

    assert (len(answer["genres"]), answer["metadata"]["total_records"]) == (1000, 1001)


async def test_genres_follow_changes_of_movies(client: Client) -> None:
    """Created, changed and deleted movies are counted."""
    path = (await client.post("/v1/movies", json=MOANA)).headers["Location"]
    created = await genres(client)
    await client.patch(path, json={"genres": ["drama", "war"]})
    changed = await genres(client)
    await client.delete(path)

    assert created == [{"genre": "animation", "movies": 1}]
    assert changed == [{"genre": "drama", "movies": 1}, {"genre": "war", "movies": 1}]
    assert await genres(client) == []


async def test_an_empty_catalogue(client: Client) -> None:
    """It has no genres, but the time of the count."""
    answer = await (await client.get("/v1/genres")).json()

    assert answer["genres"] == []
    assert answer["metadata"]["total_records"] == 0
    assert answer["metadata"]["as_of"].endswith("Z")


async def test_as_of_is_in_utc_wherever_the_database_is(
    start: Start, execute: Execute, database: str
) -> None:
    """The time zone of the database has no effect."""
    name = psycopg2.extensions.parse_dsn(database)["dbname"]
    execute(f"alter database {name} set timezone = 'Asia/Tokyo'")
    client = await start()

    answer = await (await client.get("/v1/genres")).json()

    assert answer["metadata"]["as_of"].endswith("Z")


async def test_head_is_as_get_without_the_body(client: Client) -> None:
    """HEAD returns the headers of GET."""
    got = await client.get("/v1/genres")

    response = await client.head("/v1/genres")

    assert response.status == 200
    assert response.headers["Content-Length"] == got.headers["Content-Length"]
    assert await response.read() == b""


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("query", ["sort=genre", "sort", "page=1&sort=1", "%73ort=%20"])
async def test_a_parameter_is_refused(client: Client, method: str, query: str) -> None:
    """There are no parameters, and an ignored one would look supported."""
    response = await client.request(method, f"/v1/genres?{query}")

    assert response.status == 422
    assert response.headers["Content-Type"] == "application/problem+json"
    if method == "GET":
        problem = await response.json()
        name = query.partition("=")[0].replace("%73", "s")
        detail = f'unknown parameter "{name}"; there are none here'
        assert problem["type"] == "/v1/docs#wrong-parameters"
        assert {"parameter": name, "detail": detail} in problem["errors"]


@pytest.mark.parametrize("query", ["", "&", "&&"])
async def test_an_empty_query_has_no_parameter(client: Client, query: str) -> None:
    """A question mark alone is accepted."""
    assert (await client.get(f"/v1/genres?{query}")).status == 200


async def test_other_methods_are_not_allowed(client: Client) -> None:
    """Genres can only be read."""
    response = await client.post("/v1/genres", json={"genre": "drama"})

    assert response.status == 405
    assert response.headers["Allow"] == "GET, HEAD, OPTIONS"


async def test_while_the_database_is_away(start: Start) -> None:
    """The service starts without it, and returns 503 with Retry-After."""
    client = await start(database__url=AWAY)

    response = await client.get("/v1/genres")

    assert response.status == 503
    assert response.headers["Retry-After"] == "1"
