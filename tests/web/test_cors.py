"""Tests CORS: https://fetch.spec.whatwg.org/#http-cors-protocol."""

from collections.abc import Mapping

import pytest
from conftest import MOANA, Client, Start
from wire import exchange

PAGE = "https://pages.example"
OTHER = "http://localhost:3000"
STRANGER = "https://stranger.example"
PREFIX = "access-control-"


@pytest.fixture
async def open_client(start: Start) -> Client:
    """Return a client of a service that allows two origins."""
    return await start(server__cors_origins=(PAGE, OTHER))


def protocol(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the CORS headers, with names in lower case."""
    return {
        name.lower(): value for name, value in headers.items() if name.lower().startswith(PREFIX)
    }


def listed(value: str) -> set[str]:
    """Return the members of a list in a header."""
    return set(value.split(", "))


READ = {"GET", "HEAD", "OPTIONS"}


async def test_a_preflight_lists_the_methods_of_the_path(open_client: Client) -> None:
    """It also lists the headers of the API, and the time that it may be cached."""
    headers = {
        "Origin": OTHER,
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "if-match",
    }
    document = await (await open_client.get("/v1/openapi.json")).json()
    assert document["paths"]

    for path, operations in document["paths"].items():
        url = path.format(id="1", file="reference.js")
        response = await open_client.options(url, headers=headers)
        assert (response.status, await response.read()) == (204, b"")
        told = protocol(response.headers)
        assert told.pop("access-control-allow-origin") == OTHER
        methods = {"OPTIONS", *map(str.upper, operations)}
        methods |= {"HEAD"} if "GET" in methods else set()
        assert listed(told.pop("access-control-allow-methods")) == methods
        # tests/web/test_reference.py has the headers of the document.
        told_headers = listed(told.pop("access-control-allow-headers"))
        assert told_headers >= {"Authorization", "Content-Type"}
        assert told.pop("access-control-max-age") == "7200"
        assert told == {}


async def test_a_page_may_read_every_response(open_client: Client) -> None:
    """Success and errors, with the headers that clients need."""
    responses = [
        await open_client.post("/v1/movies", json=MOANA, headers={"Origin": PAGE}),
        await open_client.get("/v1/movies", headers={"Origin": PAGE}),
        await open_client.get("/v1/movies/9", headers={"Origin": PAGE}),
        await open_client.post("/v1/movies", data="{", headers={"Origin": PAGE}),
        await open_client.get("/nowhere", headers={"Origin": PAGE}),
        await open_client.options("/v1/movies", headers={"Origin": PAGE}),  # no preflight
        await open_client.get("/v1/movies", headers={"Origin": PAGE, "Authorization": "Bearer x"}),
        await open_client.post("/v1/movies", json={}, headers={"Origin": PAGE, "Expect": "magic"}),
    ]
    assert [response.status for response in responses[-2:]] == [401, 417]

    for response in responses:
        told = protocol(response.headers)
        assert told.pop("access-control-allow-origin") == PAGE
        assert told.pop("access-control-expose-headers")
        assert told == {}


FROM_OTHERS = [("cross-site", STRANGER), ("same-site", STRANGER), ("cross-site", "null"), ("x", "")]
FROM_ALLOWED = [("cross-site", PAGE), ("same-site", OTHER), ("same-origin", STRANGER), ("none", "")]


async def test_pages_of_other_origins_change_nothing(open_client: Client) -> None:
    """A browser sends text/plain without a preflight, with headers that no page can forge."""
    for site, origin in FROM_OTHERS + FROM_ALLOWED:
        headers = {"Sec-Fetch-Site": site, **({"Origin": origin} if origin else {})}
        for method in ("POST", "PUT", "PATCH", "DELETE", *READ):
            path = "/v1/movies" if method == "POST" else "/v1/movies/1"
            response = await open_client.request(method, path, headers=headers)

            is_refused = method not in READ and (site, origin) in FROM_OTHERS
            assert (response.status == 403) == is_refused, (site, origin, method)
            if is_refused:
                assert (await response.json())["type"] == "/v1/docs#origin-not-allowed"


async def test_every_origin_may_change_movies_if_all_are_allowed(start: Start) -> None:
    """`*` includes pages whose origin browsers do not tell."""
    client = await start(server__cors_origins=("*",))

    headers = {"Sec-Fetch-Site": "cross-site", "Origin": "null"}
    response = await client.post("/v1/movies", json=MOANA, headers=headers)

    assert response.status == 201
    assert protocol(response.headers)["access-control-allow-origin"] == "*"


async def test_other_origins_get_no_permission(open_client: Client) -> None:
    """They get no CORS header and no error; the browser hides the response from the page."""
    for origin in (STRANGER, "null", "", f"{PAGE}.stranger.example", PAGE.upper()):
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        preflight = await open_client.options("/v1/movies", headers=asked)
        response = await open_client.get("/v1/healthcheck", headers={"Origin": origin})
        assert (preflight.status, response.status) == (204, 200)
        assert protocol(preflight.headers) == protocol(response.headers) == {}, origin


async def test_caches_separate_responses_by_origin(open_client: Client) -> None:
    """`Vary: Origin` is in every response, also without an Origin and from the parser.

    A list varies by Accept-Encoding, too.
    """
    responses = [
        await open_client.get("/v1/movies/9"),
        await open_client.get("/v1/movies", headers={"Origin": PAGE}),
        await open_client.get("/v1/movies", headers={"Origin": STRANGER}),
        await open_client.options("/v1/movies"),
        await open_client.get("/nowhere"),
    ]
    _, refused, _ = await exchange(open_client, b"NONSENSE\r\n\r\n")

    assert refused["Vary"] == "Origin"
    for response in responses:
        assert "Origin" in listed(", ".join(response.headers.getall("Vary")))
    assert responses[1].headers["Vary"] == "Accept, Accept-Encoding, Origin"


async def test_without_origins_there_are_no_headers(client: Client) -> None:
    """This is the default: no CORS headers and no `Vary: Origin`."""
    response = await client.get("/v1/healthcheck", headers={"Origin": PAGE})

    assert protocol(response.headers) == {}
    assert "Vary" not in response.headers
