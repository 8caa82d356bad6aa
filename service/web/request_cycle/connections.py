"""One connection: how much its client may send or leave unread, and for how long."""

import asyncio
import select
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import structlog
from aiohttp import StreamReader, web
from aiohttp.http_exceptions import InvalidHeader, InvalidURLError, LineTooLong

from service.web import problems
from service.web.problems import MAX_HEAD_BYTES, REFUSAL
from service.web.request_cycle.access_log import PARSER_ERROR, find_route
from service.web.request_cycle.request_spans import SPAN
from service.web.request_cycle.trace_context import get_ids

if TYPE_CHECKING:
    from service.web.request_cycle.server import Server

log = structlog.get_logger()

NOT_IN_A_HEAD = b"\0"
HEAD_END = b"\r\n\r\n"
# A connection with more unsent bytes gets no further response; asyncio's default is four times it.
MAX_UNSENT_BYTES = 16_384
LINGER_S = 2.0  # for the client to read the last response


class Connection(web.RequestHandler):
    """Responds to requests that do not reach the middlewares; ends slow connections.

    `Server` calls `check` regularly: a timer for each request would cost more.
    """

    def __init__(self, server: "Server", **options: Any) -> None:
        super().__init__(server, **options)
        self.is_reserve = False  # only for health checks, because there are too many connections
        self._server = server
        self._socket: asyncio.Transport | None = None  # aiohttp forgets it before all is sent
        self._responded = 0  # requests after which another may follow; aiohttp counts all of them
        self._received = 0  # bytes since the connection was idle
        self._head_bytes = 0  # bytes since the last request, with the segment that completed it
        # Whether the last segment ends within a head, if the request in it has no body.
        self._ends_in_head = False
        self._head_since: float | None = asyncio.get_running_loop().time()  # None: not awaited
        self._unsent_since: float | None = None
        self._unread_body: StreamReader | None = None  # of a request that has its response
        self._refusal: HTTPStatus | None = None
        self._lost: asyncio.Future[None] | None = None  # while it lingers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._socket = cast("asyncio.Transport", transport)
        self._socket.set_write_buffer_limits(MAX_UNSENT_BYTES)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop reading the rest of a body; aiohttp would wait for it, and delay a stop by 10 s."""
        super().connection_lost(exc)
        if self._unread_body:
            self._unread_body.feed_eof()
        if self._lost and not self._lost.done():
            self._lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Parse the data; refuse a head that is too large."""
        if self._lost:
            return
        before = self._request_count
        is_head = before == self._responded
        if data:
            self._ends_in_head = len(data) >= len(HEAD_END) and not data.endswith(HEAD_END)
            if is_head and self._head_since is None:
                self._head_since = asyncio.get_running_loop().time()
                self._received = self._head_bytes = 0
        self._received += len(data)
        super().data_received(data)
        self._head_bytes = len(data) + (self._head_bytes if before == self._request_count else 0)
        if self._request_count != self._responded:
            self._head_since = None
        elif is_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def begin_request(self, request: web.BaseRequest) -> bool:
        """Note that a response is about to be sent; return whether the head is too large."""
        self._unsent_since = None
        if self._received <= MAX_HEAD_BYTES:
            return False
        headers = request.raw_headers
        size = len(request.raw_path) + sum(len(name) + len(value) for name, value in headers)
        return size > MAX_HEAD_BYTES

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the response. Then the connection is idle, or it has the next request already.

        If the response ends the connection, it has neither: what still arrives belongs to a body.
        """
        response, is_cut_off = await super().finish_response(request, resp, start_time)
        self._unread_body = None if request.content.is_eof() else request.content
        if PARSER_ERROR in request:
            await self._linger()
        if response.keep_alive:
            self._responded += 1
            is_last = self._request_count == self._responded
            if is_last and self._ends_in_head and not request.content.total_bytes:
                self._head_since = asyncio.get_running_loop().time()
        return response, is_cut_off

    def log_access(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse,
        time: float | None,
    ) -> None:
        """Write the access line, end the span, and count the response.

        `time` is when the request began.
        """
        super().log_access(request, response, time)
        if span := request.get(SPAN):
            span.end(request.method, find_route(request), response.status)
        metrics = self._server.metrics
        if metrics.is_enabled and time is not None:
            seconds = asyncio.get_running_loop().time() - time
            status = response.status
            metrics.count_response(request.method, find_route(request), status, seconds)
            if status == HTTPStatus.SERVICE_UNAVAILABLE:
                metrics.count_refusal(request[REFUSAL])

    async def _linger(self) -> None:
        """Read what the client still sends, until it closes the connection.

        Closing with unread bytes would reset it, and the client might lose the response.
        https://www.rfc-editor.org/rfc/rfc9112#section-9.6
        """
        if self._socket and not self._socket.is_closing():
            with suppress(OSError):  # it has just been reset
                self._socket.write_eof()
            self._lost = asyncio.get_running_loop().create_future()
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await self._lost

    def check(self, now: float, head_timeout: float, send_timeout: float) -> None:
        """End the connection if a head does not arrive, or if a response is not read, in time.

        `now` is the time of the event loop.
        """
        if self._head_since is not None and now - self._head_since > head_timeout:
            if self._head_bytes:
                self._refuse_head(HTTPStatus.REQUEST_TIMEOUT)
            else:
                self.force_close()
        if not self.unsent_bytes:
            self._unsent_since = None
        elif self._unsent_since is None:
            self._unsent_since = now
        elif now - self._unsent_since > send_timeout:
            self.abort()

    @property
    def unsent_bytes(self) -> int:
        """Bytes of responses that wait for the client to read."""
        return self._socket.get_write_buffer_size() if self._socket else 0

    @property
    def is_idle(self) -> bool:
        """Whether no request, and no part of one, is known."""
        is_between_requests = self._request_count == self._responded
        return is_between_requests and (self._head_since is None or not self._head_bytes)

    @property
    def has_responded(self) -> bool:
        """Whether the client has sent a request before."""
        return self._responded > 0

    def close_if_unused(self) -> None:
        """Close the connection if it is idle and no request has arrived since the last look.

        Closing with unread bytes would reset the connection, and the client would not know whether
        its request was processed.
        """
        if self._socket and not self._socket.is_closing() and self.is_idle:
            poll = select.poll()
            poll.register(self._socket.get_extra_info("socket").fileno(), select.POLLIN)
            if not poll.poll(0):
                self.force_close()

    def abort(self) -> None:
        """End the connection without sending the rest."""
        if self._socket:
            self._socket.abort()

    def pause_writing(self) -> None:
        """Let the server limit the unsent bytes of all connections."""
        super().pause_writing()
        self._server.limit_unsent(self)

    def resume_writing(self) -> None:
        """Forget the limit."""
        super().resume_writing()
        self._server.unread.pop(self, None)

    def _refuse_head(self, status: HTTPStatus) -> None:
        """Respond as to any error of the HTTP parser, which this byte causes."""
        self._refusal = status
        self._head_since = None
        super().data_received(NOT_IN_A_HEAD)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that the HTTP parser refused, or that failed within aiohttp."""
        self._server.identify(request)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("connection failed", **get_ids(request), exc_info=exc)
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
            request[PARSER_ERROR] = message or HTTPStatus(status).phrase
            response = problems.respond_http(request, status, reason=message)
        self._server.common_headers.add(request, response)
        response.force_close()
        return response
