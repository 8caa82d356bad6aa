"""migrations/*.sql, and the ledger of those that were applied: what is pending, what can go back.

The files are in dbmate's format (https://github.com/amacneil/dbmate#creating-migrations). The
ledger is the table `schema_migrations`. dbmate runs the same files and writes the same table, but
only its column `version`. The ledger keeps the versions of replaced files, so that the release
before finds its migrations applied. `alembic_version` only shows that the ledger was lost.

A process that only serves needs `list_versions`, but neither alembic nor SQLAlchemy.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from psycopg2 import errors as postgres

from service.database.connections import Session
from service.database.query import Row
from service.database.query_files import list_sql_files, read_sql_file
from service.errors import FileError, OperatorError, locate

Report = Callable[[str], None]  # takes one line for the operator

FILE_NAME = re.compile(r"[0-9]{14}_[a-z0-9]+(?:_[a-z0-9]+)*\.sql")
MARKER = re.compile(r"--\s*migrate:(up|down)(?:\s+transaction:(true|false))?\s*")
# Looser on purpose: PostgreSQL takes a misspelt or indented marker for a comment, and would run
# the down section as a part of the up section.
LIKE_A_MARKER = re.compile(r"^([ \t]*--[ \t]*migrate[ \t]*:.*)$", re.IGNORECASE | re.MULTILINE)
MARKERS_FORM = (
    'expected "-- migrate:up", then at most one "-- migrate:down", each at the start of a line, '
    "with no other option than transaction:false"
)
LIKE_REPLACES = re.compile(r"^\s*--\s*replaces?\s*:", re.IGNORECASE | re.MULTILINE)
REPLACES = re.compile(r"--[ \t]*replaces:[ \t]*([0-9]{14})\.\.([0-9]{14})\b([^\r\n]*)")
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
# Without the schema, as the files have no names of schemas; with a line for each condition.
READ_FUNCTION = """\
select replace(replace(pg_get_functiondef(oid),
                       format(' %%s.%%I(', pronamespace::regnamespace, proname),
                       format(' %%I(', proname)),
               case when prosqlbody is null then '' else ') AND (' end, E')\\n  AND (')
  from pg_proc where oid = %s::regprocedure"""


class Section(NamedTuple):
    """The SQL below a marker; `line` is its first line in the file, counted from 1."""

    sql: str
    line: int
    is_transactional: bool

    @property
    def is_empty(self) -> bool:
        """Whether the section has no statement: the driver refuses to send an empty one."""
        return not re.sub(r"(?s)--[^\n]*|/\*.*?\*/", "", self.sql).strip("; \t\r\n\f\v")


class Migration(NamedTuple):
    """One file; `before` is the version of the file before it."""

    version: str  # 14 digits
    before: str | None
    name: str  # the words after the digits
    path: Path
    checksum: str  # SHA-256 of the text in hex, the same for any line ends
    up: Section
    down: Section | None
    replaces: tuple[str, str, str] | None  # versions of former files, from .. to; their release

    def has_replaced(self, version: str) -> bool:
        """Whether the file replaces the one with this version."""
        return bool(self.replaces and self.replaces[0] <= version <= self.replaces[1])


class Applied(NamedTuple):
    """A row of the ledger; None is unknown, as for a version that dbmate applied."""

    applied_at: datetime | None
    checksum: str | None


Ledger = Mapping[str, Applied]


def read(folder: Path) -> list[Migration]:
    """Read all migrations in their order; raise `OperatorError` for the first fault."""
    paths = _list_files(folder)
    before = [None, *(path.name[:14] for path in paths)]
    return [_parse_file(*pair) for pair in zip(paths, before, strict=False)]


def list_versions(folder: Path) -> list[str]:
    """Return the versions of all migrations in their order, from the names alone."""
    return [path.name[:14] for path in _list_files(folder)]


def create(folder: Path, name: str, statement: str = "") -> Path:
    """Write a migration, newer than all others; `statement`: of up and of down."""
    now = f"{datetime.now(UTC):%Y%m%d%H%M%S}"
    following = [str(int(version) + 1) for version in list_versions(folder)]
    file_name = f"{max([now, *following])}_{name}.sql"
    if not FILE_NAME.fullmatch(file_name):
        raise OperatorError(
            f"{name!r}: expected lower-case words joined by _, like add_genre_index"
        )
    path = folder / file_name
    path.write_text(
        f"-- What this changes, and why.\n\n-- migrate:up\n{statement}\n\n"
        f"-- migrate:down\n{statement}\n",
        "utf-8",
    )
    return path


def read_function(session: Session, name: str) -> str:
    """Return the SQL that makes a function; `name` is like movie_matches(movies,jsonb)."""
    with session.cursor() as cursor:
        cursor.execute(READ_FUNCTION, (name,))
        ((text,),) = cursor.fetchall()
    return f"{text.strip()};\n"


def _list_files(folder: Path) -> list[Path]:
    """List the migrations in their order; raise `OperatorError` for a wrong name."""
    paths = list_sql_files(folder)
    for path in paths:
        if not FILE_NAME.fullmatch(path.name):
            form = "<14 digits: UTC timestamp>_<lower-case words joined by _>.sql"
            raise FileError(path, 1, f"expected the name {form}")
    for earlier, path in pairwise(paths):
        if earlier.name[:14] == path.name[:14]:
            raise FileError(path, 1, f"{earlier.name} has the same timestamp: change one of them")
    return paths


def _parse_file(path: Path, before: str | None) -> Migration:
    text = read_sql_file(path)
    comments, *marked = LIKE_A_MARKER.split(text)
    for number, line in enumerate(comments.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("--"):
            raise FileError(path, number, 'only -- comments are allowed before "-- migrate:up"')
    replaces = REPLACES.match(comments)
    if LIKE_REPLACES.search(comments) and not (replaces and replaces[1] <= replaces[2]):
        raise FileError(path, 1, 'expected "-- replaces: <first>..<last version>" in line 1')
    sections: list[Section] = []
    number = comments.count("\n") + 1
    for found, sql in zip(marked[::2], marked[1::2], strict=True):
        marker = MARKER.fullmatch(found)
        if not marker or marker[1] != ("up", "down", None)[len(sections)]:
            raise FileError(path, number, MARKERS_FORM)
        start = number + sql[: len(sql) - len(sql.lstrip())].count("\n")
        sections.append(Section(sql.strip(), start, marker[2] != "false"))
        number += sql.count("\n")
    if not sections:
        raise FileError(path, 1, MARKERS_FORM)
    down = sections[1] if sections[1:] else None
    checksum = hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()
    version, name = path.name[:14], path.stem[15:]
    former = (replaces[1], replaces[2], replaces[3].strip()) if replaces else None
    return Migration(version, before, name, path, checksum, sections[0], down, former)


def read_ledger(session: Session) -> Ledger:
    """Return the applied migrations by version; `OperatorError` if the ledger was lost."""
    rows = _try_fetch(session, READ_LEDGER)
    if rows is None and (current := _try_fetch(session, "select version_num from alembic_version")):
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
        if not migration.replaces or migration.version in ledger:
            continue
        first, last, release = migration.replaces
        if first not in ledger:  # those in between are a DBA's own
            continue
        replaced = [version for version in ledger if migration.has_replaced(version)]
        if last not in replaced:
            raise OperatorError(
                f"the database is at migration {replaced[-1]}, which is older than this release can"
                f" upgrade: first run migrate of the release whose newest migration is {last}"
                f" {release}".rstrip()
            )
        added[migration.version] = Applied(None, None)  # `complete_ledger` stores it
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
    """Return the migrations to run: those newer than the newest that is applied.

    `OperatorError` if an applied version older than the newest file has neither a file nor one that
    replaces it; or if a file older than the newest applied version is not applied. An applied
    version newer than all files is of a later release, which was undone: that is fine.
    """
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
                f"{locate(migration.path)}: older than {newest}, which is applied already: give it"
                f" a newer timestamp; or, if {newest} is a file of your own, give that an older one"
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


def _try_fetch(session: Session, sql: str) -> list[Row] | None:
    """Return the rows of a query; None if its table is missing."""
    try:
        with session.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()
    except postgres.UndefinedTable:
        return None
