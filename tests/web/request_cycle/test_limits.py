"""Clients that are slow, silent, large or many do not harm others."""

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from typing import Any

import psycopg2
import pytest
from aiohttp import web
from conftest import MOANA, Client, Service, Start
from pytest_aiohttp import AiohttpClient
from support import until
from wire import exchange

from service.web.request_cycle import server
from service.web.request_cycle.server import RESERVED_CONNECTIONS, choose_max_connections

GET = b"GET /v1/movies/1 HTTP/1.1\r\nHost: a\r\n\r\n"
HEALTHCHECK = GET.replace(b"movies/1", b"healthcheck")
HEAD_END = b"\r\n\r\n"
PAGE_BYTES = 20_000_000  # sockets buffer less
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[..., Awaitable[Stream]]


@pytest.fixture(autouse=True)
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are checked more often than once a second."""
    monkeypatch.setattr(server, "CHECK_INTERVAL_S", 0.02)


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Open connections to a service, which are closed in the end."""
    streams = []

    async def begin(client: Client) -> Stream:
        streams.append(await asyncio.open_connection(client.host, client.port))
        return streams[-1]

    yield begin
    for _, writer in streams:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def request(stream: Stream, sent: bytes = GET) -> str:
    """Send a request on an open connection and return the head of its response."""
    reader, writer = stream
    writer.write(sent)
    head = await asyncio.wait_for(reader.readuntil(HEAD_END), 30)
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    await asyncio.wait_for(reader.readexactly(length), 30)
    return head.decode()


async def read_to_the_end(stream: Stream) -> bytes:
    """Read what comes before the service ends the connection."""
    try:
        return await asyncio.wait_for(stream[0].read(), 30)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("length", range(1, len(GET)))
async def test_a_head_that_does_not_arrive_is_408(start: Start, length: int) -> None:
    """Wherever it stops, the client learns what happened, and its connection ends."""
    client = await start(server__head_timeout=0.05)

    status, headers, body = await exchange(client, GET[:length])

    assert status == 408
    assert "Connection" not in headers  # of HTTP/1.0, whose connections end
    assert json.loads(body)["type"].endswith("#head-timeout")


async def test_a_dripping_head_is_408(start: Start, connect: Connect) -> None:
    """A byte now and then does not put the deadline off, also on a connection that was used."""
    client = await start(server__head_timeout=0.2)
    reader, writer = stream = await connect(client)
    await request(stream)

    async def drip() -> None:
        while not reader.at_eof():
            writer.write(b"X: y\r\n")
            await asyncio.sleep(0.02)

    writer.write(b"GET / HTTP/1.1\r\n")
    dripping = asyncio.create_task(drip())
    response = await read_to_the_end(stream)

    assert response.startswith(b"HTTP/1.0 408 ")
    dripping.cancel()


async def test_a_silent_connection_is_closed(start: Start, connect: Connect) -> None:
    """One that was never used; the client gets no response to nothing."""
    client = await start(server__head_timeout=0.1)

    assert await read_to_the_end(await connect(client)) == b""


async def test_a_used_connection_may_be_idle(start: Start, connect: Connect) -> None:
    """For keepalive_timeout, which is longer than head_timeout."""
    client = await start(server__head_timeout=0.1)
    stream = await connect(client)
    await request(stream)

    await read_to_the_end(await connect(client))  # a silent one ends
    again = await request(stream)

    assert again.startswith("HTTP/1.1 404 ")


async def test_a_slow_body_is_no_slow_head(start: Start, connect: Connect) -> None:
    """It has a deadline of its own."""
    client = await start(server__head_timeout=0.1)
    reader, writer = await connect(client)
    writer.write(b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{")

    await read_to_the_end(await connect(client))
    writer.write(b"}")

    assert (await reader.readline()).startswith(b"HTTP/1.1 422 ")
    writer.close()


@pytest.mark.parametrize("part", [100_000, 5_000], ids=["at once", "in parts"])
@pytest.mark.parametrize(
    ("before", "end"), [(b"", HEAD_END), (b"", b""), (GET, HEAD_END)], ids=["one", "endless", "two"]
)
async def test_a_head_that_is_too_large_is_431(
    client: Client, connect: Connect, part: int, before: bytes, end: bytes
) -> None:
    """Lines of a usual length, but too many; also if it comes right behind another request."""
    lines = b"".join(b"X-%d: %b\r\n" % (number, b"y" * 8000) for number in range(9))
    sent = before + GET.removesuffix(b"\r\n") + lines + end.removeprefix(b"\r\n")
    stream = await connect(client)

    for start_ in range(0, len(sent), part):
        stream[1].write(sent[start_ : start_ + part])
        await asyncio.sleep(0)
    responses = await read_to_the_end(stream)

    assert responses.count(b"HTTP/1.1 404 ") == (1 if before else 0)
    assert responses.count(b" 431 Request Header Fields Too Large") == 1
    assert b"#head-too-large" in responses


@pytest.mark.parametrize("lines", [0, 9], ids=["small", "large"])
async def test_the_start_of_a_head_behind_a_request_has_a_deadline(
    start: Start, connect: Connect, lines: int
) -> None:
    """It is not taken for a part of the request's body."""
    client = await start(server__head_timeout=0.2)
    stream = await connect(client)
    headers = b"".join(b"X-%d: %b\r\n" % (number, b"y" * 8000) for number in range(lines))

    stream[1].write(GET + GET.removesuffix(b"\r\n") + headers)
    responses = await read_to_the_end(stream)

    assert responses.startswith(b"HTTP/1.1 404 ")
    assert responses.count(b"HTTP/1.0 4") == 1  # 408, or 431


@pytest.mark.parametrize(
    "sent",
    [
        GET * 2000,
        GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 50000\r\n\r\n" + b"x" * 50_000) * 3,
        b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"1\r\n \r\n" * 20_000
        + b"0\r\n\r\n",
    ],
    ids=["many requests", "bodies", "small chunks"],
)
async def test_earlier_requests_are_not_counted(
    start: Start, connect: Connect, sent: bytes
) -> None:
    """After many bytes, a connection may be idle, and the next head may come in parts."""
    client = await start(server__head_timeout=1)
    stream = await connect(client)

    for _ in range(max(1, sent.count(b"GET"))):
        await request(stream, sent)
        sent = b""
    await read_to_the_end(await connect(client))  # a silent one ends
    stream[1].write(GET[:10])
    await asyncio.sleep(0.1)
    again = await request(stream, GET[10:])

    assert again.startswith("HTTP/1.1 404 ")


async def test_the_rest_of_a_refused_body_is_read(client: Client, connect: Connect) -> None:
    """It is no head: a 431 would cut off the response, and stop the event loop for seconds."""
    reader, writer = await connect(client)
    writer.write(b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n")

    head = await reader.readuntil(HEAD_END)
    for _ in range(30):
        writer.write(b"x" * 100_000)
        await writer.drain()
    rest = await read_to_the_end((reader, writer))

    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"must be at most 1048576 bytes" in rest


async def test_a_large_head_below_the_limit_is_served(client: Client, connect: Connect) -> None:
    """And the bytes of bodies and of other requests are not counted."""
    lines = b"".join(b"X-%d: %b\r\n" % (number, b"y" * 8000) for number in range(7))
    large = GET.removesuffix(b"\r\n") + lines + b"\r\n"
    body = b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n" + b" " * 500_000
    reader, writer = await connect(client)

    writer.write(large + large + body + GET)
    statuses = []
    for _ in range(4):
        head = await asyncio.wait_for(reader.readuntil(HEAD_END), 30)
        await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0]))
        statuses.append(head.split()[1])

    assert statuses == [b"404", b"404", b"400", b"404"]
    writer.close()


@pytest.fixture
async def with_pages(aiohttp_client: AiohttpClient, settings: Any) -> Any:
    """Start a service with a large page."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * PAGE_BYTES)

    async def begin(**changes: Any) -> Client:
        service = Service(settings(**changes))
        service.app.router.add_get("/page", page)
        return await aiohttp_client(service)

    return begin


async def request_without_reading(client: Client) -> socket.socket:
    """Request the page on a connection with small buffers, and read the start of its head."""
    loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    connection.settimeout(0)
    await loop.sock_connect(connection, (client.host, client.port))
    await loop.sock_sendall(connection, GET.replace(b"v1/movies/1", b"page"))
    assert await loop.sock_recv(connection, 9) == b"HTTP/1.1 "
    return connection


async def count_bytes(connection: socket.socket) -> int:
    """Read and count the bytes of the page, or those before the connection ends; close it."""
    loop, count = asyncio.get_running_loop(), 0
    with connection, suppress(ConnectionResetError):
        while count < PAGE_BYTES and (data := await loop.sock_recv(connection, 1_000_000)):
            count += len(data)
    return count


async def test_a_response_that_is_not_read_ends(with_pages: Any) -> None:
    """After send_timeout, with its connection; other responses are not affected."""
    client = await with_pages(server__send_timeout=0.2)
    unread = await request_without_reading(client)

    await until(lambda: not client.server.runner.server.unread)
    response = await client.get("/page")

    assert await count_bytes(unread) < PAGE_BYTES
    assert len(await response.read()) == PAGE_BYTES


async def test_unsent_bytes_are_limited(with_pages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that has not read for longest ends first."""
    monkeypatch.setattr(server, "MAX_UNSENT_BYTES", 25_000_000)
    client = await with_pages()

    unread = [await request_without_reading(client) for _ in range(4)]
    counts = [await count_bytes(connection) for connection in unread]

    assert counts[0] < PAGE_BYTES
    assert counts[-1] >= PAGE_BYTES


async def fill(client: Client, connect: Connect, number: int) -> list[Stream]:
    """Open connections and use each once."""
    streams = [await connect(client) for _ in range(number)]
    for stream in streams:
        await request(stream)
    return streams


async def test_too_many_connections(
    start: Start, capsys: pytest.CaptureFixture[str], connect: Connect
) -> None:
    """Further clients get a 503, health checks are answered, and the log has one line."""
    client = await start(server__max_connections=3)
    streams = [await connect(client) for _ in range(3)]
    for _, writer in streams:
        writer.write(GET[:10])  # a request is on its way, so they are not closed

    refused = [await request(await connect(client)) for _ in range(3)]
    healthy = [await request(await connect(client), HEALTHCHECK) for _ in range(3)]
    ready = await request(await connect(client), HEALTHCHECK.replace(b"check", b"check/ready"))
    streams[0][1].write(GET[10:])
    served = await streams[0][0].readline()

    assert {head.split("\r\n")[0] for head in refused} == {"HTTP/1.1 503 Service Unavailable"}
    assert all("Retry-After: 1\r\n" in head for head in refused)
    assert all("Connection: close\r\n" in head for head in [*refused, *healthy, ready])
    assert {head.split("\r\n")[0] for head in [*healthy, ready]} == {"HTTP/1.1 200 OK"}
    assert served == b"HTTP/1.1 404 Not Found\r\n"
    assert capsys.readouterr().out.count("too many connections") == 1


async def test_the_end_of_too_many_connections_is_logged(
    start: Start,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    connect: Connect,
) -> None:
    """Once, with the number of connections beyond the limit."""
    monkeypatch.setattr(server, "OUTAGE_END_S", 0.05)
    client = await start(server__max_connections=1)
    _, writer = await connect(client)
    writer.write(GET[:10])
    await request(await connect(client))
    writer.close()

    logged = ""

    def has_ended() -> bool:
        nonlocal logged
        logged += capsys.readouterr().out
        return "no longer too many connections" in logged

    await until(has_ended)

    assert "refused=1" in logged
    assert (await request(await connect(client))).startswith("HTTP/1.1 404 ")


async def test_idle_connections_make_room(start: Start, connect: Connect) -> None:
    """Those that were never used first, then the oldest; requests under way are left alone."""
    client = await start(server__max_connections=20, server__head_timeout=60)
    used = await fill(client, connect, 10)
    under_way, silent = await connect(client), [await connect(client) for _ in range(9)]
    under_way[1].write(GET[:10])

    async def is_served() -> bool:
        return (await request(await connect(client))).startswith("HTTP/1.1 404 ")

    await until(is_served)
    under_way[1].write(GET[10:])

    assert await read_to_the_end(silent[0]) == b""
    assert (await under_way[0].readline()).startswith(b"HTTP/1.1 404 ")
    assert (await request(used[0])).startswith("HTTP/1.1 404 ")


async def test_silent_connections_do_not_fill_the_reserve(start: Start, connect: Connect) -> None:
    """A new one replaces the oldest, so that a health check is always answered."""
    client = await start(server__max_connections=1)
    busy = await connect(client)
    busy[1].write(GET[:10])

    silent = [await connect(client) for _ in range(3 * RESERVED_CONNECTIONS)]
    healthy = await request(await connect(client), HEALTHCHECK)

    assert healthy.startswith("HTTP/1.1 200 ")
    assert await read_to_the_end(silent[0]) == b""


def test_files_limit_the_connections(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer than the setting, if the process may open few files: the pool needs some, too."""
    config = settings(server__max_connections=4000, database__max_open=25)
    found = []
    for files in (1024, 65_536, 10, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        found.append(choose_max_connections(config))

    assert found == [1024 - 256 - 50, 4000, 1, 4000]


def test_the_operations_port_needs_files(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections come on top of `max_connections`."""
    config = settings(database__max_open=25, operations__port=9100)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))

    assert choose_max_connections(config) == 1024 - 256 - 50 - 96


async def test_a_request_on_an_idle_connection_is_served_during_the_stop(
    client: Client, connect: Connect
) -> None:
    """Its response says that the connection ends, so the client sends no other one."""
    await client.post("/v1/movies", json=MOANA)
    first, second = await fill(client, connect, 2)
    runner = client.server.runner
    assert runner
    stopping = asyncio.create_task(runner.cleanup())
    await until(lambda: client.server.app[server.IN_FLIGHT].is_draining)  # type: ignore[attr-defined] # conftest's Service

    head = await request(first)
    rest = await read_to_the_end(second)

    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert "Connection: close\r\n" in head
    assert rest == b""
    await stopping


async def test_few_pipelined_requests_wait_in_memory(
    start: Start, connect: Connect, database: str
) -> None:
    """The others wait in the sockets' buffers: with large heads, 32 of them would take 4 MB."""
    client = await start()
    with closing(psycopg2.connect(database)) as session:
        session.cursor().execute("lock table movies")
        _, writer = await connect(client)

        for _ in range(4):
            writer.write(GET)
            await writer.drain()

        (connection,) = client.server.handler.connections
        await until(lambda: connection.transport and not connection.transport.is_reading())
