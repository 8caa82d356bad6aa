"""Sends requests and reads responses as bytes, without an HTTP client."""

import asyncio
from typing import Any, NamedTuple

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Answer(NamedTuple):
    """A response: lines without line ends, `headers` in the order sent."""

    status_line: str
    headers: list[tuple[str, str]]
    body: bytes


async def begin_request(stream: Stream) -> None:
    """Send the head of a POST; the service waits for its body, `{}`, which is a 422."""
    reader, writer = stream
    head = b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
    writer.write(head + b"Expect: 100-continue\r\n\r\n")
    assert b" 100 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)


async def send_raw(client: Any, sent: bytes) -> Answer:
    """Send these bytes on a new connection and return the response."""
    reader, writer = await asyncio.open_connection(client.host, client.port)
    try:
        writer.write(sent)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        status_line, *lines = head.decode().split("\r\n")[:-2]
        headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
        length = 0 if sent.startswith(b"HEAD ") else int(dict(headers).get("Content-Length", "0"))
        body = await asyncio.wait_for(reader.readexactly(length), 30)
    finally:
        writer.close()
    return Answer(status_line, headers, body)


async def exchange(client: Any, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send these bytes on a new connection; return status, headers and body of the response."""
    status_line, pairs, body = await send_raw(client, sent)
    headers: dict[str, str] = {}
    for name, value in pairs:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return int(status_line.split()[1]), headers, body
