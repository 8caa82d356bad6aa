"""The ledger of applied migrations; decides which files are pending, and which can be reverted.

The ledger is the table `schema_migrations`. dbmate writes it, too, but only the column `version`.
It keeps the versions of replaced files, so that the release before finds its migrations applied.
`alembic_version` decides nothing: before each file, it is set to the newest version of the ledger.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from psycopg2 import errors as postgres

from service.database.connections import Session
from service.database.migrations.files import Migration, Report
from service.database.query import Row
from service.errors import OperatorError, locate

# dbmate creates the table with `version` only and inserts nothing else, so `applied_at` has a
# default. It is set after the column is added: the time of existing rows is unknown, so null.
PREPARE_LEDGER = """\
create table if not exists schema_migrations (version text primary key);
alter table schema_migrations
  add column if not exists applied_at timestamptz,
  alter column applied_at set default now(),
  add column if not exists checksum text"""
# to_jsonb: the table of dbmate lacks the last two columns.
READ_LEDGER = """\
select schema_migrations.version::text,
       (to_jsonb(schema_migrations) ->> 'applied_at')::timestamptz,
       to_jsonb(schema_migrations) ->> 'checksum'
  from schema_migrations"""


class Applied(NamedTuple):
    """A row of the ledger; None is unknown, as for a version that dbmate applied."""

    applied_at: datetime | None
    checksum: str | None


Ledger = Mapping[str, Applied]


def read_ledger(session: Session) -> Ledger:
    """Return the applied migrations by version; `OperatorError` if the ledger was lost."""
    rows = _fetch(session, READ_LEDGER)
    if rows is None and (current := _fetch(session, "select version_num from alembic_version")):
        raise OperatorError(
            f"alembic_version says {current[0][0]}, but the table schema_migrations is missing: "
            "restore it, or drop alembic_version if nothing is applied"
        )
    return {version: Applied(*rest) for version, *rest in sorted(rows or [])}


def add_replacing(migrations: list[Migration], ledger: Ledger) -> Ledger:
    """Return the ledger with the files that sum up what is applied: these need not run.

    `OperatorError` if only some of what a file replaces is applied: no file applies the others.
    """
    added: dict[str, Applied] = {}
    for migration in migrations:
        replaced = [version for version in ledger if migration.has_replaced(version)]
        if not migration.replaces or not replaced or migration.version in ledger:
            continue
        _, last, release = migration.replaces
        if last not in replaced:
            raise OperatorError(
                f"the database is at migration {replaced[-1]}, which is older than this release can"
                f" upgrade: first run migrate of the release whose newest migration is {last}"
                f" {release}".rstrip()
            )
        added[migration.version] = Applied(None, None)
    return {**ledger, **added}


def complete_ledger(session: Session, migrations: list[Migration], ledger: Ledger) -> None:
    """Store the files and checksums that the table lacks, in one transaction.

    Writes nothing if none is missing: `alter table` would wait for each reader of the table.
    """
    if any(applied.checksum is None for applied in ledger.values()):
        with session, session.cursor() as cursor:
            cursor.execute(PREPARE_LEDGER)
            cursor.execute(
                "insert into schema_migrations (version) select unnest(%s) on conflict do nothing",
                ([*ledger],),
            )
            cursor.executemany(
                "update schema_migrations set checksum = %s"
                " where version = %s and checksum is null",
                [(migration.checksum, migration.version) for migration in migrations],
            )


def report_edits(migrations: list[Migration], ledger: Ledger, report: Report) -> None:
    """Report each file that differs from what was applied, in one line."""
    for migration in migrations:
        applied = ledger.get(migration.version)
        if applied and applied.checksum not in (None, migration.checksum):
            report(
                f"{locate(migration.path)}: was edited after it was applied: undo the edit and"
                " write a new migration; to keep the edit, run: update schema_migrations"
                f" set checksum = null where version = '{migration.version}'"
            )


def find_pending(migrations: list[Migration], ledger: Ledger) -> list[Migration]:
    """Return the migrations to run; `OperatorError` if a file is missing, or is too old to run."""
    files = {migration.version for migration in migrations}
    newest = max(ledger, default="")
    for version in ledger:
        is_replaced = any(migration.has_replaced(version) for migration in migrations)
        if version not in files and not is_replaced and version < max(files, default=""):
            raise OperatorError(
                f"migration {version} is applied but its file is missing: put it back"
            )
    for migration in migrations:
        if migration.version not in ledger and migration.version < newest:
            raise OperatorError(
                f"{locate(migration.path)}: older than {newest}, which is applied already: "
                f"give it a new timestamp, or {newest} if that is a file of your own"
            )
    return [migration for migration in migrations if migration.version > newest]


def find_newest_applied(migrations: list[Migration], ledger: Ledger) -> list[Migration]:
    """Return the newest applied migration; refuse if it cannot be reverted."""
    find_pending(migrations, ledger)  # checks the history
    if not ledger:
        raise OperatorError("no migration is applied: there is nothing to revert")
    newest = [migration for migration in migrations if migration.version == max(ledger)]
    if not newest or not newest[0].down:
        raise OperatorError(f'migration {max(ledger)}: its file or "-- migrate:down" is missing')
    return newest


def explain_nothing_to_do(migrations: list[Migration], ledger: Ledger) -> str:
    """Say why nothing was applied."""
    newest = migrations[-1].version if migrations else "none"
    if max(ledger, default=newest) == newest:
        return f"nothing to do: the newest migration is {newest}"
    return f"nothing to do: the database is ahead, at {max(ledger)}; the newest file is {newest}"


def _fetch(session: Session, sql: str) -> list[Row] | None:
    """Return the rows of a query; None if its table is missing."""
    try:
        with session.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()
    except postgres.UndefinedTable:
        return None
