"""Compares the queries and migrations of this checkout with the database, and explains queries.

A process verifies them before its first request and before a reload (`QueryRegistry`).
"""

import asyncio
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import NoReturn

import aiopg
import psycopg2
import structlog
from psycopg2 import errors as postgres

from service.config import Config, Database
from service.database.connections import Connector, application_name, open_session, require_utf8
from service.database.driver_errors import describe_error, translate_error
from service.database.migrations.files import list_versions
from service.database.query import Expected, Query, limit_affected
from service.database.statements import Statements
from service.errors import OperatorError, Refusal, Unavailable

log = structlog.get_logger()

DRIVER_TIMEOUT_S = 3
RELOAD_RETRY_S = 1.0
WRITABLE_RETRY_S = 5.0  # a verification takes up to 0.1 s
STATEMENT_TIMEOUT_S = 1  # for each statement of the check

QUERIES: Mapping[str, Expected] = {
    "get_applied_migrations": Expected({"version": str}, [{}], "readiness and start-up"),
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


async def verify_database(
    connection: aiopg.Connection,
    versions: Sequence[str],
    queries: Mapping[str, Query],
    *,
    refuse_faults: bool = False,
) -> bool:
    """Raise `Unavailable` while a migration is missing, `OperatorError` for a wrong query.

    If the schema lacks a trigger, an index or a constraint, log that, or refuse it.

    A query is verified as it is sent, in a transaction that is rolled back. If it waits for a lock
    or takes longer than a second, it is `Contended`.
    Returns False if the database is read-only: then the columns of writes cannot be verified.
    """
    require_utf8(connection.raw)
    writable = await is_writable(connection)
    async with connection.cursor(timeout=DRIVER_TIMEOUT_S) as cursor:
        await cursor.execute("select to_regclass('schema_migrations') is null")
        if await cursor.fetchone() == (True,):  # it comes with the first migration
            await _require_schema(cursor)
            require_migrations(versions, [])
        # First: a query may need a migration that is missing.
        first = queries["get_applied_migrations"]
        await _verify_query(cursor, first, is_writable=writable)
        await cursor.execute(first.sql, {})
        require_migrations(versions, await cursor.fetchall())
        for query in [*queries.values()]:  # a reload may change them meanwhile
            await _verify_query(cursor, query, is_writable=writable)
        if not refuse_faults:  # commands are for the owner of the tables
            await _warn_if_login_may_change_clients(cursor)
        await cursor.execute(queries["get_schema_faults"].sql, {})
        if faults := "; ".join([fault for (fault,) in await cursor.fetchall()]):
            if refuse_faults:
                raise OperatorError(f"the schema lacks what the service needs: {faults}")
            remedy = "restore it, or delete its name from get_schema_faults in queries/schema.sql"
            log.warning("schema incomplete", reason=faults, remedy=remedy)
    return writable


async def _require_schema(cursor: aiopg.Cursor) -> None:
    """Raise `OperatorError` if the tables are in a schema that this login cannot see."""
    await cursor.execute(
        "select current_user, n.nspname, has_schema_privilege(n.oid, 'usage')"
        " from pg_class as c join pg_namespace as n on n.oid = c.relnamespace"
        " where c.relname = 'schema_migrations'"
    )
    for role, schema, may_use in await cursor.fetchall():
        remedy = f"set search_path of the role {role} to it"
        if not may_use:
            remedy = f"grant usage on schema {schema} to {role}, as ops/roles.sql does"
        raise OperatorError(f"the tables are in the schema {schema}, which is not seen: {remedy}")


async def is_writable(connection: aiopg.Connection) -> bool:
    """Whether the database is no standby, and not read-only."""
    async with connection.cursor(timeout=DRIVER_TIMEOUT_S) as cursor:
        await cursor.execute("show transaction_read_only")
        return bool(await cursor.fetchone() == ("off",))


def require_migrations(versions: Iterable[str], applied: Iterable[tuple[str]]) -> None:
    """Raise `Unavailable` unless all migrations of this checkout are among the applied rows.

    Others are fine: while a release goes out, the schema is ahead of the code that it replaces.
    """
    if missing := sorted(set(versions) - {version for (version,) in applied}):
        raise Unavailable(
            f"migration {missing[0]} has not been applied: run python -m service migrate",
            Refusal.NOT_READY,
        )


async def _warn_if_login_may_change_clients(cursor: aiopg.Cursor) -> None:
    await cursor.execute(
        # A superuser on a Unix socket is a developer's.
        "select current_user from pg_roles where rolname = current_user"
        " and (not rolsuper or inet_client_addr() is not null)"
        " and has_table_privilege(to_regclass('clients'), 'insert, update, delete')"
    )
    for (role,) in await cursor.fetchall():
        log.warning(
            "login may change clients",
            reason=f"the role {role} may add clients with any scope, which no request needs",
            remedy="use the application role of ops/roles.sql; if it is that, run the file again",
        )


async def _verify_query(cursor: aiopg.Cursor, query: Query, *, is_writable: bool) -> None:
    expected = query.expected
    try:
        await cursor.execute(f"begin; {query.build_preamble(STATEMENT_TIMEOUT_S)}")
        if re.match("(?i)analyze ", query.sql):
            return  # PostgreSQL cannot explain it, and running it takes a while
        await _verify_plans(cursor, query)
        if expected and (is_writable or not expected.writes):
            await _verify_columns(cursor, query, expected)
    except psycopg2.Error as error:
        if isinstance(unavailable := translate_error(query, error), Unavailable):
            raise unavailable from error
        is_denied = isinstance(error, postgres.InsufficientPrivilege)
        if not (is_denied and expected and expected.by_command):
            line = _find_line(error, query, cursor)
            raise query.make_error(describe_error(error), line) from error
    finally:
        if not cursor.connection.closed:
            await cursor.execute("rollback")


async def _verify_plans(cursor: aiopg.Cursor, query: Query) -> None:
    expected = query.expected
    for sample in expected.samples if expected else [dict.fromkeys(query.parameters)]:
        await cursor.execute(f"explain {query.sql}", sample)
    if expected and not expected.by_command:
        for sequence in re.findall(r"nextval\('(\w+)'", query.sql):
            await cursor.execute("select has_sequence_privilege(%s, 'usage, update')", (sequence,))
            if await cursor.fetchone() != (True,):
                what = f"{query.name} needs the privilege USAGE on the sequence {sequence}"
                raise query.make_error(what)


async def _verify_columns(cursor: aiopg.Cursor, query: Query, expected: Expected) -> None:
    """Run the query and compare the columns that it returns; it finds and changes nothing."""
    if expected.writes:
        # The limit refuses a write that changes rows whatever its parameters are.
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
    await cursor.execute(f"select {unquoted}", (oids,))
    for name, (kind,) in zip(names, await cursor.fetchall(), strict=True):
        if kind not in (kinds := POSTGRES_TYPES[expected.columns[name]]):
            what = f"{query.name} must return {name} as {' or '.join(kinds)}, not {kind}"
            raise query.make_error(what)


def _find_line(error: psycopg2.Error, query: Query, cursor: aiopg.Cursor) -> int:
    """Return the line in the file that PostgreSQL points at; without a place, of the name."""
    if not (position := int(error.diag.statement_position or 0)):
        return query.line
    sent: str = cursor.raw.query.decode()
    return query.sql_line + sent.count("\n", 0, position)


def explain_query(
    settings: Database, query: Query, parameters: Mapping[str, str], *, analyze: bool
) -> Iterator[str]:
    """Yield the lines of the plan; `analyze`: run the query, too.

    `parameters`: text as in SQL literals; those that are missing are null. The transaction is
    rolled back. `OperatorError` if PostgreSQL refuses it.
    """
    timeout = settings.statement_timeout if query.timeout is None else query.timeout
    options = "analyze, buffers" if analyze else "costs"
    message = f"{query.build_preamble(timeout)}explain ({options}) {query.sql}"
    with closing(open_session(settings.url, application_name=application_name())) as session:
        cursor = session.cursor()
        try:
            cursor.execute(message, dict.fromkeys(query.parameters) | dict(parameters))
        except psycopg2.Error as error:
            raise query.make_error(f"{query.name}: {describe_error(error)}") from error
        lines = cursor.fetchall()
        session.rollback()  # PostgreSQL sees a close later than the next session begins
    for (line,) in lines:
        yield line


async def verify_queries(
    config: Config, queries: Mapping[str, Query], *, refuse_faults: bool = False
) -> bool:
    """Verify the database as `verify_database` does, on a connection of its own.

    Raises `Unavailable` also if there is no database.
    """
    versions = list_versions(config.migrations)
    try:
        with closing(await Connector(config.database).connect()) as connection:
            return await verify_database(connection, versions, queries, refuse_faults=refuse_faults)
    except (TimeoutError, psycopg2.Error) as error:
        is_silent = isinstance(error, TimeoutError)
        reason = "the database does not respond" if is_silent else describe_error(error)
        raise Unavailable(reason, Refusal.NO_DATABASE) from error


class LoadedQueries(dict[str, Query]):
    """The queries by name; `Unavailable` if mistakes have kept them from being loaded so far."""

    def __missing__(self, name: str) -> NoReturn:
        """Refuse the request."""
        raise Unavailable(f"{name} is not loaded yet: an earlier line says why", Refusal.NOT_READY)


class QueryRegistry:
    """What a process uses of queries/*.sql and migrations/*.sql.

    `read_files` reads and checks the query files. What must stay true: no request sends a query
    before it was verified, but for a write while the database is read-only; a reload replaces all
    queries or none; what cannot be verified yet is verified later.
    """

    def __init__(self, config: Config, read_files: Callable[[], Mapping[str, Query]]) -> None:
        self.queries = LoadedQueries()
        self.on_reload: Callable[[], None] = lambda: None  # called when queries were replaced
        self._read_files = read_files
        # While the queries of a reload are not verified in full: the queries before it.
        self._former: Mapping[str, Query] | None = None
        self._versions: Sequence[str] = []  # of the migrations
        self._missing = ""  # which migration is, as it was logged
        self._config = config
        self._are_reads_verified = False
        self._reloading: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Read the files; `OperatorError` where one is wrong."""
        self._versions = list_versions(self._config.migrations)
        self.queries.update(self._read_files())

    async def verify(self, connection: aiopg.Connection) -> bool:
        """Verify the files against the database; False if that must be done again.

        After a failure, the next call reads the files again: somebody may have corrected them. On a
        standby, reads are verified only once; then a reload corrects the files.
        """
        if not self._are_reads_verified:
            self.load()
        elif not await is_writable(connection):
            return False
        is_verified = await verify_database(connection, self._versions, self.queries)
        self._are_reads_verified = True
        return is_verified

    async def require_migrations(self, statements: Statements) -> None:
        """Raise `Unavailable` unless all migrations have been applied; log when that changes."""
        applied = await statements.fetch("get_applied_migrations")
        try:
            require_migrations(self._versions, applied)
        except Unavailable as error:
            self._report_missing(str(error))
            raise
        self._report_missing("")

    def _report_missing(self, missing: str) -> None:
        if missing and missing != self._missing:
            log.warning("not ready", reason=missing)
        elif self._missing and not missing:
            log.info("ready")
        self._missing = missing

    def reload(self) -> None:
        """Start to replace the queries by those that the files hold now.

        If one of them is wrong, the old queries stay; if they cannot be verified now, it is tried
        again. In a read-only database, only reads are verified, and writes when it is writable: if
        one is wrong, the old queries come back. Statements under way end as they began. A reload
        that is running is given up: it may have read other files.
        """
        if self._reloading:
            self._reloading.cancel()
        self._reloading = asyncio.create_task(self._reload())

    async def _reload(self) -> None:
        try:
            found = self._read_files()
            is_verified = await self._verify_soon(found)
            changed = [name for name in found if found[name] != self.queries.get(name)]
            self._former = self._former or dict(self.queries)
            self._replace(found)
            self._versions = list_versions(self._config.migrations)  # one may have been taken back
            log.info("queries reloaded", changed=changed)
            while not is_verified:  # the writes: the database is read-only
                await asyncio.sleep(WRITABLE_RETRY_S)
                is_verified = await self._verify_soon(found)
        except OperatorError as error:
            log.warning("queries not reloaded", reason=str(error))
            if self._former:
                self._replace(self._former)
        except Exception as error:  # nobody waits for this task
            log.exception("queries not reloaded", reason=str(error))
            if self._former:
                self._replace(self._former)
        self._former = None

    def _replace(self, queries: Mapping[str, Query]) -> None:
        self.queries.clear()
        self.queries.update(queries)
        self.on_reload()

    async def _verify_soon(self, found: Mapping[str, Query]) -> bool:
        """Verify the queries, again and again while a lock or an outage prevents that."""
        logged = ""
        while True:
            try:
                return await verify_queries(self._config, found)
            except Unavailable as error:
                if str(error) != logged:
                    log.warning("queries not reloaded", reason=f"{error}; trying again")
                logged = str(error)
                await asyncio.sleep(RELOAD_RETRY_S)
