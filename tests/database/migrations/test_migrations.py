"""Tests the migrations with a real PostgreSQL."""

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg2
import pytest
import servers
from support import hold, wait_until, with_user

from drills import schema_file
from service.database.embedded import find_programs
from service.database.migrations import files as migration_files
from service.database.migrations import runner as migrations
from service.database.migrations import session as migration_session
from service.errors import OperatorError

ROOT = Path(__file__).parents[3]
OWN = ROOT / "migrations"

# Needs no description: a unique index, and the columns of the ledger and of what nothing uses.
UNDESCRIBED = """
select 'table', relname from pg_class
 where relnamespace = 'public'::regnamespace and relkind = 'r'
   and obj_description(oid, 'pg_class') is null
union all
select 'column', attrelid::regclass || '.' || attname
  from pg_attribute join pg_class on oid = attrelid
 where relnamespace = 'public'::regnamespace and relkind = 'r' and attnum > 0 and not attisdropped
   and relname not in ('idempotency_answers', 'schema_migrations', 'alembic_version')
   and col_description(attrelid, attnum) is null
union all
select 'index', indexrelid::regclass::text from pg_index join pg_class on oid = indexrelid
 where relnamespace = 'public'::regnamespace and not indisunique
   and obj_description(indexrelid, 'pg_class') is null
union all
select 'function', proname from pg_proc
 where pronamespace = 'public'::regnamespace and obj_description(oid, 'pg_proc') is null
union all
select 'trigger', tgname from pg_trigger
 where not tgisinternal and obj_description(oid, 'pg_trigger') is null
"""
CHECKSUMS = "select version, checksum from schema_migrations order by version"
WAITING = "select 1 from pg_locks where not granted"
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


class Project:
    """A folder of migrations and their database."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.lines: list[str] = []  # reported by the last command

    def write(self, *texts: str) -> None:
        """Write the first files of the history with these texts."""
        fill(self.folder, dict(zip((FIRST, SECOND, THIRD, FOURTH), texts, strict=False)))

    def run(self, command: Callable[..., Any]) -> Any:
        """Run a command of the runner, and keep what it reports."""
        self.lines = []
        return command(self.url, self.folder, self.lines.append)

    def up(self, *texts: str) -> list[str]:
        """Write these texts, as `write` does, upgrade, and return the report."""
        self.write(*texts)
        self.run(migrations.upgrade)
        return self.lines

    def down(self) -> list[str]:
        """Take back one migration, and return the report."""
        self.run(migrations.downgrade)
        return self.lines

    def refuse(self, message: str, command: Callable[..., Any] = migrations.upgrade) -> str:
        """Run a command that must be refused with this message (a pattern); return the message."""
        with pytest.raises(OperatorError, match=message) as caught:
            self.run(command)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one statement on a new connection."""
        return servers.run(self.url, sql)

    def tables(self) -> set[str]:
        """List the tables, without the bookkeeping."""
        found = self.query("select tablename from pg_tables where schemaname = 'public'")
        return {name for (name,) in found} - BOOKKEEPING

    def applied(self) -> list[str]:
        """List the versions in schema_migrations, of which alembic_version must have the last."""
        ledger = self.query("select version from schema_migrations order by version")
        assert self.query("select version_num from alembic_version") == ledger[-1:]
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


def psql(project: Project, script: str) -> None:
    """Run a script as a DBA does."""
    program = str(find_programs() / "psql")
    command = [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", project.url]
    subprocess.run(command, input=script.encode(), check=True, capture_output=True, timeout=60)


def test_schema_sql_is_what_the_migrations_make(project: Project) -> None:
    """And what is left after those that can be reverted are reverted and applied again."""
    schemas: list[str] = []
    files = migration_files.read(OWN)
    for migration in files:
        schemas.append(schema_file.dump(project.url))
        shutil.copy(migration.path, project.folder)
        project.up()

    assert schema_file.dump(project.url) == schema_file.FILE.read_text("utf-8")
    while "cannot be reverted" not in files.pop().path.read_text():
        project.down()
        assert schema_file.dump(project.url) == schemas.pop()
    project.refuse("cannot be reverted: the release before runs", migrations.downgrade)
    project.up()
    assert schema_file.dump(project.url) == schema_file.FILE.read_text("utf-8")


def test_old_string_syntax_of_a_database_changes_no_migration(project: Project) -> None:
    """Neither what the files make nor the words that they compute for earlier movies."""
    ((name,),) = project.query("select current_database()")
    project.query(f"alter database {name} set standard_conforming_strings = off")
    later = [file for file in OWN.glob("*.sql") if file.name > "20261128"]
    for file in {*OWN.glob("*.sql")}.difference(later):
        shutil.copy(file, project.folder)
    project.up()
    project.query(
        "insert into movies (title, year, runtime, genres)"
        " values ('Zz ' || repeat('x', 120), 2000, 10, '{drama}')"
    )
    for file in later:
        shutil.copy(file, project.folder)
    project.up()

    words = "select search = movie_search(title, genres) from movies"
    assert project.query(words) == [(True,)]


def test_the_offline_script_makes_the_same_schema(project: Project) -> None:
    r"""In which psql tells what everything is for: `\d+ movies`, `\df+`, `\di+`."""
    psql(project, migrations.render_offline_sql(OWN))

    assert schema_file.dump(project.url) == schema_file.FILE.read_text("utf-8")
    assert project.query(UNDESCRIBED) == []


# Names and format


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("create_a.sql", CREATE_A, "migrations/create_a.sql:1: expected the name <14 digits"),
        ("20260101000000_Create.sql", CREATE_A, "_Create.sql:1: expected the name <14 digits"),
        (FIRST, "", f'{FIRST}:1: expected "-- migrate:up", then'),
        (FIRST, "-- fine\n\nselect 1;\n-- migrate:up\n", f"{FIRST}:3: only -- comments"),
        (FIRST, "-- migrate:up\n-- migrate:up\n", f'{FIRST}:2: expected "-- migrate:up", then'),
        (FIRST, f"{CREATE_A}-- migrate:down\n", f"{FIRST}:5: expected"),
        (FIRST, "\n-- migrate:down\n-- migrate:up\n", f"{FIRST}:2: expected"),
        (FIRST, "-- migrate:up transaction:no\n", f"{FIRST}:1: expected"),
        (FIRST, "-- migrate:up\n\n  -- migrate:down\n", f"{FIRST}:3: expected"),
        (FIRST, "-- migrate:up\n\n\0", f"{FIRST}:3: a NUL character"),
        (FIRST, b"-- migrate:up\nselect 1;\nselect '\xe9';\n", f"{FIRST}:3: not UTF-8"),
        (FIRST, f"-- replaces: {V1}\n-- migrate:up\n", f'{FIRST}:1: expected "-- replaces: <'),
        (FIRST, f"--\n-- replaces: {V1}..{V2}\n-- migrate:up\n", f"{FIRST}:1: expected"),
        (FIRST, f"-- replaces: {V2}..{V1}\n-- migrate:up\n", f"{FIRST}:1: expected"),
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


def test_an_unreadable_folder_is_refused(folder: Path) -> None:
    """A wrong folder is not taken for an empty history."""
    with pytest.raises(OperatorError, match="nowhere: cannot be read"):
        migration_files.list_versions(folder / "nowhere")


def test_sections_have_their_sql_line_and_options(folder: Path) -> None:
    """Other kinds of files, and those of editors (in Emacs a broken link), are ignored."""
    text = "-- why\n\n-- migrate:up transaction:false\n\nselect 1;\r\n-- migrate:down\r\nselect 2"
    fill(folder, {FIRST: f"\ufeff{text}", "README.md": "not SQL", f".{SECOND}": "half a file"})
    (folder / f".#{FIRST}").symlink_to("somebody@somewhere.1234")

    assert migration_files.read(folder) == [
        migration_files.Migration(
            version=V1,
            before=None,
            name="create_a",
            path=folder / FIRST,
            checksum=hashlib.sha256(text.replace("\r", "").encode()).hexdigest(),
            up=migration_files.Section("select 1;", 5, is_transactional=False),
            down=migration_files.Section("select 2", 7, is_transactional=True),
            replaces=None,
        )
    ]


def test_versions_are_sorted_and_listed_without_alembic(folder: Path) -> None:
    """A serving process reads the versions from the file names, without alembic."""
    fill(folder, {SECOND: "no SQL at all", FIRST: ""})
    program = (
        "import sys, pathlib; from service.database.migrations.files import list_versions;"
        "print(list_versions(pathlib.Path(sys.argv[1])),"
        " {'alembic', 'sqlalchemy'} & sys.modules.keys())"
    )

    printed = subprocess.check_output([sys.executable, "-c", program, str(folder)], cwd=ROOT)

    assert printed.decode() == f"['{V1}', '{V2}'] set()\n"


def test_a_new_file_is_a_template(folder: Path) -> None:
    """A valid migration that does nothing, later than all others, even if a clock was ahead."""
    before = datetime.now(UTC).strftime("%Y%m%d%H%M%S")

    path = migration_files.create(folder, "add_index_on_titles")

    [migration] = migration_files.read(folder)
    assert (migration.path, migration.name) == (path, "add_index_on_titles")
    assert before <= migration.version <= datetime.now(UTC).strftime("%Y%m%d%H%M%S")
    assert [part and part.is_empty for part in (migration.up, migration.down)] == [True, True]
    fill(folder, {"29991231235958_create_a.sql": CREATE_A})
    assert migration_files.create(folder, "create_b").name == "29991231235959_create_b.sql"


@pytest.mark.parametrize("name", ["", "Add_index", "add-index", "../add_index", "add_"])
def test_a_new_file_with_an_invalid_name_is_refused(folder: Path, name: str) -> None:
    """No file is written."""
    with pytest.raises(OperatorError, match="expected lower-case words"):
        migration_files.create(folder, name)

    assert list(folder.iterdir()) == []


# Up, down and status


def test_upgrade_and_downgrade_report_each_file(project: Project) -> None:
    """A step down is one file, the newest first; a file without statements is recorded, too."""
    nothing = "-- migrate:up\n-- later\n/* ; */ ;\n-- migrate:down\n"
    project.write("-- migrate:up\ncreate table a (id integer);\n", CREATE_B, nothing)
    project.refuse("nothing to revert", migrations.downgrade)

    assert project.up() == [f"applied {name}" for name in (FIRST, SECOND, THIRD)]
    assert project.up() == [f"nothing to do: the newest migration is {V3}"]
    assert project.applied() == [V1, V2, V3]
    assert project.down() + project.down() == [f"reverted {THIRD}", f"reverted {SECOND}"]
    project.refuse(f'{V1}: its file or "-- migrate:down" is missing', migrations.downgrade)
    assert project.tables() == {"a"}
    assert project.applied() == [V1]


def test_status_lists_pending_applied_and_missing(project: Project) -> None:
    """A file that was renamed after it was applied is missing, and pending by its new name."""
    project.up(CREATE_A, CREATE_B)
    (project.folder / SECOND).rename(project.folder / THIRD)

    first, missing, third = project.run(migrations.status)

    assert (first.version, first.name) == (V1, "create_a")
    assert abs(datetime.now(UTC) - first.applied.applied_at).total_seconds() < 60
    assert missing[:2] == (V2, None)
    assert missing.applied
    assert third == (V3, "create_c", None)


def test_settings_of_a_file_end_with_it(project: Project) -> None:
    """The search path or role of one file, as in pg_dump's output, does not affect the next."""
    settings = "set search_path = ''; set role pg_monitor; set lock_timeout = 0;\n"
    project.up(
        f"-- migrate:up\ncreate table a (id integer);\n{settings}",
        "-- migrate:up\ncreate table b as select current_setting('lock_timeout');\n",
    )

    assert project.query("select * from b") == [("1s",)]
    assert project.applied() == [V1, V2]


DEFERRED = "create table c (id integer unique deferrable initially deferred);"
VIOLATE = "insert into c values (1), (1);"  # it fails at the commit


@pytest.mark.parametrize(
    ("sql", "line", "message"),
    [
        ("creat table c ();", 3, 'syntax error at or near "creat"'),
        ("select 1;\n-- ü € 🎬\nselect 'é',\n  missing;", 6, 'column "missing" does not exist'),
        ("select 'ü€🎬';\nx\n\n\n;", 4, 'syntax error at or near "x"'),
        ("\n\nselect 1;\n\nselect missing;", 7, 'column "missing" does not exist'),
        ("insert into a values (1);\nselect 1 / 0;", 2, "in this section: division by zero"),
        ("insert into a values (2), (2);", 2, "Key (id)=(2) already exists"),
        (f"{DEFERRED}\n{VIOLATE}", 2, "in this section: duplicate key"),
        ("rollback;", 2, "ends its transaction itself"),
    ],
)
def test_a_failing_file_is_rolled_back_and_named_with_its_line(
    project: Project, sql: str, line: int, message: str
) -> None:
    """Earlier files stay applied; the failing file and later ones are not."""
    unique = CREATE_A.replace("integer", "integer unique")
    project.write(unique, f"-- migrate:up\ncreate table b (id integer);\n{sql}\n", CREATE_C)

    assert message in project.refuse(f"^migrations/{SECOND}:{line}: ")

    assert project.lines == [f"applied {FIRST}"]
    assert project.tables() == {"a"}
    assert project.query("select * from a") == []
    assert project.applied() == [V1]


OF_ITS_OWN = "it needs a file of its own with -- migrate:up transaction:false"


@pytest.mark.parametrize(
    ("section", "end"),
    [
        ("\nselect pg_terminate_backend(pg_backend_pid());", "connection.*"),
        (" transaction:false\nselect pg_terminate_backend(pg_backend_pid());", "connection.*"),
        (" transaction:false\nvacuum;\nselect missing;", "section holds one statement; .* again"),
        ("\ncreate index concurrently a_id on a (id);", OF_ITS_OWN),
        ("\ndo $$ begin commit; end $$;", OF_ITS_OWN),
        (
            " transaction:false\ncreate index concurrently a_id on a (x);",
            "drop the index that it may have left, and run migrate again",
        ),
        (
            " transaction:false\ndo $$ begin commit; raise 'late'; end $$;",
            "what it has committed stays: fix the cause, and run migrate again",
        ),
    ],
)
def test_a_failure_names_what_remains_to_be_done(project: Project, section: str, end: str) -> None:
    """Not the remedy of another failure. The file is not recorded."""
    project.write(CREATE_A, f"-- migrate:up{section}\n")

    project.refuse(f"^migrations/{SECOND}:2: .*{end}$")

    assert project.applied() == [V1]


# Waiting

INDEX = "-- migrate:up transaction:false\ncreate index concurrently a_id on a (id);\n"
REPORT = "select *\n  from a"  # a statement of a transaction in the way


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let migrations wait for shorter times than in production."""
    monkeypatch.setattr(migration_session, "OPTIONS", "-c lock_timeout=500ms")
    monkeypatch.setattr(migration_session, "RETRY_PAUSE_S", 0.2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("option", ["", " transaction:false"])
def test_others_go_on_while_a_migration_waits_for_a_lock(project: Project, option: str) -> None:
    """It tries again, and succeeds when the transaction in its way has ended."""
    project.up(CREATE_A)
    alter = f"-- migrate:up{option}\n\nalter table a add column b text;\n"
    project.write(CREATE_A, CREATE_B, alter)
    request = f"{project.url}&options=-cstatement_timeout%3D3s"

    with ThreadPoolExecutor() as pool:
        with hold(project.url, REPORT):
            upgrade = pool.submit(project.up)
            for sql in ("select * from a", "insert into a values (1)", "select * from a"):
                wait_until(lambda: project.query(WAITING) or upgrade.done())
                with hold(request, sql):
                    assert not upgrade.done()
        upgrade.result(timeout=60)

    located = f"migrations/{THIRD}:3: in this section: canceling statement due to lock timeout"
    assert project.lines[0] == f"applied {SECOND}"
    holder = r"; it may be held by pid \d+ \w+ .*since 20.* select \* +from a"
    assert re.match(f"{located}.*{holder}; trying for up to 60 s$", project.lines[1])
    assert project.lines[2:] == [f"applied {THIRD}"]
    assert project.applied() == [V1, V2, V3]


def index_is_valid(project: Project) -> bool:
    """Whether the index exists and is valid."""
    sql = "select indisvalid from pg_index where indexrelid = to_regclass('a_id')"
    return project.query(sql) == [(True,)]


def test_a_concurrent_index_waits_longer_than_a_lock_may(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an index waits for an old transaction, others can write; it becomes valid."""
    monkeypatch.setattr(migration_session, "OPTIONS", "-c lock_timeout=100ms")
    project.up(CREATE_A)
    project.write(CREATE_A, INDEX)

    with ThreadPoolExecutor() as pool:
        with hold(project.url, "insert into a values (1)"):
            upgrade = pool.submit(project.up)
            sql = "select 1 from pg_locks where not granted and now() - waitstart > '0.5 s'"
            wait_until(lambda: project.query(sql) or upgrade.done())
            waited = not upgrade.done()
            project.query("insert into a values (2)")
        upgrade.result(timeout=10)

    assert waited
    assert index_is_valid(project)
    assert project.applied() == [V1, V2]


@pytest.mark.usefixtures("impatient")
def test_two_upgrades_at_once_apply_each_file_once(project: Project) -> None:
    """The second run waits, without a snapshot that a concurrent index would wait for."""
    wait = "set local lock_timeout = 0; select pg_advisory_xact_lock(1);\n"
    project.write(CREATE_A.replace("create", f"{wait}create"), INDEX)
    reports: list[list[str]] = [[], []]

    def find_second() -> list[list[str]]:
        return [lines for lines in reports if lines and "another migration" in lines[0]]

    with ThreadPoolExecutor() as pool:
        with hold(project.url, "select pg_advisory_lock(1)"):
            runs = [
                pool.submit(migrations.upgrade, project.url, project.folder, lines.append)
                for lines in reports
            ]
            wait_until(find_second)
        for run in runs:
            run.result(timeout=60)

    [second] = find_second()
    [first] = [lines for lines in reports if lines is not second]
    assert first[-2:] == [f"applied {FIRST}", f"applied {SECOND}"]
    waits = r"another migration is running \(pid [0-9]+\); trying for up to 60 s"
    assert re.fullmatch(waits, second[0])
    assert second[1:] == [f"nothing to do: the newest migration is {V2}"]
    assert index_is_valid(project)


def test_the_wait_for_another_upgrade_has_a_timeout(
    project: Project, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the migration that hangs in this database, not in another one."""
    monkeypatch.setattr(migration_session, "GIVE_UP_S", 0)
    project.write(CREATE_A)
    sql = f"select pg_advisory_lock({migration_session.LOCK_KEY})"

    with hold(server_url, sql), hold(project.url, sql) as other:
        message = project.refuse("another migration")

        pid = other.info.backend_pid

    assert message == f"another migration is running (pid {pid}); tried for 0 s"
    assert project.query("select from pg_class where relnamespace = 'public'::regnamespace") == []


def test_a_run_with_nothing_to_do_waits_for_no_reader(project: Project) -> None:
    """A long backup that reads the ledger does not block a deployment without migrations."""
    project.up(CREATE_A)

    with hold(project.url, "lock schema_migrations, alembic_version in share mode"):
        assert project.up() == [f"nothing to do: the newest migration is {V1}"]


# A database that dbmate also migrates; test_dbmate.py has the real one


def test_a_database_of_dbmate_is_taken_over(project: Project) -> None:
    """Its migrations are recorded without a time; the others are applied, and can be taken back."""
    project.write(CREATE_A, CREATE_B, CREATE_C)
    project.query(
        "create table a (id integer); create table b (id integer);"
        "create table schema_migrations (version varchar primary key);"
        f"insert into schema_migrations (version) values ('{V2}'), ('{V1}')"
    )
    found = schema_file.dump(project.url)
    status = project.run(migrations.status)

    assert schema_file.dump(project.url) == found  # status changes nothing
    assert status[1:] == [(V2, "create_b", (None, None)), (V3, "create_c", None)]
    assert project.up() == [f"applied {THIRD}"]
    assert project.applied() == [V1, V2, V3]
    assert project.query(
        "select version, applied_at is not null, checksum from schema_migrations order by version"
    ) == [
        (file.version, file.version == V3, file.checksum)
        for file in migration_files.read(project.folder)
    ]
    assert project.down() + project.down() == [f"reverted {THIRD}", f"reverted {SECOND}"]
    assert project.applied() == [V1]
    assert project.tables() == {"a"}


@pytest.mark.parametrize(
    "sql",
    [
        "update alembic_version set version_num = '{V1}'",
        "insert into alembic_version values ('{V1}')",
        "delete from alembic_version",
        "drop table alembic_version",
        "alter table schema_migrations drop column checksum",  # as in an earlier release
        "create table c (); insert into schema_migrations (version) values ('{V3}')",  # dbmate up
        "drop table b; delete from schema_migrations where version = '{V2}'",  # dbmate rollback
        "drop table a, b; delete from schema_migrations",
    ],
)
def test_the_ledger_decides_what_is_applied(project: Project, sql: str) -> None:
    """Whatever happens between two runs, the second one applies the rest and records all."""
    project.up(CREATE_A, CREATE_B)
    project.query(sql.format(V1=V1, V2=V2, V3=V3))
    project.write(CREATE_A, CREATE_B, CREATE_C, CREATE_A.replace(" a", " d"))

    assert project.up()[-1] == f"applied {FOURTH}"
    assert project.applied() == [V1, V2, V3, V4]
    assert project.tables() == {"a", "b", "c", "d"}
    assert project.query(CHECKSUMS) == [
        (file.version, file.checksum) for file in migration_files.read(project.folder)
    ]
    assert all(entry.applied.applied_at for entry in project.run(migrations.status))


def test_an_edit_is_only_reported(project: Project) -> None:
    """Each command reports the file in one line, and continues."""
    project.up(CREATE_A)
    project.write(f"-- why\n{CREATE_A}", CREATE_B)
    edited = (
        f"migrations/{FIRST}:1: was edited after it was applied: undo the edit and write a new"
        " migration; to keep the edit, run: update schema_migrations set checksum = null"
        f" where version = '{V1}'"
    )

    project.run(migrations.status)
    assert project.lines == [edited]
    assert project.up() == [edited, f"applied {SECOND}"]
    assert project.down() == [edited, f"reverted {SECOND}"]
    project.query(edited.partition(" run: ")[2])
    assert project.up() == [f"applied {SECOND}"]
    project.run(migrations.status)
    assert project.lines == []


# Files that replace others

SQUASHED = (
    f"-- replaces: {V1}..{V2} (release 7)\n-- migrate:up\ncreate table a (id integer, b integer);\n"
)
ADD = "-- migrate:up\nalter table a add c integer;\n"


def squash(project: Project) -> None:
    """Replace the first two files by one; add another file."""
    (project.folder / FIRST).unlink(missing_ok=True)
    (project.folder / SECOND).unlink(missing_ok=True)
    fill(project.folder, {THIRD: SQUASHED, FOURTH: ADD})


def read_columns(project: Project) -> list[str]:
    """List the columns of the table a."""
    sql = (
        "select attname from pg_attribute where attrelid = 'a'::regclass and attnum > 0 order by 1"
    )
    return [name for (name,) in project.query(sql)]


@pytest.mark.parametrize("is_of_dbmate", [False, True])
def test_a_file_is_recorded_where_all_that_it_replaces_is_applied(
    project: Project, *, is_of_dbmate: bool
) -> None:
    """Without running it. The former versions stay, for the release before; status hides them."""
    project.up(CREATE_A, "-- migrate:up\nalter table a add b integer;\n")
    if is_of_dbmate:
        project.query("alter table schema_migrations drop applied_at, drop checksum")
    squash(project)

    status = project.run(migrations.status)
    assert [(entry.version, bool(entry.applied)) for entry in status] == [(V3, True), (V4, False)]
    assert project.up() == [
        "recorded 1 files that sum up what is applied, without running them",
        f"applied {FOURTH}",
    ]
    assert project.up() == [f"nothing to do: the newest migration is {V4}"]
    assert project.applied() == [V1, V2, V3, V4]
    assert read_columns(project) == ["b", "c", "id"]
    assert [entry.version for entry in project.run(migrations.status)] == [V3, V4]
    assert dict(project.query(CHECKSUMS))[V3] == migration_files.read(project.folder)[0].checksum


def test_a_missing_file_of_a_dba_in_front_of_the_sum_is_refused(project: Project) -> None:
    """Nothing is recorded."""
    fill(project.folder, {THIRD: SQUASHED.replace(f"..{V2}", f"..{V1}")})
    project.query(
        "create table schema_migrations (version varchar primary key);"
        f"insert into schema_migrations values ('{V1}'), ('{V2}')"
    )

    project.refuse(f"^migration {V2} is applied but its file is missing: put it back")

    assert project.query("select * from schema_migrations") == [(V1,), (V2,)]


def test_a_database_with_a_part_of_what_a_file_replaces_is_refused(project: Project) -> None:
    """The message says which release comes first; nothing is changed."""
    project.up(CREATE_A)
    squash(project)

    project.refuse(
        f"^the database is at migration {V1}, .* newest migration is {V2} \\(release 7\\)$"
    )

    assert project.applied() == [V1]
    assert read_columns(project) == ["id"]


def test_a_file_of_a_dba_between_those_that_were_replaced_is_his_own(project: Project) -> None:
    """A database that never had the first of these has none of them."""
    fill(project.folder, {SECOND: CREATE_B})
    project.up()
    fill(project.folder, {SECOND: CREATE_B, THIRD: SQUASHED})

    assert project.up() == [f"applied {THIRD}"]
    assert project.applied() == [V2, V3]


# Files and a ledger that do not fit


def test_a_file_older_than_the_newest_applied_one_is_refused(project: Project) -> None:
    """A file of a branch merged late is not skipped silently, and no later file is applied."""
    fill(project.folder, {FIRST: CREATE_A, THIRD: CREATE_C})
    project.up()
    fill(project.folder, {SECOND: CREATE_B, FOURTH: "-- migrate:up\n"})

    for command in (migrations.upgrade, migrations.downgrade):
        project.refuse(
            rf"migrations/{SECOND}:1: .* give it a newer timestamp; or, if {V3} is", command
        )

    assert project.tables() == {"a", "c"}
    assert project.applied() == [V1, V3]


def test_a_database_that_is_ahead_is_not_changed(project: Project) -> None:
    """The previous release can be deployed again without taking migrations back."""
    project.up(CREATE_A, CREATE_B)
    (project.folder / SECOND).unlink()

    assert project.up() == [
        f"nothing to do: the database is ahead, at {V2}; the newest file is {V1}"
    ]
    project.refuse(f'{V2}: its file or "-- migrate:down" is missing', migrations.downgrade)
    fill(project.folder, {THIRD: CREATE_C})
    project.refuse(f"{V2} is applied but its file is missing")

    assert project.tables() == {"a", "b"}


def test_a_ledger_that_was_lost_is_refused(project: Project) -> None:
    """Or alembic_version is another application's; nothing is changed."""
    project.up(CREATE_A)
    project.query("drop table schema_migrations")

    for command in (migrations.upgrade, migrations.downgrade, migrations.status):
        project.refuse(f"{V1}, but the table schema_migrations is missing", command)

    assert project.query("select * from alembic_version") == [(V1,)]


def test_offline_sql_does_what_upgrade_does(
    project: Project, brief_database: Callable[[str], str]
) -> None:
    """A DBA who runs the script by hand gets the same schema; both send SQL unchanged."""
    project.write(
        "-- migrate:up\ncreate table a (id integer) -- no semicolon",
        INDEX,
        "-- migrate:up\n",
        "-- migrate:up\ncreate table d as select '% :foo\t%s \\'::text as d, $$;$$ as e",
    )

    def read_database() -> list[Any]:
        rows = project.query("select * from d")
        assert rows == [("% :foo\t%s \\", ";")]
        return [schema_file.dump(project.url), project.query(CHECKSUMS), project.applied()]

    psql(project, migrations.render_offline_sql(project.folder))
    by_script = read_database()
    assert project.up() == [f"nothing to do: the newest migration is {V4}"]
    project.url = brief_database("template0")
    project.up()

    assert read_database() == by_script


# The connection


def test_a_migration_waits_for_a_connection(project: Project) -> None:
    """It says why, once, and goes on when the running service has closed one."""
    role = f"few_{project.query('select current_database()')[0][0]}"
    project.query(f"create role {role} login connection limit 1")
    project.query(f"grant create on schema public to {role}")
    project.write(CREATE_A)
    project.url = with_user(project.url, role)

    with ThreadPoolExecutor() as pool:
        with closing(psycopg2.connect(project.url)):
            upgrade = pool.submit(project.up)
            wait_until(lambda: project.lines or upgrade.done())
        lines = upgrade.result(timeout=60)

    refusal, *others = lines
    assert re.search("unreachable: .*too many connections .*; trying for up to 60 s$", refusal)
    assert others == [f"applied {FIRST}"]


def test_an_unreachable_database_is_reported_without_the_password(folder: Path) -> None:
    """One line names the server that does not respond."""
    project = Project(folder, "postgresql://movies:s3cret@127.0.0.1:1/movies")

    message = project.refuse("^the database is unreachable: .*127.0.0.1", migrations.status)

    assert "s3cret" not in message
    assert project.lines == []  # it does not wait


def test_the_options_in_the_url_are_kept_but_for_timeouts(project: Project) -> None:
    """The tables are in the URL's schema; a migration may take long, but not wait long."""
    project.query("create schema other")
    show = "current_setting('statement_timeout'), current_setting('lock_timeout')"
    project.write(f"-- migrate:up\ncreate table a as select array[{show}] as timeouts;\n")
    options = "-csearch_path=other -cstatement_timeout=3s -clock_timeout=30s"
    project.url += f"&options={quote(options)}"

    project.up()

    assert project.query("select timeouts from other.a") == [(["0", "1s"],)]
    assert project.query("select version from other.schema_migrations") != []
