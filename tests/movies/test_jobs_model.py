"""Random batches of two processes: nothing acknowledged is lost, and no movie is there twice.

Few external ids make many conflicts. JOBS is how many requests each of the workers sends.
"""

# ruff: noqa: S311 - nothing secret

import asyncio
import os
import random
from collections import Counter
from typing import Any

from conftest import Client, Start
from support import Execute

JOBS = int(os.environ.get("JOBS", "40"))
WORKERS, NAMES = 8, 12
BATCH = "/v1/movies/batch"


class Worker:
    """Sends random requests, and notes what was acknowledged: each movie by id and version."""

    def __init__(self, client: Client, known: dict[int, dict[str, Any]]) -> None:
        self.client = client
        self.known = known  # of all workers: the movies that somebody has seen last
        self.acknowledged: list[dict[str, Any]] = []
        self.deleted = Counter[int]()
        self.restored = Counter[int]()

    async def run(self) -> None:
        """Send all requests."""
        for _ in range(JOBS):
            await random.choice([self.create, self.put, self.change, self.delete, self.restore])()

    def make(self) -> dict[str, Any]:
        """Return a random movie."""
        name = random.choice([None, *(f"a:{number}" for number in range(NAMES))])
        year, genres = random.randint(1990, 1993), [random.choice("xyz")]
        fields = {"title": "a", "year": year, "runtime": "1 mins", "genres": genres}
        return fields | ({"external_id": name} if name else {})

    def pick(self) -> list[dict[str, Any]]:
        """Return references to some movies, half of them with an etag that was seen."""
        movies = random.sample([*self.known.values()], min(3, len(self.known)))
        return [
            {"id": movie["id"]} | ({"etag": movie["etag"]} if random.random() < 0.5 else {})
            for movie in movies
        ] or [{"id": 1}]

    async def send(self, method: str, path: str, body: Any = None) -> list[dict[str, Any]]:
        """Send a request, strict or lenient; return the movies that it acknowledges."""
        headers = {"Prefer": "handling=lenient"} if random.random() < 0.5 else {}
        response = await self.client.request(method, path, json=body, headers=headers)
        content = await response.json()
        assert response.status < 500, content
        results = content.get("results", [])
        assert all(each["status"] < 500 for each in results), content
        movies = [each["movie"] for each in results if "movie" in each]
        movies += content.get("movies", [])
        return movies + ([content["movie"]] if "movie" in content else [])

    def note(self, movies: list[dict[str, Any]]) -> None:
        """Remember movies that are there."""
        self.acknowledged += movies
        self.known.update({movie["id"]: movie for movie in movies})

    async def create(self) -> None:
        """Create some movies."""
        self.note(await self.send("POST", BATCH, {"movies": [self.make() for _ in range(3)]}))

    async def put(self) -> None:
        """Put some movies."""
        named = {m["external_id"]: m for m in (self.make() for _ in range(5)) if "external_id" in m}
        if named:
            self.note(await self.send("PUT", BATCH, {"movies": [*named.values()]}))

    async def change(self) -> None:
        """Change some movies."""
        change: dict[str, Any] = random.choice(
            [{"year": random.randint(1990, 1999)}, {"external_id": f"a:{random.randrange(NAMES)}"}]
        )
        entries = [each | change for each in self.pick()]
        self.note(await self.send("PATCH", BATCH, {"movies": entries}))

    async def delete(self) -> None:
        """Delete some movies."""
        movies = await self.send("POST", f"{BATCH}/delete", {"movies": self.pick()})
        self.deleted.update(movie["id"] for movie in movies)

    async def restore(self) -> None:
        """Restore a movie."""
        movie_id = random.choice([*self.known, 1])
        movies = await self.send("POST", f"/v1/movies/{movie_id}/restore")
        self.restored.update(movie["id"] for movie in movies)
        self.note(movies)


async def test_nothing_acknowledged_is_lost(start: Start, execute: Execute) -> None:
    """Each acknowledged version was stored once; what is left is what the feed says."""
    clients, known = [await start(), await start()], dict[int, dict[str, Any]]()
    workers = [Worker(clients[number % 2], known) for number in range(WORKERS)]

    await asyncio.gather(*(worker.run() for worker in workers))

    rows = execute("select id, version, external_id from movies")
    movies = {movie_id: version for movie_id, version, _ in rows}
    names = [name for *_, name in rows if name]
    assert len(names) == len(set(names))
    written = Counter[tuple[int, int]](
        execute("select movie_id, version from movie_changes where kind <> 'deleted'")
    )
    deleted = Counter(movie_id for worker in workers for movie_id in worker.deleted.elements())
    restored = Counter(movie_id for worker in workers for movie_id in worker.restored.elements())
    assert set(written.values()) == {1}
    for worker in workers:
        for movie in worker.acknowledged:
            assert (movie["id"], movie["version"]) in written
    for movie_id, _ in written:
        balance = deleted[movie_id] - restored[movie_id]
        assert balance == (0 if movie_id in movies else 1), movie_id
    last = execute(
        "select distinct on (movie_id) movie_id, kind, version from movie_changes"
        " order by movie_id, transaction desc, id desc"
    )
    assert {movie_id: version for movie_id, kind, version in last if kind != "deleted"} == movies
