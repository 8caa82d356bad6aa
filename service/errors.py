"""The errors that clients and operators are told about, each with what a client gets.

`web/problems.py` builds the responses. A resource defines errors of its own beside its handlers.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, NamedTuple


class Failure(NamedTuple):
    """One mistake: the field, as in a JSON Pointer, or the query parameter (`""`: all of it)."""

    field: str
    detail: str


class Problem(NamedTuple):
    """A kind of error (RFC 9457); docs/clients/problems.md says what happened and how to fix it."""

    slug: str  # the fragment of `type`, which clients rely on
    title: str
    status: int


class CatalogueError(Exception):
    """An error that clients are told about.

    `detail`: what they read if it has no text, or one for the log only; and the example.
    """

    problem = Problem("internal-error", "Internal server error", 500)
    detail = "unexpected error; the log has the details"
    failures: Sequence[Failure] = ()
    retry_after: int | None = None  # seconds, if a repeat may succeed
    headers: Mapping[str, str] = {}  # of the response, beside Retry-After
    transaction = 0  # that saw the cause; 0: none
    header_names: ClassVar[Sequence[str]] = ()  # that responses may have, for the reference


class Malformed(CatalogueError):
    """The input cannot be read: it is not JSON, or has an unknown field or a wrong type.

    `mistake`: the first one. `failures`: every mistake of an object that could be parsed, also the
    rules that it breaks.
    """

    problem = Problem("malformed-body", "Malformed request body", 400)
    detail = '"year" must be an integer, found a string'

    def __init__(self, mistake: str, failures: Sequence[Failure] = ()) -> None:
        more = " (see errors for more mistakes)" if len(failures) > 1 else ""
        super().__init__(f"{mistake}{more}")
        self.mistake = mistake
        self.failures = failures


class Invalid(CatalogueError):
    """Readable input that breaks rules: every failure at once."""

    problem = Problem("validation-failed", "Validation failed", 422)
    detail = "the request breaks a rule of the catalogue; see errors"

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__()
        self.failures = failures


class WrongParameters(Invalid):
    """A query string with wrong parameters; `failures` has them, at most 100 unknown ones."""

    problem = Problem("wrong-parameters", "Wrong query parameters", 422)
    detail = "a query parameter is wrong; see errors"


class WrongKey(CatalogueError):
    """The Idempotency-Key header does not have the form of a key."""

    problem = Problem("wrong-idempotency-key", "Wrong Idempotency-Key", 400)
    detail = (
        "expected one Idempotency-Key of 1 to 255 printable ASCII characters,"
        ' optionally in double quotes: abc or "abc"'
    )


class KeyReused(CatalogueError):
    """The Idempotency-Key was already used with other content."""

    problem = Problem("idempotency-key-reused", "Idempotency-Key already used", 422)
    detail = "this Idempotency-Key was already sent with another movie or batch"


class KeyInUse(CatalogueError):
    """No response to the Idempotency-Key can be sent now."""

    retry_after = 1
    problem = Problem("idempotency-key-in-use", "Idempotency-Key in use", 409)
    header_names = ("Retry-After",)
    detail = "another request with this Idempotency-Key is still running"


class RuleBroken(CatalogueError):
    """A constraint of the database was violated; `rule` is its name, empty if it has none."""

    def __init__(self, rule: str) -> None:
        super().__init__(f"a rule of the database was broken: {rule}")
        self.rule = rule


class MalformedHeader(CatalogueError):
    """A header of the request cannot be read."""

    problem = Problem("malformed-header", "Malformed header", 400)
    detail = 'If-Match must be * or tags like "7-1", found "7-1 without quotes"'


class BodyTimedOut(CatalogueError):
    """The request body did not arrive in time."""

    problem = Problem("body-timeout", "Request timeout", 408)
    detail = "the request body did not arrive in time"


class ItemError(CatalogueError):
    """An error of one item; `noun`: what its resource calls it, in place of `movie`."""

    def __init__(self, noun: str) -> None:
        super().__init__(self.detail.replace("movie", noun))


class PreconditionFailed(ItemError):
    """The resource does not match the conditions of the request; it was not changed."""

    problem = Problem("precondition-failed", "Precondition failed", 412)
    header_names = ("Catalogue-Position",)
    detail = "the movie does not match the conditions of the request; compare its ETag"


class PreconditionRequired(ItemError):
    """This deployment requires If-Match for updates and deletes."""

    problem = Problem("precondition-required", "Precondition required", 428)
    header_names = ("Catalogue-Position",)
    detail = "updates and deletes require If-Match with the ETag of the movie"


class NotFound(ItemError):
    """No item of this resource has this id."""

    problem = Problem("not-found", "Not found", 404)
    header_names = ("Catalogue-Position",)
    detail = "there is no movie with this id"


class BadRequest(CatalogueError):
    """The request is not valid HTTP; `reason` says more than `detail`."""

    problem = Problem("bad-request", "Bad request", 400)
    detail = "the request is not valid HTTP"

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(f"{self.detail}: {reason}" if reason else "")


class PathNotFound(CatalogueError):
    """Nothing exists at the path of the request."""

    problem = NotFound.problem
    detail = "nothing exists at this path"


class MethodNotAllowed(CatalogueError):
    """The path exists, and has only the `allowed` methods."""

    problem = Problem("method-not-allowed", "Method not allowed", 405)
    detail = "this path does not support the method; see the Allow header"

    def __init__(self, allowed: str) -> None:
        super().__init__(f"{self.detail}: {allowed}")
        self.headers = {"Allow": allowed}


class ExpectationFailed(CatalogueError):
    """The header Expect has an unknown value."""

    problem = Problem("expectation-failed", "Expectation failed", 417)
    detail = 'only the expectation "100-continue" is supported'


class UpgradeRequired(CatalogueError):
    """The request needs a later version of HTTP (RFC 9110, 7.8)."""

    problem = Problem("upgrade-required", "Upgrade required", 426)
    header_names = ("Upgrade",)
    detail = "a stream needs HTTP/1.1; behind nginx, set `proxy_http_version 1.1`"
    headers: Mapping[str, str] = {"Upgrade": "HTTP/1.1", "Connection": "Upgrade, close"}


class Taken(CatalogueError):
    """Another item, `owner`, has this value of the unique field."""

    problem = Problem("external-id-taken", "External id taken", 409)
    header_names = ("Catalogue-Position",)
    detail = "the movie 7 has this external_id"

    def __init__(self, noun: str, field: str, owner: int) -> None:
        super().__init__(f"the {noun} {owner} has this {field}")
        self.failures = [Failure(field, f"the {noun} {owner} has it")]


CHALLENGE = 'Bearer realm="movie catalogue"'  # RFC 6750, 3


class Unauthorized(CatalogueError):
    """The request needs a token, and has none or an invalid one."""

    problem = Problem("unauthorized", "Unauthorized", 401)
    header_names = ("WWW-Authenticate",)
    detail = "the request needs a token; expected Authorization: Bearer mc_..."

    def __init__(self, text: str = "", *, is_token_sent: bool) -> None:
        super().__init__(text)
        more = ', error="invalid_token"' if is_token_sent else ""
        self.headers = {"WWW-Authenticate": f"{CHALLENGE}{more}"}


class Forbidden(CatalogueError):
    """The client's scopes do not include `scope`, which the request needs."""

    problem = Problem("forbidden", "Forbidden", 403)
    header_names = ("WWW-Authenticate",)
    detail = "the token does not have the scope write"

    def __init__(self, scope: str) -> None:
        super().__init__(f"the token does not have the scope {scope}")
        more = f'error="insufficient_scope", scope="{scope}"'
        self.headers = {"WWW-Authenticate": f"{CHALLENGE}, {more}"}


class OriginNotAllowed(CatalogueError):
    """A page of an origin that is not in `cors_origins` sent a change."""

    problem = Problem("origin-not-allowed", "Origin not allowed", 403)
    detail = "pages of this origin may not change the catalogue"


class Policy(NamedTuple):
    """A limit with a name for clients: at most `quota` units in `window_s` seconds."""

    name: str
    quota: int
    window_s: int


class LimitReached(CatalogueError):
    """The client has not enough units left; `remaining` are (`retry_after` in seconds)."""

    problem = Problem("limit-reached", "Too many requests", 429)
    header_names = ("Retry-After", "RateLimit", "RateLimit-Policy")
    detail = (
        "the limit is 5 units per second, and 50 at once; this request takes 10: try again in 2 s"
    )
    retry_after: int

    def __init__(self, text: str, policy: Policy, remaining: int, retry_after: int) -> None:
        super().__init__(text)
        self.policy, self.remaining, self.retry_after = policy, remaining, retry_after
        name, quota, window_s = policy
        self.headers = {  # draft-ietf-httpapi-ratelimit-headers-10
            "RateLimit-Policy": f'"{name}";q={quota};w={window_s}',
            "RateLimit": f'"{name}";r={remaining};t={retry_after}',
        }


class Refusal(StrEnum):
    """Why a request was refused for now, for the metrics; docs/logs.md describes each."""

    NO_DATABASE = "no_database"
    NOT_READY = "not_ready"
    FEED_OFF = "feed_off"
    POOL_TIMEOUT = "pool_timeout"
    QUEUE_FULL = "queue_full"
    STATEMENT_TIMEOUT = "statement_timeout"
    STATEMENT_LOST = "statement_lost"
    REQUEST_TIMEOUT = "request_timeout"
    STOPPING = "stopping"


class Unavailable(CatalogueError):
    """The database is unreachable, overloaded or too slow; the text is for the log only."""

    retry_after = 1
    problem = Problem("unavailable", "Service unavailable", 503)
    header_names = ("Retry-After",)
    detail = "the service is temporarily unavailable; try again later"

    def __init__(self, text: str, refusal: Refusal) -> None:
        super().__init__(text)
        self.refusal = refusal


class Contended(Unavailable):
    """Another session holds a lock, or the statement timed out: nothing was written."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Refusal.STATEMENT_TIMEOUT)


class WaitedInVain(Contended):
    """PostgreSQL ended a statement that held its connection: timeout, deadlock, or by hand."""


class StatementFailed(CatalogueError):
    """A statement failed because of a mistake in the query or the schema, not in the request.

    The text is for the log only. `for_every_row`: whether it would fail for each row alone, too.
    """

    def __init__(self, text: str, *, for_every_row: bool) -> None:
        super().__init__(text)
        self.for_every_row = for_every_row


class OperatorError(Exception):
    """Stops a command; the text says what is wrong with settings, a query file or a migration."""


class FileError(OperatorError):
    """A mistake in a file of SQL; the text begins with file and line."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(f"{locate(path, line)}: {problem}")


def locate(path: Path, line: int = 1) -> str:
    """Name a line of a file in a message: `queries/movies.sql:9`; 1 for the file itself."""
    return f"{path.parent.name}/{path.name}:{line}"


def quote(text: str) -> str:
    """Quote the client's text for a message: at most 100 characters, and valid UTF-8."""
    start = text if len(text) <= 100 else text[:100] + "…"  # noqa: PLR2004 - enough to recognize it
    return '"' + start.encode("utf-8", "backslashreplace").decode() + '"'
