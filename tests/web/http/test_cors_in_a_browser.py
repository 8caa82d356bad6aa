"""Tests pages of another origin in a real browser, because the browser decides."""

import json

import pytest
from aiohttp import web
from chromium import Page
from conftest import MOANA, Client, Start
from pytest_aiohttp import AiohttpServer

# Each request has a preflight, and reads headers that must be exposed.
SCRIPT = """(async () => {
  const send = async (path, options, header = "X-Request-Id") => {
    const answer = await fetch("BASE" + path, options);
    return [answer.status, (await answer.json()).title, answer.headers.get(header)];
  };
  const headers = {"Content-Type": "application/json", "X-Request-Id": "mine", "If-Match": "*",
    "If-None-Match": '"a"', "Idempotency-Key": "1"};
  return [
    await send("/v1/movies/1", {method: "PATCH", headers, body: '{"year": 2999}'}),
    await send("/v1/movies/1", {method: "PUT", headers, body: "{"}),
    await send("/v1/movies/1", {headers: {Authorization: "Bearer x"}}, "WWW-Authenticate"),
    await send("/nowhere", {headers: {"X-Request-Id": "mine"}}).catch((error) => String(error)),
  ];
})()"""


@pytest.fixture
async def elsewhere(aiohttp_server: AiohttpServer) -> str:
    """Return the origin of other pages."""

    async def show(_: web.Request) -> web.Response:
        return web.Response(text="<!doctype html>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", show)
    return str((await aiohttp_server(app)).make_url("/").origin())


async def ask(page: Page, elsewhere: str, client: Client) -> object:
    """Return the part of the service's responses that a page elsewhere sees."""
    await client.post("/v1/movies", json=MOANA)
    await page.show(elsewhere, width=800, height=600)
    return await page.evaluate(SCRIPT.replace("BASE", str(client.make_url("")).rstrip("/")))


async def test_an_allowed_page_reads_every_response(
    page: Page, elsewhere: str, start: Start
) -> None:
    """Also errors and the request id. The preflight of an unknown path fails."""
    for allowed in (elsewhere, "*"):
        seen = await ask(page, elsewhere, await start(server__cors_origins=(allowed,)))
        assert seen == [
            [422, "Validation failed", "mine"],
            [400, "Malformed request body", "mine"],
            [401, "Unauthorized", 'Bearer realm="movie catalogue", error="invalid_token"'],
            "TypeError: Failed to fetch",
        ]


async def test_any_other_page_changes_nothing(page: Page, elsewhere: str, client: Client) -> None:
    """Not even with a request that has no preflight."""
    await page.show(elsewhere, width=800, height=600)
    url, body = client.make_url("/v1/movies"), json.dumps(MOANA)

    await page.evaluate(f"fetch('{url}', {{method: 'POST', mode: 'no-cors', body: '{body}'}})")

    assert (await (await client.get("/v1/movies")).json())["movies"] == []
