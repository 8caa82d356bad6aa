"""What can go wrong, in the catalogue's own words; knows no HTTP and no SQL.

`web/problems.py` holds the one table that gives each of these its HTTP status.
"""

from typing import NamedTuple


class Failure(NamedTuple):
    """One broken rule: the field (`""` for the movie as a whole) and what is expected of it.

    Of a query string: the parameter.
    """

    field: str
    detail: str


class CatalogueError(Exception):
    """What a client is told about; its text is the detail they read."""


class Malformed(CatalogueError):
    """The input cannot be read as a movie: not JSON, an unknown field, a wrong type."""


class Invalid(CatalogueError):
    """A readable movie that breaks rules: every failure at once."""

    def __init__(self, failures: list[Failure]) -> None:
        super().__init__("the movie breaks a rule of the catalogue; see errors")
        self.failures = failures


class WrongParameters(CatalogueError):
    """A query string that asks for what there is not: every failure at once, by parameter."""

    def __init__(self, failures: list[Failure]) -> None:
        super().__init__("a query parameter is wrong; see errors")
        self.failures = failures


class WrongKey(CatalogueError):
    """An Idempotency-Key that is none."""


class KeyReused(CatalogueError):
    """An Idempotency-Key was used before, for something else."""

    def __init__(self) -> None:
        super().__init__("this Idempotency-Key was first sent with another movie")


class KeyInUse(CatalogueError):
    """Another request with the same Idempotency-Key is being carried out (`retry_after` in s)."""

    retry_after = 1

    def __init__(self) -> None:
        super().__init__("another request with this Idempotency-Key is still being carried out")


class RuleBroken(CatalogueError):
    """A rule that the database holds was broken; `rule` is its name, empty where it has none."""

    def __init__(self, rule: str) -> None:
        super().__init__(f"a rule of the database was broken: {rule}")
        self.rule = rule


class MalformedHeader(CatalogueError):
    """A header of the request cannot be read."""


class PreconditionFailed(CatalogueError):
    """The movie is no longer, or not yet, what the request depends on; it was left alone."""

    def __init__(self) -> None:
        super().__init__("the movie is not what the conditions of this request say; see its ETag")


class PreconditionRequired(CatalogueError):
    """A change has to say which version it is of."""

    def __init__(self) -> None:
        super().__init__(
            "a change needs If-Match with the ETag of the movie that it is a change of"
        )


class MovieNotFound(CatalogueError):
    """No movie has this id."""

    def __init__(self) -> None:
        super().__init__("there is no movie with this id")


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
