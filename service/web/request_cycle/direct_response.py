"""A small response that is written as one string: a shortcut past aiohttp's writer.

docs/decisions/0006-deviations-from-aiohttp.md says what it saves. The price is this module, which
repeats what aiohttp does for the usual request; tests compare the two.
"""

import time
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from wsgiref.handlers import format_date_time

from aiohttp import ClientConnectionResetError, hdrs, web
from aiohttp.abc import AbstractStreamWriter

from service.web.request_cycle.context import CONTEXT
from service.web.request_cycle.headers import add_common_headers

STATUS_LINES = {
    int(status): f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}


class DirectResponse(web.StreamResponse):
    """A response whose body is bytes.

    aiohttp sends it if the request is HTTP/1.0 or HEAD, or if its connection is about to end.
    """

    def __init__(self, body: bytes, headers: Mapping[str, str], status: int = 200) -> None:
        super().__init__(status=status)
        self.body = body
        self.own_headers = headers
        self._status_line = STATUS_LINES[status]
        self._is_last = False  # of the connection
        self._is_sent = False

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send head and body in one write."""
        context = request[CONTEXT]
        if self._is_last or not context.is_usual:
            return await self._prepare_as_aiohttp(request)
        transport = request.transport
        if transport is None:
            raise ClientConnectionResetError("the client has gone")
        self._is_sent = True
        fields = {**context.headers, **self.own_headers}
        lines = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
        head = (
            f"{self._status_line}{lines}"
            f"Date: {_format_date(int(time.time()))}\r\nContent-Length: {len(self.body)}\r\n\r\n"
        )
        message = head.encode("ascii") + self.body
        transport.write(message)
        context.sent_bytes = len(message)
        if transport.get_write_buffer_size():
            await request.writer.drain()  # a client that does not read is not read from, either
        return None

    async def _prepare_as_aiohttp(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        self.headers.update(self.own_headers)
        await add_common_headers(request, self)  # there is no application for what is not HTTP
        self.content_length = len(self.body)
        if request.method == hdrs.METH_HEAD:
            self.body = b""
        return await super().prepare(request)

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection stays open after this response."""
        return True if self._is_sent else super().keep_alive

    def force_close(self) -> None:
        """Let this be the last response of its connection."""
        self._is_last = True
        super().force_close()

    async def write_eof(self, data: bytes = b"") -> None:
        """End the response, if aiohttp sends it."""
        if not self._is_sent:
            await super().write_eof(data or self.body)


@lru_cache(maxsize=1)
def _format_date(seconds: int) -> str:
    return format_date_time(seconds)
