"""The migrations against a real PostgreSQL: what runs, what is refused, and what is left behind."""

import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from support import wait_until

from service.database.embedded.place import installed_programs
from service.database.migrations import files as migration_files
from service.database.migrations import lock as migration_lock
from service.database.migrations import runner as migrations
from service.database.migrations import session as migration_session
from service.errors import OperatorError

ROOT = Path(__file__).parents[3]

# All that a schema consists of, as PostgreSQL itself writes it down.
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

FIRST = "20260101000000_create_a.sql"
SECOND = "20260102000000_create_b.sql"
THIRD = "20260103000000_create_c.sql"
CREATE_A = "-- migrate:up\ncreate table a (id integer);\n-- migrate:down\ndrop table a;\n"
CREATE_B = "-- migrate:up\ncreate table b (id integer);\n-- migrate:down\ndrop table b;\n"
CREATE_C = "-- migrate:up\ncreate table c (id integer);\n-- migrate:down\ndrop table c;\n"


def ignore(_line: str) -> None:
    """Take a report that the test does not look at."""


def query(url: str, sql: str) -> list[tuple[Any, ...]]:
    """Run one statement on a connection of its own."""
    connection = psycopg2.connect(url)
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


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


def tables(url: str) -> set[str]:
    """Name the tables there are, without the bookkeeping."""
    found = query(url, "select tablename from pg_tables where schemaname = 'public'")
    return {name for (name,) in found} - BOOKKEEPING


def recorded(url: str) -> tuple[list[str], list[str]]:
    """Read both tables of bookkeeping: (alembic_version, schema_migrations)."""
    current = query(url, "select version_num from alembic_version")
    ledger = query(url, "select version from schema_migrations order by version")
    return [version for (version,) in current], [version for (version,) in ledger]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give an empty folder for migrations."""
    path = tmp_path / "migrations"
    path.mkdir()
    return path


def fill(folder: Path, files: dict[str, str]) -> None:
    """Write files, by their names."""
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")


# The project's own migrations


def test_the_projects_migrations_walk_up_down_and_up(empty_database: str) -> None:
    """Each of the project's migrations is taken back by its down section without a trace."""
    own = ROOT / "migrations"
    versions = migration_files.list_versions(own)
    migrations.upgrade(empty_database, own, ignore)
    full = query(empty_database, SCHEMA)

    for _ in versions:
        migrations.downgrade(empty_database, own, ignore)
    left = {table for _, table, _, _ in query(empty_database, SCHEMA)}
    migrations.upgrade(empty_database, own, ignore)

    assert left == BOOKKEEPING
    assert query(empty_database, SCHEMA) == full
    assert recorded(empty_database) == (versions[-1:], versions)


def test_each_of_the_projects_migrations_leaves_the_schema_it_found(
    empty_database: str, tmp_path: Path
) -> None:
    """Up, down and up of each file alone gives the same schema each time."""
    folder = tmp_path / "migrations"
    folder.mkdir()
    for migration in migration_files.read(ROOT / "migrations"):
        (folder / migration.path.name).write_bytes(migration.path.read_bytes())
        before = query(empty_database, SCHEMA)
        migrations.upgrade(empty_database, folder, ignore)
        after = query(empty_database, SCHEMA)
        migrations.downgrade(empty_database, folder, ignore)
        taken_back = query(empty_database, SCHEMA)
        migrations.upgrade(empty_database, folder, ignore)

        assert query(empty_database, SCHEMA) == after
        assert [row for row in taken_back if row[1] not in BOOKKEEPING] == [
            row for row in before if row[1] not in BOOKKEEPING
        ]


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
    ],
)
def test_a_faulty_file_is_named_with_what_is_expected(
    folder: Path, name: str, text: str, message: str
) -> None:
    """What a file's author can get wrong is refused with file, line and the right form."""
    fill(folder, {name: text})

    with pytest.raises(OperatorError) as caught:
        migration_files.read(folder)

    assert message in str(caught.value)
    assert str(caught.value).startswith("migrations/")


def test_a_file_that_is_not_utf_8_is_named_with_its_line(folder: Path) -> None:
    """Latin-1 is refused where it stands, not stored as something else."""
    (folder / FIRST).write_bytes(b"-- migrate:up\nselect 1;\nselect '\xe9';\n")

    with pytest.raises(OperatorError, match=rf"migrations/{FIRST}:3: not UTF-8"):
        migration_files.read(folder)


def test_two_files_of_one_timestamp_are_refused(folder: Path) -> None:
    """A version stands for one file."""
    fill(folder, {FIRST: CREATE_A, "20260101000000_create_b.sql": CREATE_B})

    with pytest.raises(OperatorError, match=f"_create_b.sql:1: {FIRST} has the same timestamp"):
        migration_files.list_versions(folder)


def test_a_folder_that_is_not_there_is_named(folder: Path) -> None:
    """A wrong folder is no empty history."""
    with pytest.raises(OperatorError, match="nowhere: cannot be read"):
        migration_files.list_versions(folder / "nowhere")


def test_an_unreadable_file_is_named(folder: Path) -> None:
    """What has the name of a migration and cannot be read is an error of one line."""
    (folder / FIRST).mkdir()

    with pytest.raises(OperatorError, match=f"migrations/{FIRST}:1: cannot be read"):
        migration_files.read(folder)


def test_sections_know_their_sql_line_and_options(folder: Path) -> None:
    """A file is read as its two sections; files of another kind are ignored."""
    text = "-- why\n\n-- migrate:up transaction:false\n\nselect 1;\r\n-- migrate:down\r\nselect 2"
    fill(folder, {FIRST: f"\ufeff{text}", "README.md": "not SQL"})

    [migration] = migration_files.read(folder)

    assert migration == migration_files.Migration(
        version="20260101000000",
        name="create_a",
        path=folder / FIRST,
        checksum=hashlib.sha256(text.replace("\r", "").encode()).hexdigest(),
        up=migration_files.Section("select 1;", 5, transaction=False),
        down=migration_files.Section("select 2", 7, transaction=True),
    )


def test_a_name_may_be_one_word(folder: Path) -> None:
    """`init` names a migration, to the reader and to `migrate new`."""
    path = migration_files.create(folder, "init")

    assert [migration.path for migration in migration_files.read(folder)] == [path]
    assert migration_files.read(folder)[0].name == "init"


def test_hidden_files_are_ignored(folder: Path) -> None:
    """An editor's lock beside an open file, a link to nowhere with Emacs, is no migration."""
    fill(folder, {FIRST: CREATE_A, f".{SECOND}": "half a file"})
    (folder / f".#{FIRST}").symlink_to("somebody@somewhere.1234")

    assert migration_files.list_versions(folder) == ["20260101000000"]


def test_versions_come_in_order_and_without_alembic(folder: Path) -> None:
    """A process that serves learns what it needs from the names, and loads no migration tool."""
    fill(folder, {SECOND: "no SQL at all", FIRST: ""})
    program = (
        "import sys, pathlib; from service.database.migrations.files import list_versions;"
        "print(list_versions(pathlib.Path(sys.argv[1])),"
        " {'alembic', 'sqlalchemy', 'psycopg2'} & sys.modules.keys())"
    )

    result = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )

    assert result.stdout == "['20260101000000', '20260102000000'] set()\n"


# New files


def test_a_new_file_is_ready_to_be_filled_in(folder: Path) -> None:
    """The template is a migration already, which does nothing."""
    before = datetime.now(UTC).strftime("%Y%m%d%H%M%S")

    path = migration_files.create(folder, "add_index_on_titles")

    [migration] = migration_files.read(folder)
    assert migration.path == path
    assert migration.name == "add_index_on_titles"
    assert before <= migration.version <= datetime.now(UTC).strftime("%Y%m%d%H%M%S")
    assert migration.up.is_empty
    assert migration.down is not None
    assert migration.down.is_empty


def test_a_new_file_is_later_than_all_others(folder: Path) -> None:
    """A colleague's clock that is ahead does not make the next migration too old to run."""
    fill(folder, {"29991231235959_create_a.sql": CREATE_A})

    path = migration_files.create(folder, "create_b")

    assert path.name == "30000101000000_create_b.sql"


@pytest.mark.parametrize("name", ["", "Add_index", "add-index", "../add_index", "add_", "2add"])
def test_a_new_file_needs_a_proper_name(folder: Path, name: str) -> None:
    """A name that the reader would refuse is refused before there is a file."""
    with pytest.raises(OperatorError, match="expected lower-case words"):
        migration_files.create(folder, name)

    assert list(folder.iterdir()) == []


def test_a_new_file_that_cannot_be_written_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without the right to write is an error of one line."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)

    with pytest.raises(
        OperatorError, match=r"create_a\.sql:1: cannot be written: Permission denied"
    ):
        migration_files.create(folder, "create_a")


# Up, down and where things stand


def test_upgrade_reports_each_file_and_then_nothing_to_do(
    empty_database: str, folder: Path
) -> None:
    """The operator reads what was done, and that a second run does nothing."""
    fill(folder, {FIRST: CREATE_A, SECOND: CREATE_B})
    lines: list[str] = []

    migrations.upgrade(empty_database, folder, lines.append)
    migrations.upgrade(empty_database, folder, lines.append)

    assert lines == [
        f"applied {FIRST}",
        f"applied {SECOND}",
        "nothing to do: the newest migration is 20260102000000",
    ]


def test_downgrade_takes_back_one_file(empty_database: str, folder: Path) -> None:
    """One step is one file, newest first."""
    fill(folder, {FIRST: CREATE_A, SECOND: CREATE_B})
    migrations.upgrade(empty_database, folder, ignore)
    lines: list[str] = []

    migrations.downgrade(empty_database, folder, lines.append)

    assert lines == [f"took back {SECOND}"]
    assert tables(empty_database) == {"a"}
    assert recorded(empty_database) == (["20260101000000"], ["20260101000000"])


def test_downgrade_of_nothing_is_refused(empty_database: str, folder: Path) -> None:
    """There is no step below the first."""
    fill(folder, {FIRST: CREATE_A})

    with pytest.raises(OperatorError, match="nothing is applied"):
        migrations.downgrade(empty_database, folder, ignore)


def test_downgrade_without_a_down_section_is_refused(empty_database: str, folder: Path) -> None:
    """What cannot be taken back stays applied."""
    fill(folder, {FIRST: "-- migrate:up\ncreate table a (id integer);\n"})
    migrations.upgrade(empty_database, folder, ignore)

    with pytest.raises(OperatorError, match=f'migrations/{FIRST}:1: has no "-- migrate:down"'):
        migrations.downgrade(empty_database, folder, ignore)

    assert tables(empty_database) == {"a"}
    assert recorded(empty_database) == (["20260101000000"], ["20260101000000"])


def test_status_lists_pending_applied_and_missing(empty_database: str, folder: Path) -> None:
    """Status shows the files and the ledger side by side, and changes nothing."""
    fill(folder, {FIRST: CREATE_A, SECOND: CREATE_B})
    pending = migrations.status(empty_database, folder, ignore)
    untouched = query(empty_database, "select count(*) from pg_tables where schemaname = 'public'")
    migrations.upgrade(empty_database, folder, ignore)
    (folder / SECOND).rename(folder / THIRD)

    first, missing, third = migrations.status(empty_database, folder, ignore)

    assert [entry.is_applied for entry in pending] == [False, False]
    assert untouched == [(0,)]
    assert first.version == "20260101000000"
    assert first.name == "create_a"
    assert first.applied_at is not None
    assert abs(datetime.now(UTC) - first.applied_at).total_seconds() < 60
    assert missing[:2] == ("20260102000000", None)
    assert missing.applied_at is not None
    assert third == ("20260103000000", "create_c", False, None)


def test_empty_sections_are_recorded_as_applied(empty_database: str, folder: Path) -> None:
    """A section of comments asks nothing of PostgreSQL and still counts."""
    fill(folder, {FIRST: "-- migrate:up\n-- later\n/* ; */ ;\n-- migrate:down\n"})

    migrations.upgrade(empty_database, folder, ignore)
    up = recorded(empty_database)
    migrations.downgrade(empty_database, folder, ignore)

    assert up == (["20260101000000"], ["20260101000000"])
    assert recorded(empty_database) == ([], [])


def test_sql_reaches_postgresql_as_it_stands(empty_database: str, folder: Path) -> None:
    """Percent signs, colons, dollar quotes, tabs and other scripts mean nothing but themselves."""
    text = "%s 100% :foo %(x)s \\ \t ünï"
    fill(
        folder,
        {
            FIRST: "-- migrate:up\n"
            f"create table a as select '{text}'::text as one, $b$'; -- {text}$b$ as two,\n"
            "  (array[1, 2, 3])[1:2] as three, 7 % 4 as four -- :bar % no semicolon\n"
        },
    )

    migrations.upgrade(empty_database, folder, ignore)

    assert query(empty_database, "select * from a") == [(text, f"'; -- {text}", [1, 2], 3)]


def test_what_a_file_sets_ends_with_it(empty_database: str, folder: Path) -> None:
    """A search path or a role of one file, as in pg_dump's output, is not that of the next."""
    settings = "set search_path = ''; set role pg_monitor; set lock_timeout = 0;\n"
    fill(
        folder,
        {
            FIRST: f"-- migrate:up\ncreate table a (id integer);\n{settings}",
            SECOND: "-- migrate:up\ncreate table b as select current_setting('lock_timeout');\n",
        },
    )

    migrations.upgrade(empty_database, folder, ignore)

    assert query(empty_database, "select * from b") == [("5s",)]
    assert recorded(empty_database)[1] == ["20260101000000", "20260102000000"]


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
    empty_database: str, folder: Path, sql: str, line: int, message: str
) -> None:
    """Earlier files stay, nothing of the failing one does, and the message leads to the fault."""
    unique = CREATE_A.replace("integer", "integer unique")
    fill(
        folder,
        {
            FIRST: unique,
            SECOND: f"-- migrate:up\n{sql}\ncreate table b (id integer);\n",
            THIRD: CREATE_C,
        },
    )
    lines: list[str] = []

    with pytest.raises(OperatorError) as caught:
        migrations.upgrade(empty_database, folder, lines.append)

    assert str(caught.value).startswith(f"migrations/{SECOND}:{line}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert lines == [f"applied {FIRST}"]
    assert tables(empty_database) == {"a"}
    assert query(empty_database, "select * from a") == []
    assert recorded(empty_database) == (["20260101000000"], ["20260101000000"])


def test_a_first_file_that_fails_leaves_the_database_empty(
    empty_database: str, folder: Path
) -> None:
    """The bookkeeping's own tables are part of the first file's transaction."""
    fill(folder, {FIRST: "-- migrate:up\ncreate table a (id integer);\nselect missing;\n"})

    with pytest.raises(OperatorError, match=f"migrations/{FIRST}:3: "):
        migrations.upgrade(empty_database, folder, ignore)

    assert query(empty_database, SCHEMA) == []


def test_a_failing_downgrade_is_rolled_back_and_named(empty_database: str, folder: Path) -> None:
    """The way back is as safe as the way there."""
    fill(folder, {FIRST: CREATE_A.replace("drop table a;", "drop table a;\nselect missing;")})
    migrations.upgrade(empty_database, folder, ignore)

    with pytest.raises(OperatorError, match=f"migrations/{FIRST}:5: column"):
        migrations.downgrade(empty_database, folder, ignore)

    assert tables(empty_database) == {"a"}
    assert recorded(empty_database) == (["20260101000000"], ["20260101000000"])


def test_a_failure_at_the_commit_names_the_section(empty_database: str, folder: Path) -> None:
    """A deferred constraint fails after the last statement; the section's line is named."""
    sql = "create table a (id integer unique deferrable initially deferred);"
    up = f"-- why\n-- migrate:up\n{sql}\ninsert into a values (1), (1);\n"
    fill(folder, {FIRST: f"{up}-- migrate:down\ndrop table a;\n"})

    with pytest.raises(OperatorError, match=f"migrations/{FIRST}:3: duplicate key"):
        migrations.upgrade(empty_database, folder, ignore)

    assert query(empty_database, SCHEMA) == []


def test_a_downgrade_that_fails_at_the_commit_names_its_section(
    empty_database: str, folder: Path
) -> None:
    """The line is that of the section that ran, not of the other one."""
    up = "create table a (id integer unique deferrable initially deferred);"
    down = "insert into a values (1), (1);"
    fill(folder, {FIRST: f"-- migrate:up\n{up}\n-- migrate:down\n{down}\n"})
    migrations.upgrade(empty_database, folder, ignore)

    with pytest.raises(OperatorError, match=f"migrations/{FIRST}:4: duplicate key"):
        migrations.downgrade(empty_database, folder, ignore)

    assert recorded(empty_database)[1] == ["20260101000000"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_file_that_ends_its_transaction_is_refused(
    empty_database: str, folder: Path, end: str
) -> None:
    """A stray rollback must not have a file recorded that did nothing, nor a commit half of one."""
    fill(folder, {FIRST: f"-- migrate:up\ncreate table a (id integer);\n{end};\n"})

    with pytest.raises(OperatorError, match=f"migrations/{FIRST}:2: ends its transaction itself"):
        migrations.upgrade(empty_database, folder, ignore)

    assert query(empty_database, "select to_regclass('schema_migrations')") == [(None,)]


@pytest.mark.parametrize("option", ["", " transaction:false"])
def test_a_connection_lost_on_the_way_is_one_line(
    empty_database: str, folder: Path, option: str
) -> None:
    """A server that goes away in the middle is told like any other failure."""
    sql = "select pg_terminate_backend(pg_backend_pid());"
    fill(folder, {FIRST: CREATE_A, SECOND: f"-- migrate:up{option}\n{sql}\n"})

    with pytest.raises(OperatorError, match=f"migrations/{SECOND}:2: .*connection"):
        migrations.upgrade(empty_database, folder, ignore)

    assert recorded(empty_database) == (["20260101000000"], ["20260101000000"])


def test_a_migration_waits_five_seconds_for_a_lock(empty_database: str, folder: Path) -> None:
    """Then it gives up, as everybody else who wants that table waits behind it."""
    fill(
        folder,
        {FIRST: "-- migrate:up\ncreate table a as select current_setting('lock_timeout');\n"},
    )

    migrations.upgrade(empty_database, folder, ignore)

    assert query(empty_database, "select * from a") == [("5s",)]


def test_a_lock_that_is_not_had_in_time_is_refused(
    empty_database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration gives up before it stops all traffic, and names the transaction in its way."""
    monkeypatch.setattr(migration_session, "OPTIONS", "-c lock_timeout=1s")
    monkeypatch.setattr(migration_lock, "BLOCKER_POLL_S", 0.1)
    fill(folder, {FIRST: CREATE_A})
    migrations.upgrade(empty_database, folder, ignore)
    fill(folder, {SECOND: "-- migrate:up\nselect 1;\nalter table a add column b text;\n"})
    lines: list[str] = []

    with (
        transaction(f"{empty_database}&application_name=report", "select *\n  from a") as pid,
        pytest.raises(OperatorError) as caught,
    ):
        migrations.upgrade(empty_database, folder, lines.append)

    holder = f'pid {pid}, application "report", idle in transaction, query: select * from a'
    assert str(caught.value) == (
        f"migrations/{SECOND}:2: in this section: canceling statement due to lock timeout; nothing"
        " of this file was changed: run migrate again when the transaction that holds the lock has"
        f" ended; the lock was held by {holder}"
    )
    assert lines == [f"waiting for a lock that is held by {holder}"]
    assert recorded(empty_database) == (["20260101000000"], ["20260101000000"])


# Without a transaction


INDEX = "-- migrate:up transaction:false\ncreate index concurrently a_id on a (id);\n"


def index_is_valid(url: str) -> bool:
    """Tell whether the index exists and was built to its end."""
    found = query(url, "select indisvalid from pg_index where indexrelid = to_regclass('a_id')")
    return found == [(True,)]


def test_an_index_is_built_concurrently_under_traffic(empty_database: str, folder: Path) -> None:
    """`transaction:false` runs outside of one, while others keep reading and writing."""
    fill(folder, {FIRST: CREATE_A, SECOND: INDEX})
    stop = threading.Event()

    def load() -> int:
        connection = psycopg2.connect(empty_database)
        connection.autocommit = True
        done = 0
        with connection.cursor() as cursor:
            cursor.execute("set statement_timeout = '2s'")
            while not stop.is_set():
                cursor.execute("select count(*) from pg_class")
                done += 1
        connection.close()
        return done

    with ThreadPoolExecutor() as pool:
        loads = [pool.submit(load) for _ in range(3)]
        migrations.upgrade(empty_database, folder, ignore)
        stop.set()

    assert all(load.result() > 0 for load in loads)
    assert index_is_valid(empty_database)
    assert recorded(empty_database)[1] == ["20260101000000", "20260102000000"]


def test_a_concurrent_index_waits_longer_than_a_lock_may(
    empty_database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that waits for an old transaction holds up nobody, and is not left invalid."""
    monkeypatch.setattr(migration_session, "OPTIONS", "-c lock_timeout=100ms")
    fill(folder, {FIRST: CREATE_A})
    migrations.upgrade(empty_database, folder, ignore)
    fill(folder, {SECOND: INDEX})

    with ThreadPoolExecutor() as pool:
        with transaction(empty_database, "insert into a values (1)"):
            upgrade = pool.submit(migrations.upgrade, empty_database, folder, ignore)
            sql = "select 1 from pg_locks where not granted and now() - waitstart > '0.5 s'"
            wait_until(lambda: query(empty_database, sql) or upgrade.done())
            waited = not upgrade.done()
            query(empty_database, "insert into a values (2)")
        upgrade.result(timeout=10)

    assert waited
    assert index_is_valid(empty_database)


def test_two_upgrades_at_once_may_build_an_index_concurrently(
    empty_database: str, folder: Path
) -> None:
    """Who waits for its turn holds no snapshot that the index would wait for (a deadlock)."""
    fill(folder, {FIRST: CREATE_A, SECOND: INDEX})

    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(migrations.upgrade, empty_database, folder, ignore) for _ in range(3)]
        for run in runs:
            run.result(timeout=30)

    assert index_is_valid(empty_database)


def test_a_failing_file_without_a_transaction_says_what_may_be_left(
    empty_database: str, folder: Path
) -> None:
    """Nothing is recorded, and the message names the invalid index to look for."""
    fill(folder, {FIRST: CREATE_A, SECOND: f"{INDEX}select missing;\n"})

    with pytest.raises(OperatorError, match=rf"migrations/{SECOND}:\d: .*holds one statement"):
        migrations.upgrade(empty_database, folder, ignore)

    assert recorded(empty_database)[1] == ["20260101000000"]


# Two at once


def test_two_upgrades_at_once_apply_each_file_once(empty_database: str, folder: Path) -> None:
    """The second waits, reports once for whom, and then finds nothing to do."""
    slow = CREATE_A.replace("drop table a", "select 1").replace(
        "create table", "select pg_sleep(1);\ncreate table"
    )
    fill(folder, {FIRST: slow, SECOND: CREATE_B})
    start = threading.Barrier(2)

    def run() -> list[str]:
        lines: list[str] = []
        start.wait()
        migrations.upgrade(empty_database, folder, lines.append)
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
    assert second[1:] == ["nothing to do: the newest migration is 20260102000000"]


def test_the_wait_for_another_upgrade_is_bounded(
    empty_database: str, server_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the migration that hangs in this database, not one of another database."""
    monkeypatch.setattr(migration_lock, "LOCK_WAIT_S", 0.5)
    fill(folder, {FIRST: CREATE_A})
    lines: list[str] = []
    sql = f"select pg_advisory_lock({migration_lock.LOCK_KEY}), '{'x' * 300}'"

    with (
        transaction(server_url, sql),
        transaction(f"{empty_database}&application_name=other", sql) as pid,
        pytest.raises(OperatorError) as caught,
    ):
        migrations.upgrade(empty_database, folder, lines.append)

    holder = f'pid {pid}, application "other", idle in transaction, query: {sql[:200]}'
    assert lines == [f"another migration is running: waiting for up to 0.5 s for {holder}"]
    assert str(caught.value) == (
        f"another migration has been running for 0.5 s: nothing was changed; it is {holder}"
    )
    assert query(empty_database, SCHEMA) == []


# Waiting for locks


def test_the_holder_of_a_lock_is_reported_while_a_migration_waits(
    empty_database: str, folder: Path
) -> None:
    """The operator reads who is in the way early enough to end it, and the migration goes on."""
    fill(folder, {FIRST: CREATE_A})
    migrations.upgrade(empty_database, folder, ignore)
    fill(folder, {SECOND: "-- migrate:up\nalter table a add column b text;\n"})
    lines: list[str] = []

    def end_holder(line: str) -> None:
        lines.append(line)
        if found := re.search("held by pid ([0-9]+)", line):
            query(empty_database, f"select pg_terminate_backend({found[1]})")

    with transaction(empty_database, "select * from a") as pid:
        migrations.upgrade(empty_database, folder, end_holder)

    holder = f'pid {pid}, application "", idle in transaction, query: select * from a'
    assert lines == [f"waiting for a lock that is held by {holder}", f"applied {SECOND}"]


def test_a_prepared_transaction_is_reported_as_the_holder(
    empty_database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL gives 0 for a lock of no process: the operator learns where to look."""
    monkeypatch.setattr(migration_lock, "BLOCKERS", "select 0 where %s > 0")
    monkeypatch.setattr(migration_lock, "BLOCKER_POLL_S", 0.1)
    fill(folder, {FIRST: "-- migrate:up\nselect pg_sleep(0.5);\n"})
    lines: list[str] = []

    migrations.upgrade(empty_database, folder, lines.append)

    assert lines == [
        "waiting for a lock that is held by a prepared transaction (see pg_prepared_xacts)",
        f"applied {FIRST}",
    ]


def test_a_migration_waits_without_a_second_connection(
    empty_database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no more connections are to be had, nothing is reported and nothing else changes."""
    monkeypatch.setattr(migration_lock, "BLOCKER_POLL_S", 0.1)
    fill(folder, {FIRST: CREATE_A})
    migrations.upgrade(empty_database, folder, ignore)
    close = "update pg_database set datallowconn = false where datname = current_database()"
    wait = "set lock_timeout = '1s';\nalter table a add column b text;"
    fill(folder, {SECOND: f"-- migrate:up\n{close};\n", THIRD: f"-- migrate:up\n{wait}\n"})
    lines: list[str] = []

    with (
        transaction(empty_database, "select * from a"),
        pytest.raises(OperatorError, match=f"{THIRD}:2: .* lock timeout; .* lock has ended$"),
    ):
        migrations.upgrade(empty_database, folder, lines.append)

    assert lines == [f"applied {SECOND}"]


def test_ctrl_c_ends_a_wait(empty_database: str, folder: Path) -> None:
    """The statement that waits, for as long as it takes, is cancelled and its session ends."""
    fill(folder, {FIRST: CREATE_A})
    migrations.upgrade(empty_database, folder, ignore)
    fill(folder, {SECOND: INDEX})
    (folder.parent / "config.toml").write_bytes((ROOT / "config.toml").read_bytes())
    environment = {"DATABASE_URL": empty_database, "CATALOGUE_CONFIG": f"{folder}/../config.toml"}

    with (
        transaction(empty_database, "insert into a values (1)"),
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
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()

    assert waiting.startswith("waiting for a lock that is held by pid ")
    assert (process.returncode, said.strip()) == (130, "stopped")
    assert recorded(empty_database)[1] == ["20260101000000"]


# A database that dbmate migrates too


def dbmate_up(url: str, folder: Path, *names: str) -> None:
    """Do what dbmate's `up` does."""
    query(url, "create table if not exists schema_migrations (version varchar primary key)")
    for migration in migration_files.read(folder):
        if migration.path.name in names:
            query(url, migration.up.sql)
            query(url, f"insert into schema_migrations (version) values ('{migration.version}')")


def dbmate_rollback(url: str, table: str, version: str) -> None:
    """Do what dbmate's `rollback` does with a file that created this table."""
    query(url, f"drop table {table}")
    query(url, f"delete from schema_migrations where version = '{version}'")


def test_a_database_of_dbmate_is_taken_over(empty_database: str, folder: Path) -> None:
    """What dbmate applied is known, without a time; the rest is applied, and can be taken back."""
    fill(folder, {FIRST: CREATE_A, SECOND: CREATE_B, THIRD: CREATE_C})
    dbmate_up(empty_database, folder, SECOND)
    dbmate_up(empty_database, folder, FIRST)
    lines: list[str] = []

    migrations.upgrade(empty_database, folder, lines.append)
    up = recorded(empty_database)
    known = query(
        empty_database,
        "select version, applied_at is not null, checksum from schema_migrations order by version",
    )
    migrations.downgrade(empty_database, folder, lines.append)
    migrations.downgrade(empty_database, folder, lines.append)

    first, second, third = migration_files.read(folder)
    assert lines == [f"applied {THIRD}", f"took back {THIRD}", f"took back {SECOND}"]
    assert up == ([third.version], [first.version, second.version, third.version])
    assert known == [
        (first.version, False, first.checksum),
        (second.version, False, second.checksum),
        (third.version, True, third.checksum),
    ]
    assert recorded(empty_database) == ([first.version], [first.version])
    assert tables(empty_database) == {"a"}


def test_a_database_of_dbmate_can_be_taken_back_at_once(empty_database: str, folder: Path) -> None:
    """`migrate down` takes over as well."""
    fill(folder, {FIRST: CREATE_A, SECOND: CREATE_B})
    dbmate_up(empty_database, folder, FIRST, SECOND)

    migrations.downgrade(empty_database, folder, ignore)

    assert tables(empty_database) == {"a"}
    assert recorded(empty_database) == (["20260101000000"], ["20260101000000"])


def test_status_reads_a_database_of_dbmate(empty_database: str, folder: Path) -> None:
    """Status tells applied from pending there, and leaves the database to dbmate."""
    fill(folder, {FIRST: CREATE_A, SECOND: CREATE_B})
    dbmate_up(empty_database, folder, FIRST)
    before = query(empty_database, SCHEMA)

    found = migrations.status(empty_database, folder, ignore)

    assert found == [
        ("20260101000000", "create_a", True, None),
        ("20260102000000", "create_b", False, None),
    ]
    assert query(empty_database, SCHEMA) == before


def test_what_dbmate_applies_later_is_recorded(empty_database: str, folder: Path) -> None:
    """After dbmate's `up` on a database of ours, `migrate` goes on from there."""
    fill(folder, {FIRST: CREATE_A, SECOND: CREATE_B})
    dbmate_up(empty_database, folder)
    migrations.upgrade(empty_database, folder, ignore)
    fill(folder, {THIRD: CREATE_C})
    dbmate_up(empty_database, folder, THIRD)
    lines: list[str] = []

    migrations.upgrade(empty_database, folder, lines.append)

    third = migration_files.read(folder)[-1]
    assert lines == ["nothing to do: the newest migration is 20260103000000"]
    assert recorded(empty_database)[0] == [third.version]
    assert dict(query(empty_database, CHECKSUMS))[third.version] == third.checksum
    assert migrations.status(empty_database, folder, ignore)[-1].applied_at is not None


def test_what_dbmate_takes_back_is_applied_again(empty_database: str, folder: Path) -> None:
    """After dbmate's `rollback` on a database of ours, `migrate` goes on from there."""
    fill(folder, {FIRST: CREATE_A, SECOND: CREATE_B})
    migrations.upgrade(empty_database, folder, ignore)
    lines: list[str] = []

    dbmate_rollback(empty_database, "b", "20260102000000")
    migrations.upgrade(empty_database, folder, lines.append)
    dbmate_rollback(empty_database, "b", "20260102000000")
    dbmate_rollback(empty_database, "a", "20260101000000")
    migrations.upgrade(empty_database, folder, lines.append)

    assert lines == [f"applied {SECOND}", f"applied {FIRST}", f"applied {SECOND}"]
    assert tables(empty_database) == {"a", "b"}
    assert recorded(empty_database)[0] == ["20260102000000"]


def test_a_ledger_without_checksums_is_completed(empty_database: str, folder: Path) -> None:
    """A database of an earlier release keeps its times and gets its checksums."""
    fill(folder, {FIRST: CREATE_A})
    migrations.upgrade(empty_database, folder, ignore)
    query(empty_database, "alter table schema_migrations drop column checksum")
    before = query(empty_database, "select version, applied_at from schema_migrations")

    migrations.upgrade(empty_database, folder, ignore)

    [first] = migration_files.read(folder)
    assert query(empty_database, "select version, applied_at from schema_migrations") == before
    assert query(empty_database, CHECKSUMS) == [(first.version, first.checksum)]


@pytest.mark.parametrize(
    "sql",
    [
        "update alembic_version set version_num = '20260101000000'",
        "insert into alembic_version values ('20260101000000')",
        "delete from alembic_version",
        "drop table alembic_version",
    ],
)
def test_the_ledger_decides_what_is_applied(empty_database: str, folder: Path, sql: str) -> None:
    """alembic_version follows from schema_migrations, whatever it holds."""
    fill(folder, {FIRST: CREATE_A, SECOND: CREATE_B})
    migrations.upgrade(empty_database, folder, ignore)
    query(empty_database, sql)
    fill(folder, {THIRD: CREATE_C})
    lines: list[str] = []

    migrations.upgrade(empty_database, folder, lines.append)

    assert lines == [f"applied {THIRD}"]
    assert recorded(empty_database)[0] == ["20260103000000"]


def test_a_take_over_is_done_or_not_at_all(empty_database: str, folder: Path) -> None:
    """An error halfway leaves the ledger as dbmate knows it."""
    fill(folder, {FIRST: CREATE_A})
    dbmate_up(empty_database, folder, FIRST)
    query(empty_database, "create table alembic_version (version_num integer)")
    before = query(empty_database, SCHEMA)

    with pytest.raises(OperatorError, match='refused: column "version_num" is of type integer'):
        migrations.upgrade(empty_database, folder, ignore)

    assert query(empty_database, SCHEMA) == before


def test_a_refused_history_is_not_taken_over(empty_database: str, folder: Path) -> None:
    """A ledger that these files do not fit, another project's for instance, stays as it is."""
    fill(folder, {FIRST: CREATE_A, SECOND: CREATE_B})
    dbmate_up(empty_database, folder, SECOND)
    before = query(empty_database, SCHEMA)

    with pytest.raises(OperatorError, match=f"{FIRST}:1: older than 20260102000000"):
        migrations.upgrade(empty_database, folder, ignore)

    assert query(empty_database, SCHEMA) == before


def test_a_run_with_nothing_to_do_needs_no_lock(empty_database: str, folder: Path) -> None:
    """A backup that reads the ledger for hours does not stop a deployment without migrations."""
    fill(folder, {FIRST: CREATE_A})
    migrations.upgrade(empty_database, folder, ignore)
    lines: list[str] = []

    with transaction(empty_database, "lock schema_migrations, alembic_version in share mode"):
        migrations.upgrade(empty_database, folder, lines.append)

    assert lines == ["nothing to do: the newest migration is 20260101000000"]


# Files that were edited after they were applied


def test_an_edit_is_reported_and_stops_nothing(empty_database: str, folder: Path) -> None:
    """Each command names the file in one line, and goes on."""
    fill(folder, {FIRST: CREATE_A})
    migrations.upgrade(empty_database, folder, ignore)
    fill(folder, {FIRST: f"-- why\n{CREATE_A}", SECOND: CREATE_B})
    lines: dict[Any, list[str]] = {}

    for command in (migrations.status, migrations.upgrade, migrations.downgrade):
        command(empty_database, folder, lines.setdefault(command, []).append)

    edited = (
        f"migrations/{FIRST}:1: was edited after it was applied: undo the edit and write a new"
        " migration; to keep the edit, run: update schema_migrations set checksum = null"
        " where version = '20260101000000'"
    )
    assert list(lines.values()) == [
        [edited],
        [edited, f"applied {SECOND}"],
        [edited, f"took back {SECOND}"],
    ]


def test_an_edit_can_be_kept(empty_database: str, folder: Path) -> None:
    """The statement in the report ends the reports, until the next edit."""
    fill(folder, {FIRST: CREATE_A})
    migrations.upgrade(empty_database, folder, ignore)
    fill(folder, {FIRST: f"-- why\n{CREATE_A}"})
    lines: list[str] = []

    migrations.status(empty_database, folder, lines.append)
    query(empty_database, lines.pop().partition(" run: ")[2])
    migrations.upgrade(empty_database, folder, lines.append)
    migrations.status(empty_database, folder, lines.append)
    fill(folder, {FIRST: CREATE_A})
    migrations.status(empty_database, folder, lines.append)

    assert len(lines) == 2
    assert lines[0] == "nothing to do: the newest migration is 20260101000000"
    assert "was edited" in lines[1]


def test_other_line_ends_are_no_edit(empty_database: str, folder: Path) -> None:
    """A checkout on Windows, or an editor's byte order mark, changes nothing."""
    fill(folder, {FIRST: CREATE_A})
    migrations.upgrade(empty_database, folder, ignore)
    (folder / FIRST).write_bytes(b"\xef\xbb\xbf" + CREATE_A.replace("\n", "\r\n").encode())
    lines: list[str] = []

    migrations.status(empty_database, folder, lines.append)

    assert lines == []


# Histories that do not add up


def test_a_file_older_than_what_is_applied_is_refused(empty_database: str, folder: Path) -> None:
    """A branch merged late is never skipped in silence, nor is anything after it applied."""
    fill(folder, {FIRST: CREATE_A, THIRD: CREATE_C})
    migrations.upgrade(empty_database, folder, ignore)
    fill(folder, {SECOND: CREATE_B, "20260104000000_create_d.sql": "-- migrate:up\n"})

    with pytest.raises(OperatorError, match=rf"migrations/{SECOND}:1: .* give it a new timestamp"):
        migrations.upgrade(empty_database, folder, ignore)

    assert tables(empty_database) == {"a", "c"}
    assert recorded(empty_database)[0] == ["20260103000000"]


def test_a_database_that_is_ahead_is_left_alone(empty_database: str, folder: Path) -> None:
    """The release before this one can be deployed again without taking migrations back."""
    fill(folder, {FIRST: CREATE_A, SECOND: CREATE_B})
    migrations.upgrade(empty_database, folder, ignore)
    (folder / SECOND).unlink()
    lines: list[str] = []

    migrations.upgrade(empty_database, folder, lines.append)

    assert lines == [
        "nothing to do: the database is ahead, at 20260102000000; the newest file is 20260101000000"
    ]
    assert tables(empty_database) == {"a", "b"}
    with pytest.raises(OperatorError, match="20260102000000 is applied but its file is missing"):
        migrations.downgrade(empty_database, folder, ignore)


def test_a_missing_file_in_the_middle_is_refused(empty_database: str, folder: Path) -> None:
    """What is applied between two files is part of what the later ones build on."""
    fill(folder, {FIRST: CREATE_A, SECOND: CREATE_B})
    migrations.upgrade(empty_database, folder, ignore)
    (folder / SECOND).unlink()
    fill(folder, {THIRD: CREATE_C})

    with pytest.raises(OperatorError, match="20260102000000 is applied but its file is missing"):
        migrations.upgrade(empty_database, folder, ignore)

    assert tables(empty_database) == {"a", "b"}


def test_a_lost_ledger_is_refused(empty_database: str, folder: Path) -> None:
    """A version in alembic_version alone is another application's, or all that is left of ours."""
    fill(folder, {FIRST: CREATE_A})
    migrations.upgrade(empty_database, folder, ignore)
    query(empty_database, "drop table schema_migrations")

    with pytest.raises(OperatorError, match="20260101000000, but the table schema_migrations is"):
        migrations.upgrade(empty_database, folder, ignore)

    assert query(empty_database, "select * from alembic_version") == [("20260101000000",)]


def test_a_ledger_of_another_shape_is_one_line(empty_database: str, folder: Path) -> None:
    """The table of another tool is refused, and stays as it is."""
    fill(folder, {FIRST: CREATE_A})
    query(empty_database, "create table schema_migrations (name text)")

    for command in (migrations.upgrade, migrations.downgrade, migrations.status):
        with pytest.raises(OperatorError, match="the table schema_migrations has no column ver"):
            command(empty_database, folder, ignore)

    assert query(empty_database, "select * from schema_migrations") == []


# Offline


def psql(url: str, script: str, path: Path) -> None:
    """Run a script as a DBA does."""
    path.write_text(script, "utf-8")
    subprocess.run(
        [installed_programs() / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", path, url],
        check=True,
        capture_output=True,
        timeout=60,
    )


def test_offline_sql_does_what_upgrade_does(
    empty_database: str, folder: Path, tmp_path: Path
) -> None:
    """A DBA who runs the script by hand gets the same schema, and upgrade agrees with it."""
    fill(
        folder,
        {
            FIRST: "-- migrate:up\ncreate table a (id integer) -- no semicolon",
            SECOND: INDEX,
            THIRD: "-- migrate:up\n",
            "20260104000000_create_d.sql": (
                "-- migrate:up\ncreate table d as select '% :foo\t%s \\'::text as d, $$;$$ as e"
            ),
        },
    )
    psql(empty_database, migrations.render_offline_sql(folder), tmp_path / "all.sql")
    by_script = (
        query(empty_database, SCHEMA),
        query(empty_database, "select * from d"),
        recorded(empty_database),
    )
    checksums = dict(query(empty_database, CHECKSUMS))
    lines: list[str] = []
    migrations.upgrade(empty_database, folder, lines.append)
    query(empty_database, "drop schema public cascade")
    query(empty_database, "create schema public")

    migrations.upgrade(empty_database, folder, ignore)

    assert lines == ["nothing to do: the newest migration is 20260104000000"]
    assert checksums == dict(query(empty_database, CHECKSUMS))
    assert by_script == (
        query(empty_database, SCHEMA),
        query(empty_database, "select * from d"),
        recorded(empty_database),
    )
    assert by_script[1] == [("% :foo\t%s \\", ";")]


def test_the_projects_offline_sql_can_be_taken_back(empty_database: str, tmp_path: Path) -> None:
    """After the script, downgrade goes on where upgrade would have left off."""
    own = ROOT / "migrations"

    psql(empty_database, migrations.render_offline_sql(own), tmp_path / "all.sql")

    for _ in migration_files.list_versions(own):
        migrations.downgrade(empty_database, own, ignore)
    assert tables(empty_database) == set()


# Out of reach


def test_a_database_out_of_reach_is_one_line_without_the_password(folder: Path) -> None:
    """The operator learns what is not answering; the log learns no secret."""
    with pytest.raises(OperatorError) as caught:
        migrations.status("postgresql://movies:s3cret@127.0.0.1:1/movies", folder, ignore)

    assert str(caught.value).startswith("the database is out of reach: ")
    assert "127.0.0.1" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


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
def test_a_url_that_cannot_be_read_never_shows(folder: Path, url: str) -> None:
    """No part of a password that was not escaped is taken for a host and repeated."""
    with pytest.raises(OperatorError, match="the database's URL cannot be read") as caught:
        migrations.upgrade(url, folder, ignore)

    assert "cret" not in str(caught.value)
    assert "s3" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_the_urls_own_options_are_kept(empty_database: str, folder: Path) -> None:
    """A schema chosen in the URL is where the tables go, and the time limits still hold."""
    query(empty_database, "create schema other")
    show = "create table a as select current_setting('lock_timeout'), 1 as b;"
    fill(folder, {FIRST: f"-- migrate:up\n{show}\n"})

    migrations.upgrade(f"{empty_database}&options=-csearch_path%3Dother", folder, ignore)

    assert query(empty_database, "select * from other.a") == [("5s", 1)]
    assert query(empty_database, "select version from other.schema_migrations") != []
