"""The middleware that every request passes through: its deadline, its scope, and its errors."""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

import structlog
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from service.access.clients import Scope
from service.errors import Refusal, StatementFailed, Unavailable
from service.web import problems
from service.web.access import AccessControl
from service.web.bodies import ClientGone
from service.web.request_cycle.context import CONTEXT, MAX_LOGGED_LENGTH

log = structlog.get_logger()

EXPECTED_ERRORS = tuple(problems.PROBLEMS)
NGINX_CLIENT_CLOSED = 499  # for the log and the metrics; it is never sent


class Route(NamedTuple):
    """A method of a path, its handler, and who may use it."""

    method: str
    path: str
    handler: Handler
    scope: Scope = Scope.NONE  # NONE: everyone, whatever the settings say
    cost: int = 1  # in units of the rate limit; a large body takes more
    is_open: bool = False  # requests without a token need not be checked


class RequestCycle:
    """Passes requests to their handlers, and ends those that take longer than `timeout` seconds.

    One timer checks all requests: `asyncio.timeout` for each would cost a read a fifth more.
    """

    def __init__(self, access: AccessControl, timeout: float) -> None:
        self.is_draining = False  # set when the process is about to stop
        self.timeout = timeout
        self._routes: dict[Handler, Route] = {}
        self._access = access
        self._next_check = 0.0  # by the loop's clock; deadlines are no more exact
        self._started: dict[asyncio.Task[object], float] = {}  # the oldest first
        self._overdue: set[asyncio.Task[object]] = set()

    def add_routes(self, app: web.Application, routes: Iterable[Route]) -> None:
        """Add the routes to the application; HEAD works wherever GET does.

        aiohttp tries them in this order: first the paths of single movies, as most requests have.
        """
        for route in sorted(routes, key=lambda route: "{" not in route.path):
            resource = app.router.add_route(route.method, route.path, route.handler).resource
            self._routes[route.handler] = route._replace(
                path=resource.canonical if resource else route.path,
                is_open=self._access.is_open(route),
            )
            if route.method == "GET":
                app.router.add_route("HEAD", route.path, route.handler)

    @property
    def in_flight(self) -> int:
        """Requests that have no response yet."""
        return len(self._started)

    @web.middleware
    async def respond(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Respond in time, and to every error with a problem document."""
        context = request[CONTEXT]
        task: asyncio.Task[object] = asyncio.current_task()  # type: ignore[assignment] # in one
        self._started[task] = self._next_check
        try:
            if context.refused_status:
                response: web.StreamResponse = problems.respond_http(
                    request, context.refused_status
                )
                response.force_close()
                return response
            if route := self._routes.get(handler):
                context.route = route.path
                if not route.is_open or hdrs.AUTHORIZATION in request.headers:
                    await self._access.require(request, context, route)
            response = await handler(request)
        except asyncio.CancelledError:
            if task not in self._overdue:
                raise
            task.uncancel()
            response = self._respond_to_error(
                request, Unavailable("the request took too long", Refusal.REQUEST_TIMEOUT)
            )
        except Exception as error:  # noqa: BLE001 - any other error is a 500
            response = self._respond_to_error(request, error)
        finally:
            del self._started[task]
            self._overdue.discard(task)
        if self.is_draining or not request.content.is_eof():  # the rest of a body is not read
            response.force_close()
        return response

    def cancel_overdue(self, now: float, next_check: float) -> None:
        """Cancel the requests that take longer than `timeout`; both times by the loop's clock.

        A request counts from the check after its start, so none is cancelled too early.
        """
        self._next_check = next_check
        for task, started in list(self._started.items()):
            if started > now - self.timeout:
                break
            if task not in self._overdue:
                self._overdue.add(task)
                task.cancel()

    def _respond_to_error(self, request: web.Request, error: Exception) -> web.StreamResponse:
        context = request[CONTEXT]
        if isinstance(error, ClientGone):
            response: web.StreamResponse = web.Response(status=NGINX_CLIENT_CLOSED)
        elif isinstance(error, web.HTTPException):
            response = _respond_to_http_error(request, error)
        elif isinstance(error, EXPECTED_ERRORS):
            if isinstance(error, Unavailable | StatementFailed):
                context.reason = str(error)
            response = problems.respond(request, error)
        else:
            path = request.rel_url.raw_path[:MAX_LOGGED_LENGTH]
            log.error("request failed", **context.ids, path=path, exc_info=error)
            response = problems.respond_internal(request)
        return response


def _respond_to_http_error(request: web.Request, error: web.HTTPException) -> web.StreamResponse:
    if not isinstance(error, web.HTTPMethodNotAllowed):
        return problems.respond_http(request, error.status)
    headers = {"Allow": ", ".join(sorted({*error.allowed_methods, "OPTIONS"}))}
    if request.method == "OPTIONS":
        return web.Response(status=204, headers=headers)
    return problems.respond_http(request, error.status, headers)


CYCLE = web.AppKey("cycle", RequestCycle)
