"""Liveness, readiness and metrics: /v1/healthcheck, and the operations port.

Do not restart a process that is alive but not ready: it recovers by itself when the database does.
Without an operations port, the service's own port may serve /metrics to those with the token.
"""

import asyncio
import dataclasses
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from marshmallow.fields import Nested

from service import __version__
from service.config import Service
from service.errors import Refusal, Unauthorized, Unavailable
from service.telemetry.metrics import Metrics
from service.web.describe import describe_json, field, make_schema
from service.web.middleware import RequestCycle
from service.web.responses import Content, LargeResponse, json_response
from service.web.route import Operation, Route, Scope

HEALTH_PATH = "/v1/healthcheck"
READY_INTERVAL_S = 15.0  # as often as ops/prometheus.yml asks
SystemInfo = make_schema(
    "SystemInfo",
    ("commit",),
    environment=field("the name of this deployment", "production"),
    version=field("the version of the service", __version__),
    commit=field("the commit that runs; missing if the deployment names none", "4a74d18"),
)
HealthSchema = make_schema(
    "Health",
    status=field("always `available`", "available", enum=["available"]),
    system_info=Nested(SystemInfo),
)
Readiness = make_schema("Readiness", status=field("always `ready`", "ready", enum=["ready"]))
SHOW_HEALTH = Operation(
    "show_health",
    "Check that the process is alive",
    "For liveness probes. Does not use the database.",
    describe_json("The process is alive.", HealthSchema),
    tag="Health",
)
SHOW_READINESS = Operation(
    "show_readiness",
    "Check that the process can serve requests",
    "For readiness probes. 503 while the database is unreachable or lacks migrations.",
    describe_json("The process can serve requests.", Readiness),
    tag="Health",
)


@dataclass(frozen=True)
class Health:
    """The handlers of /v1/healthcheck; `require_database` raises `Unavailable`."""

    service: Service
    require_database: Callable[[], Awaitable[None]]
    cycle: RequestCycle

    async def show(self, _: web.Request) -> web.StreamResponse:
        """200 while the process can respond; does not use the database."""
        info = {"environment": self.service.environment, "version": __version__}
        if self.service.commit:
            info["commit"] = self.service.commit
        return json_response({"status": "available", "system_info": info})

    async def ready(self, _: web.Request) -> web.StreamResponse:
        """200; 503 while the database is unreachable or lacks migrations, or the process stops."""
        if self.cycle.is_draining:
            raise Unavailable("draining", Refusal.STOPPING)
        await self.require_database()
        return json_response({"status": "ready"})

    async def measure_regularly(self) -> None:
        """Keep the metric of readiness right, also while no client asks."""
        while True:
            (failure,) = await asyncio.gather(self.require_database(), return_exceptions=True)
            self.cycle.metrics.ready.set(failure is None)
            await asyncio.sleep(READY_INTERVAL_S)


@dataclass(frozen=True)
class MetricsPage:
    """The handler of /metrics; with a `token`, requests must send it (RFC 6750, 3)."""

    metrics: Metrics
    token: str = dataclasses.field(default="", repr=False)
    rendering: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    async def show(self, request: web.Request) -> web.StreamResponse:
        """200, in Prometheus' text format; 401 without the token; 503 if this process has none."""
        if self.token:
            sent = ", ".join(request.headers.getall("Authorization", ()))  # two never match
            scheme, _, token = sent.partition(" ")
            given = f"{scheme.lower()} {token.strip()}".encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, f"bearer {self.token}".encode()):
                expected = "Authorization: Bearer <token>, with the token of [operations]"
                raise Unauthorized(f"expected {expected}", is_token_sent=bool(sent))
        # In a thread, because the files of four busy workers take up to 100 ms. One at a time,
        # because several threads would slow down the event loop.
        async with self.rendering:
            self.metrics.sample()
            body = await asyncio.to_thread(self.metrics.render)
        if not body or not self.metrics.is_enabled:  # for Prometheus, it would be a success
            raise Unavailable("it counts nothing, or its files are gone", Refusal.NOT_READY)
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return LargeResponse(Content(body, {"Content-Type": content_type}), {})


def make_routes(health: Health) -> list[Route]:
    """Return the routes."""
    return [
        Route("GET", HEALTH_PATH, health.show, Scope.NONE, SHOW_HEALTH),
        Route("GET", f"{HEALTH_PATH}/ready", health.ready, Scope.NONE, SHOW_READINESS),
    ]
