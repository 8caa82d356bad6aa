"""Responds to errors with problem documents: a middleware, and its helpers."""

import asyncio
import sys

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from service.errors import StatementFailed, Unavailable
from service.web import problems
from service.web.bodies import ClientGone
from service.web.request_cycle.access_log import shorten_path
from service.web.request_cycle.trace_context import get_ids

log = structlog.get_logger()

# From Python 3.12 on, aiohttp handles the requests that a connection has sent together without a
# turn of the event loop in between: other connections would have to wait for hundreds of them.
EAGER_TASKS = sys.version_info >= (3, 12)
EXPECTED_ERRORS = tuple(problems.PROBLEMS)
NGINX_CLIENT_CLOSED = 499  # only the log shows it


@web.middleware
async def respond_to_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Respond to every error with a problem document.

    An unexpected exception is logged with its traceback; the response is 500.
    """
    if EAGER_TASKS:
        await asyncio.sleep(0)
    try:
        return await handler(request)
    except ClientGone:
        return web.Response(status=NGINX_CLIENT_CLOSED)
    except web.HTTPException as error:
        return _respond_to_http_error(request, error)
    except EXPECTED_ERRORS as error:
        return respond_to_error(request, error)
    except Exception:
        log.exception("request failed", **get_ids(request), path=shorten_path(request))
        return problems.respond_internal(request)


def respond_to_error(request: web.Request, error: Exception) -> web.Response:
    """Return the response to an error of `problems.PROBLEMS`; log it if it is the service's."""
    if isinstance(error, Unavailable | StatementFailed):
        event = "unavailable" if isinstance(error, Unavailable) else "request failed"
        reason = {"query": error.query} if error.query else {"reason": str(error)}
        log.warning(event, **get_ids(request), **reason)
    return problems.respond(request, error)


def _respond_to_http_error(request: web.Request, error: web.HTTPException) -> web.Response:
    if not isinstance(error, web.HTTPMethodNotAllowed):
        return problems.respond_http(request, error.status)
    headers = {"Allow": ", ".join(sorted({*error.allowed_methods, "OPTIONS"}))}
    if request.method == "OPTIONS":
        return web.Response(status=204, headers=headers)
    return problems.respond_http(request, error.status, headers)
