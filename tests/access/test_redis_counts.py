"""Counts of several processes in a real Redis, and without it."""

import asyncio
import shutil
import signal
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Client, Start
from redis.asyncio import Redis as RedisClient
from redis.exceptions import RedisError
from structlog.testing import capture_logs
from support import until

from service.access import redis_counts
from service.access.redis_counts import RedisCounts
from service.errors import OperatorError, Policy

SERVER = shutil.which("redis-server")
PASSWORD = "s3cret"  # of a server that the test starts
HUNDRED = Policy("rate", 100, 3600)
RATE = {"limits__rate": 1, "limits__burst": 1000}
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
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    """An empty Redis; a service looks for it often, and waits for it on a busy machine."""
    monkeypatch.setattr(redis_counts, "RETRY_S", 0.05)
    monkeypatch.setattr(redis_counts, "TIMEOUT_S", 20)
    server = Server(tmp_path)
    await server.start()
    yield server
    await server.kill()


@pytest.fixture
async def counts(server: Server) -> AsyncIterator[RedisCounts]:
    """Counts in it."""
    counts = RedisCounts(HUNDRED, server.url)
    await counts.connect()
    yield counts
    await counts.close()


async def count_passed(*clients: Client, requests: int = 100) -> int:
    """Send so many requests to each, in turn, and count those that no limit refuses."""
    statuses = [
        (await client.get("/v1/movies/1")).status for _ in range(requests) for client in clients
    ]
    assert set(statuses) <= {404, 429}
    return statuses.count(404)


def list_events(logs: list[Any]) -> list[str]:
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


async def test_a_client_learns_when_to_come_back(counts: RedisCounts, server: Server) -> None:
    """Also from a process that did not serve the earlier requests."""
    other = RedisCounts(HUNDRED, server.url)
    await other.connect()
    await other.take("client:7", 90)
    await other.close()

    for _ in range(9):
        refused = await counts.take("client:7", 11)

        assert refused
        assert refused.remaining == 10
        assert 3500 <= refused.retry_after_s <= 3601
    assert await counts.take("client:7", 10) is None  # what was refused does not count


async def test_without_redis_each_process_limits_for_itself(start: Start, server: Server) -> None:
    """No request fails, and earlier requests count. The log has one line for each change."""
    client = await start(limits__rate=1, limits__burst=1000, limits__redis_url=server.url)
    await count_passed(client)
    with capture_logs() as logs:
        await server.kill()
        assert await count_passed(client, requests=1000) in range(900, 940)
        await server.start()
        await until(lambda: BACK in list_events(logs))
        await count_passed(client)

    assert list_events(logs) == [GONE, BACK]


async def test_an_empty_redis_does_not_forget_for_the_process(
    counts: RedisCounts, server: Server
) -> None:
    """Redis was restarted: it has neither counts nor scripts."""
    await counts.take("client:7", 90)
    await server.kill()
    await server.start()

    refused = await counts.take("client:7", 20)
    await until(lambda: counts.is_there)

    assert refused
    assert await counts.take("client:7", 10) is None
    assert counts.is_there


async def test_a_redis_that_hangs_delays_few_requests(
    start: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait when it stops responding; others do not ask it."""
    monkeypatch.setattr(redis_counts, "TIMEOUT_S", 0.25)
    client = await start(limits__redis_url=server.url, **RATE)
    server.signal(signal.SIGSTOP)
    try:
        with capture_logs() as logs:
            responses = await asyncio.gather(*(client.get("/v1/movies/1") for _ in range(50)))
            async with asyncio.timeout(50 * redis_counts.TIMEOUT_S):
                await count_passed(client, requests=400)
            await client.close()  # the service stops
    finally:
        server.signal(signal.SIGCONT)

    assert {response.status for response in responses} == {404}
    assert list_events(logs) == [GONE]


@pytest.mark.parametrize(
    ("command", "remedy", "reason"),
    [
        (("config", "set", "maxmemory", "1"), ("config", "set", "maxmemory", "0"), "maxmemory"),
        (("replicaof", "127.0.0.1", "9"), ("replicaof", "no", "one"), "read only"),
        (
            ("config", "set", "requirepass", "other"),
            ("config", "set", "requirepass", PASSWORD),
            "",
        ),
    ],
)
async def test_a_redis_that_refuses_is_as_none(
    start: Start,
    server: Server,
    command: tuple[str, ...],
    remedy: tuple[str, ...],
    reason: str,
) -> None:
    """Redis is full, a replica, or has another password: processes count alone meanwhile."""
    async with RedisClient.from_url(server.url) as operator:
        await operator.execute_command(*command)  # type: ignore[no-untyped-call]
        with capture_logs() as logs:
            client = await start(limits__redis_url=server.url, **RATE)
            assert await count_passed(client) == 100
            assert list_events(logs) == [GONE]
            await operator.execute_command(*remedy)  # type: ignore[no-untyped-call]
            await until(lambda: BACK in list_events(logs))

    (line,) = [line for line in logs if line["event"] == GONE]
    assert reason in line["reason"]
    assert PASSWORD not in str(logs)


def test_a_wrong_url_stops_the_start() -> None:
    """The message says what is expected, without the password."""
    with pytest.raises(OperatorError) as caught:
        RedisCounts(HUNDRED, f"redis://:{PASSWORD}@h:port/0")

    assert str(caught.value).startswith("[limits] redis_url: expected redis://")
    assert PASSWORD not in str(caught.value)
