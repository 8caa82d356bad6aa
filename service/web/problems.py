"""The table of errors and statuses, and the one error format (RFC 9457).

Every error response is built here. A 5xx reveals nothing internal; the log has everything under
the same request id.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import structlog
from aiohttp import web

from service.context import MAX_LOGGED_LENGTH
from service.errors import (
    CatalogueError,
    Failure,
    NotFound,
    Problem,
    RuleBroken,
    StatementFailed,
    Unavailable,
    WrongParameters,
)
from service.web.contexts import CONTEXT
from service.web.direct_response import DirectResponse
from service.web.responses import json_response

log = structlog.get_logger()

REFERENCE = "/v1/docs"  # the page has a section for every slug
CONTENT_TYPE = "application/problem+json"
AN_ID = "{} takes an id of 1 to 2^63-1 in digits, without leading zeros"
INTERNAL = (CatalogueError.problem, CatalogueError.detail)
# Errors of HTTP itself, raised by aiohttp, by status.
HTTP_PROBLEMS: Mapping[int, tuple[Problem, str]] = {
    400: (Problem("bad-request", "Bad request", 400), "the request is not valid HTTP"),
    404: (NotFound.problem, "nothing exists at this path"),
    405: (
        Problem("method-not-allowed", "Method not allowed", 405),
        "this path does not support the method; see the Allow header",
    ),
    417: (
        Problem("expectation-failed", "Expectation failed", 417),
        'only the expectation "100-continue" is supported',
    ),
    426: (
        Problem("upgrade-required", "Upgrade required", 426),
        "a stream needs HTTP/1.1; behind nginx, set `proxy_http_version 1.1`",
    ),
    500: INTERNAL,
}


def find_problems(kind: type[CatalogueError] = CatalogueError) -> dict[str, tuple[Problem, str]]:
    """Return the problems of HTTP and of all errors that are defined, with a detail, by slug."""
    found = {each[0].slug: each for each in HTTP_PROBLEMS.values()}
    found[kind.problem.slug] = (kind.problem, kind.detail)
    for each in kind.__subclasses__():
        found |= find_problems(each)
    return found


def respond(request: web.BaseRequest, error: Exception) -> DirectResponse:
    """Build the response to an error; log one that is not a `CatalogueError`."""
    body = describe(request, error)
    headers = {"Content-Type": CONTENT_TYPE}
    if isinstance(error, CatalogueError):
        headers |= error.headers
        if error.retry_after is not None:
            headers["Retry-After"] = f"{error.retry_after}"
    return json_response(body, headers, body["status"])


def describe(request: web.BaseRequest, error: Exception) -> dict[str, Any]:
    """Return the problem document of an error, and keep for the log what clients do not see."""
    context = request[CONTEXT]
    path = request.rel_url.raw_path
    if not isinstance(error, CatalogueError) or isinstance(error, RuleBroken):
        log.error("request failed", **context.ids, path=path[:MAX_LOGGED_LENGTH], exc_info=error)
        return _problem_json(*INTERNAL, path, context.id)
    detail = error.detail
    if isinstance(error, Unavailable):
        context.refusal = error.refusal
    if isinstance(error, Unavailable | StatementFailed):
        context.reason = str(error)
    elif text := str(error):
        detail = text
    failures = _failures_json(error.failures, is_query=isinstance(error, WrongParameters))
    return _problem_json(error.problem, detail, path, context.id, failures)


def describe_path(request: web.Request) -> str | None:
    """Name the path that the client may have meant, or say what an id is."""
    path = request.rel_url.raw_path
    shorter = path.rstrip("/")
    description = None
    for resource in request.app.router.resources():
        pattern = resource.get_info().get("pattern")
        for meant in (shorter, f"/v1{shorter}"):
            exists = pattern.fullmatch(meant) if pattern else meant == resource.canonical
            if exists and meant != path:
                return f"did you mean {meant}?"
        before, has_id, _ = resource.canonical.partition("{id}")
        if has_id and before.removeprefix("/v1") in path:
            description = description or AN_ID.format(resource.canonical)
    return description


def respond_http(
    request: web.BaseRequest,
    status: int,
    headers: Mapping[str, str] | None = None,
    reason: str | None = None,
) -> DirectResponse:
    """Build the response to an error of HTTP itself; `reason` ends its detail."""
    phrase = HTTPStatus(status).phrase
    problem, detail = HTTP_PROBLEMS.get(status, (Problem("", phrase, status), phrase))
    if reason:
        detail = f"{detail}: {reason}"
    body = _problem_json(problem, detail, request.rel_url.raw_path, request[CONTEXT].id)
    return json_response(body, {"Content-Type": CONTENT_TYPE, **(headers or {})}, status)


def example_json(problem: Problem, detail: str) -> dict[str, Any]:
    """Return an example of the body of an error response."""
    return _problem_json(problem, detail, "/v1/movies/7", "5a1d8b0a7c9e4f21-5")


def _problem_json(
    problem: Problem,
    detail: str,
    instance: str,
    request_id: str,
    failures: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    return {
        # RFC 9457, 4.2.1: about:blank means "no more than its status says".
        "type": f"{REFERENCE}#{problem.slug}" if problem.slug else "about:blank",
        "title": problem.title,
        "status": problem.status,
        "detail": detail,
        "instance": instance,
        **({"errors": failures} if failures else {}),
        "request_id": request_id,
    }


def _failures_json(failures: Sequence[Failure], *, is_query: bool) -> list[dict[str, str]]:
    if is_query:
        return [{"parameter": name, "detail": detail} for name, detail in failures]
    return [  # JSON Pointers as URI fragments: RFC 6901, 6
        {"pointer": f"#/{quote(field)}" if field else "#", "detail": detail}
        for field, detail in failures
    ]
