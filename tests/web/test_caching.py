"""Tests what caches may keep: pages of lists and the genres, if the operator allows it."""

from itertools import product

import pytest
from conftest import MOANA, Client, Start
from support import Execute, add_client

SECONDS = 7
LIFETIME = f"max-age={SECONDS}, stale-while-revalidate={SECONDS}"
PAGE = "https://pages.example"
POSITION = {"Catalogue-Position": "4711"}
LISTS = ("/v1/movies", "/v1/movies?title=none&page=2", "/v1/movies?genres=drama", "/v1/genres")


@pytest.fixture
async def cached(start: Start) -> Client:
    """A client of a service whose lists caches may keep."""
    return await start(server__cache_seconds=SECONDS)


async def test_who_may_keep_a_list(cached: Client, execute: Execute) -> None:
    """Any cache; but only a client's own if it sent a token, of any scheme, or a position.

    A token must reach the service, and others need not have a list as new as the position. Lists
    that are empty or have suggestions, HEAD and 304 say the same.
    """
    token = {"Authorization": f"Bearer {add_client(execute, 'read')}"}
    for method, path in product(("GET", "HEAD"), LISTS):
        tag = {"If-None-Match": (await cached.get(path)).headers["ETag"]}
        others = [token, {"Authorization": "Basic eDp5"}, POSITION, POSITION | tag]
        for headers in ({}, tag, *others):
            response = await cached.request(method, path, headers=headers)

            keeper = "private" if headers in others else "public"
            assert response.status == (304 if tag.items() <= headers.items() else 200)
            assert response.headers.getall("Cache-Control") == [f"{keeper}, {LIFETIME}"]


async def test_if_all_clients_need_a_token_no_list_is_public(
    start: Start, execute: Execute
) -> None:
    """A shared cache keeps nothing, not even the 401."""
    client = await start(server__cache_seconds=SECONDS, access__anonymous="none")
    token = {"Authorization": f"Bearer {add_client(execute, 'read')}"}

    for path in LISTS:
        allowed = await client.get(path, headers=token)
        refused = await client.get(path)

        assert allowed.headers["Cache-Control"] == f"private, {LIFETIME}"
        assert (refused.status, refused.headers["Cache-Control"]) == (401, "no-store")


VARYING = [
    ("/v1/movies", (), "Accept, Accept-Encoding, Authorization, Catalogue-Position"),
    ("/v1/genres", (), "Accept-Encoding, Authorization, Catalogue-Position"),
    ("/v1/genres", (PAGE,), "Accept-Encoding, Authorization, Catalogue-Position, Origin"),
]


@pytest.mark.parametrize(("path", "origins", "names"), VARYING)
async def test_a_stored_list_is_not_for_another_token_position_or_origin(
    start: Start, path: str, origins: tuple[str, ...], names: str
) -> None:
    """`Vary` names them, also in a 304, and is one line: nginx 1.22 reads only the last one."""
    client = await start(server__cache_seconds=SECONDS, server__cors_origins=origins)
    tag = {"If-None-Match": (await client.get(path)).headers["ETag"]}

    for headers in ({}, tag, POSITION | {"Accept-Encoding": "gzip"}, {"Origin": PAGE}):
        for method in ("GET", "HEAD"):
            response = await client.request(method, path, headers=headers)

            assert response.headers.getall("Vary") == [names]


async def test_later_pages_of_all_movies_are_always_asked_for(cached: Client) -> None:
    """A copy that is made of them must be newer than the cursor of the first page."""
    for _ in range(2):
        await cached.post("/v1/movies", json=MOANA)
    kept = []
    for path in ("/v1/movies?page_size=1", "/v1/movies?page_size=1&genres=animation"):
        first = await cached.get(path)
        page = await first.json()
        assert ("Changes-Cursor" in first.headers) == ("genres" not in path)
        response = await cached.get(f"{path}&cursor={page['metadata']['next_cursor']}")
        kept.append(response.headers["Cache-Control"])

    assert kept == ["no-cache", f"public, {LIFETIME}"]


async def test_movies_by_id_are_always_asked_for(cached: Client) -> None:
    """One by one or several: a change with an entity tag that is out of date is a 412."""
    path = (await cached.post("/v1/movies", json=MOANA)).headers["Location"]

    for each in (path, "/v1/movies?id=1"):
        for headers in ({}, POSITION):
            response = await cached.get(each, headers=headers)
            assert response.headers["Cache-Control"] == "no-cache"
    assert (await cached.get("/v1/docs")).headers["Cache-Control"] == "no-cache"


async def test_errors_and_streams_are_not_kept(cached: Client) -> None:
    """A stream may have hundreds of MB; what failed may succeed a moment later."""
    responses = [
        await cached.get("/v1/movies?page=0"),
        await cached.get("/v1/genres?page=1"),
        await cached.get("/v1/movies/1"),
        await cached.get("/nowhere"),
        await cached.request("TRACE", "/v1/movies"),
        await cached.get("/v1/movies", headers={"If-None-Match": "x"}),
        await cached.get("/v1/movies", headers={"Accept": "text/csv"}),
        await cached.get("/v1/changes"),
    ]

    statuses = [422, 422, 404, 404, 405, 400, 200, 200]
    assert [response.status for response in responses] == statuses
    assert {response.headers["Cache-Control"] for response in responses} == {"no-store"}


async def test_by_default_caches_ask_each_time(client: Client) -> None:
    """Whatever the request has."""
    for path, varying in (
        ("/v1/movies", "Accept, Accept-Encoding"),
        ("/v1/genres", "Accept-Encoding"),
    ):
        for headers in ({}, POSITION, {"Authorization": "Basic eDp5"}):
            response = await client.get(path, headers=headers)

            assert response.headers["Cache-Control"] == "no-cache"
            assert response.headers["Vary"] == varying
