"""The server: aiohttp's, with problem documents for requests that no middleware sees.

`Runner` is what both `python -m service serve` and gunicorn's workers run.
"""

import asyncio
import gc
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import hdrs, web
from aiohttp.http_exceptions import LineTooLong

from service.config import Server as Settings
from service.web import problems
from service.web.request_cycle.access_log import PARSER_ERROR, AccessLogger
from service.web.request_cycle.headers import COMMON_HEADERS, CommonHeaders
from service.web.request_cycle.in_flight import IN_FLIGHT
from service.web.request_cycle.request_ids import assign_request_id

log = structlog.get_logger()


class Protocol(web.RequestHandler):
    """One connection; responds to requests that do not reach the middlewares."""

    def __init__(self, server: "Server", **options: Any) -> None:
        super().__init__(server, **options)
        self._common_headers = server.common_headers

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that the HTTP parser refused, or that failed within aiohttp."""
        request_id = assign_request_id(request)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("connection failed", request_id=request_id, exc_info=exc)
            response = problems.respond_internal(request)
        else:
            if isinstance(exc, LineTooLong):  # its message has the line
                message = f"a line has more than {self.max_line_size} bytes"
            request[PARSER_ERROR] = message or ""
            response = problems.respond_http(request, status, reason=message)
        self._common_headers.add(request, response)
        response.force_close()
        return response


class Server(web.Server):
    """Makes a `Protocol` of each connection."""

    def __init__(self, server: web.Server, headers: CommonHeaders, **options: Any) -> None:
        super().__init__(self._handle, request_factory=server.request_factory, **options)
        self._application = server.request_handler
        self.common_headers = headers
        self._options = options

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Assign the request id, and respond to an unknown `Expect`.

        aiohttp looks at `Expect` before the middlewares run.
        """
        assign_request_id(request)
        expected = request.headers.get(hdrs.EXPECT) or "100-continue"  # it may be an empty list
        if expected.lower() == "100-continue":
            return await self._application(request)
        response = problems.respond_http(request, HTTPStatus.EXPECTATION_FAILED)
        response.force_close()
        self.common_headers.add(request, response)
        return response

    def __call__(self) -> Protocol:
        """Make the protocol of a new connection."""
        return Protocol(self, loop=asyncio.get_running_loop(), **self._options)


def exempt_from_collection() -> None:
    """Exempt all that a process has loaded by now from garbage collection.

    Otherwise every full collection looks through it again, and stops all requests while it does; an
    import takes a tenth longer.
    """
    gc.collect()
    gc.freeze()


class Runner(web.AppRunner):
    """Runs the application with the settings of section [server]."""

    def __init__(self, app: web.Application, settings: Settings) -> None:
        self._options: dict[str, Any] = {
            "access_log_class": AccessLogger,
            "auto_decompress": False,  # `bodies.py` decompresses what it reads, and no more
            "keepalive_timeout": settings.keepalive_timeout,
        }
        # Nearly no time for aiohttp's own wait at the end: `cleanup` has waited by then.
        super().__init__(app, shutdown_timeout=1, **self._options)
        self._settings = settings

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        return Server(server, self.app[COMMON_HEADERS], **self._options)

    async def cleanup(self) -> None:
        """Report "not ready", accept no more connections, wait for requests in flight, stop."""
        in_flight = self.app[IN_FLIGHT]
        if not in_flight.is_draining:
            in_flight.is_draining = True
            await asyncio.sleep(self._settings.drain_delay)
            for site in list(self.sites):
                await site.stop()
            await in_flight.wait(self._settings.shutdown_timeout)
        await super().cleanup()
