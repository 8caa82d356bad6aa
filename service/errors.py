"""The errors of the catalogue, independent of HTTP and SQL.

`web/problems.py` maps each of them to its HTTP status.
"""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple


class Failure(NamedTuple):
    """One mistake: the field, as in a JSON Pointer, or the query parameter (`""`: all of it)."""

    field: str
    detail: str


class CatalogueError(Exception):
    """An error that clients are told about.

    `Malformed`, `MalformedHeader`, `WrongKey`, `KeyInUse`, `Unauthorized`, `Forbidden` and
    `LimitReached` have a text, which clients read.
    """

    failures: Sequence[Failure] = ()


class Malformed(CatalogueError):
    """The input cannot be read as a movie: not JSON, an unknown field, a wrong type.

    `mistake`: the first one. `failures`: every mistake of an object that could be parsed, also the
    rules that it breaks.
    """

    def __init__(self, mistake: str, failures: Sequence[Failure] = ()) -> None:
        super().__init__(mistake)
        self.mistake = mistake
        self.failures = failures

    def __str__(self) -> str:
        """Return the first mistake, and say if there are more."""
        more = " (see errors for more mistakes)" if len(self.failures) > 1 else ""
        return f"{self.mistake}{more}"


class Invalid(CatalogueError):
    """A readable movie that breaks rules: every failure at once."""

    def __init__(self, failures: list[Failure]) -> None:
        super().__init__(failures)
        self.failures = failures


class WrongParameters(Invalid):
    """A query string with wrong parameters: every failure at once."""


class CursorExpired(CatalogueError):
    """The feed of changes no longer has all changes behind the cursor."""


class WrongKey(CatalogueError):
    """The Idempotency-Key header does not have the form of a key."""


class KeyReused(CatalogueError):
    """The Idempotency-Key was already used with another movie."""


class KeyInUse(CatalogueError):
    """No response to the Idempotency-Key can be sent now (`retry_after` in seconds)."""

    retry_after = 1


class RuleBroken(CatalogueError):
    """A constraint of the database was violated; `rule` is its name, empty if it has none."""

    def __init__(self, rule: str) -> None:
        super().__init__(f"a rule of the database was broken: {rule}")
        self.rule = rule


class MalformedHeader(CatalogueError):
    """A header of the request cannot be read."""


class BodyTimedOut(CatalogueError):
    """The request body did not arrive in time."""


class PreconditionFailed(CatalogueError):
    """The movie does not match the conditions of the request; it was not changed."""


class PreconditionRequired(CatalogueError):
    """This deployment requires If-Match for updates and deletes."""


class MovieNotFound(CatalogueError):
    """No movie has this id."""


class Unauthorized(CatalogueError):
    """The request needs a token, or another one; the text says which.

    `is_token_sent`: whether it had a token, which is invalid.
    """

    def __init__(self, text: str, *, is_token_sent: bool) -> None:
        super().__init__(text)
        self.is_token_sent = is_token_sent


class Forbidden(CatalogueError):
    """The client's scopes do not include `scope`, which the request needs."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"the token does not have the scope {scope}")
        self.scope = scope


class OriginNotAllowed(CatalogueError):
    """A page of an origin that is not in `cors_origins` sent a change."""


class Policy(NamedTuple):
    """A limit with a name for clients: at most `quota` units in `window_s` seconds."""

    name: str
    quota: int
    window_s: int


class LimitReached(CatalogueError):
    """The client has used up a limit; `remaining` units are left (`retry_after` in seconds)."""

    def __init__(self, text: str, policy: Policy, remaining: int, retry_after: int) -> None:
        super().__init__(text)
        self.policy = policy
        self.remaining = remaining
        self.retry_after = retry_after


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
    """The database is unreachable, overloaded or too slow; the client may retry.

    The text is for the log only (`retry_after` in seconds).
    """

    retry_after = 1

    def __init__(self, text: str, refusal: Refusal) -> None:
        super().__init__(text)
        self.refusal = refusal


class Contended(Unavailable):
    """A statement was rolled back: a lock timeout, a deadlock, or the statement timeout."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Refusal.STATEMENT_TIMEOUT)


class StatementFailed(CatalogueError):
    """A statement failed because of a mistake in the query or the schema, not in the request.

    The text is for the log only. `for_every_row`: whether the statement would fail for each of the
    rows that share it.
    """

    def __init__(self, text: str, *, for_every_row: bool) -> None:
        super().__init__(text)
        self.for_every_row = for_every_row


class OperatorError(Exception):
    """Stops a command with this text, such as wrong settings, a query file or a migration."""


class FileError(OperatorError):
    """A mistake in a file of SQL; the text begins with its place."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(f"{locate(path, line)}: {problem}")


def locate(path: Path, line: int = 1) -> str:
    """Name a line of a file in a message: `queries/movies.sql:9`; 1 for the file itself."""
    return f"{path.parent.name}/{path.name}:{line}"


def quote(text: str) -> str:
    """Quote the client's text for a message: at most 100 characters, and valid UTF-8."""
    shown = text if len(text) <= 100 else text[:100] + "…"  # noqa: PLR2004 - enough to recognize it
    return '"' + shown.encode("utf-8", "backslashreplace").decode() + '"'
