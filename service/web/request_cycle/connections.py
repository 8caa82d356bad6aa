"""One connection: how much its client may send or leave unread, and for how long."""

import asyncio
import socket
import struct
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import structlog
from aiohttp import StreamReader, web
from aiohttp.abc import AbstractAccessLogger
from aiohttp.http_exceptions import InvalidHeader, InvalidURLError, LineTooLong

from service.web import problems
from service.web.request_cycle.client_address import UNIX
from service.web.request_cycle.context import CONTEXT

if TYPE_CHECKING:
    from service.context import RequestContext
    from service.web.request_cycle.server import Server

log = structlog.get_logger()

NOT_IN_A_HEAD = b"\0"
# A connection with more unsent bytes gets no further response; asyncio's default is four times it.
WRITE_BUFFER_BYTES = 16_384
RESET = struct.pack("ii", 1, 0)  # https://man7.org/linux/man-pages/man7/socket.7.html, SO_LINGER


class Connection(web.RequestHandler):
    """Responds to what is not valid HTTP; ends slow connections.

    `Server` calls `check` regularly: a timer for each request would cost more.
    """

    def __init__(self, server: "Server", **options: Any) -> None:
        super().__init__(server, **options)
        self.server = server
        self.peer = UNIX
        self.is_busy = False  # with a request
        self.head_since: float | None = None  # when a head began to arrive; None: it did not
        self.received = 0  # bytes since the last response
        self.context: RequestContext  # of the last request
        self.body: StreamReader | None = None  # of the last request
        self._socket: asyncio.Transport | None = None  # aiohttp forgets it before all is sent
        self.unsent_since: float | None = None
        self._refusal: HTTPStatus | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first head."""
        self._socket = cast("asyncio.Transport", transport)
        self._socket.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):  # otherwise it is a unix socket
            self.peer = name[0].removeprefix("::ffff:")  # an IPv4 client of an IPv6 socket
        self.head_since = self.server.now
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Parse the data; refuse a head that is too large."""
        if self.head_since is None:
            self.head_since = self.server.now
        self.received += len(data)
        super().data_received(data)
        if self.received > problems.MAX_HEAD_BYTES and not self.is_busy:
            # If the data completed a head, aiohttp has begun to handle it by then.
            asyncio.get_running_loop().call_soon(self._refuse_large_head)

    def check(self, now: float, head_timeout: float, send_timeout: float) -> None:
        """End the connection if a head does not arrive, or if a response is not read, in time."""
        head_since = None if self.is_busy else self.head_since
        if head_since is not None and now - head_since > head_timeout:
            if self.received:
                self._refuse_head(HTTPStatus.REQUEST_TIMEOUT)
            else:
                self.force_close()
        if not self.unsent_bytes:
            self.unsent_since = None
        elif self.unsent_since is None:
            self.unsent_since = now
        elif now - self.unsent_since > send_timeout:
            self.abort()

    @property
    def unsent_bytes(self) -> int:
        """Bytes of responses that wait for the client to read."""
        return self._socket.get_write_buffer_size() if self._socket else 0

    def abort(self) -> None:
        """Reset the connection: neither the process nor the kernel keeps what is unsent."""
        if self._socket:
            own: socket.socket = self._socket.get_extra_info("socket")
            with suppress(OSError):
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._socket.abort()

    def _refuse_large_head(self) -> None:
        """Refuse what has arrived, unless it is the body of a request."""
        is_body = self.body and not self.body.is_eof()
        if not self.is_busy and not is_body and self.received > problems.MAX_HEAD_BYTES:
            self._refuse_head(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _refuse_head(self, status: HTTPStatus) -> None:
        """Respond as to any error of the HTTP parser, which this byte causes."""
        self._refusal = status
        self.head_since = None
        super().data_received(NOT_IN_A_HEAD)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that the HTTP parser refused, or that failed within aiohttp."""
        context = request[CONTEXT]
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("connection failed", **context.ids, exc_info=exc)
            response = problems.respond_internal(request)
        else:
            if self._refusal:
                status, message = self._refusal, None
            elif isinstance(exc, LineTooLong):  # its message has the line
                message = f"a line has more than {self.max_line_size} bytes"
            elif isinstance(exc, InvalidHeader):  # its message has the header, perhaps a token
                message = "Invalid HTTP header"
            elif isinstance(exc, InvalidURLError):  # its message is the URL
                message = "Invalid URL"
            elif message:  # other lines have what was received
                message = message.strip().partition("\n")[0].rstrip(": ")
            context.parser_error = message or HTTPStatus(status).phrase
            response = problems.respond_http(request, status, reason=message)
        response.force_close()
        return response


class EndOfRequest(AbstractAccessLogger):
    """Is told by aiohttp that a response has been sent, or that its client has gone.

    Writes the access line, ends the span, and counts the response.
    """

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Let the connection wait for the next head; `time`: seconds since the request began."""
        connection: Connection = request.protocol  # type: ignore[assignment] # of this server
        connection.is_busy = False
        connection.head_since = None
        connection.received = 0
        connection.unsent_since = None
        if connection.transport:  # otherwise its client has gone
            connection.server.idle[connection] = None
        context, parts = connection.context, connection.server.parts
        if parts.access_log:
            parts.access_log.write(request, context, response, time)
        if context.span:
            context.span.end(request.method, context.route, response.status)
        if parts.metrics.is_enabled:
            parts.metrics.count_response(request.method, context, response.status, time)
