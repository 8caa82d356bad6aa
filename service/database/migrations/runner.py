"""migrations/*.sql, run by alembic: up to the newest, one step back, or written out as one script.

Each section of a file is a step of alembic's `MigrationContext`, which decides on transactions and
keeps `alembic_version`. The step runs the section and records it in `schema_migrations`; `files.py`
decides which steps there are. docs/decisions/0003-alembic-with-sql-files.md: why alembic.

What must stay true: a file is applied and recorded in one transaction, if it has one; of two runs
at once, one applies each file; after a failure, the files before it are applied and recorded.
https://alembic.sqlalchemy.org/en/latest/api/runtime.html
"""

import io
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psycopg2
from alembic.runtime.migration import MigrationContext, StampStep
from psycopg2 import errors as postgres
from psycopg2.extensions import TRANSACTION_STATUS_IDLE
from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import SQLAlchemyError

from service.database.connections import require_utf8_database
from service.database.migrations import files
from service.database.migrations.files import Migration, Report, Section
from service.database.migrations.session import connect, find_driver_error, lock, retry
from service.database.query import describe_error
from service.errors import OperatorError, locate

CONCURRENTLY = re.compile(r"\bconcurrently\b", re.IGNORECASE)
NEEDS_NO_TRANSACTION = (postgres.ActiveSqlTransaction, postgres.InvalidTransactionTermination)
DIALECT = "postgresql+psycopg2"  # for SQLAlchemy, postgresql alone is another driver


class Status(NamedTuple):
    """A migration; `name` is None if its file is missing; `applied` is None while it is pending."""

    version: str
    name: str | None
    applied: files.Applied | None


def upgrade(url: str, folder: Path, report: Report) -> None:
    """Apply all that is pending, each file in its own transaction; stop at the first failure."""
    _migrate(url, folder, report, up=True)


def downgrade(url: str, folder: Path, report: Report) -> None:
    """Revert the newest applied migration, by the `-- migrate:down` of its file."""
    _migrate(url, folder, report, up=False)


def status(url: str, folder: Path, report: Report) -> list[Status]:
    """Return all migrations with a file or applied, in order; write nothing, and need no lock."""
    migrations = files.read(folder)
    with connect(url, report) as session:
        ledger = files.add_replacing(migrations, files.read_ledger(session))
    files.report_edits(migrations, ledger, report)
    names = {migration.version: migration.name for migration in migrations}
    replaced = {version for version in ledger for file in migrations if file.has_replaced(version)}
    versions = sorted(names.keys() | ledger.keys() - replaced)
    return [Status(version, names.get(version), ledger.get(version)) for version in versions]


def render_offline_sql(folder: Path) -> str:
    """Write out what `upgrade` does to an empty database, for `psql -v ON_ERROR_STOP=1 -f`."""
    output = io.StringIO()
    steps = [Step(migration, migration.up) for migration in files.read(folder)]
    _run_steps(steps, as_sql=True, output_buffer=output)
    return output.getvalue()


def _migrate(url: str, folder: Path, report: Report, *, up: bool) -> None:
    migrations = files.read(folder)
    with connect(url, report) as session:
        retry(partial(lock, session), report)
        require_utf8_database(session)
        recorded = files.read_ledger(session)
        ledger = files.add_replacing(migrations, recorded) if up else recorded
        choose = files.find_pending if up else files.find_newest_applied
        chosen = choose(migrations, ledger)
        retry(partial(files.complete_ledger, session, migrations, ledger), report)
        if added := len(ledger) - len(recorded):
            report(f"recorded {added} files that sum up what is applied, without running them")
        files.report_edits(migrations, ledger, report)
        session.autocommit = False  # SQLAlchemy begins and ends the transactions from here on
        engine = create_engine(f"{DIALECT}://", creator=lambda: session, poolclass=NullPool)
        with engine.connect() as connection:
            for migration in chosen:
                section = migration.down if migration.down and not up else migration.up
                retry(partial(_run, connection, Step(migration, section)), report)
                report(f"{'applied' if up else 'reverted'} {migration.path.name}")
        if not chosen:
            file = migrations[-1].version if migrations else "none"
            newest = max(ledger, default=file)
            ahead = f"the database is ahead, at {newest}; the newest file is {file}"
            same = f"the newest migration is {file}"
            report(f"nothing to do: {same if newest == file else ahead}")


class Step(StampStep):
    """A section of a file: it runs, is recorded, and then alembic changes `alembic_version`.

    alembic calls `migration_fn`, and then replaces the version before (none: `branch_move`) by the
    new one in `alembic_version`. In `schema_migrations` are all versions, as dbmate has them.
    """

    def __init__(self, migration: Migration, section: Section) -> None:
        versions = (migration.before, migration.version)
        is_upgrade = section is migration.up
        from_, to = versions if is_upgrade else reversed(versions)
        super().__init__(from_, to, is_upgrade=is_upgrade, branch_move=migration.before is None)
        self.migration_fn = self._run
        self.migration, self.section = migration, section

    def _run(self, context: MigrationContext) -> None:
        migration, section = self.migration, self.section
        if not section.is_empty:
            if section.is_transactional:
                self._send(context)
            else:
                with context.autocommit_block():
                    # It waits for older transactions without blocking requests, and leaves an
                    # invalid index when it is cancelled: so let it wait.
                    if CONCURRENTLY.search(section.sql):
                        context.execute("set lock_timeout = 0")
                    self._send(context)
            # Undo what the file has set (search_path and role, as pg_dump's output does): the
            # ledger and the next file need the defaults.
            context.execute("reset all")
            context.execute("reset role")
        if not self.is_upgrade:
            context.execute(f"delete from schema_migrations where version = '{migration.version}'")
            return
        if not migration.before:
            context.execute(files.PREPARE_LEDGER)
        context.execute(
            "insert into schema_migrations (version, checksum)"
            f" values ('{migration.version}', '{migration.checksum}')"
        )

    def _send(self, context: MigrationContext) -> None:
        """Send the SQL unchanged: `%s`, `:name` and tabs have no special meaning."""
        connection = context.bind
        if context.as_sql or not connection:
            # A semicolon on its own line ends a statement that has none, or ends with a comment.
            context.output_buffer.write(f"{self.section.sql}\n;\n\n")
            return
        unchanged = {"no_parameters": True}
        connection.exec_driver_sql(self.section.sql, execution_options=unchanged).close()
        driver = connection.connection.driver_connection
        has_ended = driver and driver.info.transaction_status == TRANSACTION_STATUS_IDLE
        if self.section.is_transactional and has_ended:
            raise OperatorError(
                f"{locate(self.migration.path, self.section.line)}: ends its transaction itself, so"
                " it is not recorded: check what it changed, and remove commit or rollback"
            )

    def explain(self, error: BaseException) -> str:
        """Say at which line of its file the section failed, why, and what to do.

        If PostgreSQL reports no position, as at the commit, the line is the first one of the
        section. The position counts characters from the start of the message, which may have
        several statements: https://www.postgresql.org/docs/current/protocol-error-fields.html
        """
        section = self.section
        line, reason = section.line, describe_error(error, details=True)
        if position := isinstance(error, psycopg2.Error) and error.diag.statement_position:
            line += section.sql.count("\n", 0, int(position) - 1)
        else:
            reason = f"in this section: {reason}"
        parts = [f"{locate(self.migration.path, line)}: {reason}"]
        if isinstance(error, NEEDS_NO_TRANSACTION) and section.is_transactional:
            parts.append("it needs a file of its own with -- migrate:up transaction:false")
        elif CONCURRENTLY.search(section.sql):
            parts.append("drop the index that it may have left, and run migrate again")
        elif not section.is_transactional:
            parts.append("a transaction:false section holds one statement")
            parts.append("what it has committed stays: fix the cause, and run migrate again")
        return "; ".join(parts)


def _run(connection: Connection, step: Step) -> None:
    """Run a step; `OperatorError` with file and line if it fails."""
    # alembic replaces the step's `from_revisions` in alembic_version, and fails if they are not
    # there, as after a run of dbmate. So the table is emptied first (`purge`), and they are added.
    # Each is a transaction of its own; after a kill in between, the next run does the same again.
    stamps = [
        StampStep((), version, is_upgrade=True, branch_move=True) for version in step.from_revisions
    ]
    try:
        _run_steps([*stamps, step], connection, purge=True)
    except SQLAlchemyError as failure:
        raise OperatorError(step.explain(find_driver_error(failure))) from failure


def _run_steps(
    steps: Sequence[StampStep], connection: Connection | None = None, **options: object
) -> None:
    """Give the steps to alembic, with its `options` for this run."""
    given = {"fn": lambda *_: steps, "transaction_per_migration": True, **options}
    context = MigrationContext.configure(connection, dialect_name=DIALECT, opts=given)
    context.run_migrations(context=context)  # alembic passes the keyword to `Step._run`
