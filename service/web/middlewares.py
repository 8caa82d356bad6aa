"""What surrounds every handler, and in which order.

`identify_and_log` is outermost: whatever comes back from within, it has a request id and an access
line. `recover` turns what nobody foresaw into a 500. `answer_errors` is innermost: it knows all
errors that are foreseen, so that what reaches `recover` is a fault of ours and logged as one.
"""

import itertools
import re
import secrets
import time

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from service.errors import Unavailable
from service.web import problems
from service.web.requests import REQUEST_ID, ClientGone
from service.web.traffic import Traffic

log = structlog.get_logger()

SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
FORESEEN: tuple[type[Exception], ...] = (*problems.PROBLEMS, web.HTTPException, ClientGone)
NGINX_CLIENT_CLOSED = 499  # what nginx calls it; only the log sees it


def middlewares(traffic: Traffic) -> list[Middleware]:
    """All of them, the outermost first."""
    return [identify_and_log(traffic), recover, answer_errors(traffic)]


def new_request_id() -> str:
    """Unique among all processes: drawn once a process, then counted."""
    return f"{_PROCESS}-{next(_COUNT):x}"


_PROCESS = secrets.token_hex(8)
_COUNT = itertools.count(1)


def identify_and_log(traffic: Traffic) -> Middleware:
    """Give each request an id (a sane one from the client is kept) and log its one line."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        started = time.perf_counter()
        given = request.headers.get("X-Request-Id")
        request_id = given if given and SANE_ID.fullmatch(given) else new_request_id()
        request[REQUEST_ID] = request_id
        response = await handler(request)
        finish(response, request_id)
        if traffic.draining or not request.content.is_eof():
            response.force_close()  # no more requests, or the rest of the body is not wanted
        resource = request.match_info.route.resource
        log.info(
            "request",
            request_id=request_id,
            method=request.method,
            route=resource.canonical if resource else None,
            path=request.rel_url.raw_path,
            status=response.status,
            duration_ms=round((time.perf_counter() - started) * 1000, 2),
        )
        return response

    return middleware


def finish(response: web.StreamResponse, request_id: str) -> None:
    """Set the headers that every answer carries."""
    response.headers["X-Request-Id"] = request_id
    response.headers["Server"] = "movie-catalogue"  # or aiohttp tells versions


@web.middleware
async def recover(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 500 where a handler failed, and log all there is to know."""
    try:
        return await handler(request)
    except Exception:
        log.exception("request failed", request_id=request[REQUEST_ID], path=request.path)
        return problems.respond_internal(request)


def answer_errors(traffic: Traffic) -> Middleware:
    """Answer the errors that are foreseen, a request that takes too long among them."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await traffic.carry(handler(request))
        except FORESEEN as error:
            return _answer(request, error)

    return middleware


def _answer(request: web.Request, error: Exception) -> web.Response:
    if isinstance(error, ClientGone):
        return web.Response(status=NGINX_CLIENT_CLOSED)
    if isinstance(error, Unavailable):
        log.warning("unavailable", request_id=request[REQUEST_ID], reason=str(error))
    if not isinstance(error, web.HTTPException):
        return problems.respond(request, error)
    headers = {}
    if isinstance(error, web.HTTPMethodNotAllowed):
        headers["Allow"] = ", ".join(sorted({*error.allowed_methods, "OPTIONS"}))
        if request.method == "OPTIONS":
            return web.Response(status=204, headers=headers)
    return problems.respond_http(request, error.status, headers)
