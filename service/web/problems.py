"""The table of errors and statuses, and the one error format (RFC 9457).

Every error response is built here. A 5xx reveals nothing internal; the log has everything under
the same request id.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

import structlog
from aiohttp import web

from service import errors
from service.clients.tokens import EXPECTED_HEADER
from service.context import MAX_LOGGED_LENGTH
from service.movies.rules import MOVIE
from service.web.contexts import CONTEXT
from service.web.direct_response import DirectResponse
from service.web.fields import refuse_field
from service.web.idempotency_keys import EXPECTED_KEY
from service.web.responses import json_response

log = structlog.get_logger()

REFERENCE = "/v1/docs"  # the page has a section for every slug below
CONTENT_TYPE = "application/problem+json"
AN_ID = "/v1/movies/{id} takes an id of 1 to 2^63-1 in digits, without leading zeros"


class Problem(NamedTuple):
    """A kind of error; docs/clients/problems.md says what happened, and how to fix it."""

    slug: str  # the fragment of `type`, which clients rely on
    title: str
    status: int
    detail: str  # for clients; empty: they get the text of the error itself
    example: errors.CatalogueError | None = None  # if the detail or the failures vary


NOT_FOUND = Problem("not-found", "Not found", 404, "there is no movie with this id")
INTERNAL = Problem(
    "internal-error", "Internal server error", 500, "unexpected error; the log has the details"
)
PROBLEMS: Mapping[type[Exception], Problem] = {
    errors.Malformed: Problem(
        "malformed-body", "Malformed request body", 400, "", refuse_field("titel", MOVIE)
    ),
    errors.MalformedHeader: Problem(
        "malformed-header",
        "Malformed header",
        400,
        "",
        errors.MalformedHeader('If-Match must be * or tags like "7-1", found "7-1 without quotes"'),
    ),
    errors.WrongKey: Problem(
        "wrong-idempotency-key", "Wrong Idempotency-Key", 400, "", errors.WrongKey(EXPECTED_KEY)
    ),
    errors.Unauthorized: Problem(
        "unauthorized",
        "Unauthorized",
        401,
        "",
        errors.Unauthorized(EXPECTED_HEADER, is_token_sent=False),
    ),
    errors.Forbidden: Problem("forbidden", "Forbidden", 403, "", errors.Forbidden("write")),
    errors.OriginNotAllowed: Problem(
        "origin-not-allowed",
        "Origin not allowed",
        403,
        "pages of this origin may not change movies",
    ),
    errors.MovieNotFound: NOT_FOUND,
    errors.BodyTimedOut: Problem(
        "body-timeout", "Request timeout", 408, "the request body did not arrive in time"
    ),
    errors.KeyInUse: Problem(
        "idempotency-key-in-use",
        "Idempotency-Key in use",
        409,
        "",
        errors.KeyInUse("another request with this Idempotency-Key is still running"),
    ),
    errors.CursorExpired: Problem(
        "cursor-expired",
        "Cursor expired",
        410,
        "the feed no longer has all changes after this cursor; start again with a whole list",
    ),
    errors.PreconditionFailed: Problem(
        "precondition-failed",
        "Precondition failed",
        412,
        "the movie does not match the conditions of the request; compare its ETag",
    ),
    errors.Invalid: Problem(
        "validation-failed",
        "Validation failed",
        422,
        "the request breaks a rule of the catalogue; see errors",
        errors.Invalid(
            [
                errors.Failure("year", "must not be in the future"),
                errors.Failure("genres/1", "must not be repeated"),
            ]
        ),
    ),
    errors.WrongParameters: Problem(
        "wrong-parameters",
        "Wrong query parameters",
        422,
        "a query parameter is wrong; see errors",
        errors.WrongParameters(
            [errors.Failure("year", "must be years like 1990, 1990..1999, 1990.. or ..1999")]
        ),
    ),
    errors.KeyReused: Problem(
        "idempotency-key-reused",
        "Idempotency-Key already used",
        422,
        "this Idempotency-Key was already sent with another movie or batch",
    ),
    errors.PreconditionRequired: Problem(
        "precondition-required",
        "Precondition required",
        428,
        "updates and deletes require If-Match with the ETag of the movie",
    ),
    errors.LimitReached: Problem(
        "limit-reached",
        "Too many requests",
        429,
        "",
        errors.CatalogueError(
            "the limit is 10 units per second, and 100 at once; this request takes 1: try again in"
            " 3 s"
        ),
    ),
    errors.StatementFailed: INTERNAL,
    errors.Unavailable: Problem(
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
    417: Problem(
        "expectation-failed",
        "Expectation failed",
        417,
        'only the expectation "100-continue" is supported',
    ),
    426: Problem(
        "upgrade-required",
        "Upgrade required",
        426,
        "a stream needs HTTP/1.1: a client of HTTP/1.0 takes a list that was cut off for complete;"
        " behind nginx, set `proxy_http_version 1.1`",
    ),
    500: INTERNAL,
}
RETRYABLE = (errors.Unavailable, errors.KeyInUse, errors.LimitReached)
BY_SLUG: Mapping[str, Problem] = {
    problem.slug: problem for problem in (*HTTP_PROBLEMS.values(), *PROBLEMS.values())
}


def respond(request: web.BaseRequest, error: Exception) -> DirectResponse:
    """Build the response to an error; log one whose type is not in `PROBLEMS`."""
    headers = {"Content-Type": CONTENT_TYPE}
    if isinstance(error, RETRYABLE):
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, errors.Unauthorized | errors.Forbidden):
        headers["WWW-Authenticate"] = _challenge(error)
    if isinstance(error, errors.LimitReached):
        # draft-ietf-httpapi-ratelimit-headers-10
        name, quota, window_s = error.policy
        headers["RateLimit-Policy"] = f'"{name}";q={quota};w={window_s}'
        headers["RateLimit"] = f'"{name}";r={error.remaining};t={error.retry_after}'
    body = describe(request, error)
    return json_response(body, headers, body["status"])


def describe(request: web.BaseRequest, error: Exception) -> dict[str, Any]:
    """Return the problem document of an error, and keep for the log what clients do not see."""
    context = request[CONTEXT]
    path = request.rel_url.raw_path
    if isinstance(error, errors.Unavailable):
        context.refusal = error.refusal
    if isinstance(error, errors.Unavailable | errors.StatementFailed):
        context.reason = str(error)
    problem = next((PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS), None)
    if not problem:
        log.error("request failed", **context.ids, path=path[:MAX_LOGGED_LENGTH], exc_info=error)
    return _problem_json(problem or INTERNAL, error, path, context.id)


def describe_path(request: web.Request) -> str | None:
    """Name the path that the client may have meant, or say what an id is."""
    path = request.rel_url.raw_path
    if path == "/v1/changes":
        return "the operator of this service has switched the feed of changes off"
    shorter = path.rstrip("/")
    description = None
    for resource in request.app.router.resources():
        pattern = resource.get_info().get("pattern")
        for meant in (shorter, f"/v1{shorter}"):
            exists = pattern.fullmatch(meant) if pattern else meant == resource.canonical
            if exists and meant != path:
                return f"did you mean {meant}?"
        if resource.canonical == "/v1/movies/{id}" and "/movies/" in path:
            description = AN_ID
    return description


def respond_http(
    request: web.BaseRequest,
    status: int,
    headers: Mapping[str, str] | None = None,
    reason: str | None = None,
) -> DirectResponse:
    """Build the response to an error of HTTP itself; `reason` ends its detail."""
    phrase = HTTPStatus(status).phrase
    problem = HTTP_PROBLEMS.get(status) or Problem("", phrase, status, phrase)
    if reason:
        problem = problem._replace(detail=f"{problem.detail}: {reason}")
    body = _problem_json(problem, None, request.rel_url.raw_path, request[CONTEXT].id)
    return json_response(body, {"Content-Type": CONTENT_TYPE, **(headers or {})}, status)


def example_json(problem: Problem) -> dict[str, Any]:
    """Return an example of the body of an error response."""
    return _problem_json(problem, problem.example, "/v1/movies/7", "5a1d8b0a7c9e4f21-5")


def _problem_json(
    problem: Problem, error: Exception | None, instance: str, request_id: str
) -> dict[str, Any]:
    failures = _failures_json(error)
    return {
        # RFC 9457, 4.2.1: about:blank means "no more than its status says".
        "type": f"{REFERENCE}#{problem.slug}" if problem.slug else "about:blank",
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail or str(error),
        "instance": instance,
        **({"errors": failures} if failures else {}),
        "request_id": request_id,
    }


def _challenge(error: errors.Unauthorized | errors.Forbidden) -> str:
    """Return WWW-Authenticate (RFC 6750, 3); `error` only if a token was sent."""
    challenge = 'Bearer realm="movie catalogue"'
    if isinstance(error, errors.Forbidden):
        return f'{challenge}, error="insufficient_scope", scope="{error.scope}"'
    return f'{challenge}, error="invalid_token"' if error.is_token_sent else challenge


def _failures_json(error: Exception | None) -> list[dict[str, str]]:
    if not isinstance(error, errors.CatalogueError):
        return []
    if isinstance(error, errors.WrongParameters):
        return [{"parameter": name, "detail": detail} for name, detail in error.failures]
    return [  # JSON Pointers as URI fragments: RFC 6901, 6
        {"pointer": f"#/{quote(field)}" if field else "#", "detail": detail}
        for field, detail in error.failures
    ]
