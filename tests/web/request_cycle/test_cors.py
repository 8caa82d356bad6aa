"""What pages of other origins may do: https://fetch.spec.whatwg.org/#http-cors-protocol."""

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
    """A client of a service that pages of two origins may use."""
    return await start(server__cors_origins=(PAGE, OTHER))


def protocol(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of CORS among these, in lower case."""
    return {
        name.lower(): value for name, value in headers.items() if name.lower().startswith(PREFIX)
    }


def listed(value: str) -> set[str]:
    """The members of a list in a header."""
    return set(value.split(", "))


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/movies", {"GET", "HEAD", "POST", "OPTIONS"}),
        ("/v1/movies/1", {"GET", "HEAD", "PATCH", "PUT", "DELETE", "OPTIONS"}),
        ("/v1/genres", {"GET", "HEAD", "OPTIONS"}),
        ("/", {"GET", "HEAD", "OPTIONS"}),
        ("/v1", {"GET", "HEAD", "OPTIONS"}),
        ("/v1/healthcheck", {"GET", "HEAD", "OPTIONS"}),
        ("/v1/healthcheck/ready", {"GET", "HEAD", "OPTIONS"}),
        ("/v1/openapi.json", {"GET", "HEAD", "OPTIONS"}),
        ("/v1/docs", {"GET", "HEAD", "OPTIONS"}),
        ("/v1/docs/reference.js", {"GET", "HEAD", "OPTIONS"}),
    ],
)
async def test_a_preflight_tells_what_the_path_takes(
    open_client: Client, path: str, methods: set[str]
) -> None:
    """Its methods, the headers that the API knows, and for how long that holds."""
    response = await open_client.options(
        path,
        headers={
            "Origin": OTHER,
            "Access-Control-Request-Method": "GET",
            "Access-Control-Request-Headers": "if-match",
        },
    )

    assert (response.status, await response.read()) == (204, b"")
    told = protocol(response.headers)
    assert told.pop("access-control-allow-origin") == OTHER
    assert listed(told.pop("access-control-allow-methods")) == methods
    assert listed(told.pop("access-control-allow-headers")) >= {
        "Content-Type",
        "Idempotency-Key",
        "If-Match",
        "If-None-Match",
        "X-Request-Id",
    }
    assert told.pop("access-control-max-age") == "7200"
    assert told == {}


async def test_the_table_above_has_every_path(open_client: Client) -> None:
    """A path more is one more preflight."""
    document = await (await open_client.get("/v1/openapi.json")).json()

    assert len(document["paths"]) == 10


async def test_a_page_may_read_what_the_api_answers_with(open_client: Client) -> None:
    """Success and error alike, with the headers that clients need."""
    responses = [
        await open_client.post("/v1/movies", json=MOANA, headers={"Origin": PAGE}),
        await open_client.get("/v1/movies", headers={"Origin": PAGE}),
        await open_client.get("/v1/movies/9", headers={"Origin": PAGE}),
        await open_client.post("/v1/movies", data="{", headers={"Origin": PAGE}),
        await open_client.get("/nowhere", headers={"Origin": PAGE}),
        await open_client.options("/v1/movies", headers={"Origin": PAGE}),  # no preflight
    ]

    for response in responses:
        told = protocol(response.headers)
        assert told.pop("access-control-allow-origin") == PAGE
        assert listed(told.pop("access-control-expose-headers")) >= {
            "ETag",
            "Idempotency-Replayed",
            "Link",
            "Location",
            "Retry-After",
            "X-Request-Id",
        }
        assert told == {}


@pytest.mark.parametrize("origin", [STRANGER, "null", "", f"{PAGE}.stranger.example", PAGE.upper()])
async def test_any_other_origin_is_answered_without_leave(open_client: Client, origin: str) -> None:
    """No header of the protocol, and no error either: its browser keeps it from the page."""
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    preflight = await open_client.options("/v1/movies", headers=asked)
    answer = await open_client.get("/v1/healthcheck", headers={"Origin": origin})

    assert (preflight.status, answer.status) == (204, 200)
    assert protocol(preflight.headers) == protocol(answer.headers) == {}


async def test_a_cache_keeps_answers_of_origins_apart(open_client: Client) -> None:
    """`Vary: Origin` on every answer, with an Origin or without, the parser's refusals included."""
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


async def test_a_request_that_fails_at_its_body_is_readable_too(open_client: Client) -> None:
    """What goes wrong below the handlers has the Origin's leave as well."""
    _, headers, _ = await exchange(
        open_client,
        b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nExpect: magic\r\nContent-Length: 2\r\n"
        b"Origin: " + PAGE.encode() + b"\r\n\r\n{}",
    )

    assert protocol(headers)["access-control-allow-origin"] == PAGE


async def test_every_origin_may_be_let_in(start: Start) -> None:
    """`*` in the settings is `*` in the answer."""
    client = await start(server__cors_origins=("*",))

    response = await client.get("/v1/healthcheck", headers={"Origin": STRANGER})

    assert protocol(response.headers)["access-control-allow-origin"] == "*"


async def test_without_origins_nothing_is_said(client: Client) -> None:
    """The default: pages of other origins get nothing, and caches need not look."""
    response = await client.get("/v1/healthcheck", headers={"Origin": PAGE})

    assert protocol(response.headers) == {}
    assert "Vary" not in response.headers
