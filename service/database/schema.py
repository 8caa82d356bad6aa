"""Whether the database is as this checkout needs it: migrated, and fit for every query.

Asked on the first connection of a process, before it serves any request.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence

import aiopg
import psycopg2

from service.database.queries import Expected, Query, fault
from service.database.statements import raise_if_timed_out
from service.errors import Unavailable

# Seconds that the driver waits for an answer; the server is told to give up before.
PATIENCE = 3

QUERIES: Mapping[str, Expected] = {"get_applied_migrations": Expected((), ("version",))}


class Schema:
    """The migrations and queries of this checkout; `expected` of the queries, by name."""

    def __init__(
        self,
        versions: Sequence[str],
        queries: Mapping[str, Query],
        expected: Mapping[str, Expected],
    ) -> None:
        self._versions = versions
        self._queries = queries
        self._expected = expected

    async def prove(self, connection: aiopg.Connection) -> None:
        """Raise `Unavailable` while a migration is missing, `OperatorError` for a wrong query.

        All of it happens in a transaction that is rolled back, with null for every parameter.
        A table that is locked makes it `Contended`, after a second.
        """
        async with connection.cursor(timeout=PATIENCE) as cursor:
            await cursor.execute("begin; set local statement_timeout = '1s'")
            try:
                await self._prove(cursor)
            except asyncio.CancelledError as error:
                raise_if_timed_out("the check of the queries", error)
                raise
            finally:
                if not connection.closed:
                    await cursor.execute("rollback")

    async def _prove(self, cursor: aiopg.Cursor) -> None:
        await cursor.execute("select to_regclass('schema_migrations') is null")
        if await cursor.fetchone() == (True,):  # it comes with the first migration
            self.require_migrations([])
        migrations = self._queries["get_applied_migrations"]
        await self._require_fit(cursor, migrations)
        await cursor.execute(migrations.sql)
        self.require_migrations(await cursor.fetchall())
        for query in self._queries.values():
            await self._require_fit(cursor, query)

    async def _require_fit(self, cursor: aiopg.Cursor, query: Query) -> None:
        nulls = dict.fromkeys(query.parameters)
        wanted = self._expected.get(query.name)
        try:
            # Planned, not run: this finds what is wrong with any statement.
            await cursor.execute("explain " + query.sql, nulls)
            if not wanted:  # a query of the DBA's own
                return
            if any(_WRITES.search(node) for (node,) in await cursor.fetchall()):
                await cursor.execute(query.sql, nulls)  # of no rows, as its parameter is null
            else:
                await cursor.execute(f"select * from ({query.sql}\n) as q limit 0", nulls)
        except (psycopg2.OperationalError, psycopg2.errors.ReadOnlySqlTransaction):
            raise  # not the query's fault: the database is going away, or is a standby for now
        except psycopg2.Error as error:
            line = _line(error, query, cursor)
            raise fault(query.path, line, error.diag.message_primary) from error
        columns = tuple(column[0] for column in cursor.description or ())
        if columns != wanted.columns:
            raise fault(
                query.path,
                query.line,
                f"{query.name} must return the columns {', '.join(wanted.columns)};"
                f" it returns {', '.join(columns)}",
            )

    def require_migrations(self, applied: Iterable[tuple[str]]) -> None:
        """Raise `Unavailable` unless all migrations of this checkout are among these rows.

        Others are fine: while a release goes out, the schema is ahead of the code that it replaces.
        """
        missing = sorted(set(self._versions) - {version for (version,) in applied})
        if missing:
            raise Unavailable(f"migration {missing[0]} has not been applied: run the migrations")


_WRITES = re.compile("(Insert|Update|Delete) on")


def _line(error: psycopg2.Error, query: Query, cursor: aiopg.Cursor) -> int:
    """The line in the file of the place that PostgreSQL points at."""
    position = int(error.diag.statement_position or 0)
    sent = cursor.raw.query.decode()[: position - 1] if position else ""
    return query.lines[min(sent.count("\n"), len(query.lines) - 1)] if position else query.line
