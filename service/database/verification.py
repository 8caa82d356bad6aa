"""Compares the queries and migrations of this checkout with the database, and reloads the queries.

`verify_database` sends each query as requests do, in a transaction that is rolled back.
"""

import asyncio
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import datetime

import aiopg
import psycopg2
import structlog
from psycopg2 import errors as postgres

from service.config import Config
from service.database.connections import Connector, require_utf8_database
from service.database.migrations.files import list_versions
from service.database.query import (
    Expected,
    Parameters,
    Query,
    Row,
    describe_error,
    limit_affected,
    translate_error,
)
from service.database.statements import Statements
from service.errors import Contended, OperatorError, Refusal, Unavailable

log = structlog.get_logger()

STATEMENT_TIMEOUT_S = 3  # for each statement of the check; as requests have by default
DRIVER_TIMEOUT_S = 4
LOCK_TIMEOUTS_MS = (1000, 50)  # until a query has timed out, and after that

QUERIES: Mapping[str, Expected] = {
    "get_applied_migrations": Expected({"version": str, "fault": str}, [{}], "readiness, start-up"),
    "get_schema_faults": Expected({"fault": str}, [{}], "start-up and `queries`"),
}

# The types of PostgreSQL whose values psycopg2 returns as these.
POSTGRES_TYPES: Mapping[Hashable, Sequence[str]] = {
    int: ("bigint", "integer", "smallint"),
    str: ("text", "character varying"),
    bool: ("boolean",),
    float: ("double precision", "real"),
    datetime: ("timestamp with time zone",),
    list[str]: ("text[]", "character varying[]"),
}
HINT_IF_MIGRATED = (
    "; if it was, this login needs usage of its schema (ops/roles.sql), or another search_path"
)


class QueryRegistry:
    """What a process uses of queries/*.sql and migrations/*.sql.

    `read_files` reads and checks the query files. The workers of gunicorn get what their master has
    read, so that none of them has files of another release. What must stay true: no request sends a
    query that was not verified; a reload replaces all queries or none.
    """

    def __init__(self, config: Config, read_files: Callable[[], Mapping[str, Query]]) -> None:
        self.queries: dict[str, Query] = {}
        self.on_reload: Callable[[], None] = lambda: None  # called when queries were replaced
        self._read_files = read_files
        self._versions: Sequence[str] = []  # of the migrations
        self._missing = ""  # why migrations are missing, as it was logged last; "": none is
        self._config = config
        self._reloading: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Read the files; `OperatorError` where one is wrong."""
        self._use(self._read_files())

    def _use(self, queries: Mapping[str, Query]) -> None:
        self._versions = list_versions(self._config.migrations)
        self.queries.clear()
        self.queries.update(queries)

    async def verify(self, connection: aiopg.Connection) -> None:
        """Verify the files with the database; after a fault, read them again for the next call."""
        try:
            await verify_database(connection, self._versions, self.queries)
        except OperatorError:
            self.load()
            raise

    async def require_migrations(self, statements: Statements) -> None:
        """Raise `Unavailable` unless all migrations have been applied; log when that changes."""
        applied = await statements.fetch("get_applied_migrations")
        before, self._missing = self._missing, ""
        try:
            require_migrations(self._versions, applied)
        except Unavailable as error:
            self._missing = str(error)
            if self._missing != before:
                log.warning("not ready", reason=self._missing)
            raise
        if before:
            log.info("ready")

    def reload(self) -> None:
        """Start to replace the queries by those that the files hold now.

        If one of them is wrong, or the database cannot verify them now, the old queries stay.
        Statements under way end as they began. A reload that is running is given up: it may have
        read other files.
        """
        if self._reloading:
            self._reloading.cancel()
        self._reloading = asyncio.create_task(self._reload())

    async def _reload(self) -> None:
        try:
            changed = await self.replace()
        except Exception as error:  # noqa: BLE001 - nobody waits for this task
            log.warning("queries not reloaded", reason=str(error) or repr(error))
            return
        self.on_reload()
        log.info("queries reloaded", changed=changed)

    async def replace(self) -> list[str]:
        """Read and verify the files, and replace the queries; return the changed ones.

        Raises `OperatorError` or `Unavailable`; then the old queries stay.
        """
        found = self._read_files()
        await verify_queries(self._config, found)
        changed = [name for name in found if found[name] != self.queries.get(name)]
        self._use(found)  # the file of a migration that the database lacks may have been removed
        return changed


async def verify_queries(
    config: Config, queries: Mapping[str, Query], *, refuse_faults: bool = False
) -> bool:
    """Verify the database on a connection of its own; `Unavailable` also if there is none."""
    versions = list_versions(config.migrations)
    try:
        with closing(await Connector(config.database).connect()) as connection:
            return await verify_database(connection, versions, queries, refuse_faults=refuse_faults)
    except (TimeoutError, psycopg2.Error) as error:
        is_silent = isinstance(error, TimeoutError)
        reason = "the database does not respond" if is_silent else describe_error(error)
        raise Unavailable(reason, Refusal.NO_DATABASE) from error


async def verify_database(
    connection: aiopg.Connection,
    versions: Sequence[str],
    queries: Mapping[str, Query],
    *,
    refuse_faults: bool = False,
) -> bool:
    """Raise `Unavailable` while a migration is missing, `OperatorError` for a wrong query.

    If the schema lacks a trigger, an index or a constraint, log that, or refuse it. If a query
    waits for a lock or takes too long, it is `Contended`, unless another one is wrong.
    Returns False if the database is read-only: then the columns of writes cannot be verified.
    """
    require_utf8_database(connection.raw)
    async with connection.cursor(timeout=DRIVER_TIMEOUT_S) as cursor:
        is_read_only = await _fetch(cursor, "show transaction_read_only") == [("on",)]
        # First these: a missing migration or another fault may be why a query fails.
        query = queries["get_applied_migrations"]
        if await _fetch(cursor, "select to_regclass('schema_migrations')") == [(None,)]:
            require_migrations(versions, [], HINT_IF_MIGRATED)
        await _verify_query(cursor, query, is_read_only=True)
        require_migrations(versions, await _fetch(cursor, query.sql))
        late: Contended | None = None
        reason = ""
        try:
            await _verify_query(cursor, queries["get_schema_faults"], is_read_only=True)
            faults = await _fetch(cursor, queries["get_schema_faults"].sql)
            reason = "; ".join([fault for (fault,) in faults])
        except Contended as error:
            late = error
        if reason and refuse_faults:
            raise OperatorError(f"the schema is not as the service needs it: {reason}")
        for query in [*queries.values()]:  # a reload may change them meanwhile
            try:
                await _verify_query(cursor, query, is_read_only=is_read_only, is_late=bool(late))
            except Contended as error:
                late = late or error
        if late:
            raise late
    if reason:
        log.warning("schema incomplete", reason=reason)
    return not is_read_only


def require_migrations(versions: Iterable[str], applied: Sequence[Row], hint: str = "") -> None:
    """Raise `Unavailable` unless all migrations of this checkout are among the applied rows.

    Others are fine: while a release goes out, the schema is ahead of the code that it replaces.
    """
    if fault := next((fault for _, fault in applied), None):
        raise Unavailable(fault, Refusal.NOT_READY)
    if missing := sorted(set(versions) - {version for version, _ in applied}):
        raise Unavailable(
            f"migration {missing[0]} has not been applied: run python -m service migrate{hint}",
            Refusal.NOT_READY,
        )


async def _verify_query(
    cursor: aiopg.Cursor, query: Query, *, is_read_only: bool, is_late: bool = False
) -> None:
    """Explain the query with each sample, and compare its columns, as it would be sent."""
    expected = query.expected
    lock = f"set local lock_timeout = {LOCK_TIMEOUTS_MS[is_late]}"
    try:
        await cursor.execute(f"begin; {query.build_preamble(STATEMENT_TIMEOUT_S)}{lock}")
        if re.match("(?i)analyze ", query.sql):
            return  # PostgreSQL cannot explain it, and running it takes a while
        for sample in expected.samples if expected else [dict.fromkeys(query.parameters)]:
            await _verify_plan(cursor, query, sample)
        if expected and not expected.by_command:
            await _verify_sequences(cursor, query)
        if expected and not (is_read_only and expected.writes):
            await _verify_columns(cursor, query, expected)
    except psycopg2.Error as error:
        if cursor.connection.closed:
            raise
        if isinstance(unavailable := translate_error(query, error), Unavailable):
            raise unavailable from error
        is_denied = isinstance(error, postgres.InsufficientPrivilege)
        if not (is_denied and expected and expected.by_command):
            # The line that PostgreSQL points at; without one, that of the name.
            position = int(error.diag.statement_position or 0)
            line = query.sql_line + cursor.raw.query.decode().count("\n", 0, position)
            raise query.make_error(describe_error(error), position and line) from error
    finally:
        if not cursor.connection.closed:
            await cursor.execute("rollback")


async def _verify_plan(cursor: aiopg.Cursor, query: Query, sample: Parameters) -> None:
    """Explain the query; refuse a filter that PostgreSQL would call for each row."""
    plan = await _fetch(cursor, f"explain {query.sql}", sample)
    if call := re.search(r"\b(\w+_matches)\(\w+\.\*", str(plan)):
        raise query.make_error(
            f"{query.name} would read the whole table: {call[1]} must not have a subquery"
            " or the like; docs/dbas.md#change-the-filter says what works instead"
        )


async def _verify_sequences(cursor: aiopg.Cursor, query: Query) -> None:
    """Require the privilege on the sequences that the query names; explaining it does not."""
    for sequence in re.findall(r"nextval\('(\w+)'", query.sql):
        question = "select has_sequence_privilege(%s, 'usage, update')"
        if await _fetch(cursor, question, (sequence,)) != [(True,)]:
            what = f"{query.name} needs the privilege USAGE on the sequence {sequence}"
            raise query.make_error(what)


async def _verify_columns(cursor: aiopg.Cursor, query: Query, expected: Expected) -> None:
    """Run the query and compare the columns that it returns; it finds and changes nothing."""
    if expected.writes:
        # The limit refuses a write that forgets its parameters, and changes rows here.
        await cursor.execute(limit_affected(0) + query.sql, expected.samples[0])
    else:
        # A cursor, of which no row is fetched: a read may find many.
        await cursor.execute(f"declare verified cursor for {query.sql}", expected.samples[0])
        await cursor.execute("fetch 0 from verified")
    found = cursor.description or ()
    names = [column.name for column in found]
    if names != [*expected.columns]:
        raise query.make_error(
            f"{query.name} must return the columns {', '.join(expected.columns)};"
            f" it returns {', '.join(names) or 'none'}"
        )
    oids = [column.type_code for column in found]
    unquoted = "translate(format_type(unnest(%s::oid[]), null), '\"', '')"  # quote_all_identifiers
    kinds = await _fetch(cursor, f"select {unquoted}", (oids,))
    for name, (kind,) in zip(names, kinds, strict=True):
        if kind not in (right := POSTGRES_TYPES[expected.columns[name]]):
            what = f"{query.name} must return {name} as {' or '.join(right)}, not {kind}"
            raise query.make_error(what)


async def _fetch(cursor: aiopg.Cursor, sql: str, parameters: object = ()) -> list[Row]:
    await cursor.execute(sql, parameters)
    rows: list[Row] = await cursor.fetchall()
    return rows
