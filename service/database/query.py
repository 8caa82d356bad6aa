"""A named query: its SQL and settings, what the service expects of it, and how aiopg runs it."""

import re
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import aiopg
import psycopg2
from aiosql.adapters.pyformat import PyFormatAdapter
from aiosql.types import QueryFn, SQLOperationType

from service.errors import FileError, locate

TIMEOUT_SETTING = "statement_timeout"

Row = tuple[Any, ...]
Parameters = Mapping[str, object]  # of a query, by name
NO_PARAMETERS: Parameters = {}


class Expected(NamedTuple):
    """What the service relies on in a query.

    `columns`: their names and Python types, in this order. `samples`: parameters as the service
    sends them, which find and change nothing; the query is verified with each of these.
    `by_command`: only a command uses it; a login that serves requests may lack its privileges.
    """

    columns: Mapping[str, Hashable]
    samples: Sequence[Parameters]
    used_by: str
    writes: bool = False
    by_command: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters."""
        return tuple(self.samples[0])


@dataclass(frozen=True)
class Query:
    """One query of a file; `sql` as the driver gets it, and `function`, are aiosql's."""

    name: str
    path: Path
    line: int  # of its name
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
    def returns_transaction(self) -> bool:
        """Whether it is a write whose first column is the number of its transaction."""
        columns = self.expected.columns if self.expected else ()
        return not self.is_read_only and [*columns][:1] == ["transaction"]

    @cached_property
    def is_read_only(self) -> bool:
        """Whether it runs in a read-only transaction."""
        return self.settings.get("transaction_read_only") == "on"

    def build_preamble(self, timeout: float, defaults: str = "") -> str:
        """Return what is sent in front of the statement: a comment that names it, and settings.

        `defaults`: SQL in front of the settings of the file.
        """
        limit = f"set local {TIMEOUT_SETTING} = {round(timeout * 1000)}; "
        return f"{self.comment}; set local timezone = 'UTC'; {defaults}{self._settings}{limit}"

    @cached_property
    def comment(self) -> str:
        """The comment that names it in the views and logs of PostgreSQL."""
        return make_comment(self.name, self.path, self.line)

    @cached_property
    def _settings(self) -> str:
        settings = [item for item in self.settings.items() if item[0] != TIMEOUT_SETTING]
        return "".join(f"set local {name} = '{value}'; " for name, value in settings)

    def make_error(self, what: str, line: int | None = None) -> FileError:
        """Return an error that names the file, and this line or that of the query's name."""
        return FileError(self.path, line or self.line, what)


def make_comment(name: str, path: Path, line: int) -> str:
    """Return the comment that names a query in the views and logs of PostgreSQL."""
    return f"/* {name} {locate(path, line)} */"


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
    will_repeat: bool = False  # after a lock timeout


class AiopgAdapter(PyFormatAdapter):
    """Runs a query of aiosql with aiopg.

    `comment` names the query; `literals`: what belongs in place of each number in quotes.
    For aiosql it is a synchronous adapter, whose `select` returns a coroutine: with an asynchronous
    one, each row would pass through two generators.
    """

    def __init__(self, comment: str, literals: Sequence[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._comment = comment
        self._literals = literals

    def process_sql(self, query_name: str, op_type: SQLOperationType, sql: str) -> str:
        """Return the SQL for the driver: with placeholders, literals, and the comment.

        The comment is behind the first word: PostgreSQL 18 cuts off comments in front of a
        statement in pg_stat_statements. The last semicolon is for psql.
        """
        processed: str = super().process_sql(query_name, op_type, sql.rstrip("; \n"))  # type: ignore[no-untyped-call]
        first_word = re.compile(r"(?:'\d+'\s*)*\w*")  # behind hints
        named = first_word.sub(lambda word: f"{word[0]} {self._comment}", processed, count=1)
        return re.sub(r"'(\d+)'", lambda number: self._literals[int(number[1])], named)

    async def select(  # type: ignore[override] # see above
        self,
        conn: tuple[aiopg.Connection, Execution],
        query_name: str,  # noqa: ARG002 - aiosql's protocol
        sql: str,
        parameters: Parameters,
        record_class: object = None,  # noqa: ARG002 - aiosql's protocol
    ) -> list[Row]:
        """Run it and return its rows."""
        connection, execution = conn
        async with connection.cursor(timeout=execution.driver_timeout) as cursor:
            await cursor.execute(execution.preamble + (execution.statement or sql), parameters)
            rows: list[Row] = await cursor.fetchall()
            return rows


async def ping(connection: aiopg.Connection) -> None:
    """Send an empty statement; `connection.closed` if the server does not respond in 2 s."""
    with suppress(TimeoutError, psycopg2.Error):
        async with connection.cursor() as cursor:
            await cursor.execute("select")
