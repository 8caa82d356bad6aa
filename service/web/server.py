"""The connections of a server: aiohttp's own, with problem documents and a limit."""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import structlog
from aiohttp import hdrs, web
from aiohttp.abc import AbstractAccessLogger
from aiohttp.http_exceptions import InvalidHeader, InvalidURLError, LineTooLong

from service.web import problems
from service.web.contexts import CONTEXT
from service.web.middleware import RequestCycle

log = structlog.get_logger()

FULL_LOG_S = 10.0  # between two lines in the log about too many connections


@dataclass
class ConnectionLimit:
    """The most connections of a server."""

    most: int
    next_line: float = 0.0  # by the loop's clock


class Connection(web.RequestHandler):
    """Answers invalid HTTP with a problem document; ends at once if there are too many."""

    def __init__(
        self, server: web.Server, cycle: RequestCycle, limit: ConnectionLimit, **options: Any
    ) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self.server, self.cycle, self.limit = server, cycle, limit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuse the connection if `max_connections` are open."""
        super().connection_made(transport)
        if len(self.server.connections) > self.limit.most:
            self.force_close()
            now = asyncio.get_running_loop().time()
            if now >= self.limit.next_line:
                self.limit.next_line = now + FULL_LOG_S
                log.warning("too many connections", max_connections=self.limit.most)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that the HTTP parser refused, or that failed within aiohttp."""
        if CONTEXT not in request:  # it did not reach the middleware
            request[CONTEXT] = self.cycle.contexts.make(request)
            if hdrs.EXPECT in request.headers:  # aiohttp cannot encode its text about this one
                status, exc = HTTPStatus.EXPECTATION_FAILED, None
        context = request[CONTEXT]
        reason = None
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("connection failed", **context.ids, exc_info=exc)
        else:
            mistake = _describe_mistake(exc, message)
            context.parser_error = mistake or HTTPStatus(status).phrase
            reason = mistake and mistake[0].lower() + mistake[1:]
        response = problems.respond_http(request, status, reason=reason)
        response.force_close()
        return response


def _describe_mistake(exc: BaseException | None, message: str | None) -> str | None:
    """Say in one line what is wrong with the HTTP, without the client's data."""
    if isinstance(exc, LineTooLong):  # its message has the line
        return "a line is too long"
    if isinstance(exc, InvalidHeader):  # its message has the header, perhaps a token
        return "Invalid HTTP header"
    if isinstance(exc, InvalidURLError):  # its message is the URL
        return "Invalid URL"
    # Other lines of the message quote the request.
    return message and message.strip().partition("\n")[0].rstrip(": ")


class ResponseReport(AbstractAccessLogger):
    """aiohttp calls it when a response was sent, or its client has gone."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Report the response; `time`: seconds since the request began."""
        cycle = cast("Connection", request.protocol).cycle
        cycle.report(request, request[CONTEXT], response, time)
