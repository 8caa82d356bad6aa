"""Many clients of two services, while the replay of both replicas stops and goes on at random."""

import asyncio
import json
import random
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg2
import pytest
from aiohttp import ClientError
from conftest import MOANA, Client, Start
from servers import count_runs, run, running_cluster
from structlog.testing import capture_logs
from support import POLL_S, copy_pages, copy_stream, follow

POSITION = "Catalogue-Position"
CREATES: list[tuple[str, object]] = [
    ("/v1/movies", MOANA),
    ("/v1/movies/batch", {"movies": [MOANA] * 3}),
]
LIMIT_S = 0.75  # max_replica_lag
MOVIES = 12  # that are changed all the time
HELD = 2  # movies that slow transactions change
READERS = 8
COPIES = 8
AGAIN = 0.2  # how often a copy is made anew
WRITES = 200  # while copies are made
GONE = inf  # the version of a movie that was deleted
SERVED_MIN = 20  # reads by each replica


class Busy(Exception):
    """A 503: the machine is overloaded. Another request may succeed."""


class Write(NamedTuple):
    """A write that was acknowledged; `versions`: of its movies."""

    position: int
    versions: dict[int, float]
    acknowledged_at: float


class Clients:
    """Clients that tell one another of their writes, and what they found in reads."""

    def __init__(self, services: list[Client]) -> None:
        self.services = services
        self.writes: deque[Write] = deque()
        self.recent: deque[Write] = deque(maxlen=300)
        self.old: dict[int, float] = {}  # versions that were acknowledged before the limit
        self.number = 0  # of writes
        self.versions: dict[int, float] = {}  # of all writes
        self.position = 0  # the highest
        self.deletes: set[int] = set()  # movies whose deletion has begun
        self.last = 0  # the last movie that was created
        self.reads: Counter[str] = Counter()
        self.stale: list[str] = []

    def tell(self, position: int, versions: dict[int, float]) -> None:
        """Tell all others of a write that was acknowledged."""
        write = Write(position, versions, time.monotonic())
        self.writes.append(write)
        self.recent.append(write)
        self.number += 1
        self.position = max(self.position, position)
        merge(self.versions, versions)

    async def send(self, method: str, path: str, **given: Any) -> Any:
        """Send a request to one of the services; return the response with its body read."""
        response = await random.choice(self.services).request(method, path, **given)  # noqa: S311
        await response.read()
        if response.status == 503:
            raise Busy
        return response

    async def write(self, method: str, path: str, body: object = None, **headers: str) -> list[int]:
        """Write, and tell of it; return the ids of the movies."""
        response = await self.send(method, path, json=body, headers=headers)
        assert response.status in {200, 201}, await response.text()
        found = await response.json()
        movies = found["movies"] if "movies" in found else [found["movie"]]
        versions = {movie["id"]: movie["version"] for movie in movies}
        if method == "DELETE":
            versions = dict.fromkeys(versions, GONE)
        self.tell(int(response.headers[POSITION]), versions)
        return [*versions]

    async def read(self, movie_id: int, headers: dict[str, str]) -> tuple[str, dict[int, float]]:
        """Read this movie or several; return how, and the versions, `GONE` if there is none."""
        (kind,) = random.choices(["movie", "ids", "list", "stream"], [10, 4, 4, 1])  # noqa: S311
        if kind == "movie":
            response = await self.send("GET", f"/v1/movies/{movie_id}", headers=headers)
            assert response.status in {200, 404}
            if response.status == 404:
                return kind, {movie_id: GONE}
            return kind, {movie_id: (await response.json())["movie"]["version"]}
        if kind == "ids":
            ids = [*self.versions][-50:]
            query = ",".join(map(str, ids))
            response = await self.send("GET", f"/v1/movies?id={query}", headers=headers)
            found = (await response.json())["movies"]
            return kind, dict.fromkeys(ids, GONE) | {each["id"]: each["version"] for each in found}
        if kind == "list":
            response = await self.send(
                "GET", "/v1/movies?page_size=100&sort=-year", headers=headers
            )
            found = (await response.json())["movies"]
        else:
            headers = headers | {"Accept": "application/x-ndjson"}
            response = await self.send("GET", "/v1/movies", headers=headers)
            found = [json.loads(line) for line in (await response.text()).splitlines()]
        gone = dict.fromkeys(self.versions if len(found) < 100 else [], GONE)
        return kind, gone | {each["id"]: each["version"] for each in found}

    def compare(self, kind: str, seen: Mapping[int, float], known: Mapping[int, float]) -> None:
        """Compare the versions in a response with those that it must not fall behind."""
        self.reads[kind] += 1
        for movie_id, version in known.items():
            found = seen.get(movie_id, version)
            is_gone = found == GONE and movie_id not in self.deletes
            if is_gone or found < version:
                self.stale.append(f"{kind}: movie {movie_id} is {found}, not {version}")


def merge(versions: dict[int, float], newer: Mapping[int, float]) -> None:
    """Keep the highest version of each movie."""
    for movie_id, version in newer.items():
        versions[movie_id] = max(version, versions.get(movie_id, 0))


async def change(clients: Clients) -> None:
    """Change a movie, also those that others change."""
    body = {"runtime": f"{random.randint(1, 999)} mins"}  # noqa: S311
    await clients.write("PATCH", f"/v1/movies/{random.randint(1, MOVIES)}", body)  # noqa: S311
    await asyncio.sleep(random.choice([0, 0.01, 0.1]))  # noqa: S311


async def create_and_delete(clients: Clients) -> None:
    """Create movies, alone or as a batch, once or with a repeat, and delete them."""
    key = {"Idempotency-Key": f"{uuid4()}"}
    path, body = random.choice(CREATES)  # noqa: S311
    requests: list[dict[str, str]] = random.choice([[{}], [key, key]])  # noqa: S311
    for headers in requests:
        created = await clients.write("POST", path, body, **headers)
    for movie_id in created:
        await asyncio.sleep(random.choice([0, 0.1]))  # noqa: S311
        clients.deletes.add(movie_id)
        await clients.write("DELETE", f"/v1/movies/{movie_id}")


async def create(clients: Clients) -> None:
    """Create a movie and change it once: no later change makes up for one that a copy missed."""
    (movie_id,) = await clients.write("POST", "/v1/movies", MOANA)
    await asyncio.sleep(random.choice([0, 0.1]))  # noqa: S311
    await clients.write("PATCH", f"/v1/movies/{movie_id}", {"year": 2000})


async def read_with_positions(clients: Clients) -> None:
    """Read with the highest position that is known now, or with that of one write before."""
    if random.random() < 0.5:  # noqa: S311
        position, known = clients.position, {**clients.versions}
    else:
        position, known, _ = random.choice(clients.recent)  # noqa: S311
    sent = {POSITION: f"{position - 1}, {position}"}
    for _ in range(random.randint(1, 6)):  # noqa: S311
        kind, seen = await clients.read(random.choice([*known]), sent)  # noqa: S311
        clients.compare(kind, seen, known)
        await asyncio.sleep(random.choice([0, 0.05]))  # noqa: S311


async def read_without_positions(clients: Clients) -> None:
    """Read; what was acknowledged more than the limit before must be there."""
    limit = time.monotonic() - LIMIT_S
    while clients.writes and clients.writes[0].acknowledged_at < limit:
        merge(clients.old, clients.writes.popleft().versions)
    known = {**clients.old}
    kind, seen = await clients.read(random.choice([*clients.versions]), {})  # noqa: S311
    clients.compare(kind, seen, known)


async def repeat(do: Callable[[Clients], Awaitable[None]], clients: Clients) -> None:
    """Do something again and again."""
    while True:
        with suppress(Busy):
            await do(clients)


def hold(url: str, movie_id: int, tell: Callable[..., object], end: threading.Event) -> None:
    """Change a movie in transactions that stay open for a while, so that later ones end first."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        while not end.is_set():
            cursor.execute(
                "update movies set runtime = runtime %% 999 + 1 where id = %s"
                " returning pg_current_xact_id()::text::bigint, version",
                [movie_id],
            )
            position, version = cursor.fetchone() or (0, 0)
            end.wait(random.random() * 0.3)  # noqa: S311
            connection.commit()
            tell(position, {movie_id: version})
            end.wait(random.random() * 0.3)  # noqa: S311


def pause_and_resume(url: str, end: threading.Event) -> None:
    """Pause the replay of a standby, mostly for short, sometimes for longer than the limit."""
    while not end.is_set():
        run(url, "select pg_wal_replay_pause()")
        longest = random.choice([0.02, 0.02, 0.2, 0.2, 2 * LIMIT_S])  # noqa: S311
        end.wait(random.random() * longest)  # noqa: S311
        run(url, "select pg_wal_replay_resume()")
        end.wait(random.random() * 0.3)  # noqa: S311


async def keep_copy(clients: Clients, end: asyncio.Event) -> dict[int, int]:
    """Copy the catalogue, and follow the feed of changes until the copy has all of them.

    Pages may be of several replicas: only with the changes since its first page a copy is right.
    """
    copy = random.choice([copy_stream, copy_pages])  # noqa: S311
    await asyncio.sleep(random.random())  # noqa: S311
    movies, cursor, is_complete = dict[int, int](), "", False
    while not is_complete:
        has_ended = end.is_set()
        client = random.choice(clients.services)  # noqa: S311
        with suppress(ClientError):  # the machine is overloaded
            if cursor and (has_ended or random.random() > AGAIN):  # noqa: S311
                number, cursor = await follow(client, movies, cursor)
                is_complete = has_ended and not number and clients.last in movies
            else:
                movies, cursor = await copy(client)
        await asyncio.sleep(random.random() * 0.3)  # noqa: S311
    return movies


@asynccontextmanager
async def hammering(
    start: Start, servers: tuple[str, ...], *doing: Callable[[Clients], Awaitable[None]]
) -> AsyncIterator[tuple[Clients, Callable[[], None]]]:
    """Do this, and pause replicas; yield the clients, and a function that raises errors."""
    primary, *standbys = servers
    loop, end = asyncio.get_running_loop(), threading.Event()
    given: dict[str, Any] = {
        "database__replica_urls": (*standbys,),
        "database__max_replica_lag": LIMIT_S,
    }
    clients = Clients([await start(**given), await start(**given)])
    for _ in range(MOVIES + HELD):
        await clients.write("POST", "/v1/movies", MOANA)
    held = [*clients.versions][MOVIES:]

    def tell(*write: Any) -> None:
        loop.call_soon_threadsafe(clients.tell, *write)

    work = [repeat(do, clients) for do in doing]
    threads = [
        *(asyncio.to_thread(hold, primary, movie_id, tell, end) for movie_id in held),
        *(asyncio.to_thread(pause_and_resume, url, end) for url in standbys),
    ]
    tasks = [asyncio.create_task(each) for each in (*work, *threads)]

    def check() -> None:
        for task in tasks:
            if task.done():
                task.result()

    try:
        yield clients, check
        check()
    finally:
        end.set()
        for task in tasks[: len(work)]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def servers(folder: Path) -> Iterator[tuple[str, ...]]:
    """The URLs of a database on a primary and on two standbys."""
    with running_cluster(folder) as cluster, cluster.database() as urls:
        yield urls


@pytest.fixture
def database(servers: tuple[str, ...]) -> str:
    """The URL of the database on the primary."""
    return servers[0]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Print no logs, which would take a third of the time."""
    with capture_logs():
        yield


@pytest.mark.parametrize(
    ("read", "reads"), [(read_with_positions, 2000), (read_without_positions, 1000)]
)
async def test_no_read_is_stale(
    start: Start,
    servers: tuple[str, ...],
    read: Callable[[Clients], Awaitable[None]],
    reads: int,
) -> None:
    """With positions: a response has those writes. Without: all writes older than the limit."""
    async with hammering(
        start, servers, *[change] * 3, *[create_and_delete] * 2, *[read] * READERS
    ) as (clients, check):
        while clients.reads.total() < reads:
            check()
            await asyncio.sleep(POLL_S)
    served = [
        sum(count_runs(url, name) for name in ("get_movies", "count_movies")) for url in servers[1:]
    ]

    assert clients.stale == []
    assert min(served) > SERVED_MIN


async def test_copies_miss_no_change(start: Start, servers: tuple[str, ...]) -> None:
    """They are made of streams and pages of replicas, and follow the feed of changes."""
    end = asyncio.Event()
    async with hammering(start, servers, *[create] * 3) as (clients, check):
        copies = [asyncio.create_task(keep_copy(clients, end)) for _ in range(COPIES)]

        while clients.number < WRITES:
            check()
            await asyncio.sleep(POLL_S)
    (clients.last,) = await clients.write("POST", "/v1/movies", MOANA)
    end.set()
    found = await asyncio.gather(*copies)
    expected: dict[int, int] = dict(run(servers[0], "select id, version from movies"))
    streams = [count_runs(url, "walk_movies") for url in servers[1:]]

    assert [copy for copy in found if copy != expected] == []
    assert sum(streams) > 0
