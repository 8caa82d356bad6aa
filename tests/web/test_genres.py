"""Tests GET /v1/genres."""

from datetime import UTC, datetime
from typing import Any

import pytest
from conftest import MOANA, Client
from support import Execute

from service.catalogue import genres as genres_module


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
    emptied = await (await client.get("/v1/genres")).json()
    assert (emptied["genres"], emptied["metadata"]["total_records"]) == ([], 0)


async def test_a_parameter_is_refused(client: Client) -> None:
    """There are no parameters, and an ignored one would look supported."""
    for query in ("sort=genre", "sort", "page=1&sort=1", "%73ort=%20"):
        response = await client.get(f"/v1/genres?{query}")
        head = await client.head(f"/v1/genres?{query}")

        problem = await response.json()
        assert (response.status, head.status) == (422, 422)
        assert problem["type"] == "/v1/docs#wrong-parameters"
        detail = 'unknown parameter "sort"; there are none here'
        assert {"parameter": "sort", "detail": detail} in problem["errors"]


async def test_an_empty_query_has_no_parameter(client: Client) -> None:
    """A question mark alone is accepted."""
    for query in ("", "&", "&&"):
        assert (await client.get(f"/v1/genres?{query}")).status == 200
