"""Tests GET /v1/genres; tests/test_genres.py has how they are counted."""

from datetime import UTC, datetime

from conftest import Client, Start
from support import Execute


async def test_every_genre_with_its_movies(start: Start, execute: Execute) -> None:
    """GET returns 200, the genres with the most movies first, the total, and the time."""
    before = datetime.now(UTC)
    execute(
        "insert into movies (title, year, runtime, genres) values ('a', 2000, 1, '{war,drama}'),"
        " ('b', 2000, 1, '{drama}'), ('c', 2000, 1, '{crime}')"
    )
    client = await start()

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
