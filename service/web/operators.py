"""What operators ask of a process: /live, /ready and /metrics, on the operations port.

Without such a port, /metrics may be on the service's own one, for those who have the token.
"""

import asyncio
import hmac

from aiohttp import web

from service.metrics import CONTENT_TYPE, Metrics
from service.web import problems
from service.web.health import Health
from service.web.request_cycle.compression import LargeResponse
from service.web.request_cycle.error_responses import respond_to_errors
from service.web.request_cycle.headers import COMMON_HEADERS, CommonHeaders
from service.web.request_cycle.in_flight import IN_FLIGHT, InFlight
from service.web.request_cycle.server import (
    MAX_CONNECTIONS,
    MAX_OPERATORS_CONNECTIONS,
    METRICS,
)


class MetricsPage:
    """The handlers of /metrics."""

    def __init__(self, metrics: Metrics, token: str = "") -> None:
        self._metrics = metrics
        self._credentials = f"bearer {token}".encode()
        self._rendering = asyncio.Lock()

    async def show(self, _: web.Request) -> web.Response:
        """200, in Prometheus' text format."""
        # In a thread, as the files of four busy workers take up to 100 ms. One at a time: several
        # threads would leave less of the processor to the event loop.
        async with self._rendering:
            self._metrics.sample()
            body = await asyncio.to_thread(self._metrics.render)
        return LargeResponse(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def show_with_token(self, request: web.Request) -> web.Response:
        """200, or 401 without the token (RFC 6750, 3)."""
        sent = ", ".join(request.headers.getall("Authorization", ()))  # two are not one of them
        scheme, _, token = sent.partition(" ")
        given = f"{scheme.lower()} {token.strip()}".encode("utf-8", "surrogateescape")
        if hmac.compare_digest(given, self._credentials):
            return await self.show(request)
        return problems.respond_http(
            request,
            401,
            {"WWW-Authenticate": "Bearer"},
            reason="expected Authorization: Bearer <token>, with the token of [operations]",
        )


def make_operations(
    health: Health, metrics: Metrics, headers: CommonHeaders, request_timeout: float
) -> web.Application:
    """Build the application of the operations port."""
    in_flight = InFlight(request_timeout)
    # Each response ends its connection, so a stop has none to wait for.
    in_flight.is_draining = True
    app = web.Application(middlewares=[in_flight.limit_time, respond_to_errors])
    app.router.add_get("/live", health.show)
    app.router.add_get("/ready", health.ready)
    app.router.add_get("/metrics", MetricsPage(metrics).show)
    app.on_response_prepare.append(headers.on_response_prepare)
    app.cleanup_ctx.append(in_flight.check_deadlines)
    app[COMMON_HEADERS] = headers
    app[IN_FLIGHT] = in_flight
    app[MAX_CONNECTIONS] = MAX_OPERATORS_CONNECTIONS
    app[METRICS] = metrics
    return app
