"""Liveness and readiness.

A process that is alive but not ready must be left alone, not restarted: it comes back by itself
when the database does.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web

from service import __version__
from service.errors import Unavailable
from service.web.request_cycle.deadlines import Traffic
from service.web.responses import json_response


class Health:
    """The handlers of /v1/healthcheck; `require_database` raises `Unavailable`."""

    def __init__(
        self,
        environment: str,
        require_database: Callable[[], Awaitable[None]],
        traffic: Traffic,
    ) -> None:
        self._answer = {
            "status": "available",
            "system_info": {"environment": environment, "version": __version__},
        }
        self._require_database = require_database
        self._traffic = traffic

    async def show(self, _: web.Request) -> web.Response:
        """200 while the process answers at all; asks nothing of the database."""
        return json_response(self._answer)

    async def ready(self, _: web.Request) -> web.Response:
        """200, or 503 while the database is away or behind, or the process is on its way out."""
        if self._traffic.draining:
            raise Unavailable("draining")
        await self._require_database()
        return json_response({"status": "ready"})
