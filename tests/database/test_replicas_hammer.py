"""Many clients of two services, while the replay of both replicas stops and goes on at random."""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg2
import pytest
from conftest import MOANA, Client, Start
from servers import count_runs, run, running_cluster
from structlog.testing import capture_logs
from support import until

POSITION = "Catalogue-Position"
LIMIT_S = 0.75  # max_replica_lag
WRITERS, READERS = 5, 8
READS = 500  # of each kind
SERVED_MIN = 20  # reads by each replica


class Write(NamedTuple):
    """A write that was acknowledged."""

    position: int
    movie_id: int
    version: int
    acknowledged_at: float


class Clients:
    """Clients that tell one another of their writes, and what they found in reads."""

    def __init__(self, services: list[Client]) -> None:
        self.services = services
        self.writes: list[Write] = []
        self.reads: Counter[bool] = Counter()  # with a position, and without one
        self.stale: list[str] = []

    def tell(self, position: int, movie_id: int, version: int) -> None:
        """Tell all others of a write that was acknowledged."""
        self.writes.append(Write(position, movie_id, version, time.monotonic()))

    async def send(self, method: str, path: str, **given: Any) -> Any:
        """Send a request to one of the services; return the response, which may be a 503."""
        response = await random.choice(self.services).request(method, path, **given)  # noqa: S311
        assert response.status in {200, 201, 404, 503}, await response.text()
        return response

    async def write(self) -> None:
        """Create a movie and change it, and change one that others change, too."""
        any_path = f"/v1/movies/{random.choice(self.writes).movie_id}"  # noqa: S311
        for method, path in (("POST", "/v1/movies"), ("PATCH", any_path), ("PATCH", any_path)):
            body = MOANA | {"runtime": f"{random.randint(1, 999)} mins"}  # noqa: S311
            response = await self.send(method, path, json=body)
            if response.status != 503:
                movie = (await response.json())["movie"]
                self.tell(int(response.headers[POSITION]), movie["id"], movie["version"])
            await asyncio.sleep(random.choice([0, 0.01, 0.1]))  # noqa: S311

    async def read(self) -> None:
        """Read a movie with the position of a write, or without one."""
        write = random.choice(self.writes[-300:])  # noqa: S311
        limit = time.monotonic() - LIMIT_S
        versions = [
            each.version
            for each in self.writes
            if each.movie_id == write.movie_id and each.acknowledged_at < limit
        ]
        has_position = random.random() < 0.5  # noqa: S311
        headers = {POSITION: f"1, {write.position}"} if has_position else {}
        path = random.choice(["/v1/movies/{}", "/v1/movies?id={}"]).format(write.movie_id)  # noqa: S311
        response = await self.send("GET", path, headers=headers)
        if response.status == 503:
            return
        body = await response.json()
        movies = [body["movie"]] if "movie" in body else body.get("movies", [])
        found = max((movie["version"] for movie in movies), default=0)
        least = max([*versions, write.version if has_position else 0])
        self.reads[has_position] += 1
        if found < least:
            self.stale.append(f"{path} {headers}: version {found}, not {least}")


def change_slowly(
    url: str, movie_id: int, tell: Callable[..., object], end: threading.Event
) -> None:
    """Change a movie in transactions that stay open for a while, so that later ones end first."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        while not end.is_set():
            cursor.execute(
                "update movies set runtime = runtime %% 999 + 1 where id = %s"
                " returning pg_current_xact_id()::text::bigint, id, version",
                [movie_id],
            )
            write = cursor.fetchone() or ()
            end.wait(random.random() * 0.3)  # noqa: S311
            connection.commit()
            tell(*write)
            end.wait(random.random() * 0.3)  # noqa: S311


def pause_and_resume(url: str, end: threading.Event) -> None:
    """Pause the replay of a standby, mostly for short, sometimes for longer than the limit."""
    while not end.is_set():
        run(url, "select pg_wal_replay_pause()")
        longest = random.choice([0.02, 0.02, 0.2, 0.2, 2 * LIMIT_S])  # noqa: S311
        end.wait(random.random() * longest)  # noqa: S311
        run(url, "select pg_wal_replay_resume()")
        end.wait(random.random() * 0.3)  # noqa: S311


@pytest.fixture
def servers(folder: Path) -> Iterator[tuple[str, ...]]:
    """The URLs of a database on a primary and on two standbys."""
    with running_cluster(folder) as cluster, cluster.database() as urls:
        yield urls


@pytest.fixture
def database(servers: tuple[str, ...]) -> str:
    """The URL of the database on the primary."""
    return servers[0]


async def test_no_read_is_stale(start: Start, servers: tuple[str, ...]) -> None:
    """With a position: a response has that write. In any case: all writes older than the limit."""
    primary, *standbys = servers
    given: dict[str, Any] = {
        "database__replica_urls": (*standbys,),
        "database__max_replica_lag": LIMIT_S,
    }
    clients = Clients([await start(**given), await start(**given)])
    loop, end = asyncio.get_running_loop(), threading.Event()
    for movie_id in (1, 2):
        response = await clients.send("POST", "/v1/movies", json=MOANA)
        clients.tell(int(response.headers[POSITION]), movie_id, 1)

    def tell(*write: int) -> None:
        loop.call_soon_threadsafe(lambda: clients.tell(*write))

    async def repeat(do: Callable[[], Awaitable[None]]) -> None:
        while not end.is_set():
            await do()

    def count_served() -> int:
        """Return how many reads the standby served that has served fewer."""
        names = ("get_movies", "count_movies")
        return min(sum(count_runs(url, name) for name in names) for url in standbys)

    with capture_logs():  # to print them would take a third of the time
        work = asyncio.gather(
            *(repeat(clients.write) for _ in range(WRITERS)),
            *(repeat(clients.read) for _ in range(READERS)),
            *(asyncio.to_thread(change_slowly, primary, held, tell, end) for held in (1, 2)),
            *(asyncio.to_thread(pause_and_resume, url, end) for url in standbys),
        )
        await until(lambda: work.done() or min(clients.reads[True], clients.reads[False]) >= READS)
        # A fast machine reads so much before a standby serves at all.
        await until(lambda: work.done() or count_served() > SERVED_MIN)
        end.set()
        await work

    assert clients.stale == []
