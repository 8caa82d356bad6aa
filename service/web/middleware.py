"""The middleware of all requests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from functools import partial
from itertools import chain
from typing import Any

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from service.config import Server as Settings
from service.errors import (
    BadRequest,
    ExpectationFailed,
    MethodNotAllowed,
    PathNotFound,
    Refusal,
    Unavailable,
)
from service.telemetry.metrics import Metrics
from service.web import problems
from service.web.access_log import AccessLog
from service.web.context import CONTEXT, ClientGone, Contexts, RequestContext
from service.web.cors import SEC_FETCH_SITE, require_allowed_origin
from service.web.headers import MAX_HEADER_BYTES, POSITION, parse_position
from service.web.route import Access, Route, Scope

CHECK_INTERVAL_S = 0.5
NGINX_CLIENT_CLOSED = 499  # for the log and the metrics; it is never sent


class RequestCycle:
    """Passes requests to their handlers; a request that exceeds `request_timeout` gets a 503.

    What must stay true: a request gets one response, whatever its handler raises, and is reported
    once; a body that was not read ends its connection; a handler that is cancelled has ended before
    its response is sent.

    A handler that needs more time calls `RequestContext.extend`.
    One timer checks all requests: `asyncio.timeout` for each costs a read 27 calls more.
    Without `keeps_connections`, each response ends its connection.
    """

    def __init__(
        self,
        settings: Settings,
        access: Access,
        metrics: Metrics,
        access_log: AccessLog,
        *,
        keeps_connections: bool = True,
    ) -> None:
        self.settings = settings
        self.contexts = Contexts(settings)
        self.is_draining = False  # set when the process is about to stop
        self._keeps_connections = keeps_connections
        self._routes: dict[web.AbstractRoute, Route] = {}
        self._access = access
        self.metrics = metrics
        self.access_log = access_log
        self._next_check = 0.0  # by the loop's clock; deadlines are no more exact
        self._running = dict[asyncio.Task[object], RequestContext]()

    def make_application(self, routes: Iterable[Route]) -> web.Application:
        """Make the application of these routes; HEAD works wherever GET does.

        aiohttp tries routes in order: the paths of single movies, the most frequent, come first.
        """
        app = web.Application(middlewares=[self.respond])
        app.on_response_prepare.append(add_common_headers)
        app.cleanup_ctx.append(partial(run_beside, self._cancel_overdue))
        app[CYCLE] = self
        for route in sorted(routes, key=lambda route: "{" not in route.path):
            add = partial(app.router.add_route, expect_handler=check_expectation)
            for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
                added = add(method, route.path, route.handler)
                self._routes[added] = route._replace(
                    path=added.resource.canonical if added.resource else route.path,
                    is_open=self._access.is_open(route),
                )
        return app

    @property
    def in_flight(self) -> int:
        """Requests that have no response yet."""
        return len(self._running)

    @web.middleware
    async def respond(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Respond in time, and to every error with a problem document."""
        context = request[CONTEXT] = self.contexts.make(request)
        task: asyncio.Task[object] = asyncio.current_task()  # type: ignore[assignment] # never None
        context.deadline = self._next_check + self.settings.request_timeout
        self._running[task] = context
        try:
            if sum(map(len, chain.from_iterable(request.raw_headers))) > MAX_HEADER_BYTES:  # 1 us
                raise BadRequest(f"the headers have more than {MAX_HEADER_BYTES} bytes")  # noqa: TRY301 - as those of handlers
            if route := self._routes.get(request.match_info.route):
                context.route = route.path
                if route.method != "GET" and SEC_FETCH_SITE in request.headers:
                    require_allowed_origin(request.headers, self.settings.cors_origins)
                if route.scope and (not route.is_open or hdrs.AUTHORIZATION in request.headers):
                    context.caller, scope = await self._access.identify(request, context.caller)
                    await self._access.require(request, route, context.caller, scope)
                if route.scope is Scope.READ and POSITION in request.headers:
                    position = parse_position(request)
                    context.caller = context.caller._replace(min_transaction=position)
            response = await handler(request)
        except asyncio.CancelledError:
            if not context.is_overdue:
                raise
            task.uncancel()
            error = Unavailable("the request took too long", Refusal.REQUEST_TIMEOUT)
            response = problems.respond(request, error)
        except Exception as error:  # noqa: BLE001 - any other error is a 500
            response = _respond_to_error(request, error)
        finally:
            del self._running[task]
        is_read = request.content.is_eof()  # the rest of a body is not read
        if self.is_draining or not self._keeps_connections or not is_read:
            response.force_close()
        return response

    async def _cancel_overdue(self) -> None:
        """Cancel requests whose deadline has passed, again and again.

        A request counts from the check after its start, so none is cancelled too early.
        """
        interval = min(CHECK_INTERVAL_S, self.settings.request_timeout / 2)
        while True:
            now = asyncio.get_running_loop().time()
            self._next_check = now + interval
            for task, context in list(self._running.items()):
                if context.deadline <= now and not context.is_overdue:
                    context.is_overdue = True
                    task.cancel()
            await asyncio.sleep(interval)


async def run_beside(
    work: Callable[[], Coroutine[Any, Any, None]], _: object
) -> AsyncIterator[None]:
    """Do this work while the application runs (a `cleanup_ctx`)."""
    task = asyncio.create_task(work())
    yield
    task.cancel()


def _respond_to_error(request: web.Request, error: Exception) -> web.StreamResponse:
    """Respond to any error; those of aiohttp's router become ours."""
    if isinstance(error, ClientGone):
        request[CONTEXT].report(error)
        return web.Response(status=NGINX_CLIENT_CLOSED)
    if isinstance(error, web.HTTPNotFound):
        error = PathNotFound()
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted({*error.allowed_methods, "OPTIONS"}))
        if request.method == "OPTIONS":
            return web.Response(status=204, headers={"Allow": allowed})
        error = MethodNotAllowed(allowed)
    return problems.respond(request, error)


async def add_common_headers(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Add the headers that the response does not have, before aiohttp writes it.

    `DirectResponse` does it itself; this is for streams and for responses without a body.
    """
    headers = response.headers
    headers.popall("Server", None)  # aiohttp's
    if CONTEXT not in request and isinstance(request, web.Request):
        # An unknown `Expect`, which aiohttp answers with a text before the middleware.
        request[CONTEXT] = request.app[CYCLE].contexts.make(request)
        problem = problems.respond(request, ExpectationFailed())
        response.body = problem.body  # type: ignore[attr-defined] # it is an HTTPException
        headers.update(problem.own_headers, **{"Content-Length": f"{len(problem.body)}"})
    context = request[CONTEXT]
    for name, value in context.headers.items():
        if name not in headers or (name == "Vary" and value not in ", ".join(headers.getall(name))):
            headers.add(name, value)
    if "Access-Control-Max-Age" in headers and "Allow" in headers:
        headers["Access-Control-Allow-Methods"] = headers["Allow"]


async def check_expectation(request: web.Request) -> None:
    """Refuse what is unknown; `100 Continue` is left to the handler that reads the body."""
    if request.headers[hdrs.EXPECT].lower() != "100-continue":
        raise web.HTTPExpectationFailed


CYCLE = web.AppKey("cycle", RequestCycle)
