"""A named query: its SQL and settings, what the service expects of it, and what its errors mean."""

import re
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

import aiopg
import psycopg2
from aiosql.types import QueryFn
from psycopg2 import errors as postgres

from service.errors import (
    CatalogueError,
    FileError,
    Refusal,
    RuleBroken,
    StatementFailed,
    Unavailable,
    WaitedInVain,
    locate,
)

TIMEOUT_SETTING = "statement_timeout"
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

# A new session might succeed where this one failed: a session keeps the defaults of its role and
# the plans of its triggers, which may have changed, or its server has become a standby.
OUTDATED = (
    postgres.ReadOnlySqlTransaction,
    postgres.DatatypeMismatch,
    postgres.FeatureNotSupported,  # "cached plan must not change result type"
)

# PgBouncer has no server, so it has not sent the statement, which may be repeated. This is not true
# of its other messages, such as "server conn crashed?".
NOT_SENT = re.compile(r"FATAL: +(?:\w{5}: )?(?:server login has been failing|query_wait_timeout)")

Row = tuple[Any, ...]
Parameters = Mapping[str, object]  # of a query, by name
NO_PARAMETERS: Parameters = {}


class Expected(NamedTuple):
    """What the service relies on in a query.

    `columns`: their names and Python types, in this order. `samples`: all parameters as the service
    sends them, which find and change nothing; the query is verified with each of these. `in_order`:
    the order of the rows counts.
    `by_command`: only a command uses it; a login that serves requests may lack its privileges.
    `own_tables`: a write fills these tables with nothing that a client sends: if it breaks one of
    their constraints, that is a fault of the service or of a DBA. `lost_race`: the exception, a
    constraint that breaks if another request was faster.
    """

    columns: Mapping[str, Hashable]
    samples: Sequence[Parameters]
    used_by: str
    writes: bool = False
    by_command: bool = False
    in_order: bool = False
    own_tables: Sequence[str] = ()
    lost_race: str = ""


def collect_expected(*packages: str) -> dict[str, Expected]:
    """Return the `QUERIES` of these modules, and of the modules of these packages."""
    expected = dict[str, Expected]()
    for package in map(import_module, packages):
        found = iter_modules(getattr(package, "__path__", ()), f"{package.__name__}.")
        for module in (package, *(import_module(each.name) for each in found if not each.ispkg)):
            expected |= getattr(module, "QUERIES", {})
    return expected


@dataclass(frozen=True)
class Query:
    """One query of a file; `sql` as the driver gets it, and `function`, are aiosql's."""

    name: str
    path: Path
    line: int  # of its name
    comment: str  # names it in the views and logs of PostgreSQL
    settings: Mapping[str, str]
    sql_line: int  # of the file, where `sql` begins
    sql: str
    parameters: Sequence[str]
    function: QueryFn = field(compare=False)
    expected: Expected | None = field(default=None, compare=False)

    async def run(
        self, connection: aiopg.Connection, execution: "Execution", parameters: Parameters
    ) -> list[Row]:
        """Run it and return its rows; `connection.notices` then has the warnings of a write."""
        if not self.is_read_only:
            # Each poll makes psycopg2 list the notices that have arrived. The earlier ones are of
            # the connect, of reads and of failed statements.
            connection.raw.poll()
            connection.notices.clear()
        rows: list[Row] = await self.function((connection, execution), **parameters)
        if not self.is_read_only:
            connection.raw.poll()
        return rows

    @cached_property
    def location(self) -> str:
        """The file and line, as logs and comments show them: `queries/movies.sql:9`."""
        return locate(self.path, self.line)

    @cached_property
    def timeout(self) -> float | None:
        """Its own `statement_timeout` in seconds (0: none); None: it has no setting of its own."""
        return parse_seconds(self.settings.get(TIMEOUT_SETTING, ""))

    @cached_property
    def is_read_only(self) -> bool:
        """Whether it runs in a read-only transaction."""
        return self.settings.get("transaction_read_only") == "on"

    def build_preamble(self, timeout: float, defaults: str = "") -> str:
        """Return what is sent in front of the statement: a comment that names it, and settings.

        `timeout` in seconds; `defaults`: SQL in front of the settings of the file.
        """
        setting = f"set local {TIMEOUT_SETTING} = {round(timeout * 1000)}; "
        common = "set local timezone = 'UTC'; set local jit = off; "  # it compiles for up to 0.4 s
        return f"{self.comment}; {common}{defaults}{self._settings}{setting}"

    @cached_property
    def _settings(self) -> str:
        settings = [item for item in self.settings.items() if item[0] != TIMEOUT_SETTING]
        return "".join(f"set local {name} = '{value}'; " for name, value in settings)

    def make_error(self, what: str, line: int | None = None) -> FileError:
        """Return an error that names the file, and this line or that of the query's name."""
        return FileError(self.path, line or self.line, what)


def parse_seconds(value: str) -> float | None:
    """Return a setting's value, like 500ms or 1min, as a time; None if it is none."""
    match = re.fullmatch("([0-9]{1,9})(ms|s|min|h|)", value)
    units = {"": 0.001, "ms": 0.001, "s": 1, "min": 60, "h": 3600}
    return int(match[1]) * units[match[2]] if match else None


def limit_affected(rows: int) -> str:
    """Return SQL that makes PostgreSQL refuse a statement that changes more rows.

    The trigger is in migrations/*limit_affected_movies.sql. Not by `set local`: before version 16,
    pg_stat_statements would list it once for each number.
    """
    return f"select set_config('catalogue.max_affected', '{rows}', true); "


class Execution(NamedTuple):
    """The SQL in front of a statement, and the driver's time limit (s) for a silent server."""

    preamble: str
    driver_timeout: float
    statement: str | None = None  # in place of the query's
    expects_timeout: bool = False  # a timeout is no failure
    is_resent: bool = False  # by the caller, after a lock timeout


async def absorb_late_timeout(connection: aiopg.Connection) -> None:
    """Let a late timeout end an empty statement, not the next one; a silent connection closes."""
    with suppress(TimeoutError, psycopg2.Error):
        async with connection.cursor() as cursor:
            await cursor.execute("select")


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
    is_write = not query.is_read_only
    if is_write and isinstance(error, CAUSED_BY_CLIENTS) and _may_be_a_client(query, error):
        return RuleBroken(error.diag.constraint_name or "")
    reason = f"{query.name} ({query.location}): {describe_error(error)}"
    if isinstance(error, CONTENDED):
        return WaitedInVain(reason)
    is_standby = is_write and isinstance(error, postgres.ReadOnlySqlTransaction)
    if is_standby or isinstance(error, psycopg2.OperationalError):
        return Unavailable(reason, Refusal.STATEMENT_LOST)
    return StatementFailed(reason, for_every_row=isinstance(error, psycopg2.ProgrammingError))


def _may_be_a_client(query: Query, error: psycopg2.Error) -> bool:
    """Whether a client can break this constraint; wrong nulls and ids are refused before."""
    constraint, table = error.diag.constraint_name or "", error.diag.table_name or "?"
    expected = query.expected or Expected({}, (), "")
    if constraint and constraint == expected.lost_race:
        return True
    # A primary key is broken if the sequence of the table lags.
    is_own = table in expected.own_tables or constraint == f"{table}_pkey"
    return not (is_own or isinstance(error, postgres.NotNullViolation))
