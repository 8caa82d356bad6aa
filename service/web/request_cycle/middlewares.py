"""What surrounds every request, and in which order: request id and access line, common headers,
recovery, errors, compression.

One function around the application, and not a chain of aiohttp's middlewares: those do not see what
fails before them (an unknown `Expect`), and each is a coroutine more for every request (together
with what aiohttp puts around them, a tenth of a read's time).
"""

import asyncio
import itertools
import re
import secrets
import time

import structlog
from aiohttp import hdrs, web

from service import logs
from service.errors import StatementFailed, Unavailable
from service.web import problems
from service.web.bodies import REQUEST_ID, ClientGone
from service.web.request_cycle.compression import LargeResponse, compress
from service.web.request_cycle.deadlines import Traffic
from service.web.request_cycle.dispatch import Dispatch, Handler, route_of
from service.web.request_cycle.headers import REQUEST_ID as ID_HEADER
from service.web.request_cycle.headers import CommonHeaders
from service.web.request_cycle.movie_response import MovieResponse

log = structlog.get_logger()

SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
FORESEEN: tuple[type[Exception], ...] = (*problems.PROBLEMS, web.HTTPException, ClientGone)
NGINX_CLIENT_CLOSED = 499  # what nginx calls it; only the log sees it


def new_request_id() -> str:
    """Unique among all processes: drawn once a process, then counted."""
    return f"{_PROCESS}-{next(_COUNT):x}"


_PROCESS = secrets.token_hex(8)
_COUNT = itertools.count(1)


def surround(dispatch: Dispatch, traffic: Traffic, common: CommonHeaders) -> Handler:
    """Put all of it around what handles the requests.

    A sane request id of the client's is kept. What nobody foresaw is a fault of ours: logged with
    all there is to know, and answered 500.
    """

    async def handle(request: web.Request) -> web.StreamResponse:
        started = time.monotonic()
        given = request.headers.get(ID_HEADER)
        request_id = given if given and SANE_ID.fullmatch(given) else new_request_id()
        task = traffic.begin(started)
        handler, route = dispatch.find(request)
        try:
            _check_expectation(request.headers.get(hdrs.EXPECT))
            response = await handler(request)
            if type(response) is LargeResponse:  # isinstance takes 0.1 us more
                await compress(request, response)
        except FORESEEN as error:
            response = _answer(request, error, request_id)
        except asyncio.CancelledError:
            if not traffic.is_overdue(task):
                raise
            response = _answer(request, Unavailable("the request took too long"), request_id)
        except Exception:
            log.exception("request failed", request_id=request_id, path=request.path)
            request[REQUEST_ID] = request_id
            response = problems.respond_internal(request)
        finally:
            traffic.end(task)
        if traffic.draining or not request.content.is_eof():
            response.force_close()  # no more requests, or the rest of the body is not wanted
        common.add(request, response, request_id)
        logs.access.write(
            "request",
            request_id=request_id,
            method=request.method,
            route=route or route_of(request),
            path=request.rel_url.raw_path,
            status=response.status,
            duration_ms=int((time.monotonic() - started) * 100_000) / 100,
        )
        if type(response) is not MovieResponse:
            await asyncio.sleep(0)  # or pipelined requests that wait for nothing go before others'
        return response

    return handle


def _check_expectation(expected: str | None) -> None:
    """Here for all paths: aiohttp looks at it on some, and fails where it is not UTF-8."""
    if expected and expected.lower() != "100-continue":
        raise web.HTTPExpectationFailed


def _answer(request: web.Request, error: Exception, request_id: str) -> web.Response:
    request[REQUEST_ID] = request_id
    if isinstance(error, ClientGone):
        return web.Response(status=NGINX_CLIENT_CLOSED)
    if isinstance(error, Unavailable | StatementFailed):
        event = "unavailable" if isinstance(error, Unavailable) else "request failed"
        reason = {"query": error.query} if error.query else {"reason": str(error)}
        log.warning(event, request_id=request_id, **reason)
    if not isinstance(error, web.HTTPException):
        return problems.respond(request, error)
    headers = {}
    if isinstance(error, web.HTTPMethodNotAllowed):
        headers["Allow"] = ", ".join(sorted({*error.allowed_methods, "OPTIONS"}))
        if request.method == "OPTIONS":
            return web.Response(status=204, headers=headers)
    return problems.respond_http(request, error.status, headers)
