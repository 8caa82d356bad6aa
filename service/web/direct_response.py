"""A small response that is written as one string: a shortcut past aiohttp's writer.

docs/decisions/0006-deviations-from-aiohttp.md says what it saves.
"""

import time
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from wsgiref.handlers import format_date_time

from aiohttp import ClientConnectionResetError, HttpVersion10, hdrs, web

from service.web.contexts import CONTEXT
from service.web.headers import POSITION

STATUS_LINES = {
    int(status): f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}
_format_date = lru_cache(maxsize=1)(format_date_time)  # of this second


class DirectResponse(web.StreamResponse):
    """A response whose body is bytes; the response to HEAD has no body."""

    def __init__(self, body: bytes, headers: Mapping[str, str], status: int = 200) -> None:
        super().__init__(status=status)
        self.body = body
        self.own_headers = headers
        self._status_line = STATUS_LINES[status]
        self._has_length = status != HTTPStatus.NOT_MODIFIED  # RFC 9110, 8.6
        self._is_last = False  # of the connection

    async def prepare(self, request: web.BaseRequest) -> None:
        """Send head and body in one write."""
        context, transport = request[CONTEXT], request.transport
        if transport is None:
            raise ClientConnectionResetError("the client has gone")
        fields = {**context.headers, **self.own_headers}
        if "Vary" in self.own_headers and "Vary" in context.headers:
            fields["Vary"] = f"{self.own_headers['Vary']}, {context.headers['Vary']}"
        if context.transaction:
            fields[POSITION] = f"{context.transaction}"
        if self._has_length:
            fields["Content-Length"] = f"{len(self.body)}"
        if self._is_last or not request.keep_alive or request.version == HttpVersion10:
            self._is_last = True
            fields.setdefault("Connection", "close")
        lines = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
        head = f"{self._status_line}{lines}Date: {_format_date(int(time.time()))}\r\n\r\n"
        body = b"" if context.method == hdrs.METH_HEAD else self.body
        message = head.encode("ascii") + body
        transport.write(message)
        context.written += len(message)
        self.body = b""  # aiohttp keeps a response until the connection's next one
        if transport.get_write_buffer_size():
            await request.writer.drain()  # if the client does not read, take no further request

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: all has been sent."""

    @property
    def keep_alive(self) -> bool:
        """Whether the connection stays open after this response."""
        return not self._is_last

    def force_close(self) -> None:
        """Let this be the last response of its connection."""
        self._is_last = True
