"""Runs the clients to copy as the guides use them, through a proxy that disturbs them."""

import asyncio
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from ast import literal_eval
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from conftest import MOANA, ROOT, Client, Start
from processes import free_port, get
from support import SERVICE, Environment, Execute, add_client, wait_until

from service.movies.movie import ENTITY_TAG

# The program that runs a script, by the language of its block.
RUNNERS = {"python": [sys.executable, "-c"], "js": ["node", "--input-type=module", "--eval"]}
CONNECT = "The client to copy"
CREATE, CHANGE = "Create a movie once", "Change a movie, and retry a PATCH"
BATCH, WALK = "Create many movies", "Get the next page"
SYNC, CORRECT, UNDO = "A nightly sync", "Bulk corrections", "Undo a correction"
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
# Sends each line of the input, a request, and prints `done`, `lost` or the status of the problem.
SEND = {
    "python": """
import json, sys
from movies import LOST, Problem
for line in sys.stdin:
    method, path, body, headers = json.loads(line)
    try:
        catalogue.send(method, path, json=body, headers=headers)
        print("done", flush=True)
    except Problem as problem:
        print(problem.status, flush=True)
    except LOST:
        print("lost", flush=True)
""",
    "js": """
import { createInterface } from "node:readline";
import { Lost, Problem } from "./movies.mjs";
const name = (error) => {
  if (error instanceof Problem) return String(error.status);
  if (error instanceof Lost) return "lost";
  throw error;
};
for await (const line of createInterface({ input: process.stdin })) {
  const [method, path, body, headers] = JSON.parse(line);
  console.log(await catalogue.send(method, path, { body, headers }).then(() => "done", name));
}
""",
}
# Prints the statuses of a correction, whose entries have these `FIELDS` and the year.
CORRECT_ALL = {
    "python": """
changes = [{n: movie[n] for n in FIELDS} | {"year": 1999} for movie in catalogue.movies()]
for result in catalogue.send_batch("PATCH", "/v1/movies/batch", changes):
    print(result["status"])
""",
    "js": """
const changes = [];
for await (const movie of catalogue.movies()) {
  changes.push({ ...Object.fromEntries(FIELDS.map((n) => [n, movie[n]])), year: 1999 });
}
const results = await catalogue.sendBatch("PATCH", "/v1/movies/batch", changes);
for (const { status } of results) console.log(status);
""",
}
# Syncs the rows of each line of the input, and prints the report: of each conflict, the years.
SYNC_STEPS = {
    "python": """
import json, sys
for line in sys.stdin:
    rows, options = json.loads(line)
    report = catalogue.sync(rows, "a:", "memory.db", **options)
    years = [(movie or {}, entry) for entry, movie in report["conflicts"]]
    years = [" ".join(json.dumps(each.get("year")) for each in pair) for pair in years]
    print(json.dumps([report, years]), flush=True)
""",
    "js": """
import { createInterface } from "node:readline";
let text = "[]";
for await (const line of createInterface({ input: process.stdin })) {
  const [rows, { dry_run: dryRun, overwrite }] = JSON.parse(line);
  const options = { memory: new Map(JSON.parse(text)), dryRun, overwrite };
  const report = await catalogue.sync(rows, "a:", {
    ...options, save: (now) => { text = JSON.stringify([...now]); },
  });
  const name = (thing) => thing?.year ?? null;
  const years = report.conflicts.map(({ entry, movie }) => `${name(movie)} ${name(entry)}`);
  console.log(JSON.stringify([report, years]));
}
""",
}
NUMBERS = ("created", "changed", "equal", "deleted")
# Prints how many rows are equal, and how many movies are conflicts.
COUNT = {
    "python": """
report = catalogue.sync(rows, "shop:")
print({"equal": report["equal"], "conflicts": len(report["conflicts"])})
""",
    "js": """
const { equal, conflicts } = await catalogue.sync(rows, "shop:");
console.log(JSON.stringify({ equal, conflicts: conflicts.length }));
""",
}
# Syncs 600 movies of this year, and prints its conflicts.
SYNC_MANY = """
import json
row = {"title": "Part", "year": YEAR, "runtime": "100 mins", "genres": ["a"]}
rows = (row | {"external_id": f"a:{n}"} for n in range(600))
report = catalogue.sync(rows, "a:", "memory.db")
print(json.dumps(sorted(entry["external_id"] for entry, _ in report["conflicts"])))
"""
# Changes a movie twice, deletes one, changes and deletes one, creates one, and creates and deletes
# one.
WRITE_ALL = """
movie = {"title": "New", "year": 2000, "runtime": "100 mins", "genres": ["a"]}
for year in (1991, 1992):
    catalogue.change(1, lambda now: {"year": year})
catalogue.change(3, lambda now: {"title": "Other", "external_id": None})
catalogue.create(movie)
for movie_id in (2, 3, catalogue.create(movie)["id"]):
    catalogue.send("DELETE", f"/v1/movies/{movie_id}")
"""
PLAN_UNDO = """
from datetime import UTC, datetime, timedelta
now = datetime.now(UTC)
print(catalogue.undo("corrections", now - timedelta(hours=1), now, dry_run=True))
"""
SYNC_NOTHING = {
    "python": """
import json
report = catalogue.sync([], prefix="shop:", overwrite=True)
print(json.dumps([report, [entry["id"] for entry, _ in report["refused"]]]))
""",
    "js": """
const report = await catalogue.sync([], "shop:", { overwrite: true });
console.log(JSON.stringify([report, report.refused.map(({ entry }) => entry.id)]));
""",
}
SYNC_ALL = {
    "python": """
for prefix in ("", None, ("",), 7):
    try:
        catalogue.sync([{"title": "Own", "external_id": "7"}], prefix=prefix)
    except (TypeError, ValueError):
        print("refused")
""",
    "js": """
for (const prefix of ["", null, undefined, [""]]) {
  await catalogue.sync([{ title: "Own", external_id: "7" }], prefix).catch(({ name }) => {
    if (name === "RangeError") console.log("refused");
  });
}
""",
}
FIND = {
    "python": """
for filters in ({"id": "2,1,9"}, {"external_id": "a:2,a:1"}, {"id": 1}):
    print(*(movie["id"] for movie in catalogue.movies(**filters)))
print(*(movie["id"] for movie in catalogue.movies(external_id=["a:1", "a:2"])))
""",
    "js": """
for (const filters of [
  { id: "2,1,9" }, { external_id: "a:2,a:1" }, { id: 1 }, { external_id: ["a:1", "a:2"] },
]) {
  const ids = [];
  for await (const { id } of catalogue.movies(filters)) ids.push(id);
  console.log(...ids);
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
        self.weakens_tags = False  # as a proxy that compresses does it
        self.moved_to = ""  # all requests are redirected to this URL
        self.authorizations: list[str | None] = []  # of all requests
        self.lose_answer = ""  # half of it, of the first request of this method
        self.cuts_head = False  # of that answer, before any header
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

    def lose(self, method: str) -> None:
        """Lose half of the response of the next request of this method."""
        self.lose_answer = method
        self._forwarded.clear()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Yield the URL of the proxy."""
        await self._runner.setup()
        yield await self.listen()
        await self._runner.cleanup()

    async def break_off(
        self, request: web.Request, status: int, headers: Any, body: bytes
    ) -> web.StreamResponse:
        """Send a part of the response, and close the connection."""
        half = web.StreamResponse(status=status, headers=headers)
        half.content_length = len(body) or 1
        assert request.transport
        if self.cuts_head:
            request.transport.write(b"HTTP/1.1 200 OK\r\nCon")
            request.transport.close()
            return half
        if body:  # otherwise it is of HEAD, and nothing of it arrives
            await half.prepare(request)
            await half.write(body[: len(body) // 2])
        request.transport.abort()
        if self.away_s:
            self._restart = asyncio.create_task(self.restart())
        return half

    async def hand_on(self, request: web.Request) -> web.StreamResponse:
        """Forward the request, and return its response."""
        self.authorizations.append(request.headers.get("Authorization"))
        if self.moved_to:
            raise web.HTTPFound(f"{self.moved_to}{request.path}")
        if request.method == self.refused and self.refusals:
            status, seconds = self.refusals.pop(0)
            self.seen.append((request.method, status))
            self.refused_at.append(time.monotonic())
            later = {"Retry-After": seconds} if seconds else {}
            return web.json_response({}, status=status, headers=later)
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
        headers = answer.headers.copy()
        headers.popall("Transfer-Encoding", None)
        if self.weakens_tags and "ETag" in headers:
            headers["ETag"] = f"W/{headers['ETag']}"
        self.seen.append((request.method, answer.status))
        if self.refuses_entry and answer.status == 207:
            self.refuses_entry = False
            content = json.loads(body)
            content["results"][0] = {"status": 503, "problem": {"status": 503}}
            return web.json_response(content, status=207, headers={"Retry-After": "1"})
        if first and request.method == self.lose_answer:
            return await self.break_off(request, answer.status, headers, body)
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
async def begin(between: Between, language: str, tmp_path: Path) -> AsyncIterator[Begin]:
    """Start a script with the examples of these sections, through the proxy."""
    netrc = tmp_path / "netrc"  # of another program
    netrc.write_text("default login somebody password secret")
    for name in ("movies.py", "movies.mjs"):
        shutil.copy(ROOT / "clients" / name, tmp_path)
    processes: list[Process] = []

    async def start_script(*headings: str, more: str = "") -> Process:
        blocks = [read_block(language, heading) for heading in (CONNECT, *headings)]
        process = await asyncio.create_subprocess_exec(
            *RUNNERS[language],
            "\n".join([*blocks, more]),
            cwd=tmp_path,
            env={
                **os.environ,
                "API": url,
                "TOKEN": between.token,
                "NETRC": str(netrc),
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

    async def finish(*headings: str, more: str = "", fails: bool = False) -> str:
        process = await begin(*headings, more=more)
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


@pytest.mark.parametrize("cuts_head", [False, True])
async def test_clients_repeat_a_change_whose_response_got_lost(
    run: Run, between: Between, execute: Execute, *, cuts_head: bool
) -> None:
    """The change is made once: the service finds that the repeat changes nothing."""
    between.cuts_head = cuts_head
    between.lose_answer = "PATCH"

    await run(CREATE, CHANGE)

    assert [status for method, status in between.seen if method == "PATCH"] == [200, 200]
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


async def test_clients_bring_a_source(run: Run, between: Between, execute: Execute) -> None:
    """Again and again, also if a response gets lost; they change no movie of other sources."""
    between.lose_answer = "POST"
    execute(
        "insert into movies (title, year, runtime, genres, external_id)"
        " select 'Old', 2000, 100, '{a}', e from unnest('{shop,other:1,null}'::text[]) e"
    )
    movies = "select external_id, title, version from movies order by external_id"

    reports = [read_report(await run(SYNC)) for _ in range(2)]

    assert [(each["created"], each["equal"]) for each in reports] == [(1, 0), (0, 1)]
    assert between.seen[:3] == [("GET", 200), ("POST", 207), ("POST", 207)]
    assert between.seen[3:] == []  # the memory is in a file
    assert execute(movies) == [
        ("other:1", "Old", 1),
        ("shop", "Old", 1),
        ("shop:1", "Brave", 1),
        (None, "Old", 1),
    ]


def read_report(out: str) -> dict[str, Any]:
    """Return a report that a script has printed."""
    return dict(json.loads(out.replace("'", '"')))


async def test_a_sync_undoes_nothing_that_others_did(
    begin: Begin, between: Between, execute: Execute, language: str
) -> None:
    """What both have changed is reported until they agree, or until the source is to win."""
    process = await begin(more=SYNC_STEPS[language])

    async def sync(rows: dict[str, int], **options: bool) -> tuple[dict[str, int], set[str]]:
        """Sync movies of these years; return the numbers, and the conflicts with what is there."""
        sent = [{**MOANA, "year": year, "external_id": f"a:{n}"} for n, year in rows.items()]
        process.stdin.write(f"{json.dumps([sent, options])}\n".encode())
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line, await process.stderr.read()
        report, conflicts = json.loads(line)
        assert report["refused"] == []
        return {n: report[n] for n in NUMBERS if report[n]}, {*conflicts}

    def read_years() -> dict[str, int]:
        return dict(execute("select right(external_id, 1), year from movies"))

    changes = "select count(*) from movie_changes"
    first = dict.fromkeys("abcdefg", 2000)
    assert await sync(first) == ({"created": 7}, set())
    execute(
        "update movies set year = 1990 where external_id in ('a:b', 'a:c', 'a:f');"
        "delete from movies where external_id in ('a:d', 'a:e')"
    )
    left = {"b": 1990, "c": 1990, "f": 1990}

    # Others have changed b and c, deleted d and e, and changed f, which the source drops, as it
    # does g; it has changed a, c and e.
    second = {"a": 2001, "b": 2000, "c": 2001, "d": 2000, "e": 2001}
    expected = {"changed": 1, "equal": 2, "deleted": 1}, {"1990 2001", "1990 null", "null 2001"}
    before = execute(changes)
    assert await sync(second, dry_run=True) == expected
    assert execute(changes) == before
    between.lose("POST")  # the deletion
    assert await sync(second) == expected
    assert read_years() == {"a": 2001, **left}
    before = execute(changes)
    assert await sync(second) == ({"equal": 3}, expected[1])  # until they agree
    assert execute(changes) == before
    execute("update movies set year = 2001 where external_id = 'a:c'")
    assert await sync(second) == ({"equal": 4}, {"1990 null", "null 2001"})

    assert await sync(second, overwrite=True) == (
        {"created": 2, "changed": 1, "equal": 2, "deleted": 1},
        set(),
    )
    assert read_years() == second


async def test_a_sync_takes_over_only_what_is_equal(
    run: Run, execute: Execute, language: str
) -> None:
    """Without its memory, nobody knows whether others have changed a movie since."""
    execute(
        "insert into movies (title, year, runtime, genres, external_id)"
        " select 'Brave', year, 93, '{family}', external_id"
        " from (values (2012, 'shop:1'), (2011, 'shop:2')) as m (year, external_id)"
    )
    before = execute("select * from movies order by id")

    report = read_report((await run(SYNC, more=COUNT[language])).splitlines()[-1])

    assert report == {"equal": 1, "conflicts": 1}
    assert execute("select * from movies order by id") == before


@pytest.mark.parametrize("language", LANGUAGES[:1], indirect=True)
async def test_a_sync_that_is_killed_loses_nothing(
    begin: Begin, between: Between, execute: Execute
) -> None:
    """Wherever: the next one goes on, and keeps what others have changed and deleted meanwhile."""
    for number, method in enumerate(["POST", "POST", "PUT", "PUT"]):
        process = await begin(more=SYNC_MANY.replace("YEAR", "2001" if method == "PUT" else "2000"))
        between.seen.clear()
        while [sent for sent, _ in between.seen].count(method) < 2:  # one has been stored
            assert process.returncode is None
            await asyncio.sleep(0.002)
        process.kill()
        await process.wait()
        execute("update movies set year = 1990 where external_id = %s", f"a:{number}")
        execute("delete from movies where external_id = %s", f"a:{number + 50}")

    process = await begin(more=SYNC_MANY.replace("YEAR", "2001"))
    out, err = await asyncio.wait_for(process.communicate(), 90)

    # The source has changed since the first two.
    assert json.loads(out) == ["a:0", "a:1", "a:50", "a:51"], err
    others = {f"a:{n}": 1990 for n in range(4)}
    kept = {f"a:{n}": 2001 for n in range(4, 600) if n not in range(50, 54)}
    assert dict(execute("select external_id, year from movies")) == others | kept
    assert execute("select max(version) from movies where year = 2001") == [(2,)]


@pytest.mark.parametrize("language", LANGUAGES[:1], indirect=True)
@pytest.mark.parametrize("between", ["none"], indirect=True)
async def test_a_correction_is_undone(run: Run, between: Between, execute: Execute) -> None:
    """It takes its list from the feed, and keeps what others have changed or deleted since."""
    execute(f"{PARTS}; update clients set name = 'corrections'")
    await run(CORRECT)
    execute("update movies set year = 1990 where id = 7; delete from movies where id = 8")
    corrected = execute("select id, year, genres from movies order by id")

    plan = literal_eval(await run(more=PLAN_UNDO))
    assert execute("select id, year, genres from movies order by id") == corrected
    between.seen.clear()
    between.lose("POST")
    execute("update movie_changes set changed_at = '2026-01-05 09:05Z'")  # as in the guides
    report = literal_eval(await run(UNDO))

    assert (plan["changed"], report["changed"] + report["equal"]) == (248, 248)
    assert report["equal"] in (98, 99, 100)  # of the batch that was sent again
    for each in (plan, report):
        assert sorted(entry["id"] for entry, _ in each["conflicts"]) == [7, 8]
    assert between.seen.count(("POST", 207)) == 4
    assert execute("select genres, year, count(*) from movies group by 1, 2 order by 3") == [
        (["beginnings"], 1990, 1),
        (["first steps"], 2000, 248),
    ]


@pytest.mark.parametrize("language", LANGUAGES[:1], indirect=True)
@pytest.mark.parametrize("between", ["none"], indirect=True)
async def test_everything_of_a_client_is_undone(
    run: Run, between: Between, execute: Execute
) -> None:
    """Creations and deletions, too; but not where others came in between.

    After a lost response, a second attempt undoes the rest.
    """
    execute(f"{TEN} limit 5; update clients set name = 'corrections'")
    movies = "select id, title, year, external_id from movies where id <> 4 order by id"
    before = execute(movies)
    for year in (1991, 1993):
        await run(more=f"catalogue.change(4, lambda now: {{'year': {year}}})")
        execute("update movies set title = 'Edited' where id = 4")
    await run(more=WRITE_ALL)
    assert execute(movies) != before
    execute("update movie_changes set changed_at = '2026-01-05 09:05Z'")  # as in the guides
    between.lose("POST")

    await run(UNDO, fails=True)
    report = literal_eval(await run(UNDO))

    assert execute(movies) == before
    assert (report["refused"], [entry["id"] for entry, _ in report["conflicts"]]) == ([], [4])
    assert execute("select title, year from movies where id = 4") == [("Edited", 1993)]


@pytest.mark.parametrize("language", LANGUAGES[:1], indirect=True)
@pytest.mark.parametrize("between", ["none"], indirect=True)
async def test_clients_show_the_history_of_a_movie(run: Run, execute: Execute) -> None:
    """All pages of it, the newest change first, also when it is deleted."""
    execute(
        f"{TEN} limit 1; do $$ begin for n in 1..250 loop update movies set runtime = n; end loop;"
        " end $$; delete from movies"
    )

    out = await run(more="print([(c['kind'], c['version']) for c in catalogue.history(1)])")

    assert literal_eval(out) == [
        ("deleted", 251),
        *(("updated", n) for n in range(251, 1, -1)),
        ("created", 1),
    ]


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


Attempt = Callable[..., Awaitable[str]]


@pytest.fixture
async def attempt(begin: Begin, language: str) -> Attempt:
    """Send a request with the client: `done`, `lost`, or the status of the problem."""
    process = await begin(more=SEND[language])

    async def send(
        method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> str:
        process.stdin.write(f"{json.dumps([method, path, body, headers or {}])}\n".encode())
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line, await process.stderr.read()
        return str(line.decode().strip())

    return send


TEN = (
    "insert into movies (title, year, runtime, genres, external_id)"
    " select 'Part ' || n, 2000, 100, '{a}', 'a:' || n from generate_series(1, 10) n"
)
MANY = "/v1/movies/batch"
DELETIONS, RESTORES = f"{MANY}/delete", f"{MANY}/restore"
KEY, ANY = {"Idempotency-Key": "k"}, {"If-Match": "*"}
REPEATED: list[tuple[str, str, Any, dict[str, str], str]] = [
    # And what the client gets if the response of the first attempt was lost, or was a 503.
    ("GET", "/v1/movies/1", None, {}, "done done"),
    ("HEAD", "/v1/movies/1", None, {}, "done done"),
    ("DELETE", "/v1/movies/2", None, {}, "done done"),
    ("DELETE", "/v1/movies/3", None, {"If-Match": "TAG 3"}, "done done"),
    ("PATCH", "/v1/movies/4", {"year": 2001}, {"If-Match": "TAG 4"}, "done done"),
    ("PUT", "/v1/movies/4", MOANA, {"if-match": "TAG 4"}, "done done"),
    ("POST", "/v1/movies", MOANA, KEY, "done done"),
    ("POST", MANY, {"movies": [MOANA]}, {"idempotency-key": "k"}, "done done"),
    ("PUT", MANY, {"movies": [MOANA | {"external_id": "b"}]}, {}, "done done"),
    ("PATCH", MANY, {"movies": [{"id": 5, "etag": "TAG 5", "year": 2001}]}, {}, "done done"),
    ("POST", DELETIONS, {"movies": [{"id": 6, "etag": "TAG 6"}]}, {}, "404 done"),
    (
        *("POST", RESTORES, {"movies": [{"id": 5, "version": 1, "etag": "TAG 5"}]}, {}),
        "done done",
    ),
]
NOT_REPEATED: list[tuple[str, str, Any, dict[str, str]]] = [
    ("POST", "/v1/movies", MOANA, {}),
    ("POST", "/v1/movies", MOANA, {"If-Match": "TAG 7"}),
    ("PATCH", "/v1/movies/7", {"year": 2001}, {}),
    ("PATCH", "/v1/movies/7", {"year": 2002}, KEY),
    ("PATCH", "/v1/movies/7", {"year": 2003}, ANY),
    ("PUT", "/v1/movies/7", MOANA, {}),
    ("POST", MANY, {"movies": [MOANA, MOANA]}, {}),
    ("PATCH", MANY, {"movies": [{"id": 8, "etag": "TAG 8", "year": 2001}, {"id": 9}]}, {}),
    ("PATCH", MANY, {"movies": [{"id": 8, "year": 2002}]}, ANY),
    ("POST", DELETIONS, {"movies": [{"id": 10}]}, KEY),
    ("POST", "/v1/movies/10/restore", None, {}),
    ("POST", RESTORES, {"movies": [{"id": 10}]}, {}),
]


def add_tags(thing: Any, execute: Execute) -> Any:
    """Replace each `TAG id` by the tag of the movie as it is now."""
    text = json.dumps(thing)
    for movie_id in re.findall(r"TAG (\d+)", text):
        ((version,),) = execute("select version from movies where id = %s", movie_id)
        tag = ENTITY_TAG % (int(movie_id), version)
        text = text.replace(f'"TAG {movie_id}"', json.dumps(tag))
    return json.loads(text)


@pytest.mark.parametrize("fault", ["lost", "503"])
async def test_clients_send_again_what_is_safe(
    attempt: Attempt, between: Between, execute: Execute, fault: str
) -> None:
    """After a lost response or a 503, reads, deletions, and what the service carries out once.

    A deletion that finds nothing the second time has done its work.
    """
    execute(TEN)
    for *request, outcomes in REPEATED:
        method, path, body, headers = add_tags(request, execute)
        between.seen.clear()
        if fault == "lost":
            between.lose(method)
        else:
            between.refused, between.refusals = method, [(503, "0")]

        outcome = await attempt(method, path, body, headers)

        assert outcome == outcomes.split()[fault == "503"], request
        assert len(between.seen) == 2, request


@pytest.mark.parametrize("fault", ["lost", "503"])
async def test_clients_send_nothing_else_again(
    attempt: Attempt, between: Between, execute: Execute, fault: str
) -> None:
    """It may have been carried out: the program has to look."""
    execute(TEN)
    for request in NOT_REPEATED:
        method, path, body, headers = add_tags(request, execute)
        between.seen.clear()
        if fault == "lost":
            between.lose(method)
        else:
            between.refused, between.refusals = method, [(503, "0")]

        assert await attempt(method, path, body, headers) == fault, request
        assert len(between.seen) == 1, request


async def test_clients_know_which_problems_pass(
    attempt: Attempt, between: Between, execute: Execute
) -> None:
    """A 429 was not carried out, and a proxy's 502 or 504 of a read changed nothing.

    A 409 without Retry-After stays, as does the 404 of a deletion that was never lost.
    """
    execute(TEN)
    for method, status, seconds, outcome in (
        ("POST", 429, "0", "done"),
        ("POST", 409, "0", "done"),
        ("POST", 409, "", "409"),
        ("GET", 502, "", "done"),
        ("GET", 504, "", "done"),
        ("POST", 502, "0", "502"),
        ("DELETE", 504, "", "504"),
        ("GET", 500, "0", "500"),
        ("DELETE", 404, "", "404"),
    ):
        between.refused, between.refusals = method, [(status, seconds)]
        path = "/v1/movies" if method == "POST" else "/v1/movies/1"
        assert await attempt(method, path, MOANA if method == "POST" else None) == outcome
    between.refused, between.refusals = "DELETE", [(429, "0")]
    assert await attempt("DELETE", "/v1/movies/99") == "404"
    assert await attempt("POST", "/v1/movies/1/restore") == "409"
    assert await attempt("HEAD", "/v1/movies/99") == "404"


@pytest.mark.parametrize("between", ["none", "write"], indirect=True)
async def test_clients_send_only_their_token_and_only_there(
    between: Between,
    attempt: Attempt,
    start: Start,
) -> None:
    """No password of ~/.netrc, also without a token; and a redirect is a problem.

    Another host would get the request, and the service a GET in place of a POST.
    """
    other = Between(await start(), "")
    await attempt("GET", "/v1/movies")
    async with other.listening() as url:
        between.moved_to = url.replace("127.0.0.1", "localhost")
        outcomes = [await attempt(method, "/v1/movies") for method in ("GET", "POST", "DELETE")]

    assert outcomes == ["302"] * 3
    assert between.authorizations == [f"Bearer {between.token}" if between.token else None] * 4
    assert other.authorizations == []


@pytest.mark.parametrize("fields", [["id"], ["id", "etag"]])
async def test_clients_keep_what_a_batch_has_done(
    run: Run, between: Between, execute: Execute, language: str, fields: list[str]
) -> None:
    """They send it again for an entry with a 503, if that is safe: if each entry has its `etag`.

    The entry with the 503 was carried out, and its repeat is a 200.
    """
    execute(f"{TEN} limit 2")
    between.refuses_entry = True

    out = await run(more=CORRECT_ALL[language].replace("FIELDS", json.dumps(fields)))

    assert out.split() == ["200" if "etag" in fields else "503", "200"]
    assert execute("select version from movies") == [(2,), (2,)]


async def test_clients_change_a_movie_behind_a_proxy_that_weakens_its_tag(
    run: Run, between: Between
) -> None:
    """A proxy that compresses does so; the `etag` of the body stays."""
    between.weakens_tags = True

    await run(CREATE, CHANGE)

    assert [status for method, status in between.seen if method == "PATCH"] == [200]


async def test_clients_end_a_change_that_never_succeeds(run: Run, between: Between) -> None:
    """Also if each attempt is a 412."""
    between.refused, between.refusals = "PATCH", [(412, "")] * 99

    await run(CREATE, CHANGE, fails=True)

    assert len(between.refusals) > 0


async def test_clients_sync_only_with_a_prefix(run: Run, between: Between, language: str) -> None:
    """Without one, they would delete what never came from the source."""
    out = await run(more=SYNC_ALL[language])

    assert out.split() == ["refused"] * 4
    assert between.seen == []


async def test_clients_report_refused_deletions(
    run: Run, between: Between, execute: Execute, language: str
) -> None:
    """What is deleted counts as deleted, also if the response got lost."""
    execute(
        "insert into movies (title, year, runtime, genres, external_id)"
        " select title, 2000, 100, '{a}', 'shop:' || title from unnest('{Lent,Old}'::text[]) title;"
        "create table loans (movie_id bigint references movies);"
        "insert into loans select id from movies where title = 'Lent'"
    )
    between.lose("POST")

    report, refused = json.loads(await run(more=SYNC_NOTHING[language]))

    assert (report["deleted"], refused) == (1, [1])
    assert between.seen[-2:] == [("POST", 207)] * 2
    assert execute("select title from movies") == [("Lent",)]


async def test_clients_find_movies_by_their_ids(run: Run, execute: Execute, language: str) -> None:
    """These lists have one page, and no page size."""
    execute(f"{TEN} limit 2")

    out = await run(more=FIND[language])

    assert out.splitlines() == ["2 1", "2 1", "1", "1 2"]


@pytest.mark.parametrize("language", LANGUAGES[1:], indirect=True)
async def test_javascript_reports_mistakes_at_once(run: Run, between: Between) -> None:
    """A TypeError of the program is no lost connection."""
    out = await run(
        more="""
        const other = (api, token) => new Catalogue(api, token);
        const circle = {};
        circle.circle = circle;
        for (const use of [
          () => other("127.0.0.1:1").send("GET", "/v1/movies"),
          () => other("localhost:1").send("GET", "/v1/movies"),
          () => other().send("GET", "/v1/movies"),
          () => catalogue.send("A B", "/v1/movies"),
          () => catalogue.send("GET", "/v1/movies", { headers: { "a b": "c" } }),
          () => catalogue.send("GET", "/v1/movies", { body: {} }),
          () => catalogue.send("PUT", "/v1/movies/batch", { body: circle }),
          () => catalogue.send("GET", "/v1/movies", { read: () => null.text }),
        ]) await use().catch((error) => console.log(error.name));
        """
    )

    assert out.split() == ["TypeError"] * 8
    assert between.seen == [("GET", 200)]


@pytest.mark.parametrize("language", LANGUAGES[1:], indirect=True)
async def test_javascript_ends_with_its_signal(run: Run, between: Between) -> None:
    """While it waits for a response, and between two attempts; of one request, or of all."""
    between.refused, between.refusals = "GET", [(503, "60")] * 2
    started = time.monotonic()

    out = await run(
        more="""
        const show = (error) => console.log(error.name);
        const begin = () => {
          const controller = new AbortController();
          setTimeout(() => controller.abort(), 300);
          return controller.signal;
        };
        await catalogue.send("GET", "/v1/movies", { signal: begin() }).catch(show);
        await new Catalogue(process.env.API, "", begin()).movies().next().catch(show);
        const path = "/v1/changes?wait=4";
        await catalogue.send("GET", path, { signal: begin() }).catch(show);
        await catalogue.send("GET", path, { signal: AbortSignal.abort() }).catch(show);
        """
    )

    assert out.split() == ["AbortError"] * 4
    assert time.monotonic() - started < 20


PROGRAM = str(ROOT / "clients/movies.py")
WRITES = 40  # between two faults
INSERT = "insert into movies (title, year, runtime, genres) select 'x', 2000, n, '{x}' from "
STATEMENTS = [
    f"{INSERT} generate_series(1, 1 + (random() * 3)::integer) as n",
    "update movies set runtime = runtime + 1 where id % 7 = (random() * 7)::integer % 7",
    "update movies set year = 2000 where id % 5 = 1",  # often without effect
    "delete from movies where id % 11 = (random() * 11)::integer % 11",
]


class Program:
    """A process that is started again after it was killed."""

    def __init__(self, command: list[str], folder: Path, environment: Environment) -> None:
        self.run = partial(
            subprocess.Popen, command, cwd=folder, env=environment, stdout=subprocess.DEVNULL
        )
        self.process = self.run()

    def kill(self) -> None:
        """Kill it with -9, and start it again."""
        self.stop()
        self.process = self.run()

    def stop(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()


def read_copy(folder: Path) -> list[object]:
    """Return the movies of the copy, by id."""
    with closing(sqlite3.connect(folder / "copy.db")) as copy:
        rows = copy.execute("select movie from movies order by id").fetchall()
    return [json.loads(movie) for (movie,) in rows]


def read_catalogue(base: str) -> list[object]:
    """Return all movies, by id."""
    accept = {"Accept": "application/x-ndjson"}
    request = urllib.request.Request(f"{base}/v1/movies?sort=id", headers=accept)  # noqa: S310 - ours
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - ours
        movies = [json.loads(line) for line in response.read().splitlines()]
        assert len(movies) == int(response.headers["Total-Records"])
        return movies


class CutOff(BaseHTTPRequestHandler):
    """Sends a list that lacks its last movie, and ends as if it were whole."""

    def do_GET(self) -> None:
        """200, and one of two movies."""
        self.send_response(200)
        self.send_header("Total-Records", "2")
        self.send_header("Changes-Cursor", "x")
        self.end_headers()
        self.wfile.write(b'{"id": 1}\n')


def test_a_copy_is_not_made_of_a_list_that_lacks_movies(
    tmp_path: Path, environment: Environment
) -> None:
    """The program counts them: not every proxy tells its client that a list broke off."""
    with HTTPServer(("127.0.0.1", 0), CutOff) as server, ExitStack() as stack:
        threading.Thread(target=server.serve_forever).start()
        stack.callback(server.shutdown)
        copied = environment | {"API": f"http://127.0.0.1:{server.server_port}"}
        command = [sys.executable, "-u", PROGRAM]
        copy = stack.enter_context(
            subprocess.Popen(command, cwd=tmp_path, env=copied, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(copy.kill)

        said = copy.stdout.readline()  # type: ignore[union-attr] # it is a pipe

    assert said == "the list broke off after 1 movies\n"
    assert read_copy(tmp_path) == []


class Refusing(BaseHTTPRequestHandler):
    """Is away for two requests, and then takes the token no more."""

    statuses = iter((503, 503, 401))

    def do_GET(self) -> None:
        """An empty response."""
        self.send_response(next(self.statuses))
        self.end_headers()


def test_a_copy_waits_for_the_service_and_ends_if_it_is_refused(
    tmp_path: Path, environment: Environment
) -> None:
    """However long the service is away: here, the client repeats no request by itself."""
    source = re.sub("(?m)^PAUSES_S = .*", "PAUSES_S = ()", Path(PROGRAM).read_text())
    with HTTPServer(("127.0.0.1", 0), Refusing) as server, ExitStack() as stack:
        threading.Thread(target=server.serve_forever).start()
        stack.callback(server.shutdown)
        copied = environment | {"API": f"http://127.0.0.1:{server.server_port}"}
        command = [sys.executable, "-u", "-c", source]
        ended = subprocess.run(
            command,
            check=False,
            cwd=tmp_path,
            env=copied,
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert re.findall("^[0-9]+", ended.stdout, re.MULTILINE) == ["503", "503"]
    assert "Problem: 401" in ended.stderr
    assert ended.returncode == 1


def test_a_copy_is_exact_after_kills(
    tmp_path: Path, environment: Environment, execute: Execute
) -> None:
    """Of the service and of the program, while movies are changed."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        served = environment | {"PORT": str(port), "LOG_LEVEL": "error"}
        service = Program([*SERVICE, "serve"], ROOT, served)
        stack.callback(service.stop)
        copy = Program([sys.executable, PROGRAM], tmp_path, environment | {"API": base})
        stack.callback(copy.stop)
        for fault in random.sample([service.kill, copy.kill, copy.kill], k=3):
            wait_until(lambda: get(f"{base}/v1/healthcheck/ready") == 200)
            for _ in range(WRITES):
                execute(random.choice(STATEMENTS))  # noqa: S311 - no secret
                time.sleep(random.random() * 0.1)  # noqa: S311 - no secret
            fault()
        wait_until(lambda: get(f"{base}/v1/healthcheck/ready") == 200)

        expected = read_catalogue(base)
        wait_until(lambda: read_copy(tmp_path) == expected)

    assert len(expected) > 0
