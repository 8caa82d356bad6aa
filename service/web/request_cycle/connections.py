"""A connection: its heads must be in time and not too large, and valid HTTP."""

import asyncio
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

import structlog
from aiohttp import web
from aiohttp.abc import AbstractAccessLogger
from aiohttp.http_exceptions import InvalidHeader, InvalidURLError, LineTooLong
from aiohttp.streams import StreamReader

from service.context import RequestContext
from service.web import problems
from service.web.http.client_address import UNIX
from service.web.http.contexts import CONTEXT
from service.web.problems import MAX_HEAD_BYTES
from service.web.request_cycle.cycle import RequestCycle
from service.web.request_cycle.unsent import Outbox, Outboxes

log = structlog.get_logger()

NOT_IN_A_HEAD = b"\0"


@dataclass
class Shared:
    """What the connections of a server share; times are by the loop's clock."""

    cycle: RequestCycle
    now: float  # of the last check
    idle: "dict[Connection, None]" = field(default_factory=dict)  # the longest idle first
    outboxes: Outboxes = field(default_factory=Outboxes)


class Connection(web.RequestHandler):
    """Answers invalid HTTP with a problem document; ends if its client is too slow."""

    context: RequestContext  # of the last request
    body: StreamReader | None = None  # of the last request
    outbox: Outbox  # once it is connected

    def __init__(self, server: web.Server, shared: Shared, **options: Any) -> None:
        super().__init__(server, **options)
        self.shared = shared
        self.peer = UNIX
        self.is_busy = False  # with a request
        # When the first byte of this head came, or the connection opened; None: no head is coming.
        self.head_since: float | None = None
        self.received = 0  # bytes since the last response
        self._refused_status: HTTPStatus | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first head."""
        self.outbox = Outbox(cast("asyncio.Transport", transport))
        self.shared.outboxes.add(self.outbox)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):  # otherwise it is a unix socket
            self.peer = name[0].removeprefix("::ffff:")  # an IPv4 client of an IPv6 socket
        self.head_since = self.shared.now
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self.shared.outboxes.remove(self.outbox)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data."""
        if self.head_since is None:
            self.head_since = self.shared.now
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
        self.outbox.check(now)

    def pause_writing(self) -> None:
        """Wait for the client to read; the transport calls it when much is unsent."""
        super().pause_writing()
        self.outbox.start_clock(asyncio.get_running_loop().time())
        self.shared.outboxes.note(self.outbox.size)

    def _refuse_head(self, status: HTTPStatus) -> None:
        """Make the parser fail on an invalid byte, so that `handle_error` sends this status."""
        self._refused_status = status
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
            sent = self._refused_status or HTTPStatus(status)
            mistake = None if self._refused_status else self._describe_mistake(exc, message)
            context.parser_error = mistake or sent.phrase
            reason = mistake and mistake[0].lower() + mistake[1:]
            response = problems.respond_http(request, sent, reason=reason)
        response.force_close()
        return response

    def _describe_mistake(self, exc: BaseException | None, message: str | None) -> str | None:
        """Say in one line what is wrong with the HTTP, without the client's data."""
        if isinstance(exc, LineTooLong):  # its message has the line
            return f"a line has more than {self.max_line_size} bytes"
        if isinstance(exc, InvalidHeader):  # its message has the header, perhaps a token
            return "Invalid HTTP header"
        if isinstance(exc, InvalidURLError):  # its message is the URL
            return "Invalid URL"
        # Other lines of the message quote the request.
        return message and message.strip().partition("\n")[0].rstrip(": ")


def get_connection(request: web.BaseRequest) -> Connection:
    """Return the connection of a request of this server."""
    return cast("Connection", request.protocol)


class EndOfRequest(AbstractAccessLogger):
    """aiohttp calls it when a response was sent, or its client has gone."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Let the connection wait for the next head; `time`: seconds since the request began."""
        connection = get_connection(request)
        connection.is_busy = False
        connection.head_since = None
        connection.received = 0
        connection.outbox.stop_clock()
        shared = connection.shared
        if connection.transport:  # otherwise its client has gone
            shared.idle[connection] = None
        shared.cycle.report(request, connection.context, response, time)
