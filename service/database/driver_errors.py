"""Errors of PostgreSQL and the driver, as one line and in the catalogue's words."""

import psycopg2
from psycopg2 import errors as postgres

from service.database.query import Query
from service.errors import (
    CatalogueError,
    Refusal,
    RuleBroken,
    StatementFailed,
    Unavailable,
    WaitedInVain,
)

CONTENDED = (
    postgres.QueryCanceled,  # a timeout, or by hand
    postgres.LockNotAvailable,
    psycopg2.extensions.TransactionRollbackError,
)
# Rules of the database; data that a column cannot hold, or that a DBA's trigger refuses.
CAUSED_BY_CLIENTS = (
    psycopg2.IntegrityError,
    postgres.StringDataRightTruncation,
    postgres.NumericValueOutOfRange,
    postgres.UntranslatableCharacter,
    postgres.RaiseException,
)

# Errors that a new session may not have: a session keeps the defaults of its role and the plans of
# its triggers, and since it was opened, these may have changed, or the server became a standby.
OUTDATED = (
    postgres.ReadOnlySqlTransaction,
    postgres.DatatypeMismatch,
    postgres.FeatureNotSupported,  # "cached plan must not change result type"
)

# Tables that no client fills: a broken constraint of these is a fault of the service or of a DBA.
OWN_TABLES = frozenset(
    (
        "clients",
        "idempotency_keys",
        "movie_changes",
        "movie_feed",
        "schema_migrations",
        "search_words",
    )
)


def describe_error(error: BaseException, *, details: bool = False) -> str:
    """Describe an error in one line; `details`: with PostgreSQL's detail and hint (row values)."""
    diagnosis = error.diag if isinstance(error, psycopg2.Error) else None
    parts = [diagnosis.message_primary if diagnosis else None]
    if diagnosis and details:
        parts += [diagnosis.message_detail, diagnosis.message_hint]
    text = "; ".join(part.rstrip(".\n") for part in parts if part)
    return " ".join((text or str(error) or type(error).__name__).split()).rstrip(".")


def translate_error(query: Query, error: BaseException) -> CatalogueError:
    """Return why a statement failed on a connection that works, in the catalogue's words.

    https://www.postgresql.org/docs/current/errcodes-appendix.html
    """
    if (
        isinstance(error, CAUSED_BY_CLIENTS)
        and not query.is_read_only
        and not _is_own(query, error)
    ):
        return RuleBroken(error.diag.constraint_name or "")
    reason = f"{query.name} ({query.location}): {describe_error(error)}"
    if isinstance(error, CONTENDED):
        return WaitedInVain(reason)
    is_standby = isinstance(error, postgres.ReadOnlySqlTransaction) and not query.is_read_only
    if is_standby or isinstance(error, psycopg2.OperationalError):
        return Unavailable(reason, Refusal.STATEMENT_LOST)
    return StatementFailed(
        reason,
        for_every_row=isinstance(error, psycopg2.ProgrammingError),
    )


def _is_own(query: Query, error: psycopg2.Error) -> bool:
    """Whether no client can break this constraint: it sends neither nulls nor ids."""
    constraint, table = error.diag.constraint_name or "", error.diag.table_name or "?"
    if constraint == "idempotency_keys_pkey":  # another request has stored this key meanwhile
        return False
    return (
        isinstance(error, postgres.NotNullViolation)
        or table in OWN_TABLES
        # The sequence of the resource's table is behind.
        or (table in query.name and constraint == f"{table}_pkey")
    )
