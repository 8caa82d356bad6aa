"""The middlewares of every request, in their order.

aiohttp parses the request, finds the route and answers `Expect` before the first of them;
`server.py` answers what fails there. The headers of every response are added as it is sent.
"""

import asyncio

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from service.errors import StatementFailed, Unavailable
from service.web import problems
from service.web.bodies import ClientGone
from service.web.request_cycle.compression import LargeResponse, compress
from service.web.request_cycle.draining import InFlight
from service.web.request_cycle.request_ids import get_request_id

log = structlog.get_logger()

NGINX_CLIENT_CLOSED = 499  # only the log shows it


def middlewares(in_flight: InFlight, request_timeout: float) -> list[Middleware]:
    """Return them, the outermost first; `request_timeout` in seconds."""
    return [
        in_flight.count,  # outermost: a stop waits for whatever is done for a request
        answer_errors,  # around all that may raise an error
        limit_time(request_timeout),  # its error is answered, too
        compress_large,  # innermost: an error is small
    ]


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error with a problem document.

    An unexpected exception is logged with its traceback and answered 500.
    """
    await asyncio.sleep(0)  # let other connections go first: this one may have sent hundreds
    try:
        return await handler(request)
    except ClientGone:
        return web.Response(status=NGINX_CLIENT_CLOSED)
    except web.HTTPException as error:
        return _answer_http_error(request, error)
    except tuple(problems.PROBLEMS) as error:
        _log_failure(error, get_request_id(request))
        return problems.respond(request, error)
    except Exception:
        log.exception("request failed", request_id=get_request_id(request), path=request.path)
        return problems.respond_internal(request)


def _answer_http_error(request: web.Request, error: web.HTTPException) -> web.Response:
    if not isinstance(error, web.HTTPMethodNotAllowed):
        return problems.respond_http(request, error.status)
    headers = {"Allow": ", ".join(sorted({*error.allowed_methods, "OPTIONS"}))}
    if request.method == "OPTIONS":
        return web.Response(status=204, headers=headers)
    return problems.respond_http(request, error.status, headers)


def _log_failure(error: Exception, request_id: str) -> None:
    if isinstance(error, Unavailable | StatementFailed):
        event = "unavailable" if isinstance(error, Unavailable) else "request failed"
        reason = {"query": error.query} if error.query else {"reason": str(error)}
        log.warning(event, request_id=request_id, **reason)


def limit_time(seconds: float) -> Middleware:
    """Make the middleware that ends a request after so many seconds."""

    @web.middleware
    async def limit(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            async with asyncio.timeout(seconds) as timeout:
                return await handler(request)
        except TimeoutError as error:
            if timeout.expired():
                raise Unavailable("the request took too long") from error
            raise

    return limit


@web.middleware
async def compress_large(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Compress a large response if the client prefers that."""
    response = await handler(request)
    if isinstance(response, LargeResponse):
        await compress(request, response)
    return response
