"""Tests /v1/movies: the statuses of the contract."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import AWAY, MOANA, Client, Start
from support import Capture, Execute, movie_tag
from yarl import URL

CASABLANCA = {
    "title": "Casablanca",
    "year": 1942,
    "runtime": "102 mins",
    "genres": ["drama", "romance", "war"],
}


async def create(client: Client, movie: dict[str, Any] = MOANA) -> dict[str, Any]:
    """Create a movie and return it."""
    response = await client.post("/v1/movies", json=movie)
    assert response.status == 201
    return dict((await response.json())["movie"])


async def test_a_sequence_that_is_behind_is_no_mistake_of_the_client(
    client: Client, execute: Execute, capsys: Capture
) -> None:
    """After logical replication, for example; the log says why."""
    await create(client)
    execute("select setval('movies_id_seq', 1, false)")

    response = await client.post("/v1/movies", json=MOANA)

    assert response.status == 500
    assert "movies_pkey" in capsys.readouterr().out


async def test_create_returns_the_movie_and_its_location(client: Client) -> None:
    """POST returns 201, the stored movie, and its Location, where GET returns the same movie.

    Both are JSON in UTF-8, indented by two spaces, with a final newline.
    """
    before = datetime.now(UTC) - timedelta(seconds=1)

    response = await client.post("/v1/movies", json={**CASABLANCA, "title": "Amélie"})
    movie = (await response.json())["movie"]
    got = await client.get(response.headers["Location"])
    text = (await got.read()).decode("utf-8")

    assert (response.status, got.status) == (201, 200)
    assert await got.json() == {"movie": movie}
    assert response.headers["Location"] == f"/v1/movies/{movie['id']}"
    assert got.headers["Content-Type"] == "application/json"
    assert text.startswith(f'{{\n  "movie": {{\n    "id": {movie["id"]},\n    "title": "Amélie",\n')
    assert text.endswith("\n  }\n}\n")
    assert {**CASABLANCA, "title": "Amélie"}.items() <= movie.items()
    assert movie["version"] == 1
    assert movie["created_at"] == movie["updated_at"]
    assert movie["created_at"].endswith("Z")
    assert before < datetime.fromisoformat(movie["created_at"]) < datetime.now(UTC)


@pytest.mark.parametrize("patch", [{}, {"year": 2016}, MOANA])
async def test_patch_that_changes_nothing_keeps_the_version(
    client: Client, patch: dict[str, Any]
) -> None:
    """A PATCH that changes nothing returns 200 with the same movie."""
    movie = await create(client)

    response = await client.patch(f"/v1/movies/{movie['id']}", json=patch)

    assert response.status == 200
    assert await response.json() == {"movie": movie}


async def test_a_movie_with_two_spellings_of_a_genre_can_be_changed(
    client: Client, execute: Execute
) -> None:
    """Only genres that are sent may not differ in case or blanks alone."""
    path = f"/v1/movies/{(await create(client))['id']}"
    execute("update movies set genres = '{Drama,\"drama \"}'")
    year = await client.patch(path, json={"year": 2015})
    genres = await client.patch(path, json={"genres": ["Drama", "drama "]})

    assert (year.status, genres.status) == (200, 422)
    assert (await year.json())["movie"]["genres"] == ["Drama", "drama "]
    assert (await genres.json())["errors"] == [
        {"pointer": "#/genres/1", "detail": "must not be repeated"}
    ]


async def test_patches_of_different_fields_at_once_are_all_kept(client: Client) -> None:
    """A PATCH is one atomic statement, so it does not overwrite fields of another one."""
    movie = await create(client)

    responses = await asyncio.gather(
        *(
            client.patch(f"/v1/movies/{movie['id']}", json={name: value})
            for name, value in CASABLANCA.items()
        )
    )

    assert [response.status for response in responses] == [200] * 4
    kept = (await (await client.get(f"/v1/movies/{movie['id']}")).json())["movie"]
    assert CASABLANCA.items() <= kept.items()
    assert kept["version"] == 5


async def test_a_movie_that_does_not_exist_is_404(client: Client) -> None:
    """PUT does not create it. A write says at which position it was so."""
    for method in ("GET", "HEAD", "DELETE", "PUT", "PATCH"):
        response = await client.request(method, f"/v1/movies/{2**63 - 1}", json=MOANA)
        assert response.status == 404, method
        assert ("Catalogue-Position" in response.headers) == (method not in ("GET", "HEAD"))

    assert (await response.json())["detail"] == "there is no movie with this id"


async def test_a_movie_may_have_the_largest_id(client: Client, execute: Execute) -> None:
    """Ids are bigints of PostgreSQL, up to 2^63-1."""
    execute(f"alter table movies alter id restart with {2**63 - 1}")
    await create(client)

    for method in ("GET", "PATCH", "PUT", "DELETE"):
        response = await client.request(method, "/v1/movies/9223372036854775807", json=MOANA)
        assert response.status == 200, method


WRONG_IDS = (
    *("0", "-1", "+1", "01", "1.0", "1e3", "abc", "", "%20", "1%20", "٣", "१", "¹", "0x10"),
    *(str(2**63), "9" * 19, "9" * 20, "9" * 5000, "1/", "1/2", "null", "1;", "1'", "%00"),
)
OTHER_PATHS = ("/movies", "/v1/movies/", "/v1/movie", "/v2/movies", "/nowhere")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE"])
async def test_other_paths_are_404_without_a_query(start: Start, method: str) -> None:
    """An id is 1 to 2^63-1 in ASCII digits; others are 404, even without the database."""
    client = await start(database__url=AWAY)

    for path in (*OTHER_PATHS, *(f"/v1/movies/{wrong}" for wrong in WRONG_IDS)):
        response = await client.request(method, path, json=MOANA)
        assert response.status == 404, path
        assert response.headers["Content-Type"] == "application/problem+json", path
        if method != "HEAD":
            assert (await response.json())["detail"] == "nothing exists at this path", path


ALLOWED = {
    "/v1/movies": "GET, HEAD, OPTIONS, POST",
    "/v1/movies/1": "DELETE, GET, HEAD, OPTIONS, PATCH, PUT",
    **dict.fromkeys(
        ("/v1/genres", "/", "/v1", "/v1/healthcheck", "/v1/healthcheck/ready"), "GET, HEAD, OPTIONS"
    ),
}


@pytest.mark.parametrize("path", ALLOWED)
async def test_every_path_has_head_and_options(client: Client, path: str) -> None:
    """HEAD has the status and the headers of GET, OPTIONS is 204; another method is 405."""
    await create(client)

    get = await client.get(path)
    head = await client.head(path)
    options = await client.options(path)
    wrong = await client.request("PROPFIND", path)

    assert head.status == get.status == 200
    for name in ("Content-Type", "Content-Length"):
        assert head.headers[name] == get.headers[name]
    assert (options.status, options.headers["Allow"]) == (204, ALLOWED[path])
    assert (await head.read(), await options.read()) == (b"", b"")
    assert (wrong.status, wrong.headers["Allow"]) == (405, ALLOWED[path])
    assert wrong.headers["Content-Type"] == "application/problem+json"
    assert (await wrong.json())["detail"] == (
        f"this path does not support the method; see the Allow header: {ALLOWED[path]}"
    )


async def test_an_id_may_be_percent_encoded(client: Client) -> None:
    """It is the same path (RFC 3986, 6.2.2.2)."""
    await create(client)

    assert (await client.get(URL("/v1/movies/%31", encoded=True))).status == 200


async def test_a_query_string_is_refused(client: Client) -> None:
    """If it were ignored, a client could believe that DELETE supports `?dry_run=1`."""
    await create(client)

    requests = [(method, "/v1/movies/1") for method in ("GET", "HEAD", "PATCH", "PUT", "DELETE")]
    requests += [("POST", "/v1/movies"), ("POST", "/v1/movies/batch"), ("GET", "/v1/genres")]
    for method, path in requests:
        body = None if method == "GET" else MOANA
        response = await client.request(method, f"{path}?x=1", json=body)
        assert response.status == 422, (method, path)

    assert (await response.json())["errors"] == [
        {"parameter": "x", "detail": 'unknown parameter "x"; there are none here'}
    ]
    assert (await client.get("/v1/movies/1?&")).headers["ETag"] == movie_tag()
    assert (await client.get("/v1/movies/2")).status == 404
