"""migrations/*.sql, run by alembic: up to the newest, one step back, or written out as one script.

alembic itself loads Python files from a folder of its own; what it is made of does not need them
(https://alembic.sqlalchemy.org/en/latest/api/runtime.html). So each .sql file becomes a `Script`
that follows the one before it, and alembic decides on transactions and keeps `alembic_version`.

That table holds one version only. `schema_migrations` (dbmate's name for it) holds every version
that ran, and is written in the same transaction; `migration_history` compares the two.
"""

import io
import re
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, MigrationInfo, MigrationStep
from alembic.script import Script
from alembic.script.revision import RevisionMap
from psycopg2.extensions import TRANSACTION_STATUS_IDLE
from psycopg2.extensions import connection as Session  # noqa: N812 (a class, whatever its case)
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from service.database.migration_files import Migration, Report, Section, locate, read
from service.database.migration_history import (
    applied_versions,
    nothing_to_do,
    rows,
    to_apply,
    to_take_back,
)
from service.database.migration_lock import run_locked
from service.database.migration_session import alembic_connection, connect, explain
from service.database.sessions import words
from service.errors import OperatorError

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
    """Apply all that is pending, each file in its own transaction; stop at the first failure."""
    run_locked(url, report, partial(_upgrade, read(folder), report))


def _upgrade(migrations: list[Migration], report: Report, session: Session) -> None:
    applied = applied_versions(session)
    pending = to_apply(migrations, applied)
    with alembic_connection(session) as connection:
        for migration in pending:
            _move(connection, migrations, migration, MigrationStep.upgrade_from_script)
            report(f"applied {migration.path.name}")
    if not pending:
        report(nothing_to_do(migrations, applied))


def downgrade(url: str, folder: Path, report: Report) -> None:
    """Take back the newest that is applied, by the `-- migrate:down` of its file."""
    run_locked(url, report, partial(_downgrade, read(folder), report))


def _downgrade(migrations: list[Migration], report: Report, session: Session) -> None:
    migration = to_take_back(migrations, applied_versions(session))
    with alembic_connection(session) as connection:
        _move(connection, migrations, migration, MigrationStep.downgrade_from_script)
    report(f"took back {migration.path.name}")


def status(url: str, folder: Path) -> list[Status]:
    """All migrations there are or were, in order; reads only, and waits for nobody."""
    names = {migration.version: migration.name for migration in read(folder)}
    with connect(url) as session:
        applied: dict[str, datetime] = dict(
            rows(session, "schema_migrations", "version, applied_at")
        )
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


def _move(
    connection: Connection,
    migrations: list[Migration],
    migration: Migration,
    direction: Callable[[RevisionMap, Script], MigrationStep],
) -> None:
    step = _steps(migrations, direction)[migration.version]
    section = migration.up if step.is_upgrade or not migration.down else migration.down
    context = MigrationContext.configure(connection, opts=_options([step]))
    try:
        context.run_migrations(context=context)
    except SQLAlchemyError as error:  # at the commit or in the two tables; a section tells its own
        raise OperatorError(f"{locate(migration.path, section.line)}: {words(error)}") from error


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
        raise OperatorError(explain(migration.path, section, error)) from error
    if section.transaction and not context.as_sql and _ended(context):
        raise OperatorError(
            f"{locate(migration.path, section.line)}: ends its transaction itself (commit or "
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
