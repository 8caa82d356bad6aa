"""Tests that responses are the same on every kind of connection."""

import asyncio
import socket

import pytest
from conftest import MOANA, Client, Start
from support import until
from wire import Answer, send_raw

GET = b"GET /v1/movies/1 HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine\r\nOrigin: https://pages.example\r\n"
VARYING = ("connection", "date")


@pytest.fixture
async def client(start: Start) -> Client:
    """Return a client of a service with one movie, and with all kinds of headers."""
    client = await start(server__cors_origins=("https://pages.example",), server__hsts=60)
    await client.post("/v1/movies", json=MOANA)
    return client


def said(answer: Answer) -> set[tuple[str, str]]:
    """Return the headers without those that differ."""
    return {(name.lower(), value) for name, value in answer.headers if name.lower() not in VARYING}


async def test_everyone_gets_the_same_headers(client: Client) -> None:
    """Each header is there once, with the same value, and there is a date."""
    for path, status in ((b"/1", "200 OK"), (b"/9", "404 Not Found")):
        usual = await send_raw(client, GET.replace(b"/1 ", path + b" ") + b"\r\n")
        for asked in (
            GET + b"Connection: close\r\n",
            GET.replace(b"1.1", b"1.0"),
            GET.replace(b"1.1", b"1.0") + b"Connection: keep-alive\r\n",
            GET.replace(b"GET", b"HEAD"),
            GET.replace(b"GET", b"HEAD") + b"Connection: close\r\n",
        ):
            other = await send_raw(client, asked.replace(b"/1 ", path + b" ") + b"\r\n")

            assert other.status_line == usual.status_line == f"HTTP/1.1 {status}"
            assert said(other) == said(usual)
            for answer in (usual, other):
                names = [name.lower() for name, _ in answer.headers]
                assert len(names) == len(set(names))
                assert "date" in names
            assert other.body == (b"" if asked.startswith(b"HEAD") else usual.body)


async def test_a_connection_ends_when_the_client_says_so(client: Client) -> None:
    """Otherwise it stays open (RFC 9112, 9.3), unless the client speaks HTTP/1.0."""
    closing = await send_raw(client, GET + b"Connection: close\r\n\r\n")
    old = await send_raw(client, GET.replace(b"1.1", b"1.0") + b"Connection: keep-alive\r\n\r\n")
    going_on = await send_raw(client, GET + b"\r\n")

    assert ("Connection", "close") in closing.headers
    assert ("Connection", "close") in old.headers
    assert "Connection" not in dict(going_on.headers)


async def test_a_connection_that_ends_behind_a_part_of_a_body_says_so(client: Client) -> None:
    """As the rest of a body is not read (RFC 9112, 9.6)."""
    answer = await send_raw(client, GET + b"Content-Length: 6\r\n\r\nabc")

    assert answer.status_line == "HTTP/1.1 200 OK"
    assert ("Connection", "close") in answer.headers


async def test_a_client_that_does_not_read_fills_no_memory(client: Client) -> None:
    """If the sockets' buffers and some 64 kB of ours are full, no more responses are made."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((client.host, client.port))
    _, writer = await asyncio.open_connection(sock=sock)
    writer.write(b"GET /v1/docs/reference.js HTTP/1.1\r\nHost: a\r\n\r\n" * 1_200)  # 20 MB
    server = client.server.handler

    def waiting() -> int:
        """Return the bytes of the fullest buffer."""
        return max(c.transport.get_write_buffer_size() for c in server.connections if c.transport)

    while not waiting():
        await client.get("/v1/healthcheck")
    for _ in range(100):  # long enough for as many responses again
        await client.get("/v1/healthcheck")
    assert waiting() < 90_000  # and one response more
    writer.transport.abort()
    await until(lambda: len(server.connections) <= 1)  # that of `client`
