"""The responses to errors, in one format (RFC 9457).

A 5xx reveals nothing internal; the log has everything under the same request id.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import structlog
from aiohttp import web

from service.errors import (
    CatalogueError,
    Problem,
    RuleBroken,
    StatementFailed,
    Unavailable,
    WrongParameters,
)
from service.web.context import CONTEXT, MAX_LOGGED_LENGTH
from service.web.headers import POSITION
from service.web.responses import DirectResponse, json_response

log = structlog.get_logger()

REFERENCE = "/v1/docs"  # the page has a section for every slug
CONTENT_TYPE = "application/problem+json"


def find_problems(kind: type[CatalogueError] = CatalogueError) -> dict[str, type[CatalogueError]]:
    """Return the first class of each problem, by slug."""
    found = {kind.problem.slug: kind}
    for each in kind.__subclasses__():
        found = find_problems(each) | found
    return found


def respond(request: web.BaseRequest, error: Exception) -> DirectResponse:
    """Build the response to an error; log one that is not a `CatalogueError`."""
    body = describe(request, error)
    headers = {"Content-Type": CONTENT_TYPE}
    if isinstance(error, CatalogueError):
        headers |= error.headers
        if error.transaction:
            headers[POSITION] = f"{error.transaction}"
        if error.retry_after is not None:
            headers["Retry-After"] = f"{error.retry_after}"
    return json_response(body, headers, body["status"])


def describe(request: web.BaseRequest, error: Exception) -> dict[str, Any]:
    """Return the problem document of an error, and keep for the log what clients do not see."""
    context = request[CONTEXT]
    path = request.rel_url.raw_path
    if not isinstance(error, CatalogueError) or isinstance(error, RuleBroken):
        log.error("request failed", **context.ids, path=path[:MAX_LOGGED_LENGTH], exc_info=error)
        error = CatalogueError()
    context.report(error)
    is_internal = isinstance(error, Unavailable | StatementFailed)
    detail = error.detail if is_internal else str(error) or error.detail
    failures = [
        {"parameter": field, "detail": text}
        if isinstance(error, WrongParameters)
        # JSON Pointers as URI fragments: RFC 6901, 6
        else {"pointer": f"#/{quote(field)}" if field else "#", "detail": text}
        for field, text in error.failures
    ]
    return make_document(error.problem, detail, path, context.id, failures)


def make_document(
    problem: Problem,
    detail: str,
    instance: str,
    request_id: str = "5a1d8b0a7c9e4f21-5",
    failures: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Return the body of an error response, or an example of one."""
    return {
        "type": f"{REFERENCE}#{problem.slug}",
        "title": problem.title,
        "status": problem.status,
        "detail": detail,
        "instance": instance,
        **({"errors": failures} if failures else {}),
        "request_id": request_id,
    }
