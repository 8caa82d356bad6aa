"""Whether a real database is as the service needs it: migrated, and fit for every query."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiopg
import psycopg2
import pytest

from service.config import Config
from service.database import migration_files, queries
from service.database.pool import connect
from service.database.queries import Expected
from service.database.schema import Schema
from service.errors import OperatorError, Unavailable

ROOT = Path(__file__).parents[2]
VERSIONS = migration_files.versions(ROOT / "migrations")

Execute = Callable[..., list[tuple[Any, ...]]]
Prove = Callable[..., Awaitable[None]]


@pytest.fixture
async def connection(settings: Callable[..., Config]) -> AsyncIterator[aiopg.Connection]:
    """A connection to the test's database, as the pool opens one."""
    connection = await connect(settings().database)
    yield connection
    connection.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the queries: those about the schema, and others that a test adds."""
    text = (ROOT / "queries" / "schema.sql").read_text("utf-8")
    (tmp_path / "schema.sql").write_text(text)
    return tmp_path


@pytest.fixture
def prove(connection: aiopg.Connection, folder: Path) -> Prove:
    """Prove the test's database with the queries of the folder; `name=Expected(...)`."""

    async def run(**expected: Expected) -> None:
        loaded = queries.load(folder, expected)
        await Schema(VERSIONS, loaded, expected).prove(connection)

    return run


@pytest.fixture
def refused(prove: Prove, folder: Path) -> Callable[..., Awaitable[str]]:
    """Prove with a file a.sql of this text, which must be refused, and return why."""

    async def run(text: str, **expected: Expected) -> str:
        (folder / "a.sql").write_text(text)
        with pytest.raises(OperatorError) as caught:
            await prove(**expected)
        return str(caught.value).removeprefix(f"{folder}/")

    return run


Refused = Callable[..., Awaitable[str]]


# Migrations.


async def test_a_migrated_database_is_fit(connection: aiopg.Connection) -> None:
    """The service's own queries fit the schema of its own migrations."""
    from service.app import EXPECTED  # noqa: PLC0415 - the one test that looks beyond this module

    loaded = queries.load(ROOT / "queries", EXPECTED)

    await Schema(VERSIONS, loaded, EXPECTED).prove(connection)

    assert not connection.closed


async def test_an_empty_database_waits_for_its_migrations(
    settings: Callable[..., Config], empty_database: str, folder: Path
) -> None:
    """Where nothing was ever migrated, the first migration is named."""
    connection = await connect(replace(settings().database, url=empty_database))
    schema = Schema(VERSIONS, queries.load(folder, {}), {})

    with closing(connection), pytest.raises(Unavailable) as caught:
        await schema.prove(connection)

    assert str(caught.value) == (
        "migration 20260105090000 has not been applied: run the migrations"
    )


async def test_a_database_that_is_behind_waits_for_its_migrations(
    prove: Prove, execute: Execute
) -> None:
    """The first migration that is missing is named."""
    execute("delete from schema_migrations where version = %s", VERSIONS[-1])

    with pytest.raises(Unavailable, match=f"migration {VERSIONS[-1]} has not been applied"):
        await prove()


async def test_a_hole_in_the_migrations_is_seen(prove: Prove, execute: Execute) -> None:
    """A newer migration does not stand for an older one."""
    execute("delete from schema_migrations where version = %s", VERSIONS[0])

    with pytest.raises(Unavailable, match=f"migration {VERSIONS[0]} has not been applied"):
        await prove()


async def test_a_database_that_is_ahead_is_fine(prove: Prove, execute: Execute) -> None:
    """While a release goes out, the old code works on with the new schema."""
    execute("insert into schema_migrations (version) values ('29990101000000')")
    execute("alter table movies add column rating integer")

    await prove()


async def test_queries_are_not_asked_about_before_the_migrations(
    prove: Prove, folder: Path, execute: Execute
) -> None:
    """What a query lacks may come with a migration that is still missing."""
    execute("delete from schema_migrations where version = %s", VERSIONS[-1])
    (folder / "a.sql").write_text("-- name: get_a()\nselect rating from movies;\n")

    with pytest.raises(Unavailable):
        await prove()


# What PostgreSQL refuses, and where.


async def test_a_syntax_error_is_told_where_it_is(refused: Refused) -> None:
    """A syntax error is refused with its file and line."""
    reason = await refused("-- name: get_a()\nselect id\nform movies;\n")

    assert reason == 'a.sql:3: syntax error at or near "movies"'


async def test_an_unknown_column_is_told_where_it_is(refused: Refused) -> None:
    """A column that does not exist is refused at its own line."""
    reason = await refused("-- name: get_a(ids)\nselect id,\n  titel\nfrom movies where id = :ids;")

    assert reason == 'a.sql:3: column "titel" does not exist'


async def test_an_unknown_function_is_told_where_it_is(refused: Refused) -> None:
    """So is a function that does not exist."""
    reason = await refused("-- name: get_a()\nselect id\nfrom movies\nwhere nonsense(id);\n")

    assert reason == "a.sql:4: function nonsense(bigint) does not exist"


async def test_an_unknown_table_is_told_where_it_is(refused: Refused) -> None:
    """And a table."""
    reason = await refused("-- name: get_a()\nselect id\nfrom films;\n")

    assert reason == 'a.sql:3: relation "films" does not exist'


async def test_lines_are_right_after_comments_and_parameters(refused: Refused) -> None:
    """Comments of all kinds, long names and other queries before it do not move the line."""
    text = (
        "-- A file.\n\n-- name: get_a(ids)\n-- A comment.\nselect id from movies where id = :ids;\n"
        "\n/* Of\n   two lines. */\n-- name: get_b(ids, a_rather_long_name)\n-- :ids are ids.\n\n"
        "select /* one\n  two */ id, -- it is the id\n  -- :ids, :a_rather_long_name\n\n"
        "  :a_rather_long_name::text, '🎬 100%'\nfrom movies\n-- here\nwhere id = any (:ids)\n"
        "  and titel is null; -- there\n"
    )

    reason = await refused(text)

    line = text[: text.index("titel")].count("\n") + 1
    assert reason == f'a.sql:{line}: column "titel" does not exist'


async def test_lines_are_right_with_the_line_ends_of_windows(prove: Prove, folder: Path) -> None:
    """CRLF counts as one line end."""
    text = "-- name: get_a()\r\n-- A comment.\r\nselect\r\n  titel\r\nfrom movies;\r\n"
    (folder / "a.sql").write_bytes(text.encode())

    with pytest.raises(OperatorError, match=r'a\.sql:4: column "titel" does not exist'):
        await prove()


async def test_an_error_without_a_place_is_told_with_the_query(refused: Refused) -> None:
    """Where PostgreSQL points at nothing, the query's own line is told."""
    reason = await refused("\n-- name: get_a()\nselect 1 / 0\nfrom movies limit 0;\n")

    assert reason == "a.sql:2: division by zero"


async def test_an_error_in_a_write_is_told_where_it_is(refused: Refused) -> None:
    """Writes are looked at as closely as reads."""
    reason = await refused(
        "-- name: add_a(title)\ninsert into movies (title,\n  yaer)\nvalues (:title, 1)\n"
        "returning id;\n"
    )

    assert reason == 'a.sql:3: column "yaer" of relation "movies" does not exist'


async def test_an_error_in_what_a_write_returns_is_told_where_it_is(refused: Refused) -> None:
    """Also behind `returning`."""
    reason = await refused(
        "-- name: drop_a(ids)\ndelete from movies\nwhere id = any (:ids)\nreturning\n  titel;\n"
    )

    assert reason == 'a.sql:5: column "titel" does not exist'


async def test_a_parameter_that_does_not_fit_is_told(refused: Refused) -> None:
    """An operator that cannot take what stands beside the parameter is refused."""
    reason = await refused("-- name: get_a(ids)\nselect id from movies\nwhere title + 1 = :ids;")

    assert reason == "a.sql:3: operator does not exist: text + integer"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("-- name: get_applied_migrations()\nselect s.versoin\nfrom schema_migrations as s;", 2),
        ("-- name: get_applied_migrations()\nselect version\nform schema_migrations;", 3),
        ("-- name: get_applied_migrations()\nselect version, 1 from schema_migrations;", 1),
        ("-- name: get_applied_migrations()\nselect version from schema_migration;", 2),
    ],
)
async def test_an_error_in_what_asks_for_the_migrations_is_told(
    prove: Prove, folder: Path, text: str, line: int
) -> None:
    """The query that everything begins with is no exception."""
    (folder / "schema.sql").write_text(text)

    with pytest.raises(OperatorError) as caught:
        await prove(get_applied_migrations=Expected((), ("version",)))

    assert str(caught.value).startswith(f"{folder}/schema.sql:{line}: ")


# Result columns.

TWO = "-- name: get_a()\nselect m.id, m.title\nfrom movies as m;\n"


async def test_the_expected_columns_are_fine(prove: Prove, folder: Path) -> None:
    """A query that returns what is expected of it, in that order, passes."""
    (folder / "a.sql").write_text(TWO)

    await prove(get_a=Expected((), ("id", "title")))


@pytest.mark.parametrize(
    "columns", [("id",), ("id", "title", "year"), ("title", "id"), ("id", "name"), ()]
)
async def test_other_columns_than_expected_are_refused(
    refused: Refused, columns: tuple[str, ...]
) -> None:
    """A missing, renamed, reordered or further column is refused at the query's line."""
    reason = await refused("\n" + TWO, get_a=Expected((), columns))

    assert reason == (
        f"a.sql:2: get_a must return the columns {', '.join(columns)}; it returns id, title"
    )


async def test_the_columns_of_a_write_count_too(refused: Refused) -> None:
    """So it is with what a write returns."""
    reason = await refused(
        "-- name: drop_a(ids)\ndelete from movies where id = any (:ids) returning id;\n",
        drop_a=Expected(("ids",), ("id", "title")),
    )

    assert reason == "a.sql:1: drop_a must return the columns id, title; it returns id"


async def test_a_query_of_a_dba_s_own_may_return_anything(prove: Prove, folder: Path) -> None:
    """Of what the service does not know, only that it prepares is asked."""
    (folder / "a.sql").write_text(TWO)

    await prove()


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("select id from movies; -- done", id="comment behind the semicolon"),
        pytest.param("select id from movies -- done", id="comment at the end"),
        pytest.param("select id from movies order by id limit 1;", id="order and limit"),
        pytest.param("select id from movies for update;", id="lock"),
        pytest.param("(select id from movies) union all select 1::bigint;", id="union"),
        pytest.param("with a as (select 1 as id) select id from a;", id="with"),
        pytest.param("select 'Insert on movies' as id;", id="text like a plan"),
        pytest.param("select '100%' as id;", id="percent sign"),
        pytest.param("values (1);", id="values"),
        pytest.param("delete from movies where id = 1;", id="delete that returns nothing"),
        pytest.param(
            "with d as (delete from movies returning id) select id from d;", id="write in with"
        ),
        pytest.param("select 1 as id, 2 as id;", id="two columns of a name"),
    ],
)
async def test_every_kind_of_statement_can_be_proven(prove: Prove, folder: Path, sql: str) -> None:
    """What psql runs as it stands passes."""
    (folder / "a.sql").write_text(f"-- name: get_a()\n{sql}\n")

    await prove()


async def test_parameters_may_stand_more_than_once(prove: Prove, folder: Path) -> None:
    """A parameter is null wherever it stands, typed or not."""
    (folder / "a.sql").write_text(
        "-- name: get_a(ids, title, n)\nselect id, :title::text as t\nfrom movies\n"
        "where (:title is null or title = :title)\n  and id = any (:ids) limit :n;\n"
    )

    await prove(get_a=Expected(("ids", "title", "n"), ("id", "t")))


# What proving leaves behind.


async def test_proving_changes_nothing(
    connection: aiopg.Connection, folder: Path, execute: Execute
) -> None:
    """Rows, and the sequence of ids, are after proving what they were before."""
    from service.app import EXPECTED  # noqa: PLC0415 - as above

    (folder / "a.sql").write_text(
        "-- name: drop_all()\ndelete from movies returning id;\n"
        "-- name: rename_all()\nupdate movies set title = 'x' returning id;\n"
        "-- name: add_one()\ninsert into movies (id, title, year, runtime, genres)\n"
        "overriding system value values (99, 'x', 2000, 1, '{x}') returning id;\n"
        "-- name: get_next()\nselect nextval('movies_id_seq');\n"
    )
    execute("insert into movies (title, year, runtime, genres) values ('Moana', 2016, 1, '{x}')")
    state = "select m::text, (select last_value from movies_id_seq) from movies as m"
    before = execute(state)
    loaded = queries.load(ROOT / "queries", EXPECTED) | queries.load(folder, {})

    await Schema(VERSIONS, loaded, EXPECTED).prove(connection)

    assert execute(state) == before


async def test_proving_leaves_no_lock(prove: Prove, folder: Path, execute: Execute) -> None:
    """The connection goes to its first user without a transaction."""
    (folder / "a.sql").write_text("-- name: drop_a(ids)\ndelete from movies where id = :ids;\n")

    await prove()

    execute("set lock_timeout = '1s'; lock table movies")


async def test_a_refusal_leaves_the_connection_usable(
    refused: Refused, connection: aiopg.Connection
) -> None:
    """After a query that failed, no transaction is open either."""
    await refused("-- name: get_a()\nselect nonsense;\n")

    async with connection.cursor() as cursor:
        await cursor.execute("select 1")
        rows = await cursor.fetchall()

    assert rows == [(1,)]
    status = connection.raw.info.transaction_status
    assert status == psycopg2.extensions.TRANSACTION_STATUS_IDLE


# What may pass, and so is no fault of a query.


async def test_a_database_that_is_read_only_blames_no_query(
    settings: Callable[..., Config], execute: Execute, database: str
) -> None:
    """During a failover the service starts all the same, and serves what it can or waits."""
    from service.app import EXPECTED  # noqa: PLC0415 - as above

    name = psycopg2.extensions.parse_dsn(database)["dbname"]
    execute(f"alter database {name} set default_transaction_read_only = on")
    connection = await connect(settings().database)
    schema = Schema(VERSIONS, queries.load(ROOT / "queries", EXPECTED), EXPECTED)

    with closing(connection):
        with suppress(Unavailable, psycopg2.errors.ReadOnlySqlTransaction):
            await schema.prove(connection)

        assert not connection.closed


@pytest.mark.parametrize("lock_timeout", ["0", "50ms"])
async def test_a_table_that_is_locked_blames_no_query(
    settings: Callable[..., Config],
    folder: Path,
    execute: Execute,
    database: str,
    lock_timeout: str,
) -> None:
    """A migration that holds a table makes proving fail for now: in the server or the driver."""
    name = psycopg2.extensions.parse_dsn(database)["dbname"]
    execute(f"alter database {name} set lock_timeout = '{lock_timeout}'")
    (folder / "a.sql").write_text(TWO)
    schema = Schema(VERSIONS, queries.load(folder, {}), {})
    connection = await connect(settings(database__connect_timeout=0.5).database)

    with closing(psycopg2.connect(database)) as holder, closing(connection):
        holder.cursor().execute("lock table movies")
        with pytest.raises((TimeoutError, psycopg2.OperationalError, Unavailable)):
            await schema.prove(connection)


async def test_a_connection_that_breaks_blames_no_query(
    prove: Prove, connection: aiopg.Connection, execute: Execute
) -> None:
    """A restart of the database in the midst of proving is no fault of a query."""
    execute("select pg_terminate_backend(%s, 5000)", connection.raw.info.backend_pid)

    with pytest.raises(psycopg2.OperationalError):
        await prove()
