"""Whether the database is as this checkout needs it: migrated, and fit for every query.

Asked on the first connection of a process, before it serves any request.
"""

from collections.abc import Iterable, Mapping, Sequence

import aiopg
import psycopg2

from service.database.queries import Expected, Query, Session, fault
from service.errors import Unavailable

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
        """Raise `Unavailable` while a migration is missing, `OperatorError` for a wrong query."""
        async with connection.cursor() as cursor:
            await cursor.execute("select to_regclass('schema_migrations') is null")
            if await cursor.fetchone() == (True,):  # it comes with the first migration
                self.require_migrations([])
        name = "get_applied_migrations"
        own = {name: self._queries[name]}
        await _require_queries(connection, own, self._expected)
        self.require_migrations([row async for row in own[name].run(Session(connection))])
        await _require_queries(connection, self._queries, self._expected)

    def require_migrations(self, applied: Iterable[tuple[str]]) -> None:
        """Raise `Unavailable` unless all migrations of this checkout are among these rows.

        Others are fine: while a release goes out, the schema is ahead of the code that it replaces.
        """
        missing = sorted(set(self._versions) - {version for (version,) in applied})
        if missing:
            raise Unavailable(f"migration {missing[0]} has not been applied: run the migrations")


async def _require_queries(
    connection: aiopg.Connection, queries: Mapping[str, Query], expected: Mapping[str, Expected]
) -> None:
    """Ask PostgreSQL whether every query fits the schema and returns what is expected of it.

    All of it happens in a transaction that is rolled back, with null for every parameter.
    """
    async with connection.cursor() as cursor:
        await cursor.execute("begin")
        try:
            for query in queries.values():
                columns = await _columns(cursor, query)
                wanted = expected.get(query.name)
                if wanted and columns != wanted.columns:
                    raise fault(
                        query.path,
                        query.line,
                        f"{query.name} must return the columns {', '.join(wanted.columns)};"
                        f" it returns {', '.join(columns)}",
                    )
        finally:
            if not connection.closed:
                await cursor.execute("rollback")


async def _columns(cursor: aiopg.Cursor, query: Query) -> tuple[str, ...]:
    nulls = dict.fromkeys(query.parameters)
    try:
        # Planned, not run: this finds what is wrong with any statement.
        await cursor.execute("explain " + query.sql, nulls)
        plan = await cursor.fetchall()
        if any(
            "Insert on" in node or "Update on" in node or "Delete on" in node for (node,) in plan
        ):
            await cursor.execute(query.sql, nulls)  # of no rows, as its parameter is null
        else:
            await cursor.execute(f"select * from ({query.sql}\n) as q limit 0", nulls)
    except (psycopg2.OperationalError, psycopg2.errors.ReadOnlySqlTransaction):
        raise  # not the query's fault: the database is going away, or is a standby for now
    except psycopg2.Error as error:
        raise fault(query.path, _line(error, query, cursor), error.diag.message_primary) from error
    return tuple(column[0] for column in cursor.description or ())


def _line(error: psycopg2.Error, query: Query, cursor: aiopg.Cursor) -> int:
    """The line in the file of the place that PostgreSQL points at."""
    position = int(error.diag.statement_position or 0)
    sent = cursor.raw.query.decode()[: position - 1] if position else ""
    return query.lines[min(sent.count("\n"), len(query.lines) - 1)] if position else query.line
