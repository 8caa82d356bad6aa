"""Limits of several processes in a real Redis, and without it."""

import asyncio
import shutil
import signal
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from conftest import Client, Start
from metric_values import read_metrics
from redis.asyncio import Redis as RedisClient
from redis.exceptions import RedisError
from support import Logs, Patch, until

from service.clients import limits

SERVER = shutil.which("redis-server")
PASSWORD = "s3cret"  # of a server that the test starts
RATE = {"limits__rate": 1, "limits__burst": 1000}
TOKEN = "0123456789abcdef"
GONE = "limits without redis"
BACK = "limits with redis"

pytestmark = pytest.mark.skipif(not SERVER, reason="redis-server is not installed")


class Server:
    """A Redis that a test starts, and starts again on the same port."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._port = listener.getsockname()[1]
        self._folder = folder
        self._process: Process | None = None
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{self._port}/0"
        self.unix_url = f"unix://:{PASSWORD}@{folder}/socket"

    async def start(self) -> None:
        """Start it, empty, and wait until it responds."""
        options = {
            "bind": "127.0.0.1",
            "port": self._port,
            "unixsocket": self._folder / "socket",
            "dir": self._folder,
            "requirepass": PASSWORD,
            "save": "",
        }
        arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        self._process = await asyncio.create_subprocess_exec(
            str(SERVER), *arguments, stdout=DEVNULL
        )
        await until(self._responds)

    async def kill(self) -> None:
        """Kill it, if it runs."""
        if self._process and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process
        self._process.send_signal(number)

    async def ask(self, *command: str) -> None:
        """Run a command, as an operator would."""
        async with RedisClient.from_url(self.url) as client:
            await client.execute_command(*command)  # type: ignore[no-untyped-call]

    async def _responds(self) -> bool:
        try:
            await self.ask("PING")
        except (OSError, RedisError):
            return False
        return True


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: Patch) -> AsyncIterator[Server]:
    """An empty Redis; a service looks for it often, and waits for it on a busy machine."""
    monkeypatch.setattr(limits, "REDIS_RETRY_S", 0.05)
    monkeypatch.setattr(limits, "REDIS_TIMEOUT_S", 20)
    server = Server(tmp_path)
    await server.start()
    yield server
    await server.kill()


async def count_passed(*clients: Client, requests: int = 100) -> int:
    """Send so many requests to each, in turn, and count those that no limit refuses."""
    statuses = [
        (await client.get("/v1/movies/1")).status for _ in range(requests) for client in clients
    ]
    assert set(statuses) <= {404, 429}
    return statuses.count(404)


async def wait_for_redis(client: Client, logs: Logs) -> None:
    """Send requests until one finds that Redis responds."""
    while BACK not in list_events(logs):
        await client.get("/v1/movies/1")


def list_events(logs: Logs) -> list[str]:
    """Return what was logged about Redis."""
    return [line["event"] for line in logs if line["event"] in (GONE, BACK)]


@pytest.mark.parametrize("url", ["url", "unix_url"])
async def test_processes_count_together(start: Start, server: Server, url: str) -> None:
    """Over TCP or a unix socket."""
    limits = {"limits__rate": 1, "limits__burst": 100, "limits__redis_url": getattr(server, url)}
    clients = [await start(**limits) for _ in range(2)]

    passed = await count_passed(*clients)

    assert 100 <= passed <= 110
    refused = await clients[0].get("/v1/movies/1")
    assert 1 <= int(refused.headers["Retry-After"]) <= 101


async def test_without_redis_requests_pass(start: Start, server: Server, logs: Logs) -> None:
    """The log has one line for each change, and the metric counts the requests."""
    client = await start(
        limits__rate=1, limits__burst=50, limits__redis_url=server.url, operations__token=TOKEN
    )
    assert await count_passed(client) in range(50, 60)
    await server.kill()
    assert await count_passed(client) == 100
    assert read_metrics(client)["unlimited_total"] == 100
    await server.start()
    await wait_for_redis(client, logs)
    assert await count_passed(client) in range(48, 60)  # an empty Redis has forgotten

    assert list_events(logs) == [GONE, BACK]


async def test_a_redis_that_hangs_delays_few_requests(
    start: Start, server: Server, monkeypatch: Patch, logs: Logs
) -> None:
    """Those that wait when it stops responding; others do not ask it."""
    monkeypatch.setattr(limits, "REDIS_TIMEOUT_S", 0.25)
    monkeypatch.setattr(limits, "REDIS_RETRY_S", 60)
    client = await start(limits__redis_url=server.url, **RATE)
    server.signal(signal.SIGSTOP)
    try:
        responses = await asyncio.gather(*(client.get("/v1/movies/1") for _ in range(50)))
        async with asyncio.timeout(50 * limits.REDIS_TIMEOUT_S):
            await count_passed(client, requests=400)
        await client.close()  # the service stops
    finally:
        server.signal(signal.SIGCONT)

    assert {response.status for response in responses} == {404}
    assert list_events(logs) == [GONE]


async def test_a_redis_that_refuses_is_as_none(start: Start, server: Server, logs: Logs) -> None:
    """As it is full, for example: requests pass meanwhile."""
    await server.ask("config", "set", "maxmemory", "1")
    client = await start(limits__redis_url=server.url, **RATE)
    assert await count_passed(client) == 100
    await server.ask("config", "set", "maxmemory", "0")
    await wait_for_redis(client, logs)

    assert list_events(logs) == [GONE, BACK]
    assert "maxmemory" in str(logs)
    assert PASSWORD not in str(logs)
