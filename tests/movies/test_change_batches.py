"""PATCH /v1/movies/batch and POST /v1/movies/batch/delete: several changes in one request."""

import asyncio
from typing import Any

import pytest
from conftest import Client, Start
from support import Execute, add_movies, hold, movie_tag

from service.database import MAX_BIGINT

BATCH, DELETE = "/v1/movies/batch", "/v1/movies/batch/delete"
LENIENT = {"Prefer": "handling=lenient"}
PATCHES = ("PATCH", BATCH), ("POST", DELETE)


async def send(
    client: Client, method: str, path: str, entries: Any, **headers: str
) -> tuple[int, dict[str, Any]]:
    """Send a batch; return its status and body."""
    response = await client.request(method, path, json={"movies": entries}, headers=headers)
    return response.status, await response.json()


async def test_a_batch_changes_all_movies(client: Client, execute: Execute) -> None:
    """Each only as it says; the response has them in the order of the request."""
    add_movies(execute, "a", "b", "c")
    entries = [
        {"id": 3, "etag": movie_tag(1, 3), "genres": ["y"]},
        {"id": 1, "year": 2001},
        {"id": 2},
    ]

    status, body = await send(client, "PATCH", BATCH, entries)

    assert status == 200
    assert [(m["id"], m["year"], m["genres"], m["version"]) for m in body["movies"]] == [
        (3, 2000, ["y"], 2),
        (1, 2001, ["x"], 2),
        (2, 2000, ["x"], 1),
    ]
    assert [m["etag"] for m in body["movies"]] == [
        movie_tag(version, movie_id) for movie_id, version in ((3, 2), (1, 2), (2, 1))
    ]


async def test_a_batch_deletes_all_movies(client: Client, execute: Execute) -> None:
    """The response has them as they were."""
    add_movies(execute, "a", "b", "c")
    status, body = await send(
        client, "POST", DELETE, [{"id": 3, "etag": movie_tag(1, 3)}, {"id": 1}]
    )
    assert (status, [movie["title"] for movie in body["movies"]]) == (200, ["c", "a"])
    assert execute("select title from movies") == [("b",)]


@pytest.mark.parametrize(("method", "path"), PATCHES)
async def test_one_that_fails_stops_all(
    client: Client, execute: Execute, method: str, path: str
) -> None:
    """The errors name each entry that fails; the status is the first one's."""
    add_movies(execute, "a", "b", "c")
    change = {"genres": ["y"]} if method == "PATCH" else {}
    entries = [
        {"id": 1, **change},
        {"id": 2, "etag": movie_tag(9, 2), **change},
        {"id": 99, **change},
        {"id": 3, "etag": movie_tag(1, 1), **change},  # of another movie
    ]

    status, problem = await send(client, method, path, entries)
    lenient, body = await send(client, method, path, entries, **LENIENT)

    assert (status, problem["type"]) == (412, "/v1/docs#precondition-failed")
    assert [error["pointer"] for error in problem["errors"]] == [
        *("#/movies/1", "#/movies/2", "#/movies/3")
    ]
    assert (lenient, [each["status"] for each in body["results"]]) == (207, [200, 412, 404, 412])
    left = {"PATCH": [("a", 2), ("b", 1), ("c", 1)], "POST": [("b", 1), ("c", 1)]}
    assert execute("select title, version from movies order by id") == left[method]


WRONG: list[tuple[list[dict[str, Any]], int, str]] = [
    ([{"id": 1}, {"id": 2}, {"id": 1}], 422, "#/movies/2/id"),
    ([{"id": 0}], 422, "#/movies/0/id"),
    ([{"id": "1"}], 400, "#/movies/0/id"),
    ([{}], 422, "#/movies/0/id"),
    ([{"id": 1, "etag": "1-1"}], 400, "#/movies/0/etag"),
    ([{"id": 1, "etag": f'"{99 * "1"}"'}], 400, "#/movies/0/etag"),
    ([{"id": 1, "etag": None}], 400, "#/movies/0/etag"),
    ([{"id": MAX_BIGINT}], 404, "#/movies/0"),
    ([{"id": 10**18}], 404, "#/movies/0"),
    ([{"id": MAX_BIGINT + 1}], 400, "#/movies/0/id"),
    ([{"id": -MAX_BIGINT}], 422, "#/movies/0/id"),
    ([{"id": 1, "version": 1}], 400, "#/movies/0/version"),
    ([], 422, "#/movies"),
    ([{"id": n} for n in range(1, 102)], 422, "#/movies"),
]


@pytest.mark.parametrize(("method", "path"), PATCHES)
async def test_a_wrong_batch_is_refused(
    client: Client, execute: Execute, method: str, path: str
) -> None:
    """With the place of its mistake."""
    add_movies(execute, "a", "b")
    for entries, status, pointer in WRONG:
        found, problem = await send(client, method, path, entries)
        assert (found, problem["errors"][0]["pointer"]) == (status, pointer)
    assert execute("select count(*) from movies where version = 1") == [(2,)]


async def test_a_rule_of_the_database_stops_all(client: Client, execute: Execute) -> None:
    """PostgreSQL does not say which movie it refuses."""
    add_movies(execute, "a", "b")
    execute("alter table movies add constraint movies_year_known check (year < 2010)")
    entries = [{"id": 1, "year": 2005}, {"id": 2, "year": 2015}]
    status, problem = await send(client, "PATCH", BATCH, entries)
    assert (status, problem["errors"][0]["pointer"]) == (422, "#/movies")
    assert execute("select count(*) from movies where version = 1") == [(2,)]


@pytest.mark.parametrize(("method", "path"), PATCHES)
async def test_a_batch_waits_for_locked_movies(
    start: Start, database: str, execute: Execute, method: str, path: str
) -> None:
    """Then it sees the change of the other session: its etag is an old one."""
    client = await start()
    add_movies(execute, "a", "b")
    entries = [{"id": 1, "etag": movie_tag(1, 1)}, {"id": 2}]
    with hold(database, "update movies set year = 2001 where id = 1") as other:
        waiting = asyncio.create_task(send(client, method, path, entries))
        for _ in range(3):
            await client.get("/v1/movies/2")  # other requests go on
        assert not waiting.done()
        other.commit()

    status, problem = await waiting

    assert (status, problem["errors"][0]["pointer"]) == (412, "#/movies/0")
    assert execute("select title, year from movies order by id") == [("a", 2001), ("b", 2000)]


async def test_a_deployment_may_require_etags(start: Start, execute: Execute) -> None:
    """As it requires If-Match of single changes; a put needs none."""
    client = await start(server__require_if_match=True)
    add_movies(execute, "a")
    for method, path in PATCHES:
        status, problem = await send(client, method, path, [{"id": 1}])
        assert (status, problem["type"]) == (428, "/v1/docs#precondition-required")
    movie = {"title": "a", "year": 2000, "runtime": "1 mins", "genres": ["x"], "external_id": "a"}
    assert (await send(client, "PUT", BATCH, [movie]))[0] == 200
