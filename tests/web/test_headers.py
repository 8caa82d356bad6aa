"""Tests the headers of every response."""

from collections.abc import Mapping

from conftest import MOANA, Client, Start
from wire import exchange

POLICY = "default-src 'none'; frame-ancestors 'none'"


async def answers(client: Client) -> list[Mapping[str, str]]:
    """Return the headers of a success, of errors, and of an error of the parser."""
    responses = [
        await client.get("/v1/healthcheck"),
        await client.post("/v1/movies", json=MOANA),
        await client.get("/v1/movies"),
        await client.get("/v1/movies/1"),
        await client.head("/v1/movies/1"),
        await client.post("/v1/movies", data=b"{"),
        await client.get("/v1/movies?page=0"),
        await client.get("/nowhere"),
        await client.put("/v1/movies"),
        await client.options("/v1/movies"),
    ]
    for response in responses[2], responses[3]:
        tag = {"If-None-Match": response.headers["ETag"]}
        responses.append(await client.get(response.url.path, headers=tag))
        assert responses[-1].status == 304
    sent = [
        b"NONSENSE\r\n\r\n",
        b"GET /v1/movies/1 HTTP/1.0\r\n\r\n",
        b"GET /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET /nowhere HTTP/1.1\r\nHost: a\r\nExpect: magic\r\n\r\n",
    ]
    others = [(await exchange(client, each))[1] for each in sent]
    return [*(response.headers for response in responses), *others]


async def test_every_response_is_safe_in_a_browser(client: Client) -> None:
    """No sniffing, scripts, frames or referrers; the software's name is hidden.

    Each has a request id of its own.
    """
    sent = await answers(client)
    assert len({headers["X-Request-Id"] for headers in sent}) == len(sent)
    for headers in sent:
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Security-Policy"] == POLICY
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Server"] == "movie-catalogue"
        assert headers["Cache-Control"]
        assert "Strict-Transport-Security" not in headers
        assert "Set-Cookie" not in headers


async def test_hsts_is_sent_where_it_is_configured(start: Start) -> None:
    """Every response has it, with the configured seconds."""
    client = await start(server__hsts=31536000)

    for headers in await answers(client):
        assert headers["Strict-Transport-Security"] == "max-age=31536000"
