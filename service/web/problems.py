"""The one table error -> status, and the one error shape (RFC 9457).

Every error that leaves the process is built here. A 5xx tells the client nothing of the inside;
the log tells everything under the same request id.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple

from aiohttp import web

from service.errors import (
    Failure,
    Invalid,
    Malformed,
    MovieNotFound,
    Unavailable,
    UnknownParameter,
)
from service.web.requests import REQUEST_ID, BodyTimedOut
from service.web.responses import json_response

# Where each `type` is described.
REFERENCE = "/v1/docs"


class Problem(NamedTuple):
    """A kind of error: what its `type` ends with, its title and its status."""

    slug: str
    title: str
    status: int
    detail: str = ""  # where the error's own text is not for clients


PROBLEMS: Mapping[type[Exception], Problem] = {
    Malformed: Problem("malformed-body", "Malformed request body", 400),
    MovieNotFound: Problem("not-found", "Not found", 404),
    BodyTimedOut: Problem(
        "body-timeout", "Request timeout", 408, "the request body did not arrive in time"
    ),
    Invalid: Problem("validation-failed", "Validation failed", 422),
    UnknownParameter: Problem("validation-failed", "Validation failed", 422),
    Unavailable: Problem(
        "unavailable", "Service unavailable", 503, "this cannot be served right now; try again"
    ),
}
INTERNAL = Problem(
    "internal-error", "Internal server error", 500, "the service failed; its log has the request id"
)
# Errors of HTTP itself, raised by aiohttp.
DETAILS = {
    400: "the request cannot be served as HTTP",
    404: "there is nothing at this path",
    405: "this path does not take the method; see Allow",
    417: 'the only expectation that can be met is "100-continue"',
}


def respond(request: web.BaseRequest, error: Exception) -> web.Response:
    """Answer an error that is in the table, or one of its kind."""
    problem = next(PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS)
    errors = error.failures if isinstance(error, Invalid) else ()
    headers = {}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(error.retry_after)
    return _response(request, problem, problem.detail or str(error), errors, headers)


def respond_internal(request: web.BaseRequest) -> web.Response:
    """Answer a failure of the service itself."""
    return _response(request, INTERNAL, INTERNAL.detail)


def respond_http(
    request: web.BaseRequest,
    status: int,
    headers: Mapping[str, str] | None = None,
    reason: str | None = None,
) -> web.Response:
    """Answer an error of HTTP itself, by its status; `reason`, if the parser gave one."""
    title = HTTPStatus(status).phrase.capitalize()
    problem = Problem(title.lower().replace(" ", "-"), title, status)
    detail = DETAILS.get(status, title)
    if reason:
        detail += ": " + reason.strip().partition("\n")[0].rstrip(": ").lower()
    return _response(request, problem, detail, headers=headers)


def _response(
    request: web.BaseRequest,
    problem: Problem,
    detail: str,
    failures: Sequence[Failure] = (),
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    request_id = request[REQUEST_ID]
    payload = {
        "type": f"{REFERENCE}#{problem.slug}",
        "title": problem.title,
        "status": problem.status,
        "detail": detail,
        "instance": request.rel_url.raw_path,
        **({"errors": [_error(failure) for failure in failures]} if failures else {}),
        "request_id": request_id,
    }
    return json_response(
        payload, status=problem.status, headers=headers, content_type="application/problem+json"
    )


def _error(failure: Failure) -> dict[str, str]:
    # A JSON Pointer in a URI fragment (RFC 6901, 6); field names need no escaping.
    return {
        "pointer": f"#/{failure.field}" if failure.field else "#",
        "detail": failure.detail,
    }
