"""What the reference says about each kind of problem; code is in backticks."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from service.catalogue.movie import FIELDS
from service.catalogue.strict_json import MAX_BYTES, MAX_COLONS_AND_BRACKETS, MAX_COMMAS
from service.errors import (
    CatalogueError,
    Failure,
    Forbidden,
    Invalid,
    LimitReached,
    Malformed,
    MalformedHeader,
    Policy,
    Unauthorized,
    WrongKey,
    WrongParameters,
)
from service.web.access import EXPECTED_HEADER
from service.web.movies.idempotency_keys import EXPECTED_KEY
from service.web.problems import BY_SLUG, MAX_HEAD_BYTES, problem_json


class ProblemText(NamedTuple):
    """The texts about a kind of problem, and an error for the example if the detail varies."""

    what_happened: str
    how_to_fix: str
    example: CatalogueError | None = None


# By the slug of the problem.
PROBLEM_TEXTS: Mapping[str, ProblemText] = {
    "bad-request": ProblemText(
        "The request is not valid HTTP. No part of it was processed.",
        "Use a common HTTP client. If you use your own, the detail says which part of the request"
        " line or of the headers could not be read. Each line must be shorter than 8 kB.",
    ),
    "malformed-body": ProblemText(
        "The body cannot be read as a movie. It is not exactly one JSON object in UTF-8, it has an"
        " unknown, repeated or read-only field or a field of the wrong JSON type, or it has more"
        f" than {MAX_BYTES:,} bytes, {MAX_COLONS_AND_BRACKETS:,} colons and brackets or"
        f" {MAX_COMMAS:,} commas.",
        "The detail names the field or the character. Send numbers as numbers (`1942`, not"
        ' `"1942"`) and the runtime as `"102 mins"`. Do not send read-only fields such as `id`.',
        Malformed(f'unknown field "titel"; a movie has {", ".join(FIELDS)}'),
    ),
    "malformed-header": ProblemText(
        "A header of the request cannot be read. Nothing was changed.",
        "The detail names the header and the expected form. Send entity tags exactly as you"
        " received them, with their quotes, and only one `Authorization` header.",
        MalformedHeader('If-Match must be * or tags like "7-1", found "7-1 without quotes"'),
    ),
    "wrong-idempotency-key": ProblemText(
        "The `Idempotency-Key` is empty, longer than 255 characters, not printable ASCII, or sent"
        " twice.",
        "Create a new key, such as a UUID, for every movie that you add. Send the same key when"
        " you retry.",
        WrongKey(EXPECTED_KEY),
    ),
    "unauthorized": ProblemText(
        "The request has no token but needs one, or its token is malformed, unknown, expired,"
        " revoked or replaced. The detail says which. Nothing was changed.",
        "Send `Authorization: Bearer` and your token, complete and unchanged. If the token is no"
        " longer valid, or if you have none, ask the operator of the service for a new one. The"
        " same request without a valid token will fail again.",
        Unauthorized(EXPECTED_HEADER, is_token_sent=False),
    ),
    "forbidden": ProblemText(
        "The token is valid, but it does not have the scope that the request needs. Nothing was"
        " changed.",
        "The detail names the scope: `write` for every change. Ask the operator of the service to"
        " add it to your token, or for another token.",
        Forbidden("write"),
    ),
    "not-found": ProblemText(
        "No movie has this id, or nothing exists at this path. The detail says which.",
        "Check the path and the id: 1 to 2^63-1 in digits, without leading zeros. Deleted movies"
        " do not come back, and their ids are not used again.",
    ),
    "method-not-allowed": ProblemText(
        "The path exists, but it does not support this method.",
        "Use one of the methods in the `Allow` header.",
    ),
    "head-timeout": ProblemText(
        "The request line and the headers did not arrive in time. The connection ends.",
        "Send the head of a request at once, when it is complete.",
    ),
    "head-too-large": ProblemText(
        f"The request line and the headers have more than {MAX_HEAD_BYTES:,} bytes together. The"
        " connection ends.",
        "Send fewer or smaller headers; no header of this API needs more than 8 kB.",
    ),
    "body-timeout": ProblemText(
        "The headers of the request arrived, but its body did not arrive in time.",
        "Send as many bytes as `Content-Length` says, without a pause, and try again.",
    ),
    "idempotency-key-in-use": ProblemText(
        "An earlier request with the same `Idempotency-Key` is still running. This request did"
        " nothing.",
        "Wait for the number of seconds in `Retry-After` and send the same request again. It gets"
        " the response of the first request.",
    ),
    "precondition-failed": ProblemText(
        "The movie exists, but it does not match `If-Match`, `If-None-Match` or"
        " `If-Unmodified-Since`: somebody else has changed it. It was not changed by this request.",
        "Get the movie, look at the changes, and send your request again with the new `ETag`.",
    ),
    "expectation-failed": ProblemText(
        "The `Expect` header of the request asks for something unknown.",
        "Send `Expect: 100-continue` or omit the header.",
    ),
    "validation-failed": ProblemText(
        "The request could be read, but the movie breaks rules. `errors` lists all failures, each"
        " with a JSON Pointer to the field and with what is expected.",
        "Correct the fields that `errors` lists, and send the request again.",
        Invalid(
            [
                Failure("year", "must not be in the future"),
                Failure("genres/1", "must not be repeated"),
            ]
        ),
    ),
    "wrong-parameters": ProblemText(
        "The query string has an unknown or repeated parameter, or a wrong value. `errors` lists"
        " all failures, each with what is expected.",
        "Correct the parameters that `errors` lists. A cursor is only valid with the filters and"
        " the sort order that it was made for; without a cursor, the list starts at the beginning.",
        WrongParameters([Failure("year", "must be years like 1990, 1990..1999, 1990.. or ..1999")]),
    ),
    "idempotency-key-reused": ProblemText(
        "The `Idempotency-Key` was sent with another movie in the last 24 hours.",
        "Use a new key for another movie. To retry, send the same fields as the first time;"
        " whitespace and the order of the fields do not matter.",
    ),
    "precondition-required": ProblemText(
        "This deployment requires `If-Match` for updates and deletes.",
        "Send `If-Match` with the `ETag` of the movie that you want to change.",
    ),
    "limit-reached": ProblemText(
        "The client, or its address if it sends no token, has used up a limit of this service: its"
        " rate, for which a list or a large body counts more than a movie by id, its new movies per"
        " day, or its new `Idempotency-Key`s per day. Nothing was changed.",
        "Wait for the number of seconds in `Retry-After`, which may be hours for a limit per day,"
        " and try again. The detail and the header `RateLimit-Policy` say what the limit is.",
        LimitReached(
            "the limit is 10 units per second, and 100 at once; this request takes 1: try again in"
            " 3 s",
            Policy("rate", 100, 10),
            remaining=0,
            retry_after=3,
        ),
    ),
    "internal-error": ProblemText(
        "An unexpected error occurred in the service.",
        "The request is not the cause. Send the `request_id` to the operators of the service: their"
        " log has the details under it.",
    ),
    "unavailable": ProblemText(
        "The database is unreachable, overloaded or too slow, or this process is shutting down.",
        "Wait for the number of seconds in `Retry-After` and try again; wait longer after each"
        " attempt. You can repeat any request that only reads, and a POST with an"
        " `Idempotency-Key`. Any other request may have succeeded: check before you repeat it.",
    ),
}


def example_json(slug: str) -> dict[str, Any]:
    """Return an example of an error response."""
    error = PROBLEM_TEXTS[slug].example
    return problem_json(BY_SLUG[slug], error, "/v1/movies/7", "5a1d8b0a7c9e4f21-5")
