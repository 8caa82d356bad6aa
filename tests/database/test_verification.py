"""Tests the verification of a real database: its migrations, and every query."""

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiopg
import psycopg2
import pytest
from support import Execute, add_movies, set_for_database, with_user

from service.config import Config
from service.database import query_files
from service.database.connections import Connector
from service.database.migrations import files as migration_files
from service.database.migrations import runner as migrations
from service.database.queries import Expected
from service.database.verification import make_verifier, verify_database
from service.errors import Contended, OperatorError, Unavailable
from service.queries import EXPECTED, verify_queries

ROOT = Path(__file__).parents[2]
VERSIONS = migration_files.list_versions(ROOT / "migrations")

Verify = Callable[..., Awaitable[bool]]


READ = "-- set: transaction_read_only = on\n"


def reads(*parameters: str, **columns: Any) -> Expected:
    """Expect a query that reads to return `column=type`."""
    return Expected(columns, [dict.fromkeys(parameters)], "a test")


def writes(*parameters: str, **columns: Any) -> Expected:
    """Expect a query that writes to return `column=type`."""
    return reads(*parameters, **columns)._replace(writes=True)


@pytest.fixture
async def connection(settings: Callable[..., Config]) -> AsyncIterator[aiopg.Connection]:
    """A connection to the test's database, as the pool opens one."""
    connection = await Connector(settings().database).connect()
    yield connection
    connection.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the queries about the schema; tests add others."""
    text = (ROOT / "queries" / "schema.sql").read_text("utf-8")
    (tmp_path / "schema.sql").write_text(text)
    return tmp_path


@pytest.fixture
def verify(connection: aiopg.Connection, folder: Path) -> Verify:
    """Verify the test's database with the queries of the folder; `name=Expected(...)`."""

    async def run(**expected: Expected) -> bool:
        loaded = query_files.load(folder, expected)
        return await verify_database(connection, VERSIONS, loaded, expected)

    return run


@pytest.fixture
def refused(verify: Verify, folder: Path) -> Callable[..., Awaitable[str]]:
    """Verify a file a.sql with this text, which must be refused; return the reason."""

    async def run(text: str, **expected: Expected) -> str:
        (folder / "a.sql").write_bytes(text.encode())
        with pytest.raises(OperatorError) as caught:
            await verify(**expected)
        return str(caught.value).removeprefix(f"{folder}/")

    return run


Refused = Callable[..., Awaitable[str]]


# Migrations.


async def test_a_migrated_database_is_accepted(connection: aiopg.Connection) -> None:
    """The service's queries fit the schema of its migrations."""
    loaded = query_files.load(ROOT / "queries", EXPECTED)

    await verify_database(connection, VERSIONS, loaded, EXPECTED)

    assert not connection.closed
    assert loaded.keys() == EXPECTED.keys()


async def test_an_empty_database_waits_for_its_migrations(
    settings: Callable[..., Config], empty_database: str, folder: Path
) -> None:
    """Where nothing was ever migrated, the first migration is named."""
    connection = await Connector(replace(settings().database, url=empty_database)).connect()
    loaded = query_files.load(folder, {})

    with closing(connection), pytest.raises(Unavailable) as caught:
        await verify_database(connection, VERSIONS, loaded, {})

    assert str(caught.value) == (
        "migration 20260105090000 has not been applied: run python -m service migrate"
    )


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
async def test_a_database_that_is_behind_waits_for_its_migrations(
    verify: Verify, execute: Execute, version: str
) -> None:
    """The message names the missing migration, even if a newer one is applied."""
    execute("delete from schema_migrations where version = %s", version)

    with pytest.raises(Unavailable, match=f"migration {version} has not been applied"):
        await verify()


async def test_a_database_that_is_ahead_is_fine(verify: Verify, execute: Execute) -> None:
    """During a deployment, the old code works with the new schema."""
    execute("insert into schema_migrations (version) values ('29990101000000')")
    execute("alter table movies add column rating integer")

    await verify()


async def test_migrations_are_verified_before_queries(
    verify: Verify, folder: Path, execute: Execute
) -> None:
    """A query may need a migration that is missing."""
    execute("delete from schema_migrations where version = %s", VERSIONS[-1])
    (folder / "a.sql").write_text("-- name: get_a()\nselect rating from movies;\n")

    with pytest.raises(Unavailable):
        await verify()


# Errors of PostgreSQL, and their lines.


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("select id\nform movies;", '3: syntax error at or near "movies"'),
        ("select id,\n  titel\nfrom movies;", '3: column "titel" does not exist'),
        ("select id,\r\n  titel\r\nfrom movies;\r\n", '3: column "titel" does not exist'),
        ("select id\nfrom movies\nwhere f(id);", "4: function f(bigint) does not exist"),
        ("select id\nfrom films;", '3: relation "films" does not exist'),
        ("select 1 / 0\nfrom movies limit 0;", "1: division by zero"),  # an error without a place
        (
            "insert into movies (title,\n  yaer)\nvalues ('a', 1)\nreturning id;",
            '3: column "yaer" of relation "movies" does not exist',
        ),
        (
            "delete from movies\nwhere id = 1\nreturning\n  titel;",
            '5: column "titel" does not exist',
        ),
        ("analyze movis;", '2: relation "movis" does not exist'),
    ],
)
async def test_a_refusal_by_postgresql_has_its_line(
    refused: Refused, text: str, reason: str
) -> None:
    """The message has file and line; if PostgreSQL gives no place, the query's name."""
    assert await refused(f"-- name: get_a()\n{text}\n") == f"a.sql:{reason}"


async def test_lines_are_right_after_comments_and_parameters(refused: Refused) -> None:
    """Comments, long names and other queries before it do not change the line."""
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


async def test_a_parameter_that_does_not_fit_is_refused(refused: Refused) -> None:
    """An operator that does not accept the type beside the parameter is refused."""
    reason = await refused("-- name: get_a(ids)\nselect id from movies\nwhere title + 1 = :ids;")

    assert reason == "a.sql:3: operator does not exist: text + integer"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("select s.versoin\nfrom schema_migrations as s;", 3),
        ("select version\nform schema_migrations;", 4),
        ("select version, 1 from schema_migrations;", 1),
        ("select version from schema_migration;", 3),
    ],
)
async def test_an_error_in_the_query_of_migrations_has_its_line(
    verify: Verify, folder: Path, text: str, line: int
) -> None:
    """It is the first query sent."""
    (folder / "schema.sql").write_text(f"-- name: get_applied_migrations()\n{READ}{text}")

    with pytest.raises(OperatorError) as caught:
        await verify(get_applied_migrations=reads(version=str))

    assert str(caught.value).startswith(f"{folder}/schema.sql:{line}: ")


# Result columns.

TWO = f"-- name: get_a()\n{READ}select m.id, m.title\nfrom movies as m;\n"


async def test_the_expected_columns_are_fine(verify: Verify, folder: Path) -> None:
    """A query with the expected columns, in that order, is accepted."""
    (folder / "a.sql").write_text(TWO)

    await verify(get_a=reads(id=int, title=str))


@pytest.mark.parametrize(
    "columns", [("id",), ("id", "title", "year"), ("title", "id"), ("id", "name"), ()]
)
async def test_other_columns_than_expected_are_refused(
    refused: Refused, columns: tuple[str, ...]
) -> None:
    """A missing, renamed, reordered or additional column is refused at the query's line."""
    reason = await refused("\n" + TWO, get_a=reads(**dict.fromkeys(columns, int)))

    assert reason == (
        f"a.sql:2: get_a must return the columns {', '.join(columns)}; it returns id, title"
    )


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("title", "must return the columns id; it returns title"),
        ("id::text", "must return id as bigint or integer or smallint, not text"),
    ],
)
async def test_columns_of_a_write_are_verified(refused: Refused, column: str, reason: str) -> None:
    """Their names and types are compared as for a read."""
    refusal = await refused(
        f"-- name: drop_a(ids)\ndelete from movies where id = any (:ids) returning {column};\n",
        drop_a=writes("ids", id=int),
    )

    assert refusal == f"a.sql:1: drop_a {reason}"


INTEGERS = "bigint or integer or smallint"
TEXTS = "text or character varying"
ARRAYS = "text[] or character varying[]"
TIME = "timestamp with time zone"


@pytest.mark.parametrize(
    ("column", "kind", "reason"),
    [
        ("m.id::text", int, f"{INTEGERS}, not text"),
        ("m.id::numeric", int, f"{INTEGERS}, not numeric"),
        ("m.id::float8", int, f"{INTEGERS}, not double precision"),
        ("(m.year = 2000)", int, f"{INTEGERS}, not boolean"),
        ("m.year", bool, "boolean, not integer"),
        ("m.title::bytea", str, f"{TEXTS}, not bytea"),
        ("m.created_at::date", datetime, f"{TIME}, not date"),
        ("m.created_at::timestamp", datetime, f"{TIME}, not timestamp without time zone"),
        ("m.genres::text", list[str], f"{ARRAYS}, not text"),
        ("to_jsonb(m.genres)", list[str], f"{ARRAYS}, not jsonb"),
        ("'{1}'::integer[]", list[str], f"{ARRAYS}, not integer[]"),
    ],
)
async def test_a_column_of_another_type_is_refused(
    refused: Refused, column: str, kind: Any, reason: str
) -> None:
    """The driver would return values of another type, and every response would be wrong."""
    assert (
        await refused(
            f"\n-- name: get_a()\n{READ}select {column} as x\nfrom movies as m;\n",
            get_a=reads(x=kind),
        )
        == f"a.sql:2: get_a must return x as {reason}"
    )


async def test_a_narrower_or_wider_type_is_accepted(verify: Verify, folder: Path) -> None:
    """The driver reads it in the same way."""
    (folder / "a.sql").write_text(
        f"-- name: get_a()\n{READ}select m.id::integer as a, m.year::smallint as b,"
        " m.title::varchar(9) as c, m.genres::varchar[] as d, m.created_at::timestamptz(3) as e"
        " from movies as m;\n"
    )

    assert await verify(get_a=reads(a=int, b=int, c=str, d=list[str], e=datetime))


# Reads that write.


WRITES = "get_a must only read: it contains "


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("delete from movies returning id", f"{WRITES}delete on movies"),
        ("update movies set year = 2000 returning id", f"{WRITES}update on movies"),
        (
            "with d as (delete from movies returning id) select id from d",
            f"{WRITES}delete on movies",
        ),
        (
            "with d as (insert into movies default values returning id) select id from d",
            f"{WRITES}insert on movies",
        ),
        # Each request would fail.
        (
            "select id from movies for update",
            "cannot execute SELECT FOR UPDATE in a read-only transaction",
        ),
    ],
)
async def test_a_read_that_writes_is_refused(refused: Refused, sql: str, reason: str) -> None:
    """Otherwise one GET could empty the table."""
    refusal = await refused(f"-- name: get_a()\n{READ}{sql};\n", get_a=reads(id=int))

    assert refusal == f"a.sql:1: {reason}"


async def test_a_write_that_lost_its_condition_is_refused(
    refused: Refused, execute: Execute
) -> None:
    """If there are movies, a write that changes more than requested is refused."""
    add_movies(execute, "Moana")

    reason = await refused(
        "-- name: drop_a(ids)\ndelete from movies where :ids::text is null returning id;\n",
        drop_a=writes("ids", id=int),
    )

    assert reason.startswith("a.sql:1: delete changed 1 movies, but at most 0 were requested")
    assert execute("select title from movies") == [("Moana",)]


# The encoding.


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_a_database_in_another_encoding_is_refused(
    server_url: str,
    maintain: Callable[[str], None],
    settings: Callable[..., Config],
    encoding: str,
) -> None:
    """By `migrate`, before its first migration, and by the start; one line names the remedy."""
    name = f"test_{encoding.lower()}_{os.getpid()}"
    maintain(f"create database {name} encoding '{encoding}' locale 'C' template template0")
    try:
        url = urlsplit(server_url)._replace(path=f"/{name}").geturl()
        with pytest.raises(OperatorError) as migrating:
            migrations.upgrade(url, ROOT / "migrations", lambda _: None)
        connection = await Connector(replace(settings().database, url=url)).connect()
        with closing(connection), pytest.raises(OperatorError) as starting:
            await verify_database(connection, VERSIONS, {}, EXPECTED)
    finally:
        maintain(f"drop database {name} with (force)")

    for refusal in (migrating, starting):
        assert str(refusal.value) == (
            f"the database's encoding is {encoding}, but the service needs UTF8: create another one"
            " with: create database NAME encoding 'UTF8' locale 'C' template template0"
        )


# Settings and samples.


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("work_mems = 8MB", 'unrecognized configuration parameter "work_mems"'),
        ("work_mem = 8XB", 'invalid value for parameter "work_mem": "8XB"'),
        ("jit = perhaps", 'parameter "jit" requires a Boolean value'),
        ("server_version = 9", 'parameter "server_version" cannot be changed'),
    ],
)
async def test_a_wrong_setting_is_refused_at_its_line(
    refused: Refused, setting: str, reason: str
) -> None:
    """PostgreSQL checks each setting."""
    text = f"-- name: get_a()\n-- A comment.\n-- set: {setting}\nselect 1;\n"

    assert await refused(text) == f"a.sql:3: {reason}"


async def test_a_statement_is_verified_with_its_settings(
    refused: Refused, execute: Execute
) -> None:
    """The statement is verified as it is sent."""
    execute("create schema other")

    reason = await refused("-- name: get_a()\n-- set: search_path = other\nselect id from movies;")

    assert reason == 'a.sql:3: relation "movies" does not exist'


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        # With null, this would be accepted, and each request would fail.
        ("title = :size", "operator does not exist: text = integer"),
        ("id = 1 / coalesce(:size, 0)", "division by zero"),
    ],
)
async def test_each_sample_is_verified(refused: Refused, condition: str, reason: str) -> None:
    """A query is verified with values that the service sends, and with null if the service does."""
    refusal = await refused(
        f"-- name: get_a(size)\n{READ}select id from movies where {condition};\n",
        get_a=reads(id=int)._replace(samples=[{"size": 20}, {"size": None}]),
    )

    assert refusal.endswith(f": {reason}")


# Privileges.


@pytest.fixture
async def clerk(
    settings: Callable[..., Config], execute: Execute, database: str
) -> AsyncIterator[aiopg.Connection]:
    """A connection of a role with all privileges except those that the test revokes."""
    ((name,),) = execute("select current_database()")
    role = f"clerk_{name}"
    execute(
        f"create role {role} login;"
        f" grant all on all tables in schema public to {role};"
        f" grant all on all sequences in schema public to {role}"
    )
    login = replace(settings().database, url=with_user(database, role))
    connection = await Connector(login).connect()
    yield connection
    connection.close()


@pytest.mark.parametrize(
    ("revoked", "reason"),
    [
        ("update on movies_id_seq", None),
        ("usage on movies_id_seq", None),
        (
            "update, usage on movies_id_seq",
            "create_movies needs the privilege USAGE on the sequence movies_id_seq",
        ),
        ("select on movies", "permission denied for table movies"),
        ("delete on movies", "permission denied for table movies"),
        ("insert on idempotency_keys", "permission denied for table idempotency_keys"),
        ("select on schema_migrations", "permission denied for table schema_migrations"),
    ],
)
async def test_a_missing_privilege_is_reported(
    clerk: aiopg.Connection, execute: Execute, revoked: str, reason: str | None
) -> None:
    """A missing privilege is reported before the first request."""
    ((name,),) = execute("select current_database()")
    execute(f"revoke {revoked} from clerk_{name}")
    names = ("get_applied_migrations", "get_movies", "create_movies", "create_movies_once")
    expected = {name: EXPECTED[name] for name in (*names, "delete_movies")}
    loaded = query_files.load(ROOT / "queries", expected)
    loaded = {name: loaded[name] for name in expected}

    if reason is None:
        assert await verify_database(clerk, VERSIONS, loaded, expected)
        return
    with pytest.raises(OperatorError) as caught:
        await verify_database(clerk, VERSIONS, loaded, expected)
    assert str(caught.value).endswith(reason)


async def test_every_kind_of_statement_can_be_verified(verify: Verify, folder: Path) -> None:
    """Statements that psql runs unchanged are accepted; a parameter may be used twice."""
    statements = [
        "select id from movies; -- done",
        "select id from movies -- done",
        "select id from movies order by id limit 1;",
        "select id from movies for update;",
        "(select id from movies) union all select 1::bigint;",
        "with a as (select 1 as id) select id from a;",
        "select 'Insert on movies' as id;",  # text like a plan
        "select '100%' as id;",
        "values (1);",
        "delete from movies where id = 1;",
        "with d as (delete from movies returning id) select id from d;",
        "select 1 as id, 2 as id;",
        "analyze movies;",
        "analyze public.movies;",
    ]
    text = "".join(f"-- name: get_{n}()\n{sql}\n" for n, sql in enumerate(statements))
    (folder / "a.sql").write_text(
        f"{text}-- name: get_a(ids, title, n)\n{READ}select id, :title::text as t\nfrom movies\n"
        "where (:title is null or title = :title)\n  and id = any (:ids) limit :n;\n"
    )

    await verify(get_a=reads("ids", "title", "n", id=int, t=str))


# Effects of verifying.


async def test_verifying_changes_nothing(
    connection: aiopg.Connection, folder: Path, execute: Execute
) -> None:
    """Verifying changes neither rows nor the sequence of ids."""
    (folder / "a.sql").write_text(
        "-- name: drop_all()\ndelete from movies returning id;\n"
        "-- name: rename_all()\nupdate movies set title = 'x' returning id;\n"
        "-- name: add_one()\ninsert into movies (id, title, year, runtime, genres)\n"
        "overriding system value values (99, 'x', 2000, 1, '{x}') returning id;\n"
        "-- name: get_next()\nselect nextval('movies_id_seq');\n"
    )
    add_movies(execute, "Moana")
    state = "select m::text, (select last_value from movies_id_seq) from movies as m"
    before = execute(state)
    loaded = query_files.load(ROOT / "queries", EXPECTED) | query_files.load(folder, {})

    await verify_database(connection, VERSIONS, loaded, EXPECTED)

    assert execute(state) == before


async def test_verifying_leaves_no_lock(verify: Verify, folder: Path, execute: Execute) -> None:
    """The first user gets the connection without a transaction."""
    (folder / "a.sql").write_text("-- name: drop_a(ids)\ndelete from movies where id = :ids;\n")

    await verify()

    execute("set lock_timeout = '1s'; lock table movies")


async def test_a_refusal_leaves_the_connection_usable(
    refused: Refused, connection: aiopg.Connection
) -> None:
    """After a failed query, no transaction is open."""
    await refused("-- name: get_a()\nselect nonsense;\n")

    async with connection.cursor() as cursor:
        await cursor.execute("select 1")
        rows = await cursor.fetchall()

    assert rows == [(1,)]
    status = connection.raw.info.transaction_status
    assert status == psycopg2.extensions.TRANSACTION_STATUS_IDLE


# Temporary failures, which are no query's fault.


@pytest.fixture
async def read_only(
    settings: Callable[..., Config], execute: Execute
) -> AsyncIterator[aiopg.Connection]:
    """A connection to the test's database, which is read-only, like a standby."""
    set_for_database(execute, "default_transaction_read_only = on")
    connection = await Connector(settings().database).connect()
    yield connection
    connection.close()


async def test_a_read_only_database_is_verified_as_far_as_possible(
    read_only: aiopg.Connection,
) -> None:
    """A standby serves reads; writes are verified when it becomes writable."""
    loaded = query_files.load(ROOT / "queries", EXPECTED)

    assert not await verify_database(read_only, VERSIONS, loaded, EXPECTED)


async def test_a_standby_is_verified_on_its_first_connection_only(
    read_only: aiopg.Connection,
) -> None:
    """A burst of new connections to a standby does not verify every query on each of them."""
    loaded = query_files.load(ROOT / "queries", EXPECTED)
    verify = make_verifier(VERSIONS, loaded, EXPECTED)

    first = await verify(read_only)
    loaded.clear()  # to verify again would fail

    assert (first, await verify(read_only)) == (False, False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{READ}select titel from movies;", 'a.sql:3: column "titel" does not exist'),
        (f"{READ}select id::text as id from movies;", "a.sql:1: get_a must return id as bigint"),
        ("delete from movie returning id;", 'a.sql:2: relation "movie" does not exist'),
    ],
)
async def test_mistakes_are_found_in_a_read_only_database(
    read_only: aiopg.Connection, folder: Path, text: str, reason: str
) -> None:
    """Mistakes that `explain` and reads show."""
    (folder / "a.sql").write_text(f"-- name: get_a()\n{text}")
    expected = {"get_a": reads(id=int)._replace(writes=READ not in text)}
    loaded = query_files.load(folder, expected)

    with pytest.raises(OperatorError) as caught:
        await verify_database(read_only, VERSIONS, loaded, expected)

    assert str(caught.value).removeprefix(f"{folder}/").startswith(reason)


async def test_a_timeout_of_verifying_names_the_query(
    verify: Verify, folder: Path, database: str
) -> None:
    """If a query waits for a lock, the message has its name, file and line."""
    (folder / "a.sql").write_text("\n-- name: get_a()\nselect id from movies;\n")

    with closing(psycopg2.connect(database)) as holder:
        holder.cursor().execute("lock table movies")
        with pytest.raises(Contended) as caught:
            await verify()

    assert str(caught.value) == (
        f"{folder.name}/a.sql:2: get_a could not be checked:"
        " canceling statement due to statement timeout"
    )


@pytest.mark.parametrize("lock_timeout", ["0", "50ms"])
async def test_a_table_that_is_locked_blames_no_query(
    settings: Callable[..., Config],
    folder: Path,
    execute: Execute,
    database: str,
    lock_timeout: str,
) -> None:
    """A migration that locks a table makes verifying fail temporarily, in server or driver."""
    set_for_database(execute, f"lock_timeout = '{lock_timeout}'")
    (folder / "a.sql").write_text(TWO)
    loaded = query_files.load(folder, {})
    connection = await Connector(settings(database__connect_timeout=0.5).database).connect()

    with closing(psycopg2.connect(database)) as holder, closing(connection):
        holder.cursor().execute("lock table movies")
        with pytest.raises((TimeoutError, psycopg2.OperationalError, Unavailable)):
            await verify_database(connection, VERSIONS, loaded, {})


async def test_a_connection_that_breaks_blames_no_query(
    verify: Verify, connection: aiopg.Connection, execute: Execute
) -> None:
    """A restart of the database during verifying is no query's fault."""
    execute("select pg_terminate_backend(%s, 5000)", connection.raw.info.backend_pid)

    with pytest.raises(psycopg2.OperationalError):
        await verify()


async def test_a_silent_database_is_reported_in_one_line(settings: Callable[..., Config]) -> None:
    """In `queries check`, and before a reload."""
    config = settings(database__connect_timeout=0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/a"
        with pytest.raises(OperatorError, match="timeout expired"):
            await verify_queries(replace(config, database=replace(config.database, url=url)), {})
