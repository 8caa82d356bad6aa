"""migrations/*.sql, run by alembic: up to the newest, one step back, or written out as one script.

Each .sql file becomes a `Script` that follows the one before it; alembic decides on transactions
and keeps `alembic_version` (docs/decisions/0003-alembic-with-sql-files.md). Every version that ran
is also recorded in `schema_migrations`, in the same transaction: `history` has the rules.
https://alembic.sqlalchemy.org/en/latest/api/runtime.html
"""

import io
import re
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, MigrationInfo, MigrationStep
from alembic.script import Script
from alembic.script.revision import RevisionMap
from psycopg2.extensions import TRANSACTION_STATUS_IDLE
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from service.database.migrations.files import Migration, Report, Section, read
from service.database.migrations.history import (
    CREATE_LEDGER,
    Applied,
    complete_ledger,
    explain_nothing_to_do,
    find_newest_applied,
    find_pending,
    read_ledger,
    report_edits,
)
from service.database.migrations.lock import locked_session
from service.database.migrations.session import (
    alembic_connection,
    connect,
    describe_failure,
    locate_failure,
)
from service.database.sql_files import locate
from service.database.verification import require_utf8
from service.errors import OperatorError


class Status(NamedTuple):
    """A migration; `name` is None if its file is missing, `applied` if it is pending."""

    version: str
    name: str | None
    applied: Applied | None


def upgrade(url: str, folder: Path, report: Report) -> None:
    """Apply all that is pending, each file in its own transaction; stop at the first failure."""
    migrations = read(folder)
    with locked_session(url, report) as session:
        require_utf8(session)
        ledger = read_ledger(session)
        pending = find_pending(migrations, ledger)
        complete_ledger(session, migrations, ledger)
        report_edits(migrations, ledger, report)
        with alembic_connection(session) as connection:
            for migration in pending:
                _run_step(connection, migrations, migration, up=True)
                report(f"applied {migration.path.name}")
        if not pending:
            report(explain_nothing_to_do(migrations, ledger))


def downgrade(url: str, folder: Path, report: Report) -> None:
    """Revert the newest applied migration, by the `-- migrate:down` of its file."""
    migrations = read(folder)
    with locked_session(url, report) as session:
        ledger = read_ledger(session)
        migration = find_newest_applied(migrations, ledger)
        complete_ledger(session, migrations, ledger)
        report_edits(migrations, ledger, report)
        with alembic_connection(session) as connection:
            _run_step(connection, migrations, migration, up=False)
        report(f"reverted {migration.path.name}")


def status(url: str, folder: Path, report: Report) -> list[Status]:
    """Return all migrations with a file or applied, in order; write nothing, and need no lock."""
    migrations = read(folder)
    with connect(url, report) as session:
        ledger = read_ledger(session)
    report_edits(migrations, ledger, report)
    names = {migration.version: migration.name for migration in migrations}
    versions = sorted(names.keys() | ledger.keys())
    return [Status(version, names.get(version), ledger.get(version)) for version in versions]


def render_offline_sql(folder: Path) -> str:
    """Write out what `upgrade` does to an empty database, for `psql -v ON_ERROR_STOP=1 -f`."""
    migrations = read(folder)
    output = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql+psycopg2",
        opts=_make_options(_make_steps(migrations, up=True).values())
        | {"as_sql": True, "output_buffer": output},
    )
    context.run_migrations(context=context)
    return output.getvalue()


def _run_step(
    connection: Connection, migrations: list[Migration], migration: Migration, *, up: bool
) -> None:
    step = _make_steps(migrations, up=up)[migration.version]
    context = MigrationContext.configure(connection, opts=_make_options([step]))
    try:
        context.run_migrations(context=context)
    except SQLAlchemyError as error:  # at the commit, or of the bookkeeping's tables
        section = migration.up if up or not migration.down else migration.down
        raise OperatorError(
            f"{locate(migration.path, section.line)}: {describe_failure(error)}"
        ) from error


def _make_steps(migrations: list[Migration], *, up: bool) -> dict[str, MigrationStep]:
    scripts = [
        Script(_make_module(migration, before), migration.version, migration.path)
        for before, migration in zip([None, *migrations], migrations, strict=False)
    ]
    chain = RevisionMap(lambda: scripts)
    chain.get_revisions("heads")  # the first question makes a map link its scripts
    step = MigrationStep.upgrade_from_script if up else MigrationStep.downgrade_from_script
    return {script.revision: step(chain, script) for script in scripts}


def _make_module(migration: Migration, before: Migration | None) -> ModuleType:
    """Make the module that alembic would load from a Python file."""

    def upgrade(context: MigrationContext) -> None:
        _run_section(context, migration, migration.up)

    def downgrade(context: MigrationContext) -> None:
        _run_section(context, migration, migration.down)

    module = ModuleType(migration.version, migration.name)
    vars(module).update(
        down_revision=before.version if before else None,
        upgrade=upgrade,
        downgrade=downgrade,
        checksum=migration.checksum,
    )
    return module


def _make_options(steps: Any) -> dict[str, Any]:
    return {
        "fn": lambda *_: steps,
        "transaction_per_migration": True,
        "on_version_apply": (_record,),
    }


def _record(ctx: MigrationContext, step: MigrationInfo, **_: Any) -> None:
    """Write the ledger, in the transaction in which alembic has just written its own table."""
    if not step.down_revision_ids:
        ctx.execute(CREATE_LEDGER)
    version = step.up_revision_id
    if step.is_upgrade:
        checksum = cast("Script", step.up_revision).module.checksum
        ctx.execute(
            f"insert into schema_migrations (version, checksum) values ('{version}', '{checksum}')"
        )
    else:
        ctx.execute(f"delete from schema_migrations where version = '{version}'")


def _run_section(context: MigrationContext, migration: Migration, section: Section | None) -> None:
    if not section or section.is_empty:
        return
    try:
        if section.is_transactional:
            _send(context, section.sql)
        else:
            with context.autocommit_block():
                # Such a statement blocks no other while it waits for older transactions, and
                # leaves an invalid index when it is cancelled: it may wait.
                if re.search(r"\bconcurrently\b", section.sql, re.IGNORECASE):
                    context.execute("set lock_timeout = 0")
                _send(context, section.sql)
    except SQLAlchemyError as error:
        raise OperatorError(locate_failure(migration.path, section, error)) from error
    if section.is_transactional and not context.as_sql and _has_ended_transaction(context):
        raise OperatorError(
            f"{locate(migration.path, section.line)}: ends its transaction itself (commit or "
            "rollback), so it is not recorded: check what it changed, and remove that statement"
        )
    # Settings of a file (search_path, role, as in pg_dump's output) end with it: the bookkeeping's
    # tables and the next file need the defaults.
    context.execute("reset all")
    context.execute("reset role")


def _send(context: MigrationContext, sql: str) -> None:
    """Send the SQL unchanged: `%s`, `:name` and tabs have no special meaning."""
    if context.as_sql:
        # A semicolon on its own line ends a statement that has none, or ends with a comment.
        context.output_buffer.write(f"{sql}\n;\n\n")
    else:
        connection = Operations(context).get_bind()
        connection.exec_driver_sql(sql, execution_options={"no_parameters": True}).close()


def _has_ended_transaction(context: MigrationContext) -> bool:
    driver = Operations(context).get_bind().connection.driver_connection
    return bool(driver and driver.info.transaction_status == TRANSACTION_STATUS_IDLE)
