"""Clients that are slow, silent, large or many do not harm others."""

import asyncio
import gc
import json
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any

import psycopg2
import pytest
from aiohttp import web
from conftest import MOANA, Client, Service, Start
from pytest_aiohttp import AiohttpClient
from support import get_app, until
from wire import exchange

from service.errors import OperatorError
from service.web.http.compression import LargeResponse
from service.web.http.direct_response import DirectResponse
from service.web.request_cycle import server as http_server
from service.web.request_cycle import unsent
from service.web.request_cycle.cycle import CYCLE
from service.web.request_cycle.runner import choose_max_connections
from service.web.request_cycle.server import HttpServer

GET = b"GET /v1/movies/1 HTTP/1.1\r\nHost: a\r\n\r\n"
HEAD_END = b"\r\n\r\n"
PAGE_BYTES = 20_000_000  # sockets buffer less
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[..., Awaitable[Stream]]


@pytest.fixture(autouse=True)
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are checked more often than once a second."""
    monkeypatch.setattr(http_server, "CHECK_INTERVAL_S", 0.02)


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


def get_server(client: Client) -> HttpServer:
    """Return the server of a client's service."""
    runner = client.server.runner
    assert runner
    assert isinstance(runner.server, HttpServer)
    return runner.server


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


async def test_a_head_that_does_not_arrive_is_408(start: Start) -> None:
    """Wherever it stops, the client learns what happened, and its connection ends."""
    client = await start(server__head_timeout=0.5)

    responses = await asyncio.gather(
        *(exchange(client, GET[:length]) for length in range(1, len(GET)))
    )

    assert {status for status, _, _ in responses} == {408}
    assert {headers["Connection"] for _, headers, _ in responses} == {"close"}
    assert {json.loads(body)["type"] for _, _, body in responses} == {"/v1/docs#head-timeout"}


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

    assert response.startswith(b"HTTP/1.1 408 ")
    dripping.cancel()


async def test_a_silent_connection_is_closed(start: Start, connect: Connect) -> None:
    """One that was never used; the client gets no response to nothing."""
    client = await start(server__head_timeout=0.1)

    assert await read_to_the_end(await connect(client)) == b""


async def test_a_used_connection_may_be_idle(
    start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For keepalive_timeout, which is longer than the other limits."""
    monkeypatch.setattr(unsent, "SEND_TIMEOUT_S", 0.03)
    client = await start(server__head_timeout=0.1)
    stream = await connect(client)
    await request(stream)

    await read_to_the_end(await connect(client))  # a silent one ends
    again = await request(stream)

    assert again.startswith("HTTP/1.1 404 ")


async def test_a_slow_body_is_no_slow_head(start: Start, connect: Connect) -> None:
    """A body has its own deadline."""
    client = await start(server__head_timeout=0.1)
    reader, writer = await connect(client)
    writer.write(b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{")

    await read_to_the_end(await connect(client))
    writer.write(b"}")

    assert (await reader.readline()).startswith(b"HTTP/1.1 422 ")
    writer.close()


@pytest.mark.parametrize("part", [100_000, 5_000], ids=["at once", "in parts"])
@pytest.mark.parametrize("end", [HEAD_END, b""], ids=["complete", "endless"])
@pytest.mark.parametrize("is_used", [False, True], ids=["new", "used"])
async def test_a_head_that_is_too_large_is_431(
    client: Client, connect: Connect, part: int, end: bytes, *, is_used: bool
) -> None:
    """Lines of a usual length, but too many; also on a connection that was used before."""
    lines = b"".join(b"X-%d: %b\r\n" % (number, b"y" * 8000) for number in range(9))
    sent = GET.removesuffix(b"\r\n") + lines + end.removeprefix(b"\r\n")
    stream = await connect(client)
    if is_used:
        await request(stream)

    for start_ in range(0, len(sent), part):
        stream[1].write(sent[start_ : start_ + part])
        await asyncio.sleep(0)
    responses = await read_to_the_end(stream)

    assert b" 404 " not in responses
    assert responses.count(b" 431 Request Header Fields Too Large") == 1
    assert b"#head-too-large" in responses


@pytest.mark.parametrize("lines", [0, 9], ids=["small", "large"])
async def test_the_start_of_a_head_behind_a_request_has_a_deadline(
    start: Start, connect: Connect, lines: int
) -> None:
    """It has the deadline of an idle connection, because its received bytes are unknown."""
    client = await start(server__keepalive_timeout=0.2)
    stream = await connect(client)
    headers = b"".join(b"X-%d: %b\r\n" % (number, b"y" * 8000) for number in range(lines))

    stream[1].write(GET + GET.removesuffix(b"\r\n") + headers)
    responses = await read_to_the_end(stream)

    assert responses.startswith(b"HTTP/1.1 404 ")
    assert responses.count(b"HTTP/1.") == 1


@pytest.mark.parametrize(
    "sent",
    [
        GET.replace(HEAD_END, b"\r\nX: " + b"x" * 5000 + HEAD_END) * 20,
        b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"1\r\n \r\n" * 20_000
        + b"0\r\n\r\n",
    ],
    ids=["many requests", "small chunks"],
)
async def test_earlier_requests_are_not_counted(
    start: Start, connect: Connect, sent: bytes
) -> None:
    """After many bytes, a connection may be idle, and the next head may come in parts."""
    client = await start(server__head_timeout=0.5)
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


async def connect_with_small_buffers(client: Client) -> socket.socket:
    """Open a connection."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    connection.settimeout(0)
    await asyncio.get_running_loop().sock_connect(connection, (client.host, client.port))
    return connection


async def request_without_reading(
    client: Client, connection: socket.socket | None = None
) -> socket.socket:
    """Request the page on a connection, or a new one, and read the start of its head."""
    loop = asyncio.get_running_loop()
    connection = connection or await connect_with_small_buffers(client)
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


async def test_a_response_that_is_not_read_ends(
    with_pages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while, with a reset: the kernel keeps nothing of it. Others are not affected."""
    monkeypatch.setattr(unsent, "SEND_TIMEOUT_S", 0.2)
    client = await with_pages()
    unread = await request_without_reading(client)

    await until(lambda: not client.server.runner.server.connections)
    response = await client.get("/page")

    with unread:
        unread.settimeout(30)
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(lambda: [*iter(partial(unread.recv, 1_000_000), b"")])
    assert len(await response.read()) == PAGE_BYTES


async def test_unsent_bytes_are_limited(with_pages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the next check of all connections; the one that is unread for longest ends."""
    monkeypatch.setattr(http_server, "CHECK_INTERVAL_S", 60)
    monkeypatch.setattr(unsent, "MAX_UNSENT_BYTES_IN_ALL", 25_000_000)
    client = await with_pages()
    first = await connect_with_small_buffers(client)  # the oldest connection is not the first one

    unread = [await request_without_reading(client) for _ in range(3)]
    unread.append(await request_without_reading(client, first))
    unsent_bytes = sum(each.outbox.size for each in get_server(client).connections)  # type: ignore[attr-defined]
    counts = [await count_bytes(connection) for connection in unread]

    assert unsent_bytes <= 25_000_000
    assert max(counts[:3]) < PAGE_BYTES
    assert counts[3] >= PAGE_BYTES


async def fill(client: Client, connect: Connect, number: int) -> list[Stream]:
    """Open connections and use each once."""
    streams = [await connect(client) for _ in range(number)]
    for stream in streams:
        await request(stream)
    return streams


async def begin_request(stream: Stream) -> None:
    """Send the head of a request on an open connection; the service waits for its body."""
    reader, writer = stream
    writer.write(
        b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    )
    assert b" 100 " in await asyncio.wait_for(reader.readuntil(HEAD_END), 30)


async def test_a_new_connection_ends_the_one_that_was_idle_for_longest(
    start: Start, capsys: pytest.CaptureFixture[str], connect: Connect
) -> None:
    """A connection with a request is not idle; the log has one line."""
    client = await start(server__max_connections=3)
    busy = await connect(client)
    first, second = await fill(client, connect, 2)
    await begin_request(busy)
    await request(first)

    third = await connect(client)
    ended = [await read_to_the_end(second)]
    served = [await request(stream) for stream in (third, first)]
    fourth = await connect(client)
    ended.append(await read_to_the_end(third))
    served += [await request(stream) for stream in (first, fourth)]
    busy[1].write(b"{}")

    assert ended == [b"", b""]
    assert {head.split("\r\n")[0] for head in served} == {"HTTP/1.1 404 Not Found"}
    assert (await busy[0].readline()).startswith(b"HTTP/1.1 422 ")
    assert capsys.readouterr().out.count("too many connections") == 1


async def test_while_all_connections_are_busy_a_new_one_ends(
    start: Start, connect: Connect
) -> None:
    """The requests under way get their responses; then there is room."""
    client = await start(server__max_connections=2)
    busy = [await connect(client) for _ in range(2)]
    for stream in busy:
        await begin_request(stream)

    refused = await read_to_the_end(await connect(client))
    for _, writer in busy:
        writer.write(b"{}")
    statuses = [(await reader.readline())[:12] for reader, _ in busy]
    again = await request(await connect(client))

    assert refused == b""
    assert statuses == [b"HTTP/1.1 422"] * 2
    assert again.startswith("HTTP/1.1 404 ")


async def test_a_client_that_has_gone_is_forgotten(
    client: Client, connect: Connect, database: str
) -> None:
    """Its connection is not among the idle ones when its request ends."""
    app, service = get_app(client), get_server(client)
    with closing(psycopg2.connect(database)) as session:
        session.cursor().execute("lock table movies")
        _, writer = await connect(client)
        writer.write(GET)
        await until(lambda: app[CYCLE].in_flight)
        (connection,) = service.connections
        writer.transport.abort()
        await until(lambda: connection.transport is None)
    await until(lambda: not app[CYCLE].in_flight)

    assert list(service.shared.idle) == []


async def test_an_idle_connection_that_has_closed_is_forgotten(
    client: Client, connect: Connect
) -> None:
    """Otherwise each one would take memory, and a new one would end it in place of an open one."""
    service = get_server(client)
    stream = await connect(client)
    await request(stream)

    stream[1].close()
    await until(lambda: not service.connections)

    assert list(service.shared.idle) == []


@pytest.fixture
def limited(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, int], tuple[int, list[tuple[int, int]]]]:
    """Choose the connections of a process with these limits of open files, soft and hard."""

    def choose(soft: int, hard: int) -> tuple[int, list[tuple[int, int]]]:
        limits = [(soft, hard)]
        monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
        monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.append(wanted))
        config = settings(server__max_connections=4000, database__max_open=25)
        return choose_max_connections(config), limits

    return choose


def test_files_limit_the_connections(limited: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """By the hard limit: fewer than the setting, if the process may open few files.

    The pool needs some, too. Few connections are reported; without any, there is no start.
    """
    hard = (1024, 65_536, resource.RLIM_INFINITY)
    assert [limited(256, each)[0] for each in hard] == [871, 4000, 4000]
    assert limited(256, 1024)[1][-1] == (1024, 1024)
    assert limited(200, 200)[0] == 47
    assert "few connections" in capsys.readouterr().out
    with pytest.raises(OperatorError, match=r"^expected more than 153 open files, found 153"):
        limited(20, 153)


async def test_a_request_on_an_idle_connection_is_served_during_the_stop(
    client: Client, connect: Connect
) -> None:
    """Its response says that the connection ends, so the client sends no other one."""
    await client.post("/v1/movies", json=MOANA)
    first, second = await fill(client, connect, 2)
    runner = client.server.runner
    assert runner
    stopping = asyncio.create_task(runner.cleanup())
    await until(lambda: get_app(client)[CYCLE].is_draining)

    head = await request(first)
    rest = await read_to_the_end(second)

    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert "Connection: close\r\n" in head
    assert rest == b""
    await stopping


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{", b"}"),
        (GET[:10], GET[10:]),
    ],
    ids=["body", "head"],
)
async def test_a_request_that_still_arrives_is_served_during_the_stop(
    client: Client, connect: Connect, first: bytes, rest: bytes
) -> None:
    """A head within a second, a body within its own time."""
    _, writer = arriving = await connect(client)
    writer.write(first)
    await until(lambda: any(each.received for each in get_server(client).connections))  # type: ignore[attr-defined] # a Connection

    stopping = asyncio.create_task(client.server.runner.cleanup())  # type: ignore[union-attr] # it runs
    await until(lambda: not client.server.runner.sites)  # type: ignore[union-attr] # it runs
    writer.write(rest)
    response = await read_to_the_end(arriving)

    assert response.startswith((b"HTTP/1.1 422 ", b"HTTP/1.1 404 "))
    assert b"\r\nConnection: close\r\n" in response
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


async def test_an_idle_connection_does_not_keep_its_last_response(client: Client) -> None:
    """1,000 connections with lists of 100 long movies would keep 600 MB."""
    batch = await client.post("/v1/movies/batch", json={"movies": [MOANA] * 100})
    await batch.read()
    page = await client.get("/v1/movies?id=1")
    await page.read()

    gc.collect()  # responses of other tests
    kept = [each for each in gc.get_objects() if type(each) in (LargeResponse, DirectResponse)]
    assert kept
    assert not any(each.body for each in kept)
