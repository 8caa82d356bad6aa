"""migrations/*.sql, run by alembic: up to the newest, one step back, or written out as one script.

alembic itself loads Python files from a folder of its own; what it is made of does not need them
(https://alembic.sqlalchemy.org/en/latest/api/runtime.html). So each .sql file becomes a `Script`
that follows the one before it, and alembic decides on transactions and keeps `alembic_version`.

That table holds one version, and to alembic a file older than it is done, whether it ever ran or
not. `schema_migrations` holds every version that ran, under the name dbmate gives it, and is
written in the same transaction: what does not add up is refused.
"""

import io
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import psycopg2
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, MigrationInfo, MigrationStep
from alembic.script import Script
from alembic.script.revision import RevisionMap
from psycopg2 import errorcodes
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, parse_dsn
from psycopg2.extensions import connection as Session  # noqa: N812 (a class, whatever its case)
from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import SQLAlchemyError

from service.database.migration_files import Migration, Section, place, read
from service.errors import OperatorError

Report = Callable[[str], None]

# Advisory locks are numbers; this one spells "movies".
LOCK = int.from_bytes(b"movies")
LOCK_WAIT = 60.0  # seconds
LOCK_POLL = 0.2
# A migration that waits for a table stops everybody behind it in the queue, so it must not wait
# long; how long it works is its own affair. They are options of the connection because `reset all`
# returns to these, and because PgBouncer, which may hand the session's lock to another client,
# refuses them by default: migrations need PostgreSQL itself.
# https://www.postgresql.org/docs/current/runtime-config-client.html
OPTIONS = "-c lock_timeout=5s -c statement_timeout=0"
LEDGER = """\
create table if not exists schema_migrations (
  version    text        primary key,
  applied_at timestamptz not null default now()
)"""


class Status(NamedTuple):
    """A migration: `name` is None where its file is missing, `applied_at` where it is pending."""

    version: str
    name: str | None
    applied_at: datetime | None


def upgrade(url: str, folder: Path, report: Report) -> None:
    """Apply all that is pending, each file in its own transaction; a failure ends it there."""
    migrations = read(folder)
    with _session(url) as session:
        _lock(session, report)
        applied = _applied(session)
        pending = _pending(migrations, applied)
        with _alembic(session) as connection:
            for migration in pending:
                _move(connection, migrations, migration, MigrationStep.upgrade_from_script)
                report(f"applied {migration.path.name}")
    if not pending:
        report(_nothing_to_do(migrations, applied))


def downgrade(url: str, folder: Path, report: Report) -> None:
    """Take back the newest that is applied, by the `-- migrate:down` of its file."""
    migrations = read(folder)
    with _session(url) as session:
        _lock(session, report)
        applied = _applied(session)
        _pending(migrations, applied)
        migration = _newest(migrations, applied)
        with _alembic(session) as connection:
            _move(connection, migrations, migration, MigrationStep.downgrade_from_script)
    report(f"took back {migration.path.name}")


def status(url: str, folder: Path) -> list[Status]:
    """All migrations there are or were, in order; reads only, and waits for nobody."""
    names = {migration.version: migration.name for migration in read(folder)}
    with _session(url) as session:
        rows = _rows(session, "schema_migrations", "version, applied_at")
    applied: dict[str, datetime] = dict(rows)
    return [
        Status(version, names.get(version), applied.get(version))
        for version in sorted(names.keys() | applied.keys())
    ]


def offline_sql(folder: Path) -> str:
    """Everything `upgrade` would do to an empty database, for `psql -v ON_ERROR_STOP=1 -f`."""
    migrations = read(folder)
    output = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql+psycopg2",
        opts=_options(_steps(migrations, MigrationStep.upgrade_from_script).values())
        | {"as_sql": True, "output_buffer": output},
    )
    context.run_migrations(context=context)
    return output.getvalue()


# What is applied, and what follows from it.


def _applied(session: Session) -> list[str]:
    """Read what has run; the two tables must agree, or something else has written to one."""
    applied = sorted(version for (version,) in _rows(session, "schema_migrations", "version"))
    current = [version for (version,) in _rows(session, "alembic_version", "version_num")]
    if current != applied[-1:]:
        raise OperatorError(
            f"alembic_version says {', '.join(current) or 'nothing'} and the newest in "
            f"schema_migrations is {', '.join(applied[-1:]) or 'none'}: "
            "they must be the same; find out what changed one of them and correct it"
        )
    return applied


def _rows(session: Session, table: str, columns: str) -> list[tuple[Any, ...]]:
    with session.cursor() as cursor:
        cursor.execute("select to_regclass(%s) is null", (table,))
        if cursor.fetchone() == (True,):
            return []
        cursor.execute(f"select {columns} from {table}")
        return cursor.fetchall()


def _pending(migrations: list[Migration], applied: list[str]) -> list[Migration]:
    """Say what is to run; refuse what would leave a hole in the history."""
    known = [migration.version for migration in migrations]
    for version in applied:
        if version not in known and version < max(known, default=""):
            raise OperatorError(
                f"migration {version} is applied but its file is missing: put it back"
            )
    pending = [migration for migration in migrations if migration.version not in applied]
    for migration in pending:
        if applied and migration.version < applied[-1]:
            raise OperatorError(
                f"{place(migration.path)}: older than {applied[-1]}, which is applied already: "
                "give it a new timestamp"
            )
    return pending


def _newest(migrations: list[Migration], applied: list[str]) -> Migration:
    if not applied:
        raise OperatorError("nothing is applied: there is nothing to take back")
    for migration in migrations:
        if migration.version == applied[-1]:
            if migration.down is None:
                raise OperatorError(f'{place(migration.path)}: has no "-- migrate:down"')
            return migration
    raise OperatorError(f"migration {applied[-1]} is applied but its file is missing: put it back")


def _nothing_to_do(migrations: list[Migration], applied: list[str]) -> str:
    newest = migrations[-1].version if migrations else "none"
    if applied[-1:] == [newest] or not applied:
        return f"nothing to do: the newest migration is {newest}"
    return f"nothing to do: the database is ahead, at {applied[-1]}; the newest file is {newest}"


# The session: one connection that holds the lock and runs everything.


@contextmanager
def _session(url: str) -> Iterator[Session]:
    """Connect, under autocommit: while waiting for others, no transaction of ours is in their way.

    The URL holds a password: no message repeats the URL or what could not be read of it.
    """
    try:
        session = psycopg2.connect(**_parameters(url))
    except psycopg2.Error as error:
        raise OperatorError(f"the database is out of reach: {_words(error)}") from None
    try:
        session.autocommit = True
        yield session
    except (psycopg2.Error, SQLAlchemyError) as error:
        raise OperatorError(f"the database refused: {_words(_origin(error))}") from error
    finally:
        session.close()


def _parameters(url: str) -> dict[str, Any]:
    unreadable = OperatorError(
        "the database's URL cannot be read: expected postgresql://user:password@host:port/name, "
        "with @, / and % in the password written as %40, %2F and %25"
    )
    try:
        given = parse_dsn(url)
    except psycopg2.ProgrammingError:
        raise unreadable from None
    # What is left of a password that is not escaped is taken for the host, the port or the name of
    # the database, and libpq repeats those; the @ that ended it stands in one of them.
    if any("@" in str(value) for key, value in given.items() if key not in ("user", "password")):
        raise unreadable
    given["options"] = f"{given.get('options', '')} {OPTIONS}"
    return {"connect_timeout": 10} | given | {"client_encoding": "utf8"}


def _lock(session: Session, report: Report) -> None:
    """Become the only one that migrates this database; the lock ends with the session.

    By asking again and again: who waits inside `pg_advisory_lock` holds a snapshot, and
    `create index concurrently` waits for the end of every older one (a deadlock).
    https://www.postgresql.org/docs/current/sql-createindex.html#SQL-CREATEINDEX-CONCURRENTLY
    """
    give_up = time.monotonic() + LOCK_WAIT
    waiting = False
    with session.cursor() as cursor:
        while True:
            cursor.execute("select pg_try_advisory_lock(%s)", (LOCK,))
            if cursor.fetchone() == (True,):
                return
            if time.monotonic() >= give_up:
                raise OperatorError(
                    f"another migration has been running for {LOCK_WAIT:g} s: nothing was changed"
                )
            if not waiting:
                report(f"another migration is running: waiting for up to {LOCK_WAIT:g} s")
                waiting = True
            time.sleep(LOCK_POLL)


@contextmanager
def _alembic(session: Session) -> Iterator[Connection]:
    """Hand the session to SQLAlchemy, which begins and ends the transactions from here on."""
    session.autocommit = False
    engine = create_engine("postgresql+psycopg2://", creator=lambda: session, poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


# The run, in alembic's terms.


def _move(
    connection: Connection,
    migrations: list[Migration],
    migration: Migration,
    direction: Callable[[RevisionMap, Script], MigrationStep],
) -> None:
    step = _steps(migrations, direction)[migration.version]
    context = MigrationContext.configure(connection, opts=_options([step]))
    try:
        context.run_migrations(context=context)
    except SQLAlchemyError as error:  # at the commit or in the two tables; a section tells its own
        raise OperatorError(f"{place(migration.path)}: {_words(_origin(error))}") from error


def _steps(
    migrations: list[Migration], direction: Callable[[RevisionMap, Script], MigrationStep]
) -> dict[str, MigrationStep]:
    scripts = [
        Script(_module(migration, before), migration.version, migration.path)
        for before, migration in zip([None, *migrations], migrations, strict=False)
    ]
    chain = RevisionMap(lambda: scripts)
    chain.get_revisions("heads")  # a map links its scripts when it is first asked
    return {script.revision: direction(chain, script) for script in scripts}


def _module(migration: Migration, before: Migration | None) -> ModuleType:
    """Stand in for the Python file that alembic would load."""

    def upgrade(context: MigrationContext) -> None:
        _run(context, migration, migration.up)

    def downgrade(context: MigrationContext) -> None:
        if migration.down:
            _run(context, migration, migration.down)

    module = ModuleType(migration.version, migration.name)
    vars(module).update(
        down_revision=before.version if before else None, upgrade=upgrade, downgrade=downgrade
    )
    return module


def _options(steps: Any) -> dict[str, Any]:
    return {
        "fn": lambda *_: steps,
        "transaction_per_migration": True,
        "on_version_apply": (_record,),
    }


def _record(ctx: MigrationContext, step: MigrationInfo, **_: Any) -> None:
    """Write the ledger, in the transaction in which alembic has just written its own table."""
    if not step.down_revision_ids:
        ctx.execute(LEDGER)
    version = step.up_revision_id
    if step.is_upgrade:
        ctx.execute(f"insert into schema_migrations (version) values ('{version}')")
    else:
        ctx.execute(f"delete from schema_migrations where version = '{version}'")


def _run(context: MigrationContext, migration: Migration, section: Section) -> None:
    if section.empty:
        return
    try:
        if section.transaction:
            _send(context, section.sql)
        else:
            with context.autocommit_block():
                # Statements with this word wait for older transactions while all others go on,
                # and leave an invalid index behind where they are cut off: they may wait.
                if re.search(r"\bconcurrently\b", section.sql, re.IGNORECASE):
                    context.execute("set lock_timeout = 0")
                _send(context, section.sql)
    except SQLAlchemyError as error:
        raise OperatorError(_explain(migration.path, section, _origin(error))) from error
    if section.transaction and not context.as_sql and _ended(context):
        raise OperatorError(
            f"{place(migration.path, section.line)}: ends its transaction itself (commit or "
            "rollback), so it is not recorded: see what it left, and take that statement out"
        )
    # What a file sets (search_path, role, as pg_dump's output does) ends with it, or our own
    # tables would not be found and the next file would begin elsewhere.
    context.execute("reset all")
    context.execute("reset role")


def _send(context: MigrationContext, sql: str) -> None:
    """Send the SQL as it stands: no placeholder, no `:name`, no tab is anything but itself."""
    if context.as_sql:
        # On a line of its own, the end is safe from a comment or a missing semicolon before it.
        context.output_buffer.write(f"{sql}\n;\n\n")
    else:
        connection = Operations(context).get_bind()
        connection.exec_driver_sql(sql, execution_options={"no_parameters": True}).close()


def _ended(context: MigrationContext) -> bool:
    driver = Operations(context).get_bind().connection.driver_connection
    return bool(driver and driver.info.transaction_status == TRANSACTION_STATUS_IDLE)


# What went wrong, in one line.


def _origin(error: BaseException) -> BaseException:
    """Find what the driver said: cleaning up after a lost connection fails in words of its own."""
    while not isinstance(error, psycopg2.Error) and (inner := error.__cause__ or error.__context__):
        error = inner
    return error


def _explain(path: Path, section: Section, error: BaseException) -> str:
    """Name the file and the line; without PostgreSQL's word on it, where the section begins.

    The position counts characters of all that was sent, also of several statements:
    https://www.postgresql.org/docs/current/protocol-error-fields.html
    """
    line, words = section.line, _words(error)
    position = error.diag.statement_position if isinstance(error, psycopg2.Error) else None
    if position:
        line += section.sql.count("\n", 0, int(position) - 1)
    else:
        words = f"in what begins here: {words}"
    if not section.transaction:
        words += (
            "; a transaction:false section holds one statement, and an index that could not be "
            "built concurrently stays, invalid, until it is dropped"
        )
    elif getattr(error, "pgcode", None) == errorcodes.LOCK_NOT_AVAILABLE:
        words += (
            "; another transaction holds what this needs: the lock was not had within 5 s "
            "and nothing of this file was changed, so try again when that one has ended"
        )
    return f"{place(path, line)}: {words}"


def _words(error: BaseException) -> str:
    diagnosis = error.diag if isinstance(error, psycopg2.Error) else None
    parts = (
        [diagnosis.message_primary, diagnosis.message_detail, diagnosis.message_hint]
        if diagnosis and diagnosis.message_primary
        else [str(error)]
    )
    return " ".join("; ".join(part.rstrip(".\n") for part in parts if part).split())
