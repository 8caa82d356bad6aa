"""What can go wrong, in the catalogue's own words; knows no HTTP and no SQL.

`web/problems.py` holds the one table that gives each of these its HTTP status.
"""

from typing import NamedTuple


class Failure(NamedTuple):
    """One broken rule: the field or query parameter (`""`: all of it) and what is expected."""

    field: str
    detail: str


class CatalogueError(Exception):
    """An error that clients are told about.

    `Malformed`, `MalformedHeader` and `WrongKey` have a text, which clients read.
    """


class Malformed(CatalogueError):
    """The input cannot be read as a movie: not JSON, an unknown field, a wrong type."""


class Invalid(CatalogueError):
    """A readable movie that breaks rules: every failure at once."""

    def __init__(self, failures: list[Failure]) -> None:
        super().__init__(failures)
        self.failures = failures


class WrongParameters(CatalogueError):
    """A query string with wrong parameters: every failure at once."""

    def __init__(self, failures: list[Failure]) -> None:
        super().__init__(failures)
        self.failures = failures


class WrongKey(CatalogueError):
    """The Idempotency-Key header does not have the form of a key."""


class KeyReused(CatalogueError):
    """The Idempotency-Key was already used with another movie."""


class KeyInUse(CatalogueError):
    """Another request with the same Idempotency-Key is running (`retry_after` in seconds)."""

    retry_after = 1


class RuleBroken(CatalogueError):
    """A rule that the database holds was broken; `rule` is its name, empty where it has none."""

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


class Unavailable(CatalogueError):
    """The database cannot serve this now: away, too busy, or too slow; worth another try.

    The text is for the log. Clients learn only that it is so (`retry_after` in seconds).
    """

    retry_after = 1
    query = ""  # whose failure the log already tells


class Contended(Unavailable):
    """A statement was undone because of what it waited for: a lock, a deadlock, its timeout."""


class StatementFailed(CatalogueError):
    """A statement failed for a reason that no client can cause: a fault of a query or the schema.

    The text is for the log; clients learn only that the service failed. `for_every_row`: whether
    it would fail for each row that shares the statement.
    """

    def __init__(self, text: str, *, for_every_row: bool) -> None:
        super().__init__(text)
        self.for_every_row = for_every_row
        self.query = ""


class OperatorError(Exception):
    """Stops a command with this one line: a wrong setting, query file or migration."""
