"""The connections of a process, and their limits: number, late or large heads, unread responses.

`Server` makes a `Connection` for each, and checks all of them twice a second.
"""

import asyncio
import socket
import struct
from contextlib import suppress
from http import HTTPStatus
from typing import Any, cast

import structlog
from aiohttp import hdrs, web, web_protocol
from aiohttp.abc import AbstractAccessLogger, AbstractStreamWriter
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import InvalidHeader, InvalidURLError, LineTooLong
from aiohttp.streams import StreamReader
from multidict import CIMultiDict, CIMultiDictProxy

from service.context import RequestContext
from service.web import problems
from service.web.http.client_address import UNIX
from service.web.http.contexts import CONTEXT
from service.web.problems import MAX_HEAD_BYTES
from service.web.request_cycle.cycle import RequestCycle

log = structlog.get_logger()

CHECK_INTERVAL_S = 0.5
CROWDED_S = 10.0  # below the limit, until the log gets the next line
NOT_IN_A_HEAD = b"\0"
SEND_TIMEOUT_S = 30.0  # for a client to read a response
# A connection with more unsent bytes gets no further response; asyncio's default is 64 KiB.
WRITE_BUFFER_BYTES = 16_384
# The limit of all connections whose clients do not read. A page has up to 0.6 MB.
MAX_UNSENT_BYTES_IN_ALL = 32 * 1024 * 1024
RESET = struct.pack("ii", 1, 0)  # https://man7.org/linux/man-pages/man7/socket.7.html, SO_LINGER
# Requests of one connection that wait for the previous one; aiohttp's limit of 32 lets a client
# fill 4 MB with large heads.
MAX_PIPELINED = 2


class Connection(web.RequestHandler):
    """Answers invalid HTTP with a problem document; ends if its client is too slow."""

    def __init__(self, server: "Server", **options: Any) -> None:
        super().__init__(server, **options)
        self.server = server
        self.peer = UNIX
        self.is_busy = False  # with a request
        self.head_since: float | None = None  # or the connection opened; None: between heads
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
        """Parse the data."""
        if self.head_since is None:
            self.head_since = self.server.now
        self.received += len(data)
        super().data_received(data)

    def check(self, now: float, head_timeout: float) -> None:
        """End the connection if a head is late or too large, or if a response is not read."""
        is_in_body = self.is_busy or (self.body and not self.body.is_eof())
        if self.head_since is not None and not is_in_body:
            if self.received > MAX_HEAD_BYTES:
                self._refuse_head(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            elif now - self.head_since > head_timeout:
                if self.received:
                    self._refuse_head(HTTPStatus.REQUEST_TIMEOUT)
                else:
                    self.force_close()
        if not self.unsent_bytes:
            self.unsent_since = None
        elif self.unsent_since is None:
            self.unsent_since = now
        elif now - self.unsent_since > SEND_TIMEOUT_S:
            self.abort()

    def pause_writing(self) -> None:
        """Wait for the client to read; the transport calls it when much is unsent."""
        super().pause_writing()
        self.unsent_since = asyncio.get_running_loop().time()
        self.server.unsent_bytes += self.unsent_bytes
        if self.server.unsent_bytes > MAX_UNSENT_BYTES_IN_ALL:  # do not wait for the next check
            self.server.limit_unsent()

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

    def _refuse_head(self, status: HTTPStatus) -> None:
        """Make the parser fail on an invalid byte, so that `handle_error` sends this status."""
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
            response = problems.respond_http(request, status)
        else:
            if self._refusal:
                status, message = self._refusal, None
            elif isinstance(exc, LineTooLong):  # its message has the line
                message = f"a line has more than {self.max_line_size} bytes"
            elif isinstance(exc, InvalidHeader):  # its message has the header, perhaps a token
                message = "Invalid HTTP header"
            elif isinstance(exc, InvalidURLError):  # its message is the URL
                message = "Invalid URL"
            elif message:  # its other lines quote the request
                message = message.strip().partition("\n")[0].rstrip(": ")
            reason = message and message[0].lower() + message[1:]
            context.parser_error = message or HTTPStatus(status).phrase
            response = problems.respond_http(request, status, reason=reason)
        response.force_close()
        return response


class EndOfRequest(AbstractAccessLogger):
    """aiohttp calls it when a response was sent, or its client has gone."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Let the connection wait for the next head; `time`: seconds since the request began."""
        connection: Connection = request.protocol  # type: ignore[assignment] # of this server
        connection.is_busy = False
        connection.head_since = None
        connection.received = 0
        connection.unsent_since = None
        server = connection.server
        if connection.transport:  # otherwise its client has gone
            server.idle[connection] = None
        server.cycle.report(request, connection.context, response, time)


class Server(web.Server):
    """Makes a `Connection` of each connection, and a context of each request.

    At most `max_connections` stay open: a new one ends the one that has been idle for longest.
    """

    def __init__(self, made: web.Server, cycle: RequestCycle, **options: Any) -> None:
        super().__init__(made.request_handler, request_factory=self._begin_request, **options)
        web_protocol.MAX_MSG_QUEUE_SIZE = MAX_PIPELINED
        self.cycle = cycle
        self.now = asyncio.get_running_loop().time()  # of the last check
        self.idle: dict[Connection, None] = {}  # ordered: the longest idle first
        self._make_bare_request = made.request_factory
        self._options = options
        self.unsent_bytes = 0  # of all connections, at most
        self._open = 0
        self._crowded_until = 0.0

    def __call__(self) -> Connection:
        """Make the protocol of a new connection."""
        return Connection(self, loop=asyncio.get_running_loop(), **self._options)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Make room for the connection if there are too many."""
        super().connection_made(handler, transport)
        self._open += 1
        self.idle[cast("Connection", handler)] = None
        if self._open > self.cycle.settings.max_connections:
            if self.now > self._crowded_until:
                most = self.cycle.settings.max_connections
                log.warning("too many connections", max_connections=most)
            self._crowded_until = self.now + CROWDED_S
            longest_idle = next(iter(self.idle))
            del self.idle[longest_idle]
            longest_idle.abort()

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        """Forget the connection."""
        super().connection_lost(handler, exc)
        self._open -= 1
        self.idle.pop(cast("Connection", handler), None)

    def _begin_request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.BaseRequest:
        """Make a request and its context, also for invalid HTTP."""
        connection: Connection = protocol  # type: ignore[assignment] # of this server
        connection.is_busy = True
        connection.body = payload
        self.idle.pop(connection, None)
        context = self.cycle.contexts.make(message, connection.peer)
        if connection.received > MAX_HEAD_BYTES and _count_bytes(message) > MAX_HEAD_BYTES:
            context.refused_status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        elif hdrs.EXPECT in message.headers:
            message = _take_expectation(message, context)
        request = self._make_bare_request(message, payload, connection, writer, task)
        connection.context = request[CONTEXT] = context
        return request

    async def check_regularly(self) -> None:
        """End slow connections and requests, until it is cancelled."""
        settings = self.cycle.settings
        interval = min(CHECK_INTERVAL_S, settings.request_timeout / 2, settings.head_timeout / 2)
        while True:
            self.now = now = asyncio.get_running_loop().time()
            self.cycle.cancel_overdue(now, now + interval)
            for connection in cast("list[Connection]", self.connections):
                connection.check(now, settings.head_timeout)
            self.limit_unsent()
            await asyncio.sleep(interval)

    def limit_unsent(self) -> None:
        """Reset connections if too many bytes are unsent in all, the longest unread first."""
        unread = [each for each in cast("list[Connection]", self.connections) if each.unsent_bytes]
        unread.sort(key=lambda each: each.unsent_since or self.now)
        self.unsent_bytes = sum(each.unsent_bytes for each in unread)
        while self.unsent_bytes > MAX_UNSENT_BYTES_IN_ALL:
            self.unsent_bytes -= unread[0].unsent_bytes
            unread.pop(0).abort()


def _count_bytes(message: RawRequestMessage) -> int:
    """Return the size of a head, without its separators."""
    return len(message.path) + sum(len(name) + len(value) for name, value in message.raw_headers)


def _take_expectation(message: RawRequestMessage, context: RequestContext) -> RawRequestMessage:
    """Return the message without `Expect`: aiohttp would respond to an unknown one with a text."""
    if message.headers[hdrs.EXPECT].lower() not in ("100-continue", ""):
        context.refused_status = HTTPStatus.EXPECTATION_FAILED
    context.expects_continue = message.version == HttpVersion11
    others = CIMultiDict(message.headers)
    del others[hdrs.EXPECT]
    return message._replace(headers=CIMultiDictProxy(others))
