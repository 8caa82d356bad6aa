"""/live, /ready and /metrics for operators, on the operations port.

Without such a port, the service's own port may serve /metrics to clients with the token.
"""

import asyncio
import hmac

from aiohttp import web

from service.telemetry.metrics import Metrics
from service.web import problems
from service.web.compression import Content, LargeResponse
from service.web.health import Health
from service.web.route import Route, Scope


class MetricsPage:
    """The handlers of /metrics."""

    def __init__(self, metrics: Metrics, token: str = "") -> None:
        self._metrics = metrics
        self._credentials = f"bearer {token}".encode()
        self._rendering = asyncio.Lock()

    async def show(self, _: web.Request) -> web.StreamResponse:
        """200, in Prometheus' text format."""
        # In a thread, because the files of four busy workers take up to 100 ms. One at a time,
        # because several threads would slow down the event loop.
        async with self._rendering:
            self._metrics.sample()
            body = await asyncio.to_thread(self._metrics.render)
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return LargeResponse(Content(body, {"Content-Type": content_type}), {})

    async def show_with_token(self, request: web.Request) -> web.StreamResponse:
        """200, or 401 without the token (RFC 6750, 3)."""
        sent = ", ".join(request.headers.getall("Authorization", ()))  # two headers never match
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


def make_operations_routes(health: Health, metrics: Metrics) -> list[Route]:
    """Return the routes of the operations port."""
    return [
        Route("GET", "/live", health.show, Scope.NONE),
        Route("GET", "/ready", health.ready, Scope.NONE),
        Route("GET", "/metrics", MetricsPage(metrics).show, Scope.NONE),
    ]
