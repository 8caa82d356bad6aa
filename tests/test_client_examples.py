"""Runs the examples of docs/clients.md unchanged, with and without a token and failures."""

import asyncio
import os
import re
import shutil
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from conftest import ROOT, Client, Start
from pytest_aiohttp import AiohttpServer
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
        # Of the first requests of POST: status and Retry-After.
        self.refusals: list[tuple[int, str]] = []
        self.lose_answer = ""  # of the first request of this method
        self.overtake = ""  # another client comes before the first request of this method
        self.seen: list[tuple[str, int]] = []  # method and status
        self._service = service

    async def hand_on(self, request: web.Request) -> web.StreamResponse:
        """Forward the request, and return its response."""
        first = request.method not in dict(self.seen)
        if request.method == "POST" and self.refusals:
            status, seconds = self.refusals.pop(0)
            self.seen.append(("POST", status))
            return web.json_response({}, status=status, headers={"Retry-After": seconds})
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
        return web.Response(status=answer.status, headers=answer.headers, body=body)


@pytest.fixture
async def between(request: pytest.FixtureRequest, start: Start, execute: Execute) -> Between:
    """Return a proxy in front of a service; with the parameter `none`, that requires a token."""
    anonymous = getattr(request, "param", "write")
    service = await start(access__anonymous=anonymous)
    return Between(service, add_client(execute, "write") if anonymous == "none" else "")


@pytest.fixture
async def run(
    between: Between, aiohttp_server: AiohttpServer, tmp_path: Path
) -> Callable[..., Any]:
    """Run blocks of a language as one script, through the proxy, and return what it prints."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", between.hand_on)
    server = await aiohttp_server(app)

    async def begin(language: str, *numbers: int) -> str:
        section = (ROOT / "docs/clients.md").read_text().split("## Examples")[1].split("\n## ")[0]
        blocks = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
        assert len(blocks) == 3
        script = "\n".join(blocks[number] for number in numbers)
        assert "http://127.0.0.1:8000" in script
        script = script.replace("http://127.0.0.1:8000", str(server.make_url("")).rstrip("/"))
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
            out, err = await asyncio.wait_for(process.communicate(script.encode()), 20)
        finally:
            if process.returncode is None:
                process.kill()
        assert (process.returncode, err) == (0, b"")
        return out.decode()

    return begin


@pytest.mark.parametrize("between", ["write", "none"], indirect=True)
@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_examples_create_and_walk(
    run: Callable[..., Any], execute: Execute, language: str
) -> None:
    """Every movie of several pages comes once, in order, the new one last."""
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select 'Part ' || n, 2000, 100, array['drama'] from generate_series(1, 250) n"
    )

    out = await run(language, CREATE, WALK)

    titles = re.findall(r"Part \d+|Moana", out)
    assert titles == [*(f"Part {n}" for n in range(1, 251)), "Moana"]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_examples_create_once_if_the_response_is_lost(
    run: Callable[..., Any], between: Between, execute: Execute, language: str
) -> None:
    """The second attempt gets the response of the first one."""
    between.lose_answer = "POST"

    await run(language, CREATE)

    assert between.seen == [("POST", 201), ("POST", 201)]
    assert execute("select title from movies") == [("Moana",)]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_examples_retry_a_refused_request(
    run: Callable[..., Any], between: Between, language: str
) -> None:
    """They repeat the request after the time in Retry-After."""
    between.refusals = [(503, "1"), (429, "0"), (409, "0")]
    if language == "sh":
        between.refusals.pop()  # curl repeats no 409
    refused = [status for status, _ in between.refusals]
    started = time.monotonic()

    await run(language, CREATE)

    assert between.seen == [("POST", status) for status in (*refused, 201)]
    assert time.monotonic() - started > 1


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_examples_keep_changes_of_others(
    run: Callable[..., Any], between: Between, execute: Execute, language: str
) -> None:
    """If another client is faster, both changes are stored in the end."""
    between.overtake = "PATCH"

    await run(language, CREATE, CHANGE)

    assert [status for method, status in between.seen if method == "PATCH"] == [412, 200]
    assert execute("select year, genres from movies") == [(1999, ["animation", "family"])]
