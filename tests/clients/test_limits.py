"""The limits of each client or address: their window in memory, requests, and Redis."""

import asyncio
import json
import shutil
import signal
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from conftest import MOANA, Client, Start
from limits.aio.storage import memory
from metric_values import read_metrics
from redis.asyncio import Redis as RedisClient
from redis.exceptions import RedisError
from support import Execute, Logs, Patch, StoppedClock, add_client, bearer, until
from wire import exchange, send_raw

from service.clients import limits
from service.clients.access import MAX_BODY_UNITS
from service.clients.limits import RateLimiter
from service.config import Limits as Settings
from service.database.caller import Caller
from service.errors import LimitReached, OperatorError
from service.telemetry.metrics import Metrics

START = 1_000_000.0  # windows begin


@pytest.fixture(autouse=True)
def clock(monkeypatch: Patch) -> StoppedClock:
    """The clock of limits in memory, which stands still."""
    clock = StoppedClock(START)
    monkeypatch.setattr(memory, "time", clock)
    return clock


def make_limits(rate: int, burst: int) -> RateLimiter:
    """Make limits in memory."""
    return RateLimiter(Settings(rate, burst, ""), Metrics(is_enabled=False))


async def take(
    limits: RateLimiter, cost: int, client_id: int | None = 7, address: str = "192.0.2.1"
) -> LimitReached | None:
    """Charge the client; return the refusal."""
    try:
        await limits.charge(Caller(address, client_id), cost)
    except LimitReached as refusal:
        return refusal
    return None


async def take_all(limits: RateLimiter) -> int:
    """Take units until one is refused, and return how many were taken."""
    taken = 0
    while not await take(limits, 1):
        taken += 1
    return taken


async def test_no_more_than_the_burst_is_taken_at_once() -> None:
    """A cost that does not fit is refused; smaller ones are still taken."""
    limits = make_limits(2, 10)
    await take(limits, 8)

    refused = await take(limits, 3)

    assert refused
    assert (refused.remaining, refused.retry_after) == (2, 6)
    assert await take(limits, 2) is None
    assert await take(limits, 10, client_id=8) is None


@pytest.mark.parametrize(("rate", "burst", "policy"), [(1, 5, (5, 5)), (3, 10, (12, 4))])
async def test_the_burst_is_whole_seconds_of_the_rate(
    rate: int, burst: int, policy: tuple[int, int]
) -> None:
    """It is rounded up, so that the rate holds."""
    limits = make_limits(rate, burst)

    assert await take_all(limits) == policy[0]
    refused = await take(limits, 1)

    assert refused
    assert refused.policy[1:] == policy


async def test_units_come_back_steadily(clock: StoppedClock) -> None:
    """In the long run, it is the burst per window."""
    limits = make_limits(20, 100)
    await take_all(limits)
    clock.now += 5  # the window of the first hundred is over

    taken = []
    for _ in range(200):
        clock.now += 0.1
        taken.append(await take_all(limits))

    assert sum(taken) == pytest.approx(400, rel=0.05)
    assert max(taken) <= 3


@pytest.mark.parametrize("cost", [1, 4, 10])
@pytest.mark.parametrize("used", [(10, 0.0), (6, 1.5), (9, 4.9)])
@pytest.mark.parametrize("later", [0.0, 2.2, 5.0, 7.7])
async def test_a_client_that_waits_as_told_is_not_refused_again(
    clock: StoppedClock, cost: int, used: tuple[int, float], later: float
) -> None:
    """Whatever it used before, and when."""
    limits = make_limits(2, 10)
    clock.now += used[1]
    await take(limits, used[0])
    clock.now += later
    await take_all(limits)

    refused = await take(limits, cost)

    assert refused
    clock.now += refused.retry_after
    assert await take(limits, cost) is None


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:0:0:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("unix", "unix", True),
    ],
)
async def test_an_ipv6_address_counts_by_network(one: str, other: str, *, is_same: bool) -> None:
    """A customer has a /64, and could send each request from another address of it."""
    limits = make_limits(1, 5)
    await take(limits, 5, None, one)

    assert bool(await take(limits, 1, None, other)) is is_same


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://:secret@h/0?foo=1", "foo"),
        ("unix:///path?foo=1", "foo"),
        ("redis://:secret@h/0?protocol=9", "protocol"),
        ("redis://:secret@h/0?db=x", "db"),
        ("redis://:secret@h/0?socket_timeout=soon", "socket_timeout"),
        ("redis://:secret@h:65536/0", "Port out of range"),
        ("redis://:secret@h:port/0", "expected redis://"),
        ("rediss://:secret@h/0?ssl_cert_reqs=foo", "SSL Certificate Requirements"),
        ("redis://:secret@h/0?parser_class=a", "not callable"),
    ],
)
def test_a_url_that_redis_does_not_accept_stops_the_start(url: str, reason: str) -> None:
    """Otherwise nothing is limited, as while Redis is away; nothing is sent to find it."""
    with pytest.raises(OperatorError, match=r"^\[limits\] redis_url: ") as caught:
        RateLimiter(Settings(1, 100, url), Metrics(is_enabled=False))

    assert reason in str(caught.value)
    assert "secret" not in str(caught.value)


# Requests.

RATE = {"limits__rate": 1, "limits__burst": 20}  # a window of 20 s
WRONG = bearer("mc_1_" + 43 * "A")
BATCH = "/v1/movies/batch"
COUNT = "select count(*) from movies"


async def exhaust(client: Client, **headers: str) -> None:
    """Use up the rate limit."""
    while (await client.get("/v1/movies/1", headers=headers)).status != 429:
        pass


async def kind(response: ClientResponse) -> tuple[int, str]:
    """Return the status and the kind of problem."""
    return response.status, (await response.json())["type"].partition("#")[2]


async def test_the_response_says_what_the_limit_is_and_when_to_come_back(
    start: Start, clock: StoppedClock
) -> None:
    """In the detail and in the headers, which other responses do not have; then it succeeds."""
    client = await start(**RATE)
    before = await client.get("/v1/movies/1")
    await exhaust(client)

    response = await client.get("/v1/movies?page_size=no")
    problem = await response.json()

    assert await kind(response) == (429, "limit-reached")
    assert problem["detail"] == (
        "the limit is 1 units per second, and 20 at once; this request takes 10: try again in 30 s"
    )
    assert response.headers["Retry-After"] == "30"
    assert response.headers["RateLimit-Policy"] == '"rate";q=20;w=20'
    assert response.headers["RateLimit"] == '"rate";r=0;t=30'
    assert not {"RateLimit", "RateLimit-Policy", "Retry-After"} & before.headers.keys()
    clock.now += 30
    assert (await client.get("/v1/movies")).status == 200


def make_batch(
    movies: int, *, movie: dict[str, Any] = MOANA, blanks: int = 0, more: bytes = b""
) -> bytes:
    """Return the bytes of a request that creates so many movies."""
    body = json.dumps({"movies": [movie] * movies}).encode() + blanks * b" "
    head = b"POST /v1/movies/batch HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n" % len(body)
    return head + more + b"\r\n" + body


PATCH = b"PATCH /v1/movies/1 HTTP/1.1\r\nHost: a\r\n"
SHORT = b"Content-Length: 2\r\n\r\n{}"
UNITS: list[tuple[bytes, int]] = [
    (b"GET /v1/movies/1 HTTP/1.1\r\nHost: a\r\n\r\n", 1),
    (b"GET /v1/movies HTTP/1.1\r\nHost: a\r\n\r\n", 10),
    (b"HEAD /v1/movies HTTP/1.1\r\nHost: a\r\n\r\n", 10),
    (b"GET /v1/genres HTTP/1.1\r\nHost: a\r\n\r\n", 3),
    (PATCH + SHORT, 1),
    (PATCH + b"Content-Length: 70000\r\n\r\n" + 70_000 * b" ", 2),
    (PATCH + b"Content-Length: %d\r\n\r\n" % (1 << 20) + (1 << 20) * b" ", MAX_BODY_UNITS),
    # A body of unknown length counts as the largest, and a larger one than is allowed as well.
    (PATCH + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", MAX_BODY_UNITS),
    (PATCH + b"Content-Length: 9999999999\r\n\r\n", MAX_BODY_UNITS),
    # 12 KB of gzip can be 1 MB; what it is compressed with is not looked at.
    (PATCH + b"Content-Encoding: gzip\r\n" + SHORT, MAX_BODY_UNITS),
    (PATCH + b"Content-Encoding: x\r\n" + SHORT, MAX_BODY_UNITS),
    (PATCH + b"Content-Encoding: Identity\r\n" + SHORT, 1),
    # A unit for each movie, or those of the body, if they are more.
    (make_batch(1), 1),
    (make_batch(30), 30),
    (make_batch(2, blanks=200_000), 4),
    (make_batch(30, more=b"Prefer: handling=lenient\r\n"), 30),
    # Also if they are wrong.
    (make_batch(30, movie={}), 30),
    (make_batch(30, movie={}, more=b"Prefer: handling=lenient\r\n"), 30),
    (make_batch(101, movie={}), 100),
    (make_batch(0), 1),
    (make_batch(30, movie={}).replace(b"POST", b"PUT"), 30),
    (make_batch(30, movie={}).replace(b"POST", b"PATCH"), 30),
    (make_batch(30, movie={}).replace(b"batch", b"batch/delete"), 30),
    (make_batch(30).replace(b'movies"', b'Movies"'), 1),
    # By what is asked for.
    (b"GET /v1/changes HTTP/1.1\r\nHost: a\r\n\r\n", 10),
    (b"GET /v1/changes?limit=1&wait=0 HTTP/1.1\r\nHost: a\r\n\r\n", 10),
    (b"GET /v1/changes?limit=219 HTTP/1.1\r\nHost: a\r\n\r\n", 10),
    (b"HEAD /v1/changes?limit=1000 HTTP/1.1\r\nHost: a\r\n\r\n", 50),
    (b"GET /v1/movies/1/changes HTTP/1.1\r\nHost: a\r\n\r\n", 10),
    (b"GET /v1/movies/1/changes?limit=1000 HTTP/1.1\r\nHost: a\r\n\r\n", 50),
    (b"GET /v1/changes?limit=1001 HTTP/1.1\r\nHost: a\r\n\r\n", 10),
]


async def test_lists_and_large_bodies_take_more_units(start: Start, clock: StoppedClock) -> None:
    """As docs/clients/contract.md says."""
    client = await start(limits__rate=1, limits__burst=100)

    for sent, units in UNITS:
        await send_raw(client, sent)
        left = 0
        while (await client.get("/v1/movies/1")).status != 429:
            left += 1
        assert left == 100 - units, sent[:100]
        clock.now += 1000  # all units are back


async def test_the_body_of_a_refused_request_is_not_read(start: Start) -> None:
    """The response comes although no byte of the body does."""
    client = await start(**RATE)
    await exhaust(client)

    status, headers, _ = await exchange(
        client,
        b"POST /v1/movies?wrong HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\nIf-Match: x\r\n\r\n",
    )

    assert (status, headers["Connection"]) == (429, "close")


async def test_wrong_tokens_use_up_the_limit_of_the_address(start: Start, execute: Execute) -> None:
    """Then they get a 429; the client whose id they have, and all valid tokens, do not notice."""
    client = await start(**RATE)
    token = bearer(add_client(execute, "read"))
    statuses = [(await client.get("/v1/movies/1", headers=WRONG)).status for _ in range(25)]

    after = [
        (await client.get("/v1/movies/1", headers=headers)).status for headers in (token, {}, WRONG)
    ]

    assert statuses == [401] * 20 + [429] * 5
    assert after == [404, 429, 429]


async def test_refusals_for_lack_of_rights_take_no_units(start: Start, execute: Execute) -> None:
    """401 without a token, and 403."""
    client = await start(access__anonymous="none", **RATE)
    token = bearer(add_client(execute, "read"))
    for headers in 30 * [token, {}]:
        await client.delete("/v1/movies/1", headers=headers)

    response = await client.get("/v1/movies/1", headers=token)

    assert response.status == 404


async def test_public_paths_have_no_limit(start: Start) -> None:
    """Health checks, the document, the page, OPTIONS and unknown paths."""
    client = await start(**RATE)
    await exhaust(client)

    paths = ("/v1/healthcheck", "/v1/healthcheck/ready", "/v1/openapi.json", "/v1/docs", "/", "/v1")
    statuses = [(await client.get(path)).status for path in paths]
    options = await client.options("/v1/movies")
    unknown = await client.get("/v1/unknown")
    wrong = await client.delete("/v1/movies")

    assert statuses == [200] * 6
    assert (options.status, unknown.status, wrong.status) == (204, 404, 405)


async def test_a_batch_over_the_limit_changes_nothing(
    start: Start, clock: StoppedClock, execute: Execute
) -> None:
    """The 429 says what the whole batch takes and when it succeeds, which is then so."""
    client = await start(limits__rate=1, limits__burst=60)
    await client.post(BATCH, json={"movies": [MOANA] * 31})

    for _ in range(3):  # each of these takes a unit
        response = await client.post(BATCH, json={"movies": [MOANA] * 30})
    detail = (await response.json())["detail"]
    created = execute(COUNT)
    clock.now += int(response.headers["Retry-After"])
    again = await client.post(BATCH, json={"movies": [MOANA] * 30})

    assert (response.status, created) == (429, [(31,)])
    assert "this request takes 30:" in detail
    assert (again.status, execute(COUNT)) == (201, [(61,)])


@pytest.mark.parametrize("burst", [1, 2, 20])
async def test_a_batch_larger_than_the_burst_takes_all_of_it(
    start: Start, clock: StoppedClock, burst: int
) -> None:
    """It succeeds once the whole burst is there.

    It may be refused twice: before its body is read, and again when the number of movies is known.
    """
    client = await start(limits__rate=1, limits__burst=burst)
    for _ in range(5):
        statuses = []
        while 201 not in statuses:
            response = await client.post(BATCH, json={"movies": [MOANA] * 100})
            statuses.append(response.status)
            clock.now += int(response.headers.get("Retry-After", "0"))
        assert statuses[:-1] in ([], [429], [429, 429])


# Several processes with a real Redis, and without it.

SERVER = shutil.which("redis-server")
PASSWORD = "s3cret"  # of a server that the test starts
TOKEN = "0123456789abcdef"
GONE = "limits without redis"
BACK = "limits with redis"


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
    if not SERVER:
        pytest.skip("redis-server is not installed")
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
    client = await start(limits__rate=1, limits__burst=1000, limits__redis_url=server.url)
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
    client = await start(limits__rate=1, limits__burst=1000, limits__redis_url=server.url)
    assert await count_passed(client) == 100
    await server.ask("config", "set", "maxmemory", "0")
    await wait_for_redis(client, logs)

    assert list_events(logs) == [GONE, BACK]
    assert "maxmemory" in str(logs)
    assert PASSWORD not in str(logs)
