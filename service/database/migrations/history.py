"""The ledger of applied migrations, and what it allows to run or to revert.

`schema_migrations` alone says what is applied. dbmate also writes it, with the column `version`
only. `alembic_version`, which alembic reads, holds the newest version and follows it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from service.database.connections import Session
from service.database.migrations.files import Migration, Report
from service.database.sql_files import locate
from service.errors import OperatorError

# dbmate inserts a version and nothing else: the time is the default's.
CREATE_LEDGER = """\
create table if not exists schema_migrations (
  version    text primary key,
  applied_at timestamptz default now(),
  checksum   text
)"""
# The default comes after the column: the time of the rows that are there already is unknown.
EXTEND_LEDGER = """\
alter table schema_migrations
  add column if not exists applied_at timestamptz,
  alter column applied_at set default now(),
  add column if not exists checksum text"""
# As alembic creates it.
CREATE_ALEMBIC_VERSION = """\
create table if not exists alembic_version (
  version_num varchar(32) not null,
  constraint alembic_version_pkc primary key (version_num)
)"""


class Applied(NamedTuple):
    """A row of the ledger; None is unknown, as for a version that dbmate applied."""

    applied_at: datetime | None
    checksum: str | None


Ledger = Mapping[str, Applied]


def read_ledger(session: Session) -> Ledger:
    """Return what is applied, in the order of the versions; only `version` must be a column."""
    columns = _read_columns(session, "schema_migrations")
    if columns and "version" not in columns:
        raise OperatorError(
            "the table schema_migrations has no column version: it is not dbmate's nor this "
            "service's; rename it, or choose another schema (search_path in the URL's options)"
        )
    others = [column if column in columns else "null" for column in Applied._fields]
    sql = f"select version::text, {', '.join(others)} from schema_migrations"
    found = _fetch(session, sql) if columns else []
    return {version: Applied(*rest) for version, *rest in sorted(found)}


def complete_ledger(session: Session, migrations: list[Migration], ledger: Ledger) -> None:
    """Complete in one transaction what dbmate, or an earlier release of this, has recorded.

    Writes nothing if nothing is missing: `alter table` waits for each reader of the table.
    """
    columns = _read_columns(session, "schema_migrations")
    has_current = _read_columns(session, "alembic_version")
    found = _fetch(session, "select version_num from alembic_version") if has_current else []
    current = [version for (version,) in found]
    if current and not columns:
        raise OperatorError(
            f"alembic_version says {', '.join(current)}, but the table schema_migrations is "
            "missing: restore it, or drop alembic_version if nothing is applied"
        )
    with session, session.cursor() as cursor:
        if columns and not columns >= {*Applied._fields}:
            cursor.execute(EXTEND_LEDGER)
        for migration in migrations:
            if migration.version in ledger and ledger[migration.version].checksum is None:
                cursor.execute(
                    "update schema_migrations set checksum = %s where version = %s",
                    (migration.checksum, migration.version),
                )
        if current != (newest := list(ledger)[-1:]):
            cursor.execute(CREATE_ALEMBIC_VERSION)
            cursor.execute("delete from alembic_version")
            cursor.execute("insert into alembic_version select unnest(%s::text[])", (newest,))


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
    """Return what is to run; refuse what would leave a hole in the history."""
    known = [migration.version for migration in migrations]
    for version in ledger:
        if version not in known and version < max(known, default=""):
            raise _make_missing_error(version)
    pending = [migration for migration in migrations if migration.version not in ledger]
    for migration in pending:
        if ledger and migration.version < max(ledger):
            raise OperatorError(
                f"{locate(migration.path)}: older than {max(ledger)}, which is applied already: "
                "give it a new timestamp"
            )
    return pending


def find_newest_applied(migrations: list[Migration], ledger: Ledger) -> Migration:
    """Return the newest applied migration; refuse if it cannot be reverted."""
    find_pending(migrations, ledger)  # refuses a hole in the history here too
    if not ledger:
        raise OperatorError("no migration is applied: there is nothing to revert")
    for migration in migrations:
        if migration.version == max(ledger):
            if migration.down is None:
                raise OperatorError(f'{locate(migration.path)}: has no "-- migrate:down"')
            return migration
    raise _make_missing_error(max(ledger))


def explain_nothing_to_do(migrations: list[Migration], ledger: Ledger) -> str:
    """Say why nothing was applied."""
    newest = migrations[-1].version if migrations else "none"
    if not ledger or max(ledger) == newest:
        return f"nothing to do: the newest migration is {newest}"
    return f"nothing to do: the database is ahead, at {max(ledger)}; the newest file is {newest}"


def _make_missing_error(version: str) -> OperatorError:
    return OperatorError(f"migration {version} is applied but its file is missing: restore it")


def _read_columns(session: Session, table: str) -> set[str]:
    """Return the names of a table's columns; none if there is no table."""
    sql = (
        "select attname from pg_attribute"
        " where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped"
    )
    return {name for (name,) in _fetch(session, sql, table)}


def _fetch(session: Session, sql: str, *parameters: str) -> list[tuple[Any, ...]]:
    with session.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall()
