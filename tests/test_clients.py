"""Runs the clients to copy as the guides use them, through a proxy that disturbs them."""

import asyncio
import json
import os
import re
import shutil
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from conftest import ROOT, Client, Start
from support import Execute, add_client

# The program that runs a script, by the language of its block.
RUNNERS = {"python": [sys.executable, "-c"], "js": ["node", "--input-type=module", "--eval"]}
CONNECT = "The client to copy"
CREATE, CHANGE = "Create a movie once", "Change a movie, and retry a PATCH"
BATCH, WALK = "Create many movies", "Get the next page"
SYNC, CORRECT = "A nightly sync", "Bulk corrections"
# A copy in memory, which is updated and printed after each line of the input.
COPY = {
    "python": """
import json, requests, sqlite3, sys
from movies import copy_all, follow
db = sqlite3.connect(":memory:")
db.execute("create table movies (id integer primary key, movie text)")
cursor = None
for _ in sys.stdin:
    try:
        cursor = follow(catalogue, db, cursor) if cursor else copy_all(catalogue, db)
    except requests.RequestException:
        cursor = copy_all(catalogue, db)
    movies = [json.loads(text) for (text,) in db.execute("select movie from movies")]
    print(json.dumps(movies), flush=True)
""",
    "js": """
import { createInterface } from "node:readline";
const copy = new Copy();
for await (const _ of createInterface({ input: process.stdin })) {
  await copy.update(catalogue);
  console.log(JSON.stringify([...copy.movies.values()]));
}
""",
}
LANGUAGES = [
    pytest.param(
        language,
        marks=pytest.mark.skipif(not shutil.which(runner[0]), reason=f"there is no {runner[0]}"),
    )
    for language, runner in RUNNERS.items()
]
PARTS = (
    "insert into movies (title, year, runtime, genres)"
    " select 'Part ' || n, 2000, 100, array['first steps'] from generate_series(1, 250) n"
)

Run = Callable[..., Awaitable[str]]  # the sections whose examples it runs
Begin = Callable[..., Awaitable[Any]]  # the same; returns the process


class Between:
    """A proxy in front of the service that can disturb the first request of a method."""

    def __init__(self, service: Client, token: str) -> None:
        self.token = token  # of the examples
        # Of the first requests of `refused`: status and Retry-After.
        self.refused = "POST"
        self.refusals: list[tuple[int, str]] = []
        self.refused_at: list[float] = []
        self.refuses_entry = False  # the first entry of the first batch, with a 503
        self.forbidden = ""  # every GET of a URL with this text is a 403
        self.away_s = 0.0  # after the lost answer, nobody listens for this time
        self.lose_answer = ""  # half of it, of the first request of this method
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
            self.refused_at.append(time.monotonic())
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
        headers = {n: v for n, v in answer.headers.items() if n != "Transfer-Encoding"}
        self.seen.append((request.method, answer.status))
        if self.refuses_entry and answer.status == 207:
            self.refuses_entry = False
            content = json.loads(body)
            content["results"][0] = {"status": 503, "problem": {"status": 503}}
            return web.json_response(content, status=207, headers={"Retry-After": "1"})
        if first and request.method == self.lose_answer:
            half = web.StreamResponse(status=answer.status, headers=headers)
            half.content_length = len(body)
            await half.prepare(request)
            await half.write(body[: len(body) // 2])
            assert request.transport
            request.transport.abort()
            if self.away_s:
                self._restart = asyncio.create_task(self.restart())
            return half
        return web.Response(status=answer.status, headers=headers, body=body)


@pytest.fixture(params=["write"])
async def between(request: pytest.FixtureRequest, start: Start, execute: Execute) -> Between:
    """Return a proxy in front of a service; with the parameter `none`, that requires a token."""
    service = await start(access__anonymous=request.param)
    return Between(service, add_client(execute, "write") if request.param == "none" else "")


def read_block(language: str, heading: str) -> str:
    """Return the example of a language in a section of the guides."""
    guides = (ROOT / "docs/clients/guides.md").read_text()
    (section,) = re.findall(rf"^##+ {heading}\n(.*?)(?=^#|\Z)", guides, re.DOTALL | re.MULTILINE)
    (block,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return str(block)


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    """Each language of the clients."""
    return str(request.param)


@pytest.fixture
async def begin(between: Between, language: str) -> AsyncIterator[Begin]:
    """Start a script with the examples of these sections, through the proxy."""
    processes: list[Process] = []

    async def start_script(*headings: str, more: str = "") -> Process:
        blocks = [read_block(language, heading) for heading in (CONNECT, *headings)]
        process = await asyncio.create_subprocess_exec(
            *RUNNERS[language],
            "\n".join([*blocks, more]),
            cwd=ROOT / "clients",
            env={
                **os.environ,
                "API": url,
                "TOKEN": between.token,
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONUTF8": "1",
            },
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=2**20,  # bytes of a line, which may have all movies
        )
        processes.append(process)
        return process

    async with between.listening() as url:
        yield start_script
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.fixture
def run(begin: Begin) -> Run:
    """Run a script to its end, and return what it prints."""

    async def finish(*headings: str, fails: bool = False) -> str:
        process = await begin(*headings)
        out, err = await asyncio.wait_for(process.communicate(), 90)
        assert (process.returncode != 0) == fails, err
        assert (err != b"") == fails, err
        return str(out.decode())

    return finish


@pytest.mark.parametrize("between", ["none"], indirect=True)
async def test_clients_walk_through_a_list(run: Run, between: Between, execute: Execute) -> None:
    """Every movie of several pages comes once, in order.

    The clients send a token, and repeat a page that is refused or gets lost.
    """
    between.refused, between.refusals = "GET", [(503, "1"), (429, "0")]
    between.lose_answer = "GET"
    execute(PARTS)

    out = await run(WALK)

    assert re.findall(r"Part (\d+)", out) == [str(n) for n in range(250, 0, -1)]
    assert between.seen == [("GET", status) for status in (503, 429, 200, 200, 200, 200)]


async def test_clients_keep_changes_of_others(run: Run, between: Between, execute: Execute) -> None:
    """If another client is faster, both changes are stored in the end."""
    between.overtake = "PATCH"

    await run(CREATE, CHANGE)

    assert [status for method, status in between.seen if method == "PATCH"] == [412, 200]
    ((year, genres),) = execute("select year, genres from movies")
    assert (year, sorted(genres)) == (1999, ["family", "first steps"])


async def test_clients_pause_before_they_decide_again(run: Run, between: Between) -> None:
    """Or clients that change the same movie would keep each other, and the service, busy."""
    between.refused, between.refusals = "PATCH", [(412, "0")] * 13

    await run(CREATE, CHANGE)

    # 12 random pauses of up to 0.25 s: some 1.5 s, and less than 0.4 s once in a million runs.
    assert between.refused_at[-1] - between.refused_at[0] > 0.4


async def test_clients_repeat_a_change_whose_response_got_lost(
    run: Run, between: Between, execute: Execute
) -> None:
    """The change is made once: the 412 is from their own change, and then nothing is left to do."""
    between.lose_answer = "PATCH"

    await run(CREATE, CHANGE)

    assert [status for method, status in between.seen if method == "PATCH"] == [200, 412, 200]
    assert execute("select version from movies") == [(2,)]


async def test_clients_survive_a_restart(run: Run, between: Between, execute: Execute) -> None:
    """They repeat the request as Retry-After says, and until the service listens again.

    The movie is created once, although the response got lost.
    """
    between.refusals = [(503, "1"), (429, "0"), (409, "0")]
    between.lose_answer, between.away_s = "POST", 3.5  # s: longer than the first pauses
    started = time.monotonic()

    await run(CREATE)

    assert between.seen == [("POST", status) for status in (503, 429, 409, 201, 201)]
    assert time.monotonic() - started > 1 + between.away_s
    assert execute("select title from movies") == [("Moana",)]


async def test_clients_create_each_movie_of_a_batch_once(
    run: Run, between: Between, execute: Execute
) -> None:
    """They send it again if its response got lost, and show what is wrong with a movie."""
    between.lose_answer = "POST"

    out = await run(BATCH)

    assert re.findall(r"^\d+", out, re.MULTILINE) == ["201", "422"]
    assert "must be 1888 or later" in out
    assert between.seen == [("POST", 207), ("POST", 207)]
    assert execute("select title from movies") == [("Brave",)]


async def test_clients_make_the_catalogue_equal_to_a_source(
    run: Run, between: Between, execute: Execute
) -> None:
    """Again and again, also if a response gets lost; movies of other sources stay."""
    between.lose_answer = "PUT"
    execute(
        "insert into movies (title, year, runtime, genres, external_id)"
        " select 'Old', 2000, 100, '{a}', e from unnest('{shop:1,shop:3,other:1,null}'::text[]) e"
    )
    movies = "select external_id, title, version from movies order by external_id"
    same = [("other:1", "Old", 1), ("shop:1", "Brave", 2), ("shop:2", "Cars", 1), (None, "Old", 1)]

    await run(SYNC)
    first, changes = execute(movies), execute("select count(*) from movie_changes")
    out = await run(SYNC)

    assert first == execute(movies) == same
    assert json.loads(out.replace("'", '"')) == {
        "created": 0,
        "kept": 2,
        "deleted": 0,
        "refused": [],
    }
    assert execute("select count(*) from movie_changes") == changes


async def test_clients_correct_many_movies(run: Run, between: Between, execute: Execute) -> None:
    """A hundred in a request."""
    execute(PARTS)

    await run(CORRECT)

    assert execute("select count(*) from movies where genres <> '{beginnings}'") == [(0,)]
    assert [method for method, _ in between.seen].count("PATCH") == 3


async def test_clients_repeat_a_batch_with_an_entry_that_may_succeed_later(
    run: Run, between: Between, execute: Execute
) -> None:
    """As they repeat the creation of one movie; what was created is not created again."""
    between.refuses_entry = True
    started = time.monotonic()

    out = await run(BATCH)

    assert re.findall(r"^\d+", out, re.MULTILINE) == ["201", "422"]
    assert between.seen == [("POST", 207), ("POST", 207)]
    assert time.monotonic() - started > 1
    assert execute("select title from movies") == [("Brave",)]


@pytest.mark.parametrize("language", LANGUAGES[1:], indirect=True)
async def test_javascript_refuses_ids_that_it_would_round(begin: Begin, execute: Execute) -> None:
    """Read or sent: otherwise another movie would be meant."""
    execute(
        "insert into movies (id, title, year, runtime, genres) overriding system value"
        " values (9007199254740993, 'a', 2000, 1, '{x}')"
    )
    more = """
    for (const use of [
      () => catalogue.movies().next(), () => catalogue.change(9007199254740993, () => ({})),
      () => new Copy().update(catalogue), () => catalogue.movies({ id: 9007199254740993 }).next(),
      () => catalogue.send("GET", "/v1/movies?id=9007199254740995"),
      () => catalogue.change("7", () => ({})),
    ]) await use().then(() => console.log("not refused"), (error) => console.log(error.name));
    """

    out, err = await (await begin(more=more)).communicate()

    assert out.split() == [b"RangeError"] * 6, err


async def test_clients_change_nothing_that_they_could_not_read(
    run: Run, between: Between, execute: Execute
) -> None:
    """If the read fails, they fail, and send no change."""
    between.forbidden = "/v1/movies/"

    await run(CREATE, CHANGE, fails=True)

    assert between.seen == [("POST", 201)]
    assert execute("select genres from movies") == [(["first steps"],)]


async def test_clients_fail_if_a_walk_is_not_complete(
    run: Run, between: Between, execute: Execute
) -> None:
    """A page that fails is an error, not the end of the list."""
    execute(PARTS)
    between.forbidden = "cursor="

    out = await run(WALK, fails=True)

    assert len(re.findall(r"Part \d+", out)) == 100


async def test_clients_keep_a_copy_in_step(
    begin: Begin, between: Between, execute: Execute, language: str
) -> None:
    """They copy all movies anew if the list breaks off, or if the feed lacks changes after it."""
    between.lose_answer = "GET"
    execute(PARTS)
    process = await begin(more=COPY[language])

    async def update() -> dict[int, str]:
        process.stdin.write(b"\n")
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line, await process.stderr.read()
        return {movie["id"]: movie["title"] for movie in json.loads(line)}

    def read_titles() -> dict[int, str]:
        return dict(execute("select id, title from movies"))

    copied = await update()
    assert copied == read_titles()
    execute("update movies set title = 'x' where id = 1; delete from movies where id = 2")
    while copied != read_titles():  # at first, it may get changes that it already has
        copied = await update()
    execute("delete from movies where id = 3; update movie_feed set id = default")
    assert await update() == read_titles()
    assert between.seen[:2] == [("GET", 200)] * 2
    assert between.seen[-2:] == [("GET", 410), ("GET", 200)]
