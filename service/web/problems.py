"""The one table error -> status, and the one error shape (RFC 9457).

Every error that leaves the process is built here. A 5xx tells the client nothing of the inside;
the log tells everything under the same request id.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from aiohttp import web

from service.catalogue.movie import FIELDS
from service.catalogue.strict_json import MAX_BYTES
from service.errors import (
    CatalogueError,
    Failure,
    Invalid,
    KeyInUse,
    KeyReused,
    Malformed,
    MalformedHeader,
    MovieNotFound,
    PreconditionFailed,
    PreconditionRequired,
    StatementFailed,
    Unavailable,
    WrongKey,
    WrongParameters,
)
from service.web.bodies import BodyTimedOut
from service.web.movies.idempotency_keys import EXPECTED
from service.web.request_cycle.request_ids import get_request_id
from service.web.responses import json_response

# Where each `type` is described: the reference page has a section for every slug below.
REFERENCE = "/v1/docs"
CONTENT_TYPE = "application/problem+json"


class Problem(NamedTuple):
    """A kind of error: what its `type` ends with, its title, its status, and what the page says.

    `happened` and `mend` are for the reference page, with code in backticks.
    """

    slug: str
    title: str
    status: int
    happened: str
    mend: str
    detail: str = ""  # where the error's own text is not for clients


NOT_FOUND = Problem(
    "not-found",
    "Not found",
    404,
    "There is no movie with this id, or nothing at this path. The detail says which.",
    "Look at the path, and at the id: 1 to 2^63-1 in digits, without leading zeros. What has been"
    " deleted does not come back, and its id is not given again.",
)
INTERNAL = Problem(
    "internal-error",
    "Internal server error",
    500,
    "The service failed at something that nobody foresaw.",
    "It is no fault of the request. Tell those who run the service the `request_id`: their log has"
    " all the rest under it.",
    "the service failed; its log has the request id",
)
PROBLEMS: Mapping[type[Exception], Problem] = {
    StatementFailed: INTERNAL,
    Malformed: Problem(
        "malformed-body",
        "Malformed request body",
        400,
        "The body cannot be read as a movie: it is not exactly one JSON object in UTF-8, a field is"
        f" unknown, repeated or of another JSON type, or it has more than {MAX_BYTES:,} bytes.",
        "The detail names the field or the character. Send numbers as numbers (`1942`, not"
        ' `"1942"`), a runtime as `"102 mins"`, and none of the fields that the service keeps'
        " itself.",
    ),
    WrongKey: Problem(
        "wrong-idempotency-key",
        "Wrong Idempotency-Key",
        400,
        "The request has an `Idempotency-Key` that is empty, longer than 255 characters, not"
        " printable ASCII, or there twice.",
        "Draw a new key for every movie that you want to add, a UUID for instance, and send the"
        " same one with every try.",
    ),
    MovieNotFound: NOT_FOUND,
    MalformedHeader: Problem(
        "malformed-header",
        "Malformed header",
        400,
        "A header of the request cannot be read. What depends on it was not done.",
        "The detail names the header and says what it takes. An entity tag is sent as it came, with"
        " its quotes.",
    ),
    PreconditionFailed: Problem(
        "precondition-failed",
        "Precondition failed",
        412,
        "The movie is there, but not as `If-Match`, `If-None-Match` or `If-Unmodified-Since` of"
        " this request say: somebody else has changed it. It was left alone.",
        "Get the movie, look at what has changed, and send the change again with its new `ETag`.",
    ),
    PreconditionRequired: Problem(
        "precondition-required",
        "Precondition required",
        428,
        "This deployment takes a change only together with the version that it is a change of.",
        "Send `If-Match` with the `ETag` of the movie as you know it.",
    ),
    BodyTimedOut: Problem(
        "body-timeout",
        "Request timeout",
        408,
        "The head of the request arrived, but not all of its body in time.",
        "Send as many bytes as `Content-Length` says, and send them without a pause; then try"
        " again.",
        "the request body did not arrive in time",
    ),
    KeyInUse: Problem(
        "idempotency-key-in-use",
        "A request with this Idempotency-Key is under way",
        409,
        "An earlier request with the same `Idempotency-Key` has no answer yet. Nothing was done for"
        " this one.",
        "Wait as many seconds as `Retry-After` says and send the same request again: it gets the"
        " answer of the first.",
    ),
    KeyReused: Problem(
        "idempotency-key-reused",
        "Idempotency-Key already used",
        422,
        "The `Idempotency-Key` was sent with another movie in the last 24 hours.",
        "For another movie, draw another key. For the same one, send the very fields of the first"
        " time; blanks and the order of the fields do not matter.",
    ),
    Invalid: Problem(
        "validation-failed",
        "Validation failed",
        422,
        "The request could be read, but breaks rules. `errors` lists all of them at once, each with"
        " a JSON Pointer to the field and what is expected of it.",
        "Change the fields that `errors` points to, and send the request again.",
    ),
    WrongParameters: Problem(
        "wrong-parameters",
        "Wrong query parameters",
        422,
        "The query string has a parameter that this path does not take, one that is there twice, or"
        " one with a wrong value. `errors` lists all of them, each with what it takes.",
        "Change the parameters that `errors` names. A cursor holds for the filters and the sort"
        " that it came with: without it, the list begins anew.",
    ),
    Unavailable: Problem(
        "unavailable",
        "Service unavailable",
        503,
        "The database is away, too busy or too slow, or this process is on its way out.",
        "Wait as many seconds as `Retry-After` says and try again, each time a little longer. A"
        " request that only reads can be sent again as it is, and so can a POST with an"
        " `Idempotency-Key`. Any other that writes may have been carried out: look first.",
        "this cannot be served right now; try again",
    ),
}
# Errors of HTTP itself, raised by aiohttp, by their status.
HTTP: Mapping[int, Problem] = {
    400: Problem(
        "bad-request",
        "Bad request",
        400,
        "What arrived is not valid HTTP, so that no part of the service has looked at it.",
        "Use a common HTTP client. With one of your own: the detail says what of the request line"
        " or of the headers could not be read. Keep each line of them below 8 kB.",
        "the request cannot be served as HTTP",
    ),
    404: NOT_FOUND._replace(detail="there is nothing at this path"),
    405: Problem(
        "method-not-allowed",
        "Method not allowed",
        405,
        "There is something at this path, but it does not take this method.",
        "Use one of the methods in the header `Allow`.",
        "this path does not take the method; see Allow",
    ),
    417: Problem(
        "expectation-failed",
        "Expectation failed",
        417,
        "The request has an `Expect` header that asks for something unknown.",
        "Send `Expect: 100-continue`, or leave the header out.",
        'the only expectation that can be met is "100-continue"',
    ),
}
# Every kind there is, by its slug.
KINDS: Mapping[str, Problem] = {
    kind.slug: kind for kind in (*HTTP.values(), *PROBLEMS.values(), INTERNAL)
}
# An error of each kind whose text depends on the request, for examples.
EXAMPLES: Mapping[str, CatalogueError] = {
    "malformed-body": Malformed(
        f'unknown field "titel"; a movie has {", ".join(FIELDS)}',
    ),
    "malformed-header": MalformedHeader(
        'If-Match must be * or tags like "7-1", found "7-1 without quotes"'
    ),
    "precondition-failed": PreconditionFailed(),
    "precondition-required": PreconditionRequired(),
    "wrong-idempotency-key": WrongKey(EXPECTED),
    "not-found": MovieNotFound(),
    "idempotency-key-in-use": KeyInUse(),
    "idempotency-key-reused": KeyReused(),
    "validation-failed": Invalid(
        [
            Failure("year", "must not be in the future"),
            Failure("genres/1", "must not be repeated"),
        ]
    ),
    "wrong-parameters": WrongParameters(
        [Failure("year", "must be years like 1990, 1990..1999, 1990.. or ..1999")]
    ),
}


def respond(request: web.BaseRequest, error: Exception) -> web.Response:
    """Answer an error that is in the table, or one of its kind."""
    problem = next(PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS)
    headers = {}
    if isinstance(error, Unavailable | KeyInUse):
        headers["Retry-After"] = str(error.retry_after)
    return _response(request, problem, problem.detail or str(error), _errors(error), headers)


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
    phrase = HTTPStatus(status).phrase
    problem = HTTP.get(status) or Problem("", phrase, status, "", "", phrase)
    detail = problem.detail
    if reason:
        detail += ": " + reason.strip().partition("\n")[0].rstrip(": ").lower()
    return _response(request, problem, detail, headers=headers)


def example(problem: Problem) -> dict[str, Any]:
    """Return what a client could get, for the reference."""
    error = EXAMPLES.get(problem.slug)
    return _payload(
        problem, str(error or problem.detail), "/v1/movies/7", "5a1d8b0a7c9e4f21-5", _errors(error)
    )


def _response(
    request: web.BaseRequest,
    problem: Problem,
    detail: str,
    errors: Sequence[dict[str, str]] = (),
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    instance, request_id = request.rel_url.raw_path, get_request_id(request)
    return json_response(
        _payload(problem, detail, instance, request_id, errors),
        status=problem.status,
        headers=headers,
        content_type=CONTENT_TYPE,
    )


def _payload(
    problem: Problem,
    detail: str,
    instance: str,
    request_id: str,
    errors: Sequence[dict[str, str]],
) -> dict[str, Any]:
    return {
        # Without a section of its own: "no more than its status says" (RFC 9457, 4.2.1).
        "type": f"{REFERENCE}#{problem.slug}" if problem.slug else "about:blank",
        "title": problem.title,
        "status": problem.status,
        "detail": detail,
        "instance": instance,
        **({"errors": errors} if errors else {}),
        "request_id": request_id,
    }


def _errors(error: Exception | None) -> list[dict[str, str]]:
    if isinstance(error, Invalid):
        return [_in_body(failure) for failure in error.failures]
    if isinstance(error, WrongParameters):
        return [_in_query(failure) for failure in error.failures]
    return []


def _in_query(failure: Failure) -> dict[str, str]:
    return {"parameter": failure.field, "detail": failure.detail}


def _in_body(failure: Failure) -> dict[str, str]:
    # A JSON Pointer in a URI fragment (RFC 6901, 6); field names need no escaping.
    return {
        "pointer": f"#/{failure.field}" if failure.field else "#",
        "detail": failure.detail,
    }
