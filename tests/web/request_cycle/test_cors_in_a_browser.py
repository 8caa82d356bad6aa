"""Pages of another origin in a real browser, which is who decides."""

from collections.abc import AsyncIterator

import chromium
import pytest
from aiohttp import web
from chromium import Page
from conftest import MOANA, Client, Start
from pytest_aiohttp import AiohttpServer

pytestmark = pytest.mark.skipif(
    not chromium.EXECUTABLE, reason="needs Chromium (apt-get install chromium)"
)

# Each asks first, and reads what is shown to a page only if it is exposed.
SCRIPT = """(async () => {
  const send = async (path, options) => {
    const answer = await fetch("BASE" + path, options);
    return [answer.status, (await answer.json()).title, answer.headers.get("X-Request-Id")];
  };
  const headers = {"Content-Type": "application/json", "X-Request-Id": "mine", "If-Match": "*",
    "If-None-Match": '"a"', "Idempotency-Key": "1"};
  return [
    await send("/v1/movies/1", {method: "PATCH", headers, body: '{"year": 2999}'}),
    await send("/v1/movies/1", {method: "PUT", headers, body: "{"}),
    await send("/nowhere", {headers: {"X-Request-Id": "mine"}}).catch((error) => String(error)),
  ];
})()"""


@pytest.fixture
async def elsewhere(aiohttp_server: AiohttpServer) -> str:
    """The origin of somebody else's pages."""

    async def show(_: web.Request) -> web.Response:
        return web.Response(text="<!doctype html>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", show)
    return str((await aiohttp_server(app)).make_url("/").origin())


@pytest.fixture
async def page(elsewhere: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    """One of them, in a browser."""
    with chromium.running(tmp_path_factory.mktemp("profile")) as address:
        async with chromium.opened(address) as opened:
            await opened.show(elsewhere, width=800, height=600)
            yield opened


async def ask(page: Page, client: Client) -> object:
    """What the page gets to see of the service's answers."""
    await client.post("/v1/movies", json=MOANA)
    return await page.evaluate(SCRIPT.replace("BASE", str(client.make_url("")).rstrip("/")))


async def test_a_page_that_is_let_in_reads_every_answer(
    page: Page, elsewhere: str, start: Start
) -> None:
    """Errors and the request id too. Where no path is, no preflight holds."""
    seen = await ask(page, await start(server__cors_origins=(elsewhere,)))

    assert seen == [
        [422, "Validation failed", "mine"],
        [400, "Malformed request body", "mine"],
        "TypeError: Failed to fetch",
    ]


async def test_any_other_page_sees_nothing(page: Page, start: Start) -> None:
    """Not even that the service is there."""
    client = await start(server__cors_origins=("https://pages.example",))

    with pytest.raises(AssertionError, match="Failed to fetch"):
        await ask(page, client)
