"""Tests the migrations with a real PostgreSQL."""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from support import wait_until, with_user

from service.database.embedded import find_programs
from service.database.migrations import files as migration_files
from service.database.migrations import lock as migration_lock
from service.database.migrations import runner as migrations
from service.database.migrations import session as migration_session
from service.errors import OperatorError

ROOT = Path(__file__).parents[3]
OWN = ROOT / "migrations"

# All parts of a schema, as PostgreSQL describes them.
SCHEMA = """
select 'column', table_name, column_name,
       concat_ws(' ', rank() over (partition by table_name order by ordinal_position),
                 data_type, is_nullable, column_default, is_identity, generation_expression)
  from information_schema.columns where table_schema = 'public'
union all
select 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid)
  from pg_constraint where connamespace = 'public'::regnamespace
union all
select 'index', tablename, indexname, indexdef from pg_indexes where schemaname = 'public'
union all
select 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(oid)
  from pg_trigger where not tgisinternal
union all
select 'function', '', proname, pg_get_functiondef(oid)
  from pg_proc where pronamespace = 'public'::regnamespace
union all
select 'comment', objoid::regclass::text,
       (select attname from pg_attribute where attrelid = objoid and attnum = objsubid), description
  from pg_description where classoid = 'pg_class'::regclass and objoid >= 16384
order by 1, 2, 3
"""
CHECKSUMS = "select version, checksum from schema_migrations"
BOOKKEEPING = {"alembic_version", "schema_migrations"}

V1, V2, V3, V4 = (f"2026010{day}000000" for day in range(1, 5))
FIRST, SECOND, THIRD = f"{V1}_create_a.sql", f"{V2}_create_b.sql", f"{V3}_create_c.sql"
FOURTH = f"{V4}_create_d.sql"
CREATE_A = "-- migrate:up\ncreate table a (id integer);\n-- migrate:down\ndrop table a;\n"
CREATE_B, CREATE_C = CREATE_A.replace(" a", " b"), CREATE_A.replace(" a", " c")


def fill(folder: Path, files: dict[str, str]) -> None:
    """Write files: name=text."""
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")


@contextmanager
def transaction(url: str, sql: str) -> Iterator[int]:
    """Keep a transaction open in which `sql` has run; yield its process id."""
    connection = psycopg2.connect(url)
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
        yield connection.info.backend_pid
    finally:
        connection.close()


class Project:
    """A folder of migrations and their database."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.lines: list[str] = []  # of the last command

    def write(self, *texts: str) -> None:
        """Write the first files of the history with these texts."""
        fill(self.folder, dict(zip((FIRST, SECOND, THIRD, FOURTH), texts, strict=False)))

    def _run(self, command: Callable[..., Any]) -> Any:
        self.lines = []
        return command(self.url, self.folder, self.lines.append)

    def up(self) -> list[str]:
        """Upgrade, and return the report."""
        self._run(migrations.upgrade)
        return self.lines

    def down(self) -> list[str]:
        """Take back one migration, and return the report."""
        self._run(migrations.downgrade)
        return self.lines

    def status(self) -> Any:
        """Return the status of each migration."""
        return self._run(migrations.status)

    def refuse(self, message: str, command: Callable[..., Any] = migrations.upgrade) -> str:
        """Run a command that must be refused with this message (a pattern); return the message."""
        with pytest.raises(OperatorError, match=message) as caught:
            self._run(command)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one statement on a new connection."""
        connection = psycopg2.connect(self.url)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def schema(self) -> list[tuple[Any, ...]]:
        """Describe everything in the database."""
        return self.query(SCHEMA)

    def tables(self) -> set[str]:
        """List the tables, without the bookkeeping."""
        found = self.query("select tablename from pg_tables where schemaname = 'public'")
        return {name for (name,) in found} - BOOKKEEPING

    def applied(self) -> list[str]:
        """List the versions in schema_migrations, of which alembic_version must have the last."""
        current = self.query("select version_num from alembic_version")
        ledger = self.query("select version from schema_migrations order by version")
        assert current == ledger[-1:]
        return [version for (version,) in ledger]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder for migrations."""
    path = tmp_path / "migrations"
    path.mkdir()
    return path


@pytest.fixture
def project(folder: Path, empty_database: str) -> Project:
    """Return an empty folder for migrations with an empty database."""
    return Project(folder, empty_database)


# The project's own migrations


def test_the_projects_migrations_walk_up_down_and_up(empty_database: str) -> None:
    """The down section of each migration of the project restores the schema."""
    own = Project(OWN, empty_database)
    versions = migration_files.list_versions(OWN)
    own.up()
    full = own.schema()

    for _ in versions:
        own.down()
    left = {table for _, table, _, _ in own.schema()}
    own.up()

    assert left == BOOKKEEPING
    assert own.schema() == full
    assert own.applied() == versions


def test_each_of_the_projects_migrations_leaves_the_schema_it_found(project: Project) -> None:
    """Up, down and up of each file alone gives the same schema each time."""
    for migration in migration_files.read(OWN):
        (project.folder / migration.path.name).write_bytes(migration.path.read_bytes())
        before = project.schema()
        project.up()
        after = project.schema()
        project.down()
        taken_back = project.schema()
        project.up()

        assert project.schema() == after
        assert [row for row in taken_back if row[1] not in BOOKKEEPING] == [
            row for row in before if row[1] not in BOOKKEEPING
        ]


def test_genres_that_are_too_long_stop_the_migration_by_their_movies(project: Project) -> None:
    """It names up to ten, leaves everything as it was, and runs once they are shortened."""
    files = sorted(OWN.glob("*.sql"))
    limiting = [file for file in files if file.name >= "20261122093000"]
    for file in files[: -len(limiting)]:
        shutil.copy(file, project.folder)
    project.up()
    project.query(
        "insert into movies (title, year, runtime, genres) select n::text, 2000, 90,"
        " array['drama', repeat('é', 50 + n % 2)] from generate_series(1, 24) as n"
    )
    before = project.schema()
    for file in limiting:
        shutil.copy(file, project.folder)

    refusal = project.refuse("a genre of more than 100 bytes are in the way: 12; ")
    refused = project.schema()
    project.query("update movies set genres = '{drama}' where octet_length(genres[2]) > 100")
    project.up()

    assert "Their ids: 1, 3, 5, 7, 9, 11, 13, 15, 17, 19 and 2 more; " in refusal
    assert refused == before
    with pytest.raises(psycopg2.errors.CheckViolation, match="movies_genres_at_most_100_bytes"):
        project.query("update movies set genres[2] = repeat('x', 101)")


def test_keys_get_copies_for_the_release_before(project: Project) -> None:
    """Those whose movies have not changed since; the others keep their places."""
    for file in OWN.glob("*.sql"):
        if file.name < "20261122120001":
            shutil.copy(file, project.folder)
    project.up()
    project.query(
        "insert into movies (title, year, runtime, genres)"
        " select n::text, 2000, 90, '{drama}' from generate_series(1, 3) as n"
    )
    project.query(
        "insert into idempotency_keys (key, fingerprint, movie_id, created_at)"
        " select 'key of ' || title, '', id, created_at from movies"
    )
    project.query("update movies set year = 2001 where id = 2")
    project.query("delete from movies where id = 3")

    project.down()

    assert project.query("select key, id, title, version from idempotency_answers") == [
        ("key of 1", 1, "1", 1)
    ]
    assert project.query("select count(*) from idempotency_keys") == [(3,)]


# Names and format


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("create_a.sql", CREATE_A, "migrations/create_a.sql:1: expected the name <14 digits"),
        ("2026010100000_create_a.sql", CREATE_A, "_create_a.sql:1: expected the name <14 digits"),
        ("20261301000000_create_a.sql", CREATE_A, "_create_a.sql:1: expected the name <14 digits"),
        ("20260101000000.sql", CREATE_A, "20260101000000.sql:1: expected the name <14 digits"),
        ("20260101000000_Create.sql", CREATE_A, "_Create.sql:1: expected the name <14 digits"),
        (FIRST, "", f"{FIRST}:1: expected a line "),
        (FIRST, "select 1;\n", f"{FIRST}:1: only -- comments"),
        (FIRST, "-- fine\n\nselect 1;\n-- migrate:up\n", f"{FIRST}:3: only -- comments"),
        (FIRST, "-- migrate:up\n-- migrate:up\n", f'{FIRST}:2: a second "-- migrate:up"'),
        (FIRST, f"{CREATE_A}-- migrate:down\n", f'{FIRST}:5: a second "-- migrate:down"'),
        (FIRST, "\n-- migrate:down\n-- migrate:up\n", f'{FIRST}:2: expected "-- migrate:up" bef'),
        (FIRST, "-- migrate:up transaction:no\n", f'{FIRST}:1: unknown option "transaction:no"'),
        (FIRST, "-- migrate:up\n-- Migrate: down\n", f'{FIRST}:2: expected "-- migrate:up" or'),
        (FIRST, "-- migrate:up\n  -- migrate:down\n", f'{FIRST}:2: expected "-- migrate:up" or'),
        (FIRST, "-- migrate:up\n\n\0", f"{FIRST}:3: a NUL character"),
        (FIRST, b"-- migrate:up\nselect 1;\nselect '\xe9';\n", f"{FIRST}:3: not UTF-8"),
        (f"{V2}_other.sql", CREATE_A, f"{V2}_other.sql:1: {SECOND} has the same timestamp"),
    ],
)
def test_an_invalid_file_is_refused_with_the_expected_form(
    folder: Path, name: str, text: str | bytes, message: str
) -> None:
    """The message names file and line."""
    fill(folder, {SECOND: CREATE_B})
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(OperatorError) as caught:
        migration_files.read(folder)

    assert message in str(caught.value)
    assert str(caught.value).startswith("migrations/")


def test_unreadable_files_and_folders_are_refused(folder: Path) -> None:
    """A wrong folder is not taken for an empty history."""
    (folder / FIRST).mkdir()

    with pytest.raises(OperatorError, match="nowhere: cannot be read"):
        migration_files.list_versions(folder / "nowhere")
    with pytest.raises(OperatorError, match=f"migrations/{FIRST}:1: cannot be read"):
        migration_files.read(folder)


def test_sections_have_their_sql_line_and_options(folder: Path) -> None:
    """A file has two sections; other kinds of files are ignored."""
    text = "-- why\n\n-- migrate:up transaction:false\n\nselect 1;\r\n-- migrate:down\r\nselect 2"
    fill(folder, {FIRST: f"\ufeff{text}", "README.md": "not SQL"})

    assert migration_files.read(folder) == [
        migration_files.Migration(
            version=V1,
            name="create_a",
            path=folder / FIRST,
            checksum=hashlib.sha256(text.replace("\r", "").encode()).hexdigest(),
            up=migration_files.Section("select 1;", 5, is_transactional=False),
            down=migration_files.Section("select 2", 7, is_transactional=True),
        )
    ]


def test_hidden_files_are_ignored(folder: Path) -> None:
    """An editor's lock file (in Emacs a broken link) is not a migration."""
    fill(folder, {FIRST: CREATE_A, f".{SECOND}": "half a file"})
    (folder / f".#{FIRST}").symlink_to("somebody@somewhere.1234")

    assert migration_files.list_versions(folder) == [V1]


def test_versions_are_sorted_and_listed_without_alembic(folder: Path) -> None:
    """A serving process reads the versions from the file names, without alembic."""
    fill(folder, {SECOND: "no SQL at all", FIRST: ""})
    program = (
        "import sys, pathlib; from service.database.migrations.files import list_versions;"
        "print(list_versions(pathlib.Path(sys.argv[1])),"
        " {'alembic', 'sqlalchemy', 'psycopg2'} & sys.modules.keys())"
    )

    printed = subprocess.check_output([sys.executable, "-c", program, str(folder)], cwd=ROOT)

    assert printed.decode() == f"['{V1}', '{V2}'] set()\n"


# New files


@pytest.mark.parametrize("name", ["init", "add_index_on_titles"])
def test_a_new_file_is_a_template(folder: Path, name: str) -> None:
    """The template is a valid migration that does nothing."""
    before = datetime.now(UTC).strftime("%Y%m%d%H%M%S")

    path = migration_files.create(folder, name)

    [migration] = migration_files.read(folder)
    assert (migration.path, migration.name) == (path, name)
    assert before <= migration.version <= datetime.now(UTC).strftime("%Y%m%d%H%M%S")
    assert migration.up.is_empty
    assert migration.down
    assert migration.down.is_empty


def test_a_new_file_is_later_than_all_others(folder: Path) -> None:
    """If a colleague's clock was ahead, the next migration is still the newest."""
    fill(folder, {"29991231235959_create_a.sql": CREATE_A})

    assert migration_files.create(folder, "create_b").name == "30000101000000_create_b.sql"


@pytest.mark.parametrize("name", ["", "Add_index", "add-index", "../add_index", "add_", "2add"])
def test_a_new_file_with_an_invalid_name_is_refused(folder: Path, name: str) -> None:
    """No file is written."""
    with pytest.raises(OperatorError, match="expected lower-case words"):
        migration_files.create(folder, name)

    assert list(folder.iterdir()) == []


def test_a_new_file_that_cannot_be_written_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without write permission is an error of one line."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)

    with pytest.raises(
        OperatorError, match=r"create_a\.sql:1: cannot be written: Permission denied"
    ):
        migration_files.create(folder, "create_a")


# Up, down and status


def test_upgrade_reports_each_file_and_then_nothing_to_do(project: Project) -> None:
    """The report has each file; the second run has nothing to do."""
    project.write(CREATE_A, CREATE_B)

    assert project.up() == [f"applied {FIRST}", f"applied {SECOND}"]
    assert project.up() == [f"nothing to do: the newest migration is {V2}"]


def test_downgrade_takes_back_one_file(project: Project) -> None:
    """One step is one file, the newest first; without files it is refused."""
    project.write(CREATE_A, CREATE_B)
    project.refuse("nothing to revert", migrations.downgrade)
    project.up()

    assert project.down() == [f"reverted {SECOND}"]
    assert project.tables() == {"a"}
    assert project.applied() == [V1]


def test_downgrade_without_a_down_section_is_refused(project: Project) -> None:
    """The migration stays applied."""
    project.write("-- migrate:up\ncreate table a (id integer);\n")
    project.up()

    project.refuse(f'migrations/{FIRST}:1: has no "-- migrate:down"', migrations.downgrade)

    assert project.tables() == {"a"}
    assert project.applied() == [V1]


def test_status_lists_pending_applied_and_missing(project: Project) -> None:
    """Status compares the files with the ledger, without changes."""
    project.write(CREATE_A, CREATE_B)
    pending = project.status()
    untouched = project.schema()
    project.up()
    (project.folder / SECOND).rename(project.folder / THIRD)

    first, missing, third = project.status()

    assert [entry.applied for entry in pending] == [None, None]
    assert untouched == []
    assert (first.version, first.name) == (V1, "create_a")
    assert first.applied
    assert first.applied.applied_at
    assert abs(datetime.now(UTC) - first.applied.applied_at).total_seconds() < 60
    assert missing[:2] == (V2, None)
    assert missing.applied
    assert third == (V3, "create_c", None)


def test_empty_sections_are_recorded_as_applied(project: Project) -> None:
    """A section of comments sends no SQL, but counts as applied."""
    project.write("-- migrate:up\n-- later\n/* ; */ ;\n-- migrate:down\n")

    project.up()
    up = project.applied()
    project.down()

    assert (up, project.applied()) == ([V1], [])


def test_sql_reaches_postgresql_unchanged(project: Project) -> None:
    """Percent signs, colons, dollar quotes, tabs and other scripts are not changed."""
    text = "%s 100% :foo %(x)s \\ \t ünï"
    project.write(
        "-- migrate:up\n"
        f"create table a as select '{text}'::text as one, $b$'; -- {text}$b$ as two,\n"
        "  (array[1, 2, 3])[1:2] as three, 7 % 4 as four -- :bar % no semicolon\n"
    )

    project.up()

    assert project.query("select * from a") == [(text, f"'; -- {text}", [1, 2], 3)]


def test_settings_of_a_file_end_with_it(project: Project) -> None:
    """The search path or role of one file, as in pg_dump's output, does not affect the next."""
    settings = "set search_path = ''; set role pg_monitor; set lock_timeout = 0;\n"
    project.write(
        f"-- migrate:up\ncreate table a (id integer);\n{settings}",
        "-- migrate:up\ncreate table b as select current_setting('lock_timeout');\n",
    )

    project.up()

    assert project.query("select * from b") == [("5s",)]
    assert project.applied() == [V1, V2]


# Failures


@pytest.mark.parametrize(
    ("sql", "line", "message"),
    [
        ("creat table b ();", 2, 'syntax error at or near "creat"'),
        ("select 1;\n-- ü € 🎬\nselect 'é',\n  missing;", 5, 'column "missing" does not exist'),
        ("select 'ü€🎬';\nx\n\n\n;", 3, 'syntax error at or near "x"'),
        ("\n\nselect 1;\n\nselect missing;", 6, 'column "missing" does not exist'),
        ("insert into a values (1);\nselect 1 / 0;", 2, "in this section: division by zero"),
        ("insert into a values (2), (2);", 2, "Key (id)=(2) already exists"),
    ],
)
def test_a_failing_file_is_rolled_back_and_named_with_its_line(
    project: Project, sql: str, line: int, message: str
) -> None:
    """Earlier files stay applied; the failing file and later ones are not."""
    unique = CREATE_A.replace("integer", "integer unique")
    project.write(unique, f"-- migrate:up\n{sql}\ncreate table b (id integer);\n", CREATE_C)

    assert message in project.refuse(f"^migrations/{SECOND}:{line}: ")

    assert project.lines == [f"applied {FIRST}"]
    assert project.tables() == {"a"}
    assert project.query("select * from a") == []
    assert project.applied() == [V1]


DEFERRED = "create table a (id integer unique deferrable initially deferred);"
VIOLATE = "insert into a values (1), (1);"


@pytest.mark.parametrize(
    ("up", "message"),
    [
        ("create table a (id integer);\nselect missing;", "4: column"),
        (f"{DEFERRED}\n{VIOLATE}", "3: duplicate key"),  # at the commit: the section's line
        ("create table a (id integer);\nrollback;", "3: ends its transaction itself"),
    ],
)
def test_a_first_file_that_fails_leaves_the_database_empty(
    project: Project, up: str, message: str
) -> None:
    """The tables of the bookkeeping are created in the first file's transaction."""
    project.write(f"-- why\n-- migrate:up\n{up}\n-- migrate:down\ndrop table a;\n")

    project.refuse(f"migrations/{FIRST}:{message}")

    assert project.schema() == []


def test_a_file_that_commits_is_refused_and_not_recorded(project: Project) -> None:
    """Nobody can tell which part of it was applied."""
    project.write(CREATE_A.replace("(id integer);", "(id integer);\ncommit;"))

    project.refuse(f"migrations/{FIRST}:2: ends its transaction itself")

    assert project.query("select to_regclass('schema_migrations')") == [(None,)]


@pytest.mark.parametrize(
    ("down", "message"),
    [("drop table a;\nselect missing;", "5: column"), (VIOLATE, "4: duplicate key")],
)
def test_a_failing_downgrade_is_rolled_back_and_named(
    project: Project, down: str, message: str
) -> None:
    """The line is in the down section, also if the commit fails."""
    project.write(f"-- migrate:up\n{DEFERRED}\n-- migrate:down\n{down}\n")
    project.up()

    project.refuse(f"migrations/{FIRST}:{message}", migrations.downgrade)

    assert project.tables() == {"a"}
    assert project.applied() == [V1]


@pytest.mark.parametrize("option", ["", " transaction:false"])
def test_a_lost_connection_is_reported_in_one_line(project: Project, option: str) -> None:
    """A server that stops during a migration is reported like other failures."""
    sql = "select pg_terminate_backend(pg_backend_pid());"
    project.write(CREATE_A, f"-- migrate:up{option}\n{sql}\n")

    project.refuse(f"migrations/{SECOND}:2: .*connection")

    assert project.applied() == [V1]


# Waiting for locks


def test_a_lock_wait_that_times_out_names_the_holder(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration stops waiting before it blocks all requests."""
    monkeypatch.setattr(migration_session, "OPTIONS", "-c lock_timeout=1s")
    monkeypatch.setattr(migration_lock, "BLOCKER_POLL_S", 0.1)
    project.write(CREATE_A)
    project.up()
    project.write(CREATE_A, "-- migrate:up\nselect 1;\nalter table a add column b text;\n")

    with transaction(f"{project.url}&application_name=report", "select *\n  from a") as pid:
        message = project.refuse("lock timeout")

    holder = f'pid {pid}, application "report", idle in transaction, query: select * from a'
    assert message == (
        f"migrations/{SECOND}:2: in this section: canceling statement due to lock timeout; nothing"
        " of this file was changed: run migrate again when the transaction that holds the lock has"
        f" ended; the lock was held by {holder}"
    )
    assert project.lines == [f"waiting for a lock that is held by {holder}"]
    assert project.applied() == [V1]


def test_the_holder_of_a_lock_is_reported_while_a_migration_waits(project: Project) -> None:
    """The operator can end the holder, and the migration continues."""
    project.write(CREATE_A)
    project.up()
    project.write(CREATE_A, "-- migrate:up\nalter table a add column b text;\n")
    lines: list[str] = []

    def end_holder(line: str) -> None:
        lines.append(line)
        if found := re.search("held by pid ([0-9]+)", line):
            project.query(f"select pg_terminate_backend({found[1]})")

    with transaction(project.url, "select * from a") as pid:
        migrations.upgrade(project.url, project.folder, end_holder)

    holder = f'pid {pid}, application "", idle in transaction, query: select * from a'
    assert lines == [f"waiting for a lock that is held by {holder}", f"applied {SECOND}"]


def test_a_prepared_transaction_is_reported_as_the_holder(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock has no process id, so the message says where to look."""
    monkeypatch.setattr(migration_lock, "BLOCKERS", "select 0 where %s > 0")
    monkeypatch.setattr(migration_lock, "BLOCKER_POLL_S", 0.1)
    project.write("-- migrate:up\nselect pg_sleep(0.5);\n")

    assert project.up() == [
        "waiting for a lock that is held by a prepared transaction (see pg_prepared_xacts)",
        f"applied {FIRST}",
    ]


def test_a_migration_waits_without_a_second_connection(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no second connection can be opened, only the report of the holder is missing."""
    monkeypatch.setattr(migration_lock, "BLOCKER_POLL_S", 0.1)
    project.write(CREATE_A)
    project.up()
    close = "update pg_database set datallowconn = false where datname = current_database()"
    wait = "set lock_timeout = '1s';\nalter table a add column b text;"
    project.write(CREATE_A, f"-- migrate:up\n{close};\n", f"-- migrate:up\n{wait}\n")

    with transaction(project.url, "select * from a"):
        project.refuse(f"{THIRD}:2: .* lock timeout; .* lock has ended$")

    assert project.lines == [f"applied {SECOND}"]


# Without a transaction


INDEX = "-- migrate:up transaction:false\ncreate index concurrently a_id on a (id);\n"


def index_is_valid(project: Project) -> bool:
    """Whether the index exists and is valid."""
    sql = "select indisvalid from pg_index where indexrelid = to_regclass('a_id')"
    return project.query(sql) == [(True,)]


def test_a_concurrent_index_waits_longer_than_a_lock_may(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an index waits for an old transaction, others can write; it becomes valid."""
    monkeypatch.setattr(migration_session, "OPTIONS", "-c lock_timeout=100ms")
    project.write(CREATE_A)
    project.up()
    project.write(CREATE_A, INDEX)

    with ThreadPoolExecutor() as pool:
        with transaction(project.url, "insert into a values (1)"):
            upgrade = pool.submit(project.up)
            sql = "select 1 from pg_locks where not granted and now() - waitstart > '0.5 s'"
            wait_until(lambda: project.query(sql) or upgrade.done())
            waited = not upgrade.done()
            project.query("insert into a values (2)")
        upgrade.result(timeout=10)

    assert waited
    assert index_is_valid(project)
    assert project.applied() == [V1, V2]


def test_two_upgrades_at_once_may_build_an_index_concurrently(project: Project) -> None:
    """A waiting run has no snapshot that the index would wait for (a deadlock)."""
    project.write(CREATE_A, INDEX)

    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(project.up) for _ in range(3)]
        for run in runs:
            run.result(timeout=30)

    assert index_is_valid(project)


def test_a_failing_file_without_a_transaction_is_reported(project: Project) -> None:
    """It is not recorded, and the message says to look for an invalid index."""
    project.write(CREATE_A, f"{INDEX}select missing;\n")

    project.refuse(rf"migrations/{SECOND}:\d: .*holds one statement")

    assert project.applied() == [V1]


def test_ctrl_c_ends_a_wait(project: Project) -> None:
    """The waiting statement is cancelled and its session ends."""
    project.write(CREATE_A)
    project.up()
    project.write(CREATE_A, INDEX)
    config = project.folder.parent / "config.toml"
    config.write_bytes((ROOT / "config.toml").read_bytes())
    environment = {"DATABASE_URL": project.url, "CATALOGUE_CONFIG": str(config)}

    with (
        transaction(project.url, "insert into a values (1)"),
        subprocess.Popen(
            [sys.executable, "-m", "service", "migrate"],
            cwd=ROOT,
            env=os.environ | environment,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stderr
        waiting = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        try:
            _, reported = process.communicate(timeout=60)
        finally:
            process.kill()

    assert waiting.startswith("waiting for a lock that is held by pid ")
    assert (process.returncode, reported.strip()) == (130, "stopped")
    assert project.applied() == [V1]


# Two at once


def test_two_upgrades_at_once_apply_each_file_once(project: Project) -> None:
    """The second run waits, reports the first once, and then has nothing to do."""
    slow = CREATE_A.replace("create", "select pg_sleep(1);\ncreate")
    project.write(slow, CREATE_B)
    start = threading.Barrier(2)

    def run() -> list[str]:
        lines: list[str] = []
        start.wait()
        migrations.upgrade(project.url, project.folder, lines.append)
        return lines

    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(run) for _ in range(2)]
        first, second = sorted((run.result() for run in runs), key=lambda lines: "wait" in lines[0])

    assert first == [f"applied {FIRST}", f"applied {SECOND}"]
    assert re.fullmatch(
        "another migration is running: waiting for up to 60 s for pid [0-9]+,"
        ' application "movie-catalogue [^"]* migrate", .*, query: .*',
        second[0],
    )
    assert second[1:] == [f"nothing to do: the newest migration is {V2}"]


def test_the_wait_for_another_upgrade_has_a_timeout(
    project: Project, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the migration that hangs in this database, not in another one."""
    monkeypatch.setattr(migration_lock, "LOCK_WAIT_S", 0.5)
    project.write(CREATE_A)
    sql = f"select pg_advisory_lock({migration_lock.LOCK_KEY}), '{'x' * 300}'"

    with (
        transaction(server_url, sql),
        transaction(f"{project.url}&application_name=other", sql) as pid,
    ):
        message = project.refuse("another migration")

    holder = f'pid {pid}, application "other", idle in transaction, query: {sql[:200]}'
    assert project.lines == [f"another migration is running: waiting for up to 0.5 s for {holder}"]
    assert message == (
        f"another migration has been running for 0.5 s: nothing was changed; it is {holder}"
    )
    assert project.schema() == []


def test_a_run_with_nothing_to_do_needs_no_lock(project: Project) -> None:
    """A long backup that reads the ledger does not block a deployment without migrations."""
    project.write(CREATE_A)
    project.up()

    with transaction(project.url, "lock schema_migrations, alembic_version in share mode"):
        assert project.up() == [f"nothing to do: the newest migration is {V1}"]


# A database that dbmate also migrates


def dbmate_up(project: Project, *names: str) -> None:
    """Do the same as dbmate's `up`."""
    project.query("create table if not exists schema_migrations (version varchar primary key)")
    for migration in migration_files.read(project.folder):
        if migration.path.name in names:
            project.query(migration.up.sql)
            project.query(f"insert into schema_migrations (version) values ('{migration.version}')")


def dbmate_rollback(project: Project, table: str, version: str) -> None:
    """Do the same as dbmate's `rollback` of a file that created this table."""
    project.query(f"drop table {table}")
    project.query(f"delete from schema_migrations where version = '{version}'")


def test_a_database_of_dbmate_is_taken_over(project: Project) -> None:
    """Its migrations are recorded without a time; the others are applied, and can be taken back."""
    project.write(CREATE_A, CREATE_B, CREATE_C)
    dbmate_up(project, SECOND)
    dbmate_up(project, FIRST)

    up = project.up()
    applied = project.applied()
    known = project.query(
        "select version, applied_at is not null, checksum from schema_migrations order by version"
    )
    down = project.down() + project.down()

    files = migration_files.read(project.folder)
    assert up == [f"applied {THIRD}"]
    assert down == [f"reverted {THIRD}", f"reverted {SECOND}"]
    assert applied == [V1, V2, V3]
    assert known == [(file.version, file.version == V3, file.checksum) for file in files]
    assert project.applied() == [V1]
    assert project.tables() == {"a"}


def test_a_database_of_dbmate_can_be_read_and_taken_back(project: Project) -> None:
    """Status does not change the database; `migrate down` takes it over."""
    project.write(CREATE_A, CREATE_B, CREATE_C)
    dbmate_up(project, FIRST, SECOND)
    before = project.schema()

    assert project.status() == [
        (V1, "create_a", (None, None)),
        (V2, "create_b", (None, None)),
        (V3, "create_c", None),
    ]
    assert project.schema() == before
    project.down()

    assert project.tables() == {"a"}
    assert project.applied() == [V1]


def test_a_later_migration_by_dbmate_is_recorded(project: Project) -> None:
    """After dbmate's `up` on a database of ours, `migrate` continues."""
    project.write(CREATE_A, CREATE_B)
    dbmate_up(project)
    project.up()
    project.write(CREATE_A, CREATE_B, CREATE_C)
    dbmate_up(project, THIRD)

    assert project.up() == [f"nothing to do: the newest migration is {V3}"]

    third = migration_files.read(project.folder)[-1]
    assert project.applied()[-1] == V3
    assert dict(project.query(CHECKSUMS))[V3] == third.checksum
    newest = project.status()[-1]
    assert newest.applied
    assert newest.applied.applied_at


def test_a_rollback_by_dbmate_is_applied_again(project: Project) -> None:
    """After dbmate's `rollback` on a database of ours, `migrate` applies the file again."""
    project.write(CREATE_A, CREATE_B)
    project.up()

    dbmate_rollback(project, "b", V2)
    assert project.up() == [f"applied {SECOND}"]
    dbmate_rollback(project, "b", V2)
    dbmate_rollback(project, "a", V1)
    assert project.up() == [f"applied {FIRST}", f"applied {SECOND}"]

    assert project.tables() == {"a", "b"}
    assert project.applied() == [V1, V2]


def test_a_ledger_without_checksums_is_completed(project: Project) -> None:
    """A database of an earlier release keeps its times and gets its checksums."""
    project.write(CREATE_A)
    project.up()
    project.query("alter table schema_migrations drop column checksum")
    before = project.query("select version, applied_at from schema_migrations")

    project.up()

    [first] = migration_files.read(project.folder)
    assert project.query("select version, applied_at from schema_migrations") == before
    assert project.query(CHECKSUMS) == [(V1, first.checksum)]


@pytest.mark.parametrize(
    "sql",
    [
        f"update alembic_version set version_num = '{V1}'",
        f"insert into alembic_version values ('{V1}')",
        "delete from alembic_version",
        "drop table alembic_version",
    ],
)
def test_the_ledger_decides_what_is_applied(project: Project, sql: str) -> None:
    """alembic_version is overwritten from schema_migrations."""
    project.write(CREATE_A, CREATE_B)
    project.up()
    project.query(sql)
    project.write(CREATE_A, CREATE_B, CREATE_C)

    assert project.up() == [f"applied {THIRD}"]
    assert project.applied() == [V1, V2, V3]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "create table alembic_version (version_num integer)",
            'refused: column "version_num" is of type integer',
        ),
        # For example the ledger of another project.
        ("delete from schema_migrations where version < '20260102'", f"{FIRST}:1: older than {V2}"),
    ],
)
def test_a_failed_take_over_changes_nothing(project: Project, sql: str, message: str) -> None:
    """After an error, the ledger is as dbmate left it."""
    project.write(CREATE_A, CREATE_B)
    dbmate_up(project, FIRST, SECOND)
    project.query(sql)
    before = project.schema()

    project.refuse(message)

    assert project.schema() == before


# Files that were edited after they were applied


def test_an_edit_is_only_reported(project: Project) -> None:
    """Each command reports the file in one line, and continues."""
    project.write(CREATE_A)
    project.up()
    project.write(f"-- why\n{CREATE_A}", CREATE_B)
    edited = (
        f"migrations/{FIRST}:1: was edited after it was applied: undo the edit and write a new"
        " migration; to keep the edit, run: update schema_migrations set checksum = null"
        f" where version = '{V1}'"
    )

    project.status()
    assert project.lines == [edited]
    assert project.up() == [edited, f"applied {SECOND}"]
    assert project.down() == [edited, f"reverted {SECOND}"]


def test_an_edit_can_be_kept(project: Project) -> None:
    """The statement in the report ends the reports until the next edit."""
    project.write(CREATE_A)
    project.up()
    project.write(f"-- why\n{CREATE_A}")

    project.status()
    project.query(project.lines.pop().partition(" run: ")[2])
    assert project.up() == [f"nothing to do: the newest migration is {V1}"]
    project.status()
    assert project.lines == []
    project.write(CREATE_A)
    project.status()
    assert "was edited" in project.lines.pop()


def test_other_line_ends_are_not_an_edit(project: Project) -> None:
    """Line ends of Windows and byte order marks are not edits."""
    project.write(CREATE_A)
    project.up()
    text = b"\xef\xbb\xbf" + CREATE_A.replace("\n", "\r\n").encode()
    (project.folder / FIRST).write_bytes(text)

    project.status()

    assert project.lines == []


# Inconsistent histories


def test_a_file_older_than_the_newest_applied_one_is_refused(project: Project) -> None:
    """A file of a branch merged late is not skipped silently, and no later file is applied."""
    fill(project.folder, {FIRST: CREATE_A, THIRD: CREATE_C})
    project.up()
    fill(project.folder, {SECOND: CREATE_B, FOURTH: "-- migrate:up\n"})

    for command in (migrations.upgrade, migrations.downgrade):
        project.refuse(rf"migrations/{SECOND}:1: .* give it a new timestamp", command)

    assert project.tables() == {"a", "c"}
    assert project.applied() == [V1, V3]


def test_a_database_that_is_ahead_is_not_changed(project: Project) -> None:
    """The previous release can be deployed again without taking migrations back."""
    project.write(CREATE_A, CREATE_B)
    project.up()
    (project.folder / SECOND).unlink()

    assert project.up() == [
        f"nothing to do: the database is ahead, at {V2}; the newest file is {V1}"
    ]
    project.refuse(f"{V2} is applied but its file is missing", migrations.downgrade)
    fill(project.folder, {THIRD: CREATE_C})
    project.refuse(f"{V2} is applied but its file is missing")

    assert project.tables() == {"a", "b"}


def test_a_lost_ledger_is_refused(project: Project) -> None:
    """A version only in alembic_version is another application's, or the rest of a lost ledger."""
    project.write(CREATE_A)
    project.up()
    project.query("drop table schema_migrations")

    project.refuse(f"{V1}, but the table schema_migrations is")

    assert project.query("select * from alembic_version") == [(V1,)]


def test_a_ledger_of_another_tool_is_refused(project: Project) -> None:
    """Its table stays as it is."""
    project.write(CREATE_A)
    project.query("create table schema_migrations (name text)")

    for command in (migrations.upgrade, migrations.downgrade, migrations.status):
        project.refuse("the table schema_migrations has no column ver", command)

    assert project.query("select * from schema_migrations") == []


# Offline


def psql(project: Project, script: str) -> None:
    """Run a script as a DBA does."""
    program = str(find_programs() / "psql")
    command = [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", project.url]
    subprocess.run(command, input=script.encode(), check=True, capture_output=True, timeout=60)


def test_offline_sql_does_what_upgrade_does(project: Project) -> None:
    """A DBA who runs the script by hand gets the same schema, and upgrade accepts it."""
    project.write(
        "-- migrate:up\ncreate table a (id integer) -- no semicolon",
        INDEX,
        "-- migrate:up\n",
        "-- migrate:up\ncreate table d as select '% :foo\t%s \\'::text as d, $$;$$ as e",
    )

    def read_database() -> list[list[Any]]:
        rows = project.query("select * from d")
        assert rows == [("% :foo\t%s \\", ";")]
        return [project.schema(), sorted(project.query(CHECKSUMS)), project.applied()]

    psql(project, migrations.render_offline_sql(project.folder))
    by_script = read_database()
    assert project.up() == [f"nothing to do: the newest migration is {V4}"]
    project.query("drop schema public cascade; create schema public")
    project.up()

    assert read_database() == by_script


def test_the_projects_offline_sql_can_be_taken_back(empty_database: str) -> None:
    """After the script, downgrade works as after upgrade."""
    own = Project(OWN, empty_database)

    psql(own, migrations.render_offline_sql(OWN))

    for _ in migration_files.list_versions(OWN):
        own.down()
    assert own.tables() == set()


# The connection


@pytest.fixture
def crowded(project: Project) -> str:
    """Connect as a role that may have one connection; return its URL."""
    role = f"few_{project.query('select current_database()')[0][0]}"
    project.query(f"create role {role} login connection limit 1")
    project.query(f"grant create on schema public to {role}")
    return with_user(project.url, role)


def test_a_migration_waits_for_a_connection(project: Project, crowded: str) -> None:
    """It says why, once, and goes on when the running service has closed one."""
    project.write(CREATE_A)
    project.url = crowded

    with ThreadPoolExecutor() as pool:
        with closing(psycopg2.connect(crowded)):
            upgrade = pool.submit(project.up)
            wait_until(lambda: project.lines or upgrade.done())
        lines = upgrade.result(timeout=60)

    refusal, *others = lines
    assert re.search("unreachable: .*too many connections .*; trying for up to 60 s$", refusal)
    assert others == [f"applied {FIRST}"]


def test_a_migration_waits_for_a_connection_only_so_long(
    project: Project, crowded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it fails with PostgreSQL's reason."""
    monkeypatch.setattr(migration_session, "CONNECT_WAIT_S", 0.1)
    project.url = crowded

    with closing(psycopg2.connect(crowded)):
        project.refuse("too many connections .*; tried for 0.1 s$", migrations.status)


# The URL


def test_an_unreachable_database_is_reported_without_the_password(folder: Path) -> None:
    """One line names the server that does not respond."""
    project = Project(folder, "postgresql://movies:s3cret@127.0.0.1:1/movies")

    message = project.refuse("^the database is unreachable: .*127.0.0.1", migrations.status)

    assert "s3cret" not in message
    assert project.lines == []  # it does not wait


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://movies:s3@cret@127.0.0.1:1/movies",
        "postgresql://movies:s3/cret@127.0.0.1:1/movies",
        "postgresql://movies:s3%cret@127.0.0.1:1/movies",
        "postgresql://movies:s3@[cret@127.0.0.1:1/movies",
        "postgresql+psycopg2://movies:s3cret@127.0.0.1:1/movies",
        "mysql://movies:s3cret@127.0.0.1:1/movies",
        "s3cret",
    ],
)
def test_an_invalid_url_is_never_shown(folder: Path, url: str) -> None:
    """Otherwise a part of an unescaped password could be shown as the host."""
    with pytest.raises(OperatorError, match="the database's URL cannot be read") as caught:
        Project(folder, url).up()

    assert "cret" not in str(caught.value)
    assert "s3" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_the_options_in_the_url_are_kept(project: Project) -> None:
    """The tables are created in the URL's schema, and the lock timeout still applies."""
    project.query("create schema other")
    show = "create table a as select current_setting('lock_timeout'), 1 as b;"
    project.write(f"-- migrate:up\n{show}\n")
    project.url += "&options=-csearch_path%3Dother"

    project.up()

    assert project.query("select * from other.a") == [("5s", 1)]
    assert project.query("select version from other.schema_migrations") != []


def test_the_timeouts_in_the_url_are_not_for_migrations(project: Project) -> None:
    """They are for requests; a migration may take long, but not wait long."""
    show = "current_setting('statement_timeout'), current_setting('lock_timeout')"
    project.write(f"-- migrate:up\ncreate table a as select array[{show}] as timeouts;\n")
    project.url += "&options=-cstatement_timeout%3D3s%20-clock_timeout%3D30s"

    project.up()

    assert project.query("select timeouts from a") == [(["0", "5s"],)]
