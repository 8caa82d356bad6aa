"""Runs the examples of docs/clients.md unchanged, with and without a token and failures."""

import asyncio
import os
import re
import shutil
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from conftest import ROOT, Client, Start
from support import Execute, add_client, read_token_function

# The program that runs a script from stdin, by the language of its block.
RUNNERS = {
    "sh": ["sh", "-eu", "-s"],
    "python": [sys.executable, "-"],
    "js": ["node", "--input-type=module", "-"],
}
CREATE, CHANGE, WALK = range(3)
LANGUAGES = [
    pytest.param(
        language,
        marks=pytest.mark.skipif(not shutil.which(runner[0]), reason=f"there is no {runner[0]}"),
    )
    for language, runner in RUNNERS.items()
]


class Between:
    """A proxy in front of the service that can disturb the first request of a method."""

    def __init__(self, service: Client, token: str) -> None:
        self.token = token  # of the examples
        # Of the first requests of `refused`: status and Retry-After.
        self.refused = "POST"
        self.refusals: list[tuple[int, str]] = []
        self.forbidden = ""  # every GET of a URL with this text is a 403
        self.away_s = 0.0  # after the lost answer, nobody listens for this time
        self.lose_answer = ""  # of the first request of this method
        self.overtake = ""  # another client comes before the first request of this method
        self.seen: list[tuple[str, int]] = []  # method and status
        self._forwarded: set[str] = set()  # methods
        self._service = service
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.hand_on)
        self._runner = web.AppRunner(app)
        self._site: web.TCPSite
        self._restart: asyncio.Task[None]

    async def listen(self, port: int = 0) -> str:
        """Begin to listen, and return the URL."""
        self._site = web.TCPSite(self._runner, "127.0.0.1", port)
        await self._site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def restart(self) -> None:
        """Listen again after a while."""
        port = self._runner.addresses[0][1]
        await self._site.stop()
        await asyncio.sleep(self.away_s)
        await self.listen(port)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Yield the URL of the proxy."""
        await self._runner.setup()
        yield await self.listen()
        await self._runner.cleanup()

    async def hand_on(self, request: web.Request) -> web.StreamResponse:
        """Forward the request, and return its response."""
        if request.method == self.refused and self.refusals:
            status, seconds = self.refusals.pop(0)
            self.seen.append((request.method, status))
            return web.json_response({}, status=status, headers={"Retry-After": seconds})
        if request.method == "GET" and self.forbidden and self.forbidden in str(request.rel_url):
            return web.json_response({"detail": "forbidden"}, status=403)
        first = request.method not in self._forwarded
        self._forwarded.add(request.method)
        if first and request.method == self.overtake:
            other = {n: v for n, v in request.headers.items() if n == "Authorization"}
            await self._service.patch(request.path, json={"year": 1999}, headers=other)
        kept = {n: v for n, v in request.headers.items() if n not in ("Host", "Accept-Encoding")}
        answer = await self._service.request(
            request.method,
            request.rel_url,
            headers={**kept, "Accept-Encoding": "identity"},
            data=await request.read(),
        )
        body = await answer.read()
        self.seen.append((request.method, answer.status))
        if first and request.method == self.lose_answer:
            assert request.transport
            request.transport.abort()
            if self.away_s:
                self._restart = asyncio.create_task(self.restart())
        return web.Response(status=answer.status, headers=answer.headers, body=body)


@pytest.fixture(params=["write"])
async def between(request: pytest.FixtureRequest, start: Start, execute: Execute) -> Between:
    """Return a proxy in front of a service; with the parameter `none`, that requires a token."""
    service = await start(access__anonymous=request.param)
    return Between(service, add_client(execute, "write") if request.param == "none" else "")


@pytest.fixture
async def run(between: Between, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Run blocks of a language as one script, through the proxy, and return what it prints."""

    async def begin(language: str, *numbers: int, fails: bool = False) -> str:
        section = (ROOT / "docs/clients.md").read_text().split("## Examples")[1].split("\n## ")[0]
        blocks = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
        assert len(blocks) == 3
        script = "\n".join(blocks[number] for number in numbers)
        assert "http://127.0.0.1:8000" in script
        script = script.replace("http://127.0.0.1:8000", url)
        if between.token and language == "sh":
            script = read_token_function() + script
        process = await asyncio.create_subprocess_exec(
            *RUNNERS[language],
            cwd=tmp_path,
            env={**os.environ, "TOKEN": between.token},
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(script.encode()), 60)
        finally:
            if process.returncode is None:
                process.kill()
        assert (process.returncode != 0) == fails, err
        assert (err != b"") == fails, err
        return out.decode()

    async with between.listening() as url:
        yield begin


@pytest.mark.parametrize("between", ["none"], indirect=True)
@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_examples_create_and_walk(
    run: Callable[..., Any], between: Between, execute: Execute, language: str
) -> None:
    """Every movie of several pages comes once, in order, the new one last.

    The examples send a token, and repeat a page that is refused for a while.
    """
    between.refused, between.refusals = "GET", [(503, "1"), (429, "0")]
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select 'Part ' || n, 2000, 100, array['drama'] from generate_series(1, 250) n"
    )

    out = await run(language, CREATE, WALK)

    titles = re.findall(r"Part \d+|Moana", out)
    assert titles == [*(f"Part {n}" for n in range(1, 251)), "Moana"]
    assert [status for method, status in between.seen if method == "GET"] == [503, 429, *3 * [200]]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_examples_keep_changes_of_others(
    run: Callable[..., Any], between: Between, execute: Execute, language: str
) -> None:
    """If another client is faster, both changes are stored in the end."""
    between.overtake = "PATCH"

    await run(language, CREATE, CHANGE)

    assert [status for method, status in between.seen if method == "PATCH"] == [412, 200]
    assert execute("select year, genres from movies") == [(1999, ["animation", "family"])]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_examples_survive_a_restart(
    run: Callable[..., Any], between: Between, execute: Execute, language: str
) -> None:
    """They repeat the request as Retry-After says, and until the service listens again.

    The movie is created once, although the response got lost.
    """
    between.refusals = [(503, "1"), (429, "0"), (409, "0")]
    if language == "sh":
        between.refusals.pop()  # curl repeats no 409
    refused = [status for status, _ in between.refusals]
    between.lose_answer, between.away_s = "POST", 3.5  # s; the former examples waited at most 3
    started = time.monotonic()

    await run(language, CREATE)

    assert between.seen == [("POST", status) for status in (*refused, 201, 201)]
    assert time.monotonic() - started > 1 + between.away_s
    assert execute("select title from movies") == [("Moana",)]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_examples_change_nothing_that_they_could_not_read(
    run: Callable[..., Any], between: Between, execute: Execute, language: str
) -> None:
    """If the read fails, they fail, and send no change."""
    between.forbidden = "/v1/movies/"

    await run(language, CREATE, CHANGE, fails=True)

    assert between.seen == [("POST", 201)]
    assert execute("select genres from movies") == [(["animation"],)]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_examples_fail_if_a_walk_is_not_complete(
    run: Callable[..., Any], between: Between, execute: Execute, language: str
) -> None:
    """A page that fails is an error, not the end of the list."""
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select 'Part ' || n, 2000, 100, array['drama'] from generate_series(1, 150) n"
    )
    between.forbidden = "cursor="

    out = await run(language, CREATE, WALK, fails=True)

    assert len(re.findall(r"Part \d+", out)) == 100
