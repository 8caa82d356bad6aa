"""Clients that are slow, silent, large or many do not harm others."""

import asyncio
import gc
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web
from conftest import MOANA, Client, Start
from support import Capture, Patch, get_app, until
from wire import Stream, begin_request

from service.errors import OperatorError
from service.web import server as http_server
from service.web.middleware import CYCLE
from service.web.responses import DirectResponse, LargeResponse
from service.web.server import choose_max_connections

GET = b"GET /v1/movies/1 HTTP/1.1\r\nHost: a\r\n\r\n"
HEAD_END = b"\r\n\r\n"
PAGE_BYTES = 20_000_000  # sockets buffer less
Connect = Callable[..., Awaitable[Stream]]


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


async def test_an_idle_connection_ends(start: Start, connect: Connect) -> None:
    """After `keepalive_timeout`."""
    stream = await connect(await start(server__keepalive_timeout=0.2))
    await request(stream)

    assert await read_to_the_end(stream) == b""


async def test_the_rest_of_a_refused_body_is_read(client: Client, connect: Connect) -> None:
    """Otherwise the client would get a reset in place of the response."""
    reader, writer = await connect(client)
    writer.write(b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n")

    head = await reader.readuntil(HEAD_END)
    for _ in range(30):
        writer.write(b"x" * 100_000)
        await writer.drain()
    rest = await read_to_the_end((reader, writer))

    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"must be at most 1048576 bytes" in rest


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="of Linux")
async def test_a_response_that_is_not_read_ends(start_with: Any, monkeypatch: Patch) -> None:
    """The kernel ends the connection after a while; others are not affected."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * PAGE_BYTES)

    monkeypatch.setattr(http_server, "UNREAD_MAX_MS", 500)
    client = await start_with(answer)
    loop = asyncio.get_running_loop()
    with socket.socket() as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        unread.settimeout(0)
        await loop.sock_connect(unread, (client.host, client.port))
        await loop.sock_sendall(unread, GET.replace(b"v1/movies/1", b"handler"))
        assert await loop.sock_recv(unread, 9) == b"HTTP/1.1 "
        await until(lambda: not client.server.handler.connections)
    response = await client.get("/handler")

    assert len(await response.read()) == PAGE_BYTES


async def test_too_many_connections_are_refused(
    start: Start, capsys: Capture, connect: Connect
) -> None:
    """At once; those that are open are served, the log has one line, and then there is room."""
    client = await start(server__max_connections=2)
    busy = [await connect(client) for _ in range(2)]
    for stream in busy:
        await begin_request(stream)

    refused = [await read_to_the_end(await connect(client)) for _ in range(2)]
    for _, writer in busy:
        writer.write(b"{}")
    statuses = [(await reader.readline())[:12] for reader, _ in busy]
    for _, writer in busy:
        writer.close()
    await until(lambda: not client.server.handler.connections)
    again = await request(await connect(client))

    assert refused == [b"", b""]
    assert statuses == [b"HTTP/1.1 422"] * 2
    assert again.startswith("HTTP/1.1 404 ")
    assert capsys.readouterr().out.count("too many connections") == 1


def test_files_limit_the_connections(settings: Any, monkeypatch: Patch) -> None:
    """By the hard limit: fewer than the setting, if the process may open few files.

    The pool needs some, too. Without any connection, there is no start.
    """
    config = settings(server__max_connections=4000, database__max_open=25)

    def choose(hard: int) -> int:
        limits = [(200, hard)]
        monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
        monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.append(wanted))
        return choose_max_connections(config)

    assert [choose(each) for each in (1024, 65_536, resource.RLIM_INFINITY)] == [871, 4000, 4000]
    assert choose(200) == 47
    with pytest.raises(OperatorError, match=r"^expected more than 153 open files, found 153"):
        choose(153)


async def test_a_request_on_an_idle_connection_is_served_during_the_stop(
    client: Client, connect: Connect
) -> None:
    """Its response says that the connection ends, so the client sends no other one."""
    await client.post("/v1/movies", json=MOANA)
    first, second = [await connect(client) for _ in range(2)]
    for stream in (first, second):
        await request(stream)
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
    await until(lambda: client.server.handler.connections)

    stopping = asyncio.create_task(client.server.runner.cleanup())  # type: ignore[union-attr] # it runs
    await until(lambda: not client.server.runner.servers[0].is_serving())  # type: ignore[union-attr] # it runs
    writer.write(rest)
    response = await read_to_the_end(arriving)

    assert response.startswith((b"HTTP/1.1 422 ", b"HTTP/1.1 404 "))
    assert b"\r\nConnection: close\r\n" in response
    await stopping


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
