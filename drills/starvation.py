"""Clients that take more than their share; others must not notice."""

import asyncio
import json
import multiprocessing
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from urllib.parse import urlsplit

from drills.client import Connection, NoResponse, NotConnected
from drills.lab import FILL, MOVIES, Checks, Lab, drill
from drills.load import (
    Load,
    Sent,
    list_problems,
    percentile,
    summarize,
    wait_for_status,
    wait_until,
)
from drills.processes import count_connections, read_memory_mb
from drills.service import Service

MANY_MOVIES = 500_000
HEAD_TIMEOUT_S = 15
# A control character takes six bytes of JSON; the largest title and genres.
LARGEST = """
insert into movies (title, year, runtime, genres)
select repeat(chr(1), 500), 2000, 90,
  array(select repeat(chr(1), 98) || genre from generate_series(10, 14) as genre)
from generate_series(1, 200)
"""
# Prefixes of words that all movies have: the slowest lists of this catalogue, about 0.25 s each.
EXPENSIVE = (
    "/v1/movies?title=re*+nu*&genres=war&sort=title&page_size=100",
    "/v1/movies?title=re*+nu*+of*+th*&sort=-runtime&page_size=100&page=10",
    "/v1/movies?title=re*+nu*+of*&year=1900..2010&genres=war&sort=year&page_size=100",
    "/v1/movies?title=re*+nu*+th*+gr*&genres=war&sort=-title&page_size=100",
)


@asynccontextmanager
async def flooding(  # noqa: PLR0913 - the command line of `drills.flood`
    lab: Lab,
    service: Service,
    clients: str,
    seconds: float,
    paths: tuple[str, ...],
    *,
    method: str = "GET",
    body: object = None,
) -> AsyncIterator[dict[str, int]]:
    """Run `drills.flood` beside the block; at its end, the statuses are in the dictionary."""
    command = [sys.executable, "-m", "drills.flood", service.url, clients, str(seconds)]
    output = lab.new_folder("flood").with_suffix(".json")
    with output.open("wb") as file:
        process = lab.processes.start(
            [*command, method, json.dumps(body), *paths], output=file, folder=lab.tree
        )
    statuses: dict[str, int] = {}
    yield statuses
    await asyncio.to_thread(process.wait)
    statuses.update(json.loads(output.read_text()))


def add_largest_movies(lab: Lab, database: str) -> None:
    """Add movies whose JSON is as long as possible; they are the newest ones."""
    lab.postgres.execute(database, LARGEST)
    lab.postgres.execute(database, "analyze movies")


def _times(sent: list[Sent]) -> list[float]:
    return [each.seconds for each in sent]


@drill(
    "50 connections each request the largest page 20 times (100 movies, their texts as long as"
    " possible) and read nothing. Others read by id.",
    "The service's memory stays below 300 MB; reads by id take at most 50 ms longer; the"
    " connections are closed after send_timeout.",
)
async def unread_pages(lab: Lab, checks: Checks) -> None:
    """B1."""
    database = lab.database()
    add_largest_movies(lab, database)
    service = await lab.serve(lab.postgres.url(database), settings={"server_send_timeout": 8})
    loop = asyncio.get_running_loop()
    path = "/v1/movies?sort=-id&page_size=100"
    first = Connection(service.url)
    page = await first.request("GET", path)
    first.close()
    checks.note(f"page of {len(page.body) / 2**20:.2f} MB")
    memory = read_memory_mb(service.pid)
    most = memory
    async with Load(service.url, MOVIES, readers=2, writers=0, pause_s=0.01).running() as load:
        await asyncio.sleep(3)
        began = loop.time()
        crowd = [_open_socket(service.url, receive_bytes=4096) for _ in range(50)]
        request = f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode() * 20
        for each in crowd:
            each.send(request)
        while loop.time() < began + 5:
            most = max(most, read_memory_mb(service.pid))
            await asyncio.sleep(0.05)
        ended = loop.time()
    quiet = percentile(_times(load.select("read", 0, began)), 95)
    busy = percentile(_times(load.select("read", began, ended)), 95)
    checks.require(most < 300, f"memory {memory:.0f} MB before, at most {most:.0f} MB")
    checks.require(
        busy - quiet <= 0.05,
        f"p95 of reads by id {quiet * 1000:.0f} ms before, {busy * 1000:.0f} ms during it",
    )
    checks.require(not list_problems(load.sent), f"reads: {summarize(load.sent)}")
    # The connections end, although their clients stay.
    await wait_until(lambda: not count_connections(service.port), 15)
    left = count_connections(service.port)
    checks.require(not left, f"{left} of 50 connections left after send_timeout")
    for each in crowd:
        each.close()
    await service.stop()


def _open_socket(url: str, receive_bytes: int = 0) -> socket.socket:
    parts = urlsplit(url)
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(30)
    client.connect((parts.hostname, parts.port))
    return client


@drill(
    "One client sends 200 bodies of 1 MB, `[{},{},...`, one after the other without waiting for"
    " responses (it connects again when the service ends its connection).",
    "Reads of others take at most 0.3 s.",
)
async def crowded_bodies(lab: Lab, checks: Checks) -> None:
    """B2."""
    service = await lab.serve(lab.postgres.url(lab.database()))
    body = b"[" + b"{}," * 349_000 + b"{}]"
    head = f"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    # A process of its own: it must not slow down those that are measured.
    sender = multiprocessing.get_context("spawn").Process(
        target=send_bodies, args=(service.url, head + body, 200), daemon=True
    )
    async with Load(service.url, MOVIES, readers=2, writers=0, pause_s=0.01).running() as load:
        await asyncio.sleep(1)
        sender.start()
        await asyncio.to_thread(sender.join)
        await asyncio.sleep(0.5)
    slowest = max(sent.seconds for sent in load.sent)
    failed = list_problems(load.sent)
    checks.require(not failed and slowest <= 0.3, f"reads: {summarize(load.sent)}")
    checks.note(f"p95 {percentile(_times(load.sent), 95) * 1000:.0f} ms")
    await service.stop()


def send_bodies(url: str, request: bytes, number: int) -> None:
    """Send the requests; read what comes, in between, so that the service can go on."""
    client = _open_socket(url)
    for _ in range(number):
        try:
            client.sendall(request)
            client.settimeout(0)
            with suppress(BlockingIOError):
                while client.recv(65_536):
                    pass
                raise ConnectionResetError
            client.settimeout(30)
        except OSError:
            client.close()
            client = _open_socket(url)
    client.close()


@drill(
    f"60 clients send the most expensive lists of {MANY_MOVIES:,} movies for 12 s, from another"
    " process. Others read by id and write; readiness is checked.",
    "All reads by id are 200, p95 below 100 ms; all writes and readiness checks succeed.",
)
async def expensive_lists(lab: Lab, checks: Checks) -> None:
    """B3."""
    database = lab.database()
    lab.postgres.execute(database, FILL.format(first=MOVIES + 1, last=MANY_MOVIES))
    lab.postgres.execute(database, "vacuum analyze movies")
    service = await lab.serve(lab.postgres.url(database))
    readiness: list[int] = []
    async with flooding(lab, service, "60", 12, EXPENSIVE) as lists:
        await asyncio.sleep(1.5)  # until that process sends
        connection = Connection(service.url)
        load = Load(service.url, MANY_MOVIES, readers=4, writers=2, pause_s=0.02)
        async with load.running():
            for _ in range(18):
                try:
                    response = await connection.request("GET", "/v1/healthcheck/ready")
                    readiness.append(response.status)
                except (NoResponse, NotConnected):
                    readiness.append(0)
                await asyncio.sleep(0.5)
        connection.close()
    reads, writes = load.select("read"), load.select("write")
    p50, p95 = (percentile(_times(reads), percent) * 1000 for percent in (50, 95))
    checks.note(f"lists: {', '.join(f'{count:,} x {kind}' for kind, count in lists.items())}")
    checks.require(not list_problems(reads), f"reads by id: {summarize(reads)}")
    checks.require(p95 < 100, f"p50 {p50:.0f} ms, p95 {p95:.0f} ms")
    checks.require(not list_problems(writes, (200, 201)), f"writes: {summarize(writes)}")
    checks.require(set(readiness) == {200}, f"readiness: {sorted(set(readiness))}")
    served = lists.get("200", 0)
    checks.require(served, f"{served:,} lists served")
    checks.require(set(lists) <= {"200", "503"}, "other lists: 503")
    checks.audit(load, lab.postgres, database)
    await service.stop()


@drill(
    "1,500 clients send a PATCH of one movie at once, from another process. Others read and write.",
    "No other request gets a 503.",
)
async def one_hot_movie(lab: Lab, checks: Checks) -> None:
    """B4."""
    database = lab.database()
    service = await lab.serve(lab.postgres.url(database))
    body = {"runtime": "91 mins"}
    path = ("/v1/movies/1",)
    async with flooding(lab, service, "+1500", 60, path, method="PATCH", body=body) as patches:
        load = Load(service.url, 1000, readers=4, writers=4, pause_s=0.01)
        async with load.running():
            await asyncio.sleep(8)
    checks.note(f"PATCHes: {', '.join(f'{count:,} x {kind}' for kind, count in patches.items())}")
    checks.require(sum(patches.values()) == 1500, f"{sum(patches.values()):,} of 1,500 answered")
    failed = list_problems(load.sent, (200, 201))
    checks.require(not failed, f"others: {summarize(load.sent)}")
    checks.audit(load, lab.postgres, database)
    await service.stop()


@drill(
    "max_connections 300. 50 silent connections, 50 that send a byte of a head each second, then"
    " connections up to the limit and 50 more.",
    "Health checks pass at the limit; earlier clients are served; after head_timeout (15 s) the"
    " silent and slow connections are closed.",
)
async def slow_heads(lab: Lab, checks: Checks) -> None:
    """B5."""
    limit = 300
    service = await lab.serve(
        lab.postgres.url(lab.database()), settings={"server_max_connections": limit}
    )
    loop = asyncio.get_running_loop()
    health: list[int] = []
    async with Load(service.url, 1000, readers=10, writers=0, pause_s=0.02).running() as load:
        await asyncio.sleep(1)
        began = loop.time()
        slow = [_open_socket(service.url) for _ in range(100)]
        crowd = [_open_socket(service.url) for _ in range(limit - 60)]
        for _ in range(HEAD_TIMEOUT_S + 3):
            for number, client in enumerate(slow[:50]):
                with suppress(OSError):
                    client.send(
                        b"GET /v1/movies/1 HTTP/1.1\r\nHost: abcdefgh\r\n"[number % 20 :][:1]
                    )
            connection = Connection(service.url)
            try:
                response = await connection.request("GET", "/v1/healthcheck", wait_s=5)
                health.append(response.status)
            except (NoResponse, NotConnected):
                health.append(0)
            connection.close()
            await asyncio.sleep(1)
        took = loop.time() - began
    good = health.count(200)
    checks.require(good == len(health), f"{good} of {len(health)} health checks passed")
    checks.require(not list_problems(load.sent), f"earlier clients: {summarize(load.sent)}")
    closed = sum(_is_closed(client) for client in slow)
    checks.require(closed == len(slow), f"{closed} of {len(slow)} closed after {took:.0f} s")
    for client in (*slow, *crowd):
        client.close()
    delay = await wait_for_status(service.url, "/v1/movies/1", 200, 10)
    checks.require(delay < 3, f"new clients served after {delay:.1f} s")
    await service.stop()


def _is_closed(client: socket.socket) -> bool:
    client.settimeout(0)
    try:
        while client.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@drill(
    "3,000 creates of the largest movie, each with an Idempotency-Key.",
    "A key takes at most 400 bytes of the database.",
)
async def idempotency_keys(lab: Lab, checks: Checks) -> None:
    """B6."""
    database = lab.database()
    service = await lab.serve(lab.postgres.url(database))
    genres = [f"{number}{'x' * 98}" for number in range(10, 15)]
    body = {"title": "\1" * 500, "year": 2000, "runtime": "90 mins", "genres": genres}

    async def create(client: int) -> int:
        connection = Connection(service.url)
        good = 0
        for turn in range(150):
            headers = {"Idempotency-Key": f"key-{client}-{turn}"}
            response = await connection.request("POST", "/v1/movies", body, headers)
            good += response.status == 201
        connection.close()
        return good

    created = sum(await asyncio.gather(*(create(client) for client in range(20))))
    checks.require(created == 3000, f"{created:,} movies created")
    with closing(lab.postgres.connect(database)) as session, session.cursor() as cursor:
        cursor.execute(
            "select sum(pg_total_relation_size(c.oid)) from pg_class as c"
            " where c.relname like 'idempotency%' and c.relkind = 'r'"
        )
        size = int((cursor.fetchone() or [0])[0])
    checks.require(size / created <= 400, f"{size / created:.0f} bytes for each key")
    await service.stop()


@drill(
    "2,000 requests with paths of 8,000 bytes, then 5 s of load while PostgreSQL is stopped.",
    "A line has at most 2,000 bytes; the outage is at most 60 lines that are not access lines.",
)
async def log_volume(lab: Lab, checks: Checks) -> None:
    """B7."""
    service = await lab.serve(lab.postgres.url(lab.database()))
    connection = Connection(service.url)
    for _ in range(2000):
        await connection.request("GET", f"/v1/{'x' * 8000}")
    connection.close()
    longest = max(len(line) for line in service.read_log())
    checks.require(longest <= 2000, f"longest line {longest:,} bytes")
    lab.postgres.stop()
    try:
        async with Load(service.url, 1000, readers=16, pause_s=0.01).running() as load:
            await asyncio.sleep(5)
    finally:
        lab.postgres.start()
    wrong = list_problems(load.sent, (503,))
    checks.require(load.sent and not wrong, f"outage: {summarize(load.sent)}")
    others = [line for line in service.read_log() if '"event":"request"' not in line]
    checks.require(len(others) <= 60, f"{len(others)} lines beside access lines")
    await service.stop()
