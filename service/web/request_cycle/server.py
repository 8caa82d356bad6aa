"""The edge of the process: what of HTTP happens outside the application.

aiohttp answers errors of its HTTP parser itself, in text/plain; here they get the one error shape.
`Runner` is what both `python -m service serve` and gunicorn's workers run.
"""

import asyncio
import gc
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import web

from service.config import Server as Settings
from service.web import problems
from service.web.bodies import REQUEST_ID
from service.web.request_cycle.deadlines import Traffic
from service.web.request_cycle.dispatch import Dispatch
from service.web.request_cycle.headers import CommonHeaders
from service.web.request_cycle.middlewares import new_request_id, surround

log = structlog.get_logger()

TRAFFIC = web.AppKey("traffic", Traffic)


class Protocol(web.RequestHandler):
    """One connection; answers what cannot reach the application."""

    def __init__(self, server: "Server", **options: Any) -> None:
        super().__init__(server, **options)
        self._common = server.common

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what the HTTP parser refused (a client's doing) or what failed in aiohttp."""
        request[REQUEST_ID] = request_id = new_request_id()
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("connection failed", request_id=request_id, exc_info=exc)
            response = problems.respond_internal(request)
        else:
            response = problems.respond_http(request, status, reason=message)
        log.info("request", request_id=request_id, status=response.status, error=message)
        self._common.add(request, response, request_id)
        response.force_close()
        return response


class Server(web.Server):
    """Makes a `Protocol` of each connection, with everything around the application."""

    def __init__(
        self, app: web.Application, plain: web.Server, common: CommonHeaders, **options: Any
    ) -> None:
        dispatch = Dispatch(app, plain.request_handler)
        super().__init__(
            surround(dispatch, app[TRAFFIC], common),
            request_factory=plain.request_factory,
            **options,
        )
        self.common = common
        self._options = options

    def __call__(self) -> Protocol:
        """Make the protocol of a new connection."""
        return Protocol(self, loop=asyncio.get_running_loop(), **self._options)


HANDLING = web.RequestHandler._handle_request.__code__  # noqa: SLF001 - only compared with


def without_a_turn(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
    """Make tasks as ever, but have a connection handle its requests by itself (a task factory).

    aiohttp makes a task of each request, so that context variables of one are not the next one's;
    here are none. It has such tasks begin at once from Python 3.12 on; before, they cost two turns
    of the event loop, 6 % of a read.
    """
    if getattr(coroutine, "cr_code", None) is HANDLING:
        return coroutine
    return asyncio.Task(coroutine, loop=loop, **options)


def settle_memory() -> None:
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
            "keepalive_timeout": settings.keepalive_timeout,
            "auto_decompress": False,  # `requests.py` unpacks what it reads, and no more
        }
        super().__init__(
            app,
            access_log=None,  # the middlewares write it
            shutdown_timeout=1,  # of our own wait, `cleanup` below, is left only what ignores it
            **self._options,
        )
        self._settings = settings

    async def _make_server(self) -> web.Server:
        asyncio.get_running_loop().set_task_factory(without_a_turn)
        plain = await super()._make_server()
        common = CommonHeaders(self._settings)
        return Server(self.app, plain, common, access_log=None, **self._options)

    async def cleanup(self) -> None:
        """Stop: not ready for `drain_delay`, then no new connections, then what is under way."""
        traffic = self.app[TRAFFIC]
        if not traffic.draining:
            traffic.draining = True
            await asyncio.sleep(self._settings.drain_delay)
            for site in list(self.sites):
                await site.stop()
            await traffic.drain(self._settings.shutdown_timeout)
        await super().cleanup()
