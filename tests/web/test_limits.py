"""Connections: responses are the same on each; slow, silent, large or many do not harm others."""

import asyncio
import gc
import resource
import socket
from typing import Any

import pytest
from aiohttp import web
from conftest import MOANA, Client, Connect, Start
from support import Capture, Patch, get_app, until
from wire import Answer, Stream, begin_request, send_raw

from service.errors import OperatorError
from service.web import server as http_server
from service.web.middleware import CYCLE
from service.web.responses import DirectResponse, LargeResponse
from service.web.server import choose_max_connections

GET = b"GET /v1/movies/1 HTTP/1.1\r\nHost: a\r\n\r\n"
HEAD_END = b"\r\n\r\n"
PAGE_BYTES = 20_000_000  # sockets buffer less


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


# What a response says on each kind of connection.


FROM_A_PAGE = GET[:-2] + b"X-Request-Id: mine\r\nOrigin: https://pages.example\r\n"
VARYING = ("connection", "date")


@pytest.fixture
async def talkative(start: Start) -> Client:
    """Return a client of a service with one movie, and with all kinds of headers."""
    client = await start(server__cors_origins=("https://pages.example",), server__hsts=60)
    await client.post("/v1/movies", json=MOANA)
    return client


def said(answer: Answer) -> set[tuple[str, str]]:
    """Return the headers without those that differ."""
    return {(name.lower(), value) for name, value in answer.headers if name.lower() not in VARYING}


async def test_everyone_gets_the_same_headers(talkative: Client) -> None:
    """Each header is there once, with the same value, and there is a date."""
    for path, status in ((b"/1", "200 OK"), (b"/9", "404 Not Found")):
        usual = await send_raw(talkative, FROM_A_PAGE.replace(b"/1 ", path + b" ") + b"\r\n")
        for asked in (
            FROM_A_PAGE + b"Connection: close\r\n",
            FROM_A_PAGE.replace(b"1.1", b"1.0"),
            FROM_A_PAGE.replace(b"1.1", b"1.0") + b"Connection: keep-alive\r\n",
            FROM_A_PAGE.replace(b"GET", b"HEAD"),
            FROM_A_PAGE.replace(b"GET", b"HEAD") + b"Connection: close\r\n",
        ):
            other = await send_raw(talkative, asked.replace(b"/1 ", path + b" ") + b"\r\n")

            assert other.status_line == usual.status_line == f"HTTP/1.1 {status}"
            assert said(other) == said(usual)
            for answer in (usual, other):
                names = [name.lower() for name, _ in answer.headers]
                assert len(names) == len(set(names))
                assert "date" in names
            assert other.body == (b"" if asked.startswith(b"HEAD") else usual.body)


async def test_a_connection_ends_when_the_client_says_so(talkative: Client) -> None:
    """Otherwise it stays open (RFC 9112, 9.3), unless the client speaks HTTP/1.0."""
    closing = await send_raw(talkative, FROM_A_PAGE + b"Connection: close\r\n\r\n")
    old = await send_raw(
        talkative, FROM_A_PAGE.replace(b"1.1", b"1.0") + b"Connection: keep-alive\r\n\r\n"
    )
    going_on = await send_raw(talkative, FROM_A_PAGE + b"\r\n")

    assert ("Connection", "close") in closing.headers
    assert ("Connection", "close") in old.headers
    assert "Connection" not in dict(going_on.headers)


async def test_a_connection_that_ends_behind_a_part_of_a_body_says_so(talkative: Client) -> None:
    """As the rest of a body is not read (RFC 9112, 9.6)."""
    answer = await send_raw(talkative, FROM_A_PAGE + b"Content-Length: 6\r\n\r\nabc")

    assert answer.status_line == "HTTP/1.1 200 OK"
    assert ("Connection", "close") in answer.headers


async def test_a_client_that_does_not_read_fills_no_memory(
    talkative: Client, connect: Connect
) -> None:
    """If the sockets' buffers and some 64 kB of ours are full, no more responses are made."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((talkative.host, talkative.port))
    _, writer = await connect(talkative, sock=sock)
    writer.write(b"GET /v1/docs/reference.js HTTP/1.1\r\nHost: a\r\n\r\n" * 1_200)  # 20 MB
    server = talkative.server.handler

    def waiting() -> int:
        """Return the bytes of the fullest buffer."""
        return max(c.transport.get_write_buffer_size() for c in server.connections if c.transport)

    while not waiting():
        await talkative.get("/v1/healthcheck")
    for _ in range(100):  # long enough for as many responses again
        await talkative.get("/v1/healthcheck")
    assert waiting() < 90_000  # and one response more
    writer.transport.abort()
    await until(lambda: len(server.connections) <= 1)  # that of `talkative`
