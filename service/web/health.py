"""/v1/healthcheck: liveness and readiness.

Do not restart a process that is alive but not ready: it recovers by itself when the database does.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from service import __version__
from service.config import Service
from service.errors import Refusal, Unavailable
from service.web.middleware import RequestCycle
from service.web.responses import json_response

READY_INTERVAL_S = 15.0  # as often as ops/prometheus.yml asks


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

    async def run(self, _: object) -> AsyncIterator[None]:
        """Keep the metric of readiness right, also while no client asks (a `cleanup_ctx`)."""
        task = asyncio.create_task(self._measure())
        yield
        task.cancel()

    async def _measure(self) -> None:
        while True:
            (failure,) = await asyncio.gather(self.require_database(), return_exceptions=True)
            self.cycle.metrics.ready.set(failure is None)
            await asyncio.sleep(READY_INTERVAL_S)
