"""Verifies that the database has all migrations of this checkout, and that every query fits it.

This happens on the first connection of a process before it serves any request, in the command
`queries check`, and before a reload.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import aiopg
import psycopg2
from psycopg2 import errors as postgres

from service.database.driver_errors import describe_error, is_statement_timeout
from service.database.queries import Expected, Query
from service.database.statements import limit_affected
from service.errors import Contended, OperatorError, Refusal, Unavailable

DRIVER_TIMEOUT_S = 3
STATEMENT_TIMEOUT_S = 1  # for each statement of the check

QUERIES: Mapping[str, Expected] = {
    "get_applied_migrations": Expected({"version": str}, [{}], "readiness and start-up"),
}

# The types of PostgreSQL whose values psycopg2 returns as these, by their oids
# (https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat).
OIDS: Mapping[Any, Mapping[str, int]] = {
    int: {"bigint": 20, "integer": 23, "smallint": 21},
    str: {"text": 25, "character varying": 1043},
    bool: {"boolean": 16},
    float: {"double precision": 701, "real": 700},
    datetime: {"timestamp with time zone": 1184},
    list[str]: {"text[]": 1009, "character varying[]": 1015},
}
# Nodes of a plan that write, and calls of functions that need a privilege on a sequence.
WRITE = re.compile(r"^\s*(?:->\s+)?(Insert|Update|Delete|Merge) on (?:\w+\.)?(\w+)", re.MULTILINE)
SEQUENCE = re.compile(r"\b(nextval|setval|currval)\('((?:[^']|'')+)'::regclass")
# PostgreSQL cannot explain it, and running it takes a while.
ANALYZE = re.compile(r"analyze\s+/\*.*?\*/\s+(?:\([\w, ]+\)\s+)?([\w.]+)\s*", re.IGNORECASE)


async def verify_database(
    connection: aiopg.Connection,
    versions: Sequence[str],
    queries: Mapping[str, Query],
    expected: Mapping[str, Expected],
    *,
    are_reads_verified: bool = False,
) -> bool:
    """Raise `Unavailable` while a migration is missing, `OperatorError` for a wrong query.

    `OperatorError` also refuses a database that is not in UTF8.
    `versions`: of the migrations. `expected`: what the service relies on, by name of the query.
    A query is verified as it is sent, with its settings, in a transaction that is rolled back.
    Returns False if the database is read-only: then the columns of writes cannot be verified; with
    `are_reads_verified`, nothing is.
    A query that waits for a lock or takes longer than a second is `Contended`.
    """
    require_utf8(connection.raw)
    async with connection.cursor(timeout=DRIVER_TIMEOUT_S) as cursor:
        await cursor.execute("select to_regclass('schema_migrations') is null")
        if await cursor.fetchone() == (True,):  # it comes with the first migration
            require_migrations(versions, [])
        await cursor.execute("show transaction_read_only")
        is_writable: bool = await cursor.fetchone() == ("off",)
        if are_reads_verified and not is_writable:
            return False
        # First: a query may need a migration that is missing.
        first = queries["get_applied_migrations"]
        await _verify_query(cursor, first, expected.get(first.name), is_writable=is_writable)
        await cursor.execute(first.sql, {})
        require_migrations(versions, await cursor.fetchall())
        for query in [*queries.values()]:  # a reload may change them meanwhile
            await _verify_query(cursor, query, expected.get(query.name), is_writable=is_writable)
    return is_writable


def make_verifier(
    versions: Sequence[str], queries: Mapping[str, Query], expected: Mapping[str, Expected]
) -> Callable[[aiopg.Connection], Awaitable[bool]]:
    """Return `verify_database` for a pool; on a standby, it verifies the reads only once."""
    are_reads_verified = False

    async def verify(connection: aiopg.Connection) -> bool:
        nonlocal are_reads_verified
        is_writable = await verify_database(
            connection, versions, queries, expected, are_reads_verified=are_reads_verified
        )
        are_reads_verified = True
        return is_writable

    return verify


def require_migrations(versions: Iterable[str], applied: Iterable[tuple[str]]) -> None:
    """Raise `Unavailable` unless all migrations of this checkout are among the applied rows.

    Others are fine: while a release goes out, the schema is ahead of the code that it replaces.
    """
    if missing := sorted(set(versions) - {version for (version,) in applied}):
        raise Unavailable(
            f"migration {missing[0]} has not been applied: run python -m service migrate",
            Refusal.NOT_READY,
        )


def require_utf8(session: psycopg2.extensions.connection) -> None:
    """Raise `OperatorError` unless the database is in UTF8.

    In SQL_ASCII, searches would silently miss movies; other encodings lack characters.
    """
    encoding = session.info.parameter_status("server_encoding")
    if encoding not in ("UTF8", None):  # None: a proxy does not say
        raise OperatorError(
            f"the database's encoding is {encoding}, but the service needs UTF8: create another one"
            " with: create database NAME encoding 'UTF8' locale 'C' template template0"
        )


async def _verify_query(
    cursor: aiopg.Cursor, query: Query, expected: Expected | None, *, is_writable: bool
) -> None:
    try:
        await cursor.execute("begin")
        await _verify_settings(cursor, query)
        await _verify_statement(cursor, query, expected, is_writable=is_writable)
    except (asyncio.CancelledError, postgres.LockNotAvailable) as error:
        cause: BaseException | None = error
        if isinstance(error, asyncio.CancelledError):
            if not is_statement_timeout(error):
                raise
            cause = error.__context__
        reason = f"could not be checked: {describe_error(cause or error)}"
        raise Contended(f"{query.location}: {query.name} {reason}") from error
    except psycopg2.OperationalError:
        raise  # the database is going away
    except psycopg2.Error as error:
        if isinstance(error, postgres.ReadOnlySqlTransaction) and not query.is_read_only:
            raise  # the database has just become a standby
        is_denied = isinstance(error, postgres.InsufficientPrivilege)
        if not (is_denied and expected and expected.by_command):
            raise query.make_error(
                describe_error(error), _find_line(error, query, cursor)
            ) from error
    finally:
        if not cursor.connection.closed:
            await cursor.execute("rollback")


async def _verify_settings(cursor: aiopg.Cursor, query: Query) -> None:
    for setting in query.settings:
        try:
            await cursor.execute(setting.sql)
        except psycopg2.Error as error:
            if cursor.connection.closed:
                raise
            raise query.make_error(describe_error(error), setting.line) from error


async def _verify_statement(
    cursor: aiopg.Cursor, query: Query, expected: Expected | None, *, is_writable: bool
) -> None:
    await cursor.execute(f"set local statement_timeout = '{STATEMENT_TIMEOUT_S}s'")
    if match := ANALYZE.fullmatch(query.sql):
        await cursor.execute("select %s::regclass", (match[1],))
        return
    await _verify_plans(cursor, query, expected)
    if expected and (is_writable or not expected.writes):
        await _verify_columns(cursor, query, expected)


async def _verify_plans(cursor: aiopg.Cursor, query: Query, expected: Expected | None) -> None:
    for sample in expected.samples if expected else [dict.fromkeys(query.parameters)]:
        await cursor.execute(f"explain (verbose) {query.sql}", sample)
        plan = "\n".join([line async for (line,) in cursor])
        if expected and not expected.writes and (write := WRITE.search(plan)):
            raise query.make_error(
                f"{query.name} must only read: it contains {write[1].lower()} on {write[2]}"
            )
        if not (expected and expected.by_command):
            await _require_sequences(cursor, query, plan)


async def _require_sequences(cursor: aiopg.Cursor, query: Query, plan: str) -> None:
    for function, sequence in sorted(set(SEQUENCE.findall(plan))):
        privilege = {"nextval": "usage, update", "setval": "update"}.get(function, "usage")
        name = sequence.replace("''", "'")
        await cursor.execute("select has_sequence_privilege(%s, %s)", (name, privilege))
        if await cursor.fetchone() != (True,):
            raise query.make_error(
                f"{query.name} needs the privilege {privilege.partition(',')[0].upper()}"
                f" on the sequence {name}"
            )


async def _verify_columns(cursor: aiopg.Cursor, query: Query, expected: Expected) -> None:
    """Run the query and compare the columns that it returns; it finds and changes nothing."""
    if expected.writes:
        # The limit refuses a write that changes movies whatever its parameters are.
        await cursor.execute(limit_affected(0) + query.sql, expected.samples[0])
    else:
        # A cursor, of which no row is fetched: a read may find many.
        await cursor.execute(f"declare verified cursor for {query.sql}", expected.samples[0])
        await cursor.execute("fetch 0 from verified")
    found = [(column.name, column.type_code) for column in cursor.description or ()]
    if [name for name, _ in found] != [*expected.columns]:
        raise query.make_error(
            f"{query.name} must return the columns {', '.join(expected.columns)};"
            f" it returns {', '.join(name for name, _ in found) or 'none'}"
        )
    for (name, oid), kind in zip(found, expected.columns.values(), strict=True):
        if oid not in OIDS[kind].values():
            await cursor.execute("select format_type(%s, null)", (oid,))
            ((wrong,),) = await cursor.fetchall()
            raise query.make_error(
                f"{query.name} must return {name} as {' or '.join(OIDS[kind])}, not {wrong}"
            )


def _find_line(error: psycopg2.Error, query: Query, cursor: aiopg.Cursor) -> int:
    """Return the line in the file that PostgreSQL points at."""
    position = int(error.diag.statement_position or 0)
    sent = cursor.raw.query.decode()[: position - 1] if position else ""
    return query.first_line + sent.count("\n") if position else query.line
