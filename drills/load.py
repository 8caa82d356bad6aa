"""Clients that read and write, and an audit of what the service has acknowledged.

Each writer changes only the movies that it has created, so it knows the right state of each.
"""

import asyncio
import itertools
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from drills.client import Connection, NoResponse, Response
from service.movies.movie import COLUMNS

RETRY_S = 0.1
OK, CREATED = 200, 201
NO_RESPONSE = 0  # in place of a status
FIELDS = tuple(name for name in COLUMNS if name not in ("created_at", "updated_at"))
POSITION = "catalogue-position"
Movie = dict[str, Any]

SELECT = f"select {', '.join(FIELDS)} from movies where title like %s"


class Server(Protocol):
    """A PostgreSQL for the audit."""

    def execute(self, database: str, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement, and return its rows if it has some."""


@dataclass
class Sent:
    """One request: its kind ("read", "list" or "write") and its result."""

    kind: str
    status: int
    at: float  # when it ended, in seconds of the event loop's clock
    seconds: float


@dataclass
class Known:
    """A movie as it was acknowledged last, and later writes whose outcome is unknown."""

    movie: Movie
    position: str = ""  # Catalogue-Position of its last acknowledged write
    unsure_titles: list[str] = field(default_factory=list)
    is_deleted: bool = False
    may_be_deleted: bool = False


@dataclass
class Load:
    """The clients, what they have sent, and what was acknowledged."""

    url: str
    readers: int = 4
    writers: int = 4
    pause_s: float = 0.0  # of a client between two requests
    movies: int = 1000  # ids from 1 on, to be read
    lists: tuple[str, ...] = ()  # every tenth request of a reader is one of them
    prefix: str = field(default_factory=lambda: f"drill-{secrets.token_hex(4)}")
    sent: list[Sent] = field(default_factory=list)
    known: dict[int, Known] = field(default_factory=dict)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Load"]:
        """Run the clients; wait until requests succeed. At the end, each finishes its request."""
        stop = asyncio.Event()
        tasks = [asyncio.create_task(self._read(number, stop)) for number in range(self.readers)]
        tasks += [asyncio.create_task(self._write(number, stop)) for number in range(self.writers)]
        try:
            await self.wait_for_success()
            yield self
        finally:
            stop.set()
            await asyncio.gather(*tasks)

    async def wait_for_success(self, requests: int = 100) -> None:
        """Wait until so many further requests have succeeded."""
        first = len(self.sent)

        def have_succeeded() -> bool:
            succeeded = sum(each.status in (OK, CREATED) for each in self.sent[first:])
            return succeeded >= requests and bool(self.known or not self.writers)

        if await wait_until(have_succeeded, 60) == inf:
            raise RuntimeError(f"the service does not serve: {summarize(self.sent)}")

    def select(self, *kinds: str, since: float = 0.0, until: float = inf) -> list[Sent]:
        """Return the requests of these kinds that ended in that time."""
        return [sent for sent in self.sent if sent.kind in kinds and since <= sent.at < until]

    async def send(
        self, connection: Connection, kind: str, *request: Any, **options: Any
    ) -> Response | None:
        """Send a request and record its result; None if there was no response."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        response = None
        with suppress(NoResponse):
            response = await connection.request(*request, **options)
        status = response.status if response else NO_RESPONSE
        self.sent.append(Sent(kind, status, loop.time(), loop.time() - started))
        return response

    async def _read(self, number: int, stop: asyncio.Event) -> None:
        async with Connection(self.url) as connection:
            for turn in itertools.count(number):
                if stop.is_set():
                    break
                kind, path = "read", f"/v1/movies/{turn * 7 % self.movies + 1}"
                if self.lists and turn % 10 == 0:
                    kind, path = "list", self.lists[turn // 10 % len(self.lists)]
                if not await self.send(connection, kind, "GET", path):
                    await asyncio.sleep(RETRY_S)
                await asyncio.sleep(self.pause_s)

    async def _write(self, number: int, stop: asyncio.Event) -> None:
        """Create a movie, change it twice, delete one of three; then the next one."""
        async with Connection(self.url) as connection:
            for turn in itertools.count():
                if stop.is_set():
                    break
                name = f"{self.prefix}-{number}-{turn}"
                # Every other writer uses keys, and sends a create again until it is acknowledged.
                known = await self._create(connection, name, stop, has_key=number % 2 == 0)
                if not known:
                    continue
                for title in (f"{name}/1", f"{name}/2"):
                    await self._change(connection, known, title)
                    await asyncio.sleep(self.pause_s)
                if turn % 3 == 0:
                    await self._delete(connection, known)

    async def _create(
        self, connection: Connection, name: str, stop: asyncio.Event, *, has_key: bool
    ) -> Known | None:
        """Create a movie, with a key again and again; None if it was not acknowledged."""
        body = {"title": name, "year": 2000, "runtime": "90 mins", "genres": ["drama", "war"]}
        headers = {"Idempotency-Key": name} if has_key else {}
        while not stop.is_set():
            response = await self.send(connection, "write", "POST", "/v1/movies", body, headers)
            if response and response.status == CREATED:
                movie = response.json()["movie"]
                self.known[movie["id"]] = Known(movie, response.headers.get(POSITION, ""))
                return self.known[movie["id"]]
            await asyncio.sleep(RETRY_S)
            if not has_key:
                break
        return None

    async def _change(self, connection: Connection, known: Known, title: str) -> None:
        path = f"/v1/movies/{known.movie['id']}"
        response = await self.send(connection, "write", "PATCH", path, {"title": title})
        if response and response.status == OK:
            known.movie = response.json()["movie"]
            known.position = response.headers.get(POSITION, "")
            known.unsure_titles.clear()
        else:
            known.unsure_titles.append(title)
            await asyncio.sleep(RETRY_S)

    async def _delete(self, connection: Connection, known: Known) -> None:
        path = f"/v1/movies/{known.movie['id']}"
        known.may_be_deleted = True  # other clients may see it before the response is here
        response = await self.send(connection, "write", "DELETE", path)
        if response and response.status == OK:
            known.is_deleted, known.may_be_deleted = True, False
            known.position = response.headers.get(POSITION, "")

    def audit(self, server: Server, database: str) -> list[str]:
        """Compare what was acknowledged with the database; return what is wrong."""
        rows = [
            dict(zip(FIELDS, row, strict=True))
            for row in server.execute(database, SELECT, f"{self.prefix}%")
        ]
        for row in rows:
            row["runtime"] = f"{row['runtime']} mins"
        found = {row["id"]: row for row in rows}
        names = Counter(row["title"].partition("/")[0] for row in rows)
        wrong = [f"{name} exists {count} times" for name, count in names.items() if count > 1]
        for number, known in self.known.items():
            if problem := _compare(known, found.get(number)):
                wrong.append(f"movie {number}: {problem}")
        return wrong


def _compare(known: Known, row: Movie | None) -> str:
    """Return what is wrong with one movie."""
    if known.is_deleted:
        return "its deletion was acknowledged, and it is there" if row else ""
    if row is None:
        return "" if known.may_be_deleted else "it was acknowledged, and it is missing"
    expected = {name: known.movie.get(name) for name in FIELDS}  # responses leave out null
    if row == expected:
        return ""
    newer = row["version"] - expected["version"]
    was_sent = row["title"] in known.unsure_titles
    if was_sent and 0 < newer <= len(known.unsure_titles):
        return ""
    return f"acknowledged as {expected}, and it is {row}"


def summarize(sent: list[Sent]) -> str:
    """Return how many requests had which status, and the longest time."""
    if not sent:
        return "none"
    counts = sorted(Counter(each.status for each in sent).items())
    words = ", ".join(f"{count:,} x {status or 'no response'}" for status, count in counts)
    return f"{words}, at most {max(each.seconds for each in sent):.2f} s"


def list_problems(sent: list[Sent], *allowed: int) -> list[Sent]:
    """Return the requests whose status is not allowed: 200 and 201 if none is named."""
    return [each for each in sent if each.status not in (allowed or (OK, CREATED))]


async def wait_until(condition: Callable[[], object], timeout_s: float) -> float:
    """Wait until the condition holds; return the seconds, or infinity after the timeout."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while not condition():
        if loop.time() - started > timeout_s:
            return inf
        await asyncio.sleep(0.05)
    return loop.time() - started


async def wait_for_status(url: str, path: str, status: int, timeout_s: float) -> float:
    """Request until the status is this one; return the seconds, or infinity after the timeout."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with Connection(url) as connection:
        while (passed := loop.time() - started) < timeout_s:
            with suppress(NoResponse):
                if (await connection.request("GET", path)).status == status:
                    return passed
            await asyncio.sleep(0.05)
    return inf
