"""A small HTTP client: one keep-alive connection, which knows whether a request was sent.

Drills must distinguish a connection that could not be opened from a response that never came.
"""

import asyncio
import json
import select
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 30.0  # for a response; the service gives up after 10


class NotConnected(Exception):
    """No request was sent: the connection could not be opened."""


class NoResponse(Exception):
    """A request was sent on an open connection, and no response came."""


@dataclass(frozen=True)
class Response:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Parse the body."""
        return json.loads(self.body)


class Connection:
    """One connection, which is opened when it is needed."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Send a request; raises `NotConnected` or `NoResponse`."""
        if self._has_ended():
            self.close()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reader, writer = await self._open()
        except (OSError, TimeoutError) as error:
            raise NotConnected(repr(error)) from error
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body is not None:
            lines.append(f"Content-Length: {len(content)}")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                writer.write("\r\n".join([*lines, "", ""]).encode() + content)
                status, received, body_bytes = await _read_response(reader)
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            raise NoResponse(f"{method} {path}: {error!r}") from error
        if received.get("connection", "").lower() == "close":
            self.close()
        return Response(status, received, body_bytes)

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._writer:
            self._writer.close()
        self._reader = self._writer = None

    def _has_ended(self) -> bool:
        """Whether the server has closed; the socket is asked, as the event loop may not know."""
        if not self._reader or not self._writer:
            return False
        descriptor = self._writer.get_extra_info("socket").fileno()
        if descriptor < 0 or self._reader.at_eof():
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self._reader or not self._writer:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self._reader, self._writer


async def _read_response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(head[0].split()[1]), headers, body
