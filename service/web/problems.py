"""The table of errors and statuses, and the one error format (RFC 9457).

Every error response is built here. A 5xx reveals nothing internal; the log has everything under
the same request id.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from aiohttp import web

from service.errors import (
    BodyTimedOut,
    Forbidden,
    Invalid,
    KeyInUse,
    KeyReused,
    LimitReached,
    Malformed,
    MalformedHeader,
    MovieNotFound,
    PreconditionFailed,
    PreconditionRequired,
    StatementFailed,
    Unauthorized,
    Unavailable,
    WrongKey,
    WrongParameters,
)
from service.web.request_cycle.context import CONTEXT
from service.web.request_cycle.direct_response import DirectResponse
from service.web.responses import json_response

# Of the request line and all headers. aiohttp limits each line to 8,190 bytes and allows 128 lines.
MAX_HEAD_BYTES = 65_536
REFERENCE = "/v1/docs"  # the page has a section for every slug below
REALM = "movie catalogue"  # what the tokens are for (RFC 9110, 11.5)
CONTENT_TYPE = "application/problem+json"


class Problem(NamedTuple):
    """A kind of error. Without a `detail`, clients get the text of the error itself."""

    slug: str  # the fragment of `type`, which clients rely on
    title: str
    status: int
    detail: str = ""


NOT_FOUND = Problem("not-found", "Not found", 404, "there is no movie with this id")
INTERNAL = Problem(
    "internal-error",
    "Internal server error",
    500,
    "unexpected error; the log has the details",
)
PROBLEMS: Mapping[type[Exception], Problem] = {
    Malformed: Problem("malformed-body", "Malformed request body", 400),
    MalformedHeader: Problem("malformed-header", "Malformed header", 400),
    WrongKey: Problem("wrong-idempotency-key", "Wrong Idempotency-Key", 400),
    Unauthorized: Problem("unauthorized", "Unauthorized", 401),
    Forbidden: Problem("forbidden", "Forbidden", 403),
    MovieNotFound: NOT_FOUND,
    BodyTimedOut: Problem(
        "body-timeout", "Request timeout", 408, "the request body did not arrive in time"
    ),
    KeyInUse: Problem(
        "idempotency-key-in-use",
        "Idempotency-Key in use",
        409,
        "another request with this Idempotency-Key is still running",
    ),
    PreconditionFailed: Problem(
        "precondition-failed",
        "Precondition failed",
        412,
        "the movie does not match the conditions of the request; compare its ETag",
    ),
    Invalid: Problem(
        "validation-failed",
        "Validation failed",
        422,
        "the movie breaks a rule of the catalogue; see errors",
    ),
    WrongParameters: Problem(
        "wrong-parameters",
        "Wrong query parameters",
        422,
        "a query parameter is wrong; see errors",
    ),
    KeyReused: Problem(
        "idempotency-key-reused",
        "Idempotency-Key already used",
        422,
        "this Idempotency-Key was already sent with another movie",
    ),
    PreconditionRequired: Problem(
        "precondition-required",
        "Precondition required",
        428,
        "updates and deletes require If-Match with the ETag of the movie",
    ),
    LimitReached: Problem("limit-reached", "Too many requests", 429),
    StatementFailed: INTERNAL,
    Unavailable: Problem(
        "unavailable",
        "Service unavailable",
        503,
        "the service is temporarily unavailable; try again later",
    ),
}
# Errors of HTTP itself, raised by aiohttp, by status.
HTTP_PROBLEMS: Mapping[int, Problem] = {
    400: Problem("bad-request", "Bad request", 400, "the request is not valid HTTP"),
    404: NOT_FOUND._replace(detail="nothing exists at this path"),
    405: Problem(
        "method-not-allowed",
        "Method not allowed",
        405,
        "this path does not support the method; see the Allow header",
    ),
    408: Problem(
        "head-timeout",
        "Request timeout",
        408,
        "the head of the request, its request line and headers, did not arrive in time",
    ),
    417: Problem(
        "expectation-failed",
        "Expectation failed",
        417,
        'only the expectation "100-continue" is supported',
    ),
    431: Problem(
        "head-too-large",
        "Request header fields too large",
        431,
        f"the request line and all headers must be at most {MAX_HEAD_BYTES} bytes together",
    ),
}
BY_SLUG: Mapping[str, Problem] = {
    problem.slug: problem for problem in (*HTTP_PROBLEMS.values(), *PROBLEMS.values())
}


def respond(request: web.BaseRequest, error: Exception) -> DirectResponse:
    """Build the response to an error whose type, or a base class of it, is in `PROBLEMS`."""
    problem = next(PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS)
    headers = {}
    if isinstance(error, Unavailable | KeyInUse | LimitReached):
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, Unauthorized | Forbidden):
        headers["WWW-Authenticate"] = _challenge(error)
    if isinstance(error, LimitReached):
        headers |= _describe_limit(error)
    if isinstance(error, Unavailable):
        request[CONTEXT].refusal = error.refusal
    return _response(request, problem, error, headers)


def respond_internal(request: web.BaseRequest) -> DirectResponse:
    """Build the response to an unexpected error."""
    return _response(request, INTERNAL)


def respond_http(
    request: web.BaseRequest,
    status: int,
    headers: Mapping[str, str] | None = None,
    reason: str | None = None,
) -> DirectResponse:
    """Build the response to an error of HTTP itself; `reason` comes from aiohttp's parser."""
    phrase = HTTPStatus(status).phrase
    problem = HTTP_PROBLEMS.get(status) or Problem("", phrase, status, phrase)
    if reason:
        detail = f"{problem.detail}: {reason[:1].lower()}{reason[1:]}"
        problem = problem._replace(detail=detail)
    return _response(request, problem, headers=headers)


def problem_json(
    problem: Problem, error: Exception | None, instance: str, request_id: str
) -> dict[str, Any]:
    """Return the body of an error response."""
    errors = _failures_json(error)
    return {
        # RFC 9457, 4.2.1: about:blank means "no more than its status says".
        "type": f"{REFERENCE}#{problem.slug}" if problem.slug else "about:blank",
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail or str(error),
        "instance": instance,
        **({"errors": errors} if errors else {}),
        "request_id": request_id,
    }


def _response(
    request: web.BaseRequest,
    problem: Problem,
    error: Exception | None = None,
    headers: Mapping[str, str] | None = None,
) -> DirectResponse:
    body = problem_json(problem, error, request.rel_url.raw_path, request[CONTEXT].id)
    return json_response(body, {"Content-Type": CONTENT_TYPE, **(headers or {})}, problem.status)


def _challenge(error: Unauthorized | Forbidden) -> str:
    """Return WWW-Authenticate (RFC 6750, 3); `error` only if a token was sent."""
    challenge = f'Bearer realm="{REALM}"'
    if isinstance(error, Forbidden):
        return f'{challenge}, error="insufficient_scope", scope="{error.scope}"'
    return f'{challenge}, error="invalid_token"' if error.is_token_sent else challenge


def _describe_limit(error: LimitReached) -> dict[str, str]:
    """Return the fields of draft-ietf-httpapi-ratelimit-headers-10.

    https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/
    """
    name, quota, window_s = error.policy
    return {
        "RateLimit-Policy": f'"{name}";q={quota};w={window_s}',
        "RateLimit": f'"{name}";r={error.remaining};t={error.retry_after}',
    }


def _failures_json(error: Exception | None) -> list[dict[str, str]]:
    if isinstance(error, WrongParameters):
        return [{"parameter": name, "detail": detail} for name, detail in error.failures]
    if isinstance(error, Invalid):  # JSON Pointers as URI fragments: RFC 6901, 6
        return [
            {"pointer": f"#/{field}" if field else "#", "detail": detail}
            for field, detail in error.failures
        ]
    return []
