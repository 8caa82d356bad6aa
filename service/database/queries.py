"""A named query: its SQL and settings, what the service expects of it, and how aiopg runs it."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import aiopg
from aiosql.adapters.pyformat import PyFormatAdapter

from service.database.sql_files import locate
from service.errors import OperatorError

TIMEOUT_SETTING = "statement_timeout"
MILLISECONDS = {"": 1, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000}


class Expected(NamedTuple):
    """What the service relies on in a query.

    `columns`: their names and Python types, in this order. `samples`: parameters as the service
    sends them, which find and change nothing; the query is verified with each of these.
    `by_command`: only a command uses it; a login that serves requests may lack its privileges.
    """

    columns: Mapping[str, Any]
    samples: Sequence[Mapping[str, Any]]
    used_by: str
    writes: bool = False
    by_command: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.samples[0])


class Setting(NamedTuple):
    """A line `-- set: name = value`."""

    name: str
    value: str
    line: int

    @property
    def sql(self) -> str:
        """The statement that makes it hold for one transaction."""
        return f"set local {self.name} = '{self.value}'; "

    @property
    def milliseconds(self) -> int | None:
        """The value as a time; None if it is none."""
        match = re.fullmatch("([0-9]{1,9})(ms|s|min|h|)", self.value)
        return int(match[1]) * MILLISECONDS[match[2]] if match else None


@dataclass(frozen=True)
class Query:
    """One query of a file; `function` is aiosql's."""

    name: str
    parameters: tuple[str, ...]
    path: Path
    line: int  # of its name
    settings: tuple[Setting, ...]
    sql: str  # as it is written, with %(name)s for its parameters, and `comment`
    first_line: int  # where `sql` begins
    function: Callable[..., Awaitable[list[tuple[Any, ...]]]] = field(compare=False)

    async def run(
        self, connection: aiopg.Connection, execution: "Execution", parameters: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        """Run it and return its rows; `connection.notices` then has the warnings of a write."""
        if self.is_read_only:
            return await self.function((connection, execution), **parameters)
        # Each poll makes psycopg2 list the notices that have arrived. The earlier ones are of the
        # connect, of reads and of failed statements.
        connection.raw.poll()
        connection.notices.clear()
        rows = await self.function((connection, execution), **parameters)
        connection.raw.poll()
        return rows

    @cached_property
    def location(self) -> str:
        """The file and line, as logs and comments show them: `queries/movies.sql:9`."""
        return locate(self.path, self.line)

    @cached_property
    def timeout(self) -> float | None:
        """Its own `statement_timeout` in seconds (0: none); None: it has no setting of its own."""
        own = [s for s in self.settings if s.name == TIMEOUT_SETTING]
        return (own[0].milliseconds or 0) / 1000 if own else None

    @cached_property
    def is_read_only(self) -> bool:
        """Whether it runs in a read-only transaction."""
        return any((s.name, s.value) == ("transaction_read_only", "on") for s in self.settings)

    def build_preamble(self, timeout: float, defaults: str = "") -> str:
        """Return what is sent in front of the statement: a comment that names it, and settings.

        `defaults`: SQL in front of the settings of the file.
        """
        limit = f"set local {TIMEOUT_SETTING} = {round(timeout * 1000)}; "
        return f"{self._comment}; set local timezone = 'UTC'; {defaults}{self._settings}{limit}"

    @cached_property
    def _comment(self) -> str:
        return f"/* {self.name} {self.location} */".replace("%", "%%")

    @cached_property
    def _settings(self) -> str:
        return "".join([s.sql for s in self.settings if s.name != TIMEOUT_SETTING])

    def make_error(self, what: str, line: int | None = None) -> OperatorError:
        """Return an error that names the file and line of this query."""
        return OperatorError(f"{self.path}:{line or self.line}: {what.partition(chr(10))[0]}")


class Execution(NamedTuple):
    """The SQL in front of a statement, and the driver's time limit in seconds.

    The driver's limit is for a server that no longer responds, not even with a timeout.
    """

    preamble: str
    driver_timeout: float


class AiopgAdapter(PyFormatAdapter):
    """Runs one statement of aiosql's; `sql` is what the driver gets.

    For aiosql it is a synchronous adapter, whose `select` returns a coroutine: with an asynchronous
    one, each row would pass through two generators.
    """

    def __init__(self, sql: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sql = sql

    def process_sql(self, query_name: str, op_type: Any, sql: str) -> str:  # noqa: ARG002 - aiosql's protocol
        """Ours, as aiosql takes text in dollar quotes, comments and slices for parameters."""
        return self._sql

    async def select(  # type: ignore[override] # see above
        self,
        conn: tuple[aiopg.Connection, Execution],
        query_name: str,  # noqa: ARG002 - aiosql's protocol
        sql: str,
        parameters: Any,
        record_class: Any = None,  # noqa: ARG002 - aiosql's protocol
    ) -> list[tuple[Any, ...]]:
        """Run it and return its rows."""
        connection, execution = conn
        async with connection.cursor(timeout=execution.driver_timeout) as cursor:
            await cursor.execute(execution.preamble + sql, parameters)
            rows: list[tuple[Any, ...]] = await cursor.fetchall()
            return rows
