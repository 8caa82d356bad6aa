"""Tests the verification of a real database: its migrations, and every query."""

import os
import re
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
from support import (
    Environment,
    Execute,
    Logs,
    add_movies,
    hold,
    run_here,
    set_for_database,
    with_user,
)

from service.app import EXPECTED, create_app
from service.config import Config
from service.database import connections, query_files
from service.database.connections import Connector
from service.database.migrations import files as migration_files
from service.database.migrations import runner as migrations
from service.database.query import Expected
from service.database.query_testing import explain_query
from service.database.verification import verify_database, verify_queries
from service.errors import Contended, OperatorError, Unavailable
from service.web.server import Runner

ROOT = Path(__file__).parents[2]
VERSIONS = migration_files.list_versions(ROOT / "migrations")
LOADED = query_files.load(ROOT / "queries", EXPECTED)

Verify = Callable[..., Awaitable[bool]]
Refused = Callable[..., Awaitable[str]]

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
    """Verify the test's database with a file a.sql with this text; `name=Expected(...)`."""

    async def run(text: str = "-- name: get_a()\nselect 1;", **expected: Expected) -> bool:
        (folder / "a.sql").write_bytes(text.encode())
        return await verify_database(connection, VERSIONS, query_files.load(folder, expected))

    return run


@pytest.fixture
def refused(verify: Verify, folder: Path) -> Refused:
    """Verify a text that must be refused; return the reason."""

    async def run(text: str, **arguments: Any) -> str:
        with pytest.raises(OperatorError) as caught:
            await verify(text, **arguments)
        return str(caught.value).removeprefix(f"{folder.name}/")

    return run


# Migrations.


async def test_an_empty_database_waits_for_its_migrations(
    settings: Callable[..., Config], empty_database: str
) -> None:
    """Where nothing was ever migrated, the first migration is named."""
    connection = await Connector(replace(settings().database, url=empty_database)).connect()

    with closing(connection), pytest.raises(Unavailable) as caught:
        await verify_database(connection, VERSIONS, LOADED)

    assert str(caught.value).startswith(
        "migration 20261124220000 has not been applied: run python -m service migrate; if it was"
    )


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
async def test_a_database_that_is_behind_waits_for_its_migrations(
    verify: Verify, execute: Execute, version: str
) -> None:
    """The missing migration is named, even if a newer one is applied or a query needs it."""
    execute("delete from schema_migrations where version = %s", version)

    with pytest.raises(Unavailable, match=f"migration {version} has not been applied"):
        await verify("-- name: get_a()\nselect rating from movies;\n")


async def test_a_database_that_is_ahead_is_fine(verify: Verify, execute: Execute) -> None:
    """During a deployment, the old code works with the new schema."""
    execute("insert into schema_migrations (version) values ('29990101000000')")
    execute("alter table movies add column rating integer")

    assert await verify()


# Mistakes in queries, and their lines.

INTEGERS = "bigint or integer or smallint"
TEXTS = "text or character varying"
ARRAYS = "text[] or character varying[]"
TIME = "timestamp with time zone"
TWO = f"-- name: get_a()\n{READ}select m.id, m.title\nfrom movies as m;\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("select id\nform movies;", '3: syntax error at or near "movies"'),
        ("select id,\n  titel\nfrom movies;", '3: column "titel" does not exist'),
        ("select id,\r\n  titel\r\nfrom movies;\r\n", '3: column "titel" does not exist'),
        ("select id\nfrom films;", '3: relation "films" does not exist'),
        ("select 1 / 0\nfrom movies limit 0;", "1: division by zero"),  # an error without a place
        (
            "insert into movies (title,\n  yaer)\nvalues ('a', 1)\nreturning id;",
            '3: column "yaer" of relation "movies" does not exist',
        ),
        # A misspelt name line, which is no comment, after a query without a semicolon.
        ("select 1\nname: get_b()\nselect 2;", '3: syntax error at or near ":"'),
        ("select 1\n- name get_b()\nselect 2;", '3: syntax error at or near "("'),
        ("select 1\n# name: get_b()\nselect 2;", '3: syntax error at or near ":"'),
        # Settings.
        ("--\n-- set: a = 1\nselect 1;", '1: unrecognized configuration parameter "a"'),
        ("-- set: jit = perhaps\nselect 1;", '1: parameter "jit" requires a Boolean value'),
        (
            "-- set: search_path = pg_catalog\nselect id from movies;",
            '3: relation "movies" does not exist',
        ),
    ],
)
async def test_a_refusal_by_postgresql_has_its_line(
    refused: Refused, text: str, reason: str
) -> None:
    """The message has file and line; if PostgreSQL gives no place, the query's name."""
    assert await refused(f"-- name: get_a()\n{text}\n") == f"a.sql:{reason}"


@pytest.mark.parametrize(
    ("text", "expected", "reason"),
    [
        # Columns that are missing, renamed, reordered or additional.
        *(
            (
                TWO,
                reads(**dict.fromkeys(columns, int)),
                f"1: get_a must return the columns {', '.join(columns)}; it returns id, title",
            )
            for columns in (("id",), ("id", "title", "year"), ("title", "id"), ("id", "name"))
        ),
        (
            "-- name: get_a(x)\ndelete from movies where id = :x returning title;",
            writes("x", id=int),
            "1: get_a must return the columns id; it returns title",
        ),
        (
            "-- name: get_a(x)\ndelete from movies where id = :x returning id::text;",
            writes("x", id=int),
            f"1: get_a must return id as {INTEGERS}, not text",
        ),
        # The driver would return values of another type, and every response would be wrong.
        *(
            (
                f"--\n-- name: get_a()\n{READ}select {column} as x\nfrom movies as m;\n",
                reads(x=kind),
                f"2: get_a must return x as {reason}",
            )
            for column, kind, reason in (
                ("m.id::text", int, f"{INTEGERS}, not text"),
                ("m.id::numeric", int, f"{INTEGERS}, not numeric"),
                ("(m.year = 2000)", int, f"{INTEGERS}, not boolean"),
                ("m.year", bool, "boolean, not integer"),
                ("m.title::bytea", str, f"{TEXTS}, not bytea"),
                ("m.created_at::date", datetime, f"{TIME}, not date"),
                ("m.created_at::timestamp", datetime, f"{TIME}, not timestamp without time zone"),
                ("m.genres::text", list[str], f"{ARRAYS}, not text"),
                ("'{1}'::integer[]", list[str], f"{ARRAYS}, not integer[]"),
            )
        ),
        # Reads that write: one GET could empty the table, or each would fail.
        *(
            (f"-- name: get_a()\n{READ}{sql};\n", reads(id=int), reason)
            for sql, reason in (
                ("delete from movies\nreturning id", '3: syntax error at or near "delete"'),
                ("update movies set year = 1 returning id", '3: syntax error at or near "update"'),
                (
                    "with d as (delete from movies returning id) select id from d",
                    "1: DECLARE CURSOR must not contain data-modifying statements in WITH",
                ),
                (
                    "select id from movies for update",
                    "1: cannot execute SELECT FOR UPDATE in a read-only transaction",
                ),
            )
        ),
        # Each sample is verified. With null, these would be accepted, and each request would fail.
        *(
            (
                f"-- name: get_a(size)\n{READ}select id from movies where {condition};\n",
                reads(id=int)._replace(samples=[{"size": 20}, {"size": None}]),
                reason,
            )
            for condition, reason in (
                ("title = :size", "3: operator does not exist: text = integer"),
                ("id = 1 / coalesce(:size, 0)", "1: division by zero"),
            )
        ),
    ],
)
async def test_other_than_the_service_expects_is_refused(
    refused: Refused, text: str, expected: Expected, reason: str
) -> None:
    """Its columns and types, what it may do, and the parameters that are sent."""
    assert await refused(text, get_a=expected) == f"a.sql:{reason}"


FILTER = "create or replace function movie_matches(m movies, filter jsonb) returns boolean"
PARSED, TEXT = "language sql stable return {}", "language sql stable as $$ select {} $$"
REFUSED_CONDITIONS = [
    "m.id not in (select a.id from audit as a)",
    "not exists (select from audit as a where a.id = m.id)",
    "m.id <> all (array(select a.id from audit as a))",
    "random() < 2",
]


@pytest.mark.parametrize(
    "body",
    [
        *(
            body.format(f"{each} and {{}}")
            for each in REFUSED_CONDITIONS
            for body in (PARSED, TEXT)
        ),
        *(
            f"{more} {PARSED}"
            for more in ("security definer", "set search_path = public", "strict")
        ),
        TEXT.format("{} limit 1"),
        TEXT.format("true; select {}"),
        TEXT.replace("select", "with a as (select 1) select"),
        "language sql stable begin atomic select true; select {}; end",
    ],
)
async def test_a_filter_that_reads_the_whole_table_is_refused(
    connection: aiopg.Connection, execute: Execute, body: str
) -> None:
    """PostgreSQL cannot put its text in place of its calls. A function of one's own looks it up."""
    execute(
        "create table audit (id bigint); create function is_in_audit(bigint) returns boolean"
        " language plpgsql stable parallel safe as"
        " $$ begin return exists (select from audit as a where a.id = $1); end $$"
    )
    [(text,)] = execute(
        "select pg_get_function_sqlbody('movie_matches(movies, jsonb)'::regprocedure)"
    )
    condition = text.removeprefix("RETURN ")

    execute(f"{FILTER} {body.format(condition)}")
    with pytest.raises(OperatorError) as caught:
        await verify_database(connection, VERSIONS, LOADED)
    for right in (PARSED, TEXT):
        execute(f"{FILTER} {right.format(f'not is_in_audit(m.id) and {condition}')}")
        assert await verify_database(connection, VERSIONS, LOADED)

    assert re.match(
        r"queries/\w+\.sql:\d+: \w+ would read the whole table: movie_matches must not have a",
        str(caught.value),
    )


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


# What is accepted.


async def test_every_kind_of_statement_can_be_verified(verify: Verify) -> None:
    """Statements that psql runs unchanged are accepted; a parameter may be used twice."""
    statements = [
        "select id from movies; -- done",
        "select id from movies -- done",
        "select id from movies for update;",
        "(select id from movies) union all select 1::bigint;",
        "with a as (select 1 as id) select id from a;",
        "select '100%' as id;",
        "values (1);",
        "delete from movies where id = 1;",
        "with d as (delete from movies returning id) select id from d;",
        "select 1 as id, 2 as id;",
        "analyze movies;",
        "analyze public.movies;",
    ]
    text = "".join(f"-- name: get_{n}()\n{sql}\n" for n, sql in enumerate(statements))

    # The driver reads a narrower or wider type in the same way.
    others = (
        f"-- name: get_b()\n{READ}select m.id::integer as a, m.year::smallint as b,"
        " m.title::varchar(9) as c, m.genres::varchar[] as d, m.created_at::timestamptz(3) as e"
        " from movies as m;\n"
    )

    assert await verify(
        f"{text}{others}-- name: get_a(ids, title, n)\n{READ}select id, :title::text as t\n"
        "from movies\nwhere (:title is null or title = :title)\n  and id = any (:ids) limit :n;\n",
        get_a=reads("ids", "title", "n", id=int, t=str),
        get_b=reads(a=int, b=int, c=str, d=list[str], e=datetime),
    )


# The encoding.


async def test_a_database_in_another_encoding_is_refused(
    server_url: str, maintain: Callable[[str], None], settings: Callable[..., Config]
) -> None:
    """By `migrate`, before its first migration, and by the start; one line names the remedy."""
    name = f"test_latin1_{os.getpid()}"
    maintain(f"create database {name} encoding 'LATIN1' locale 'C' template template0")
    try:
        url = urlsplit(server_url)._replace(path=f"/{name}").geturl()
        with pytest.raises(OperatorError) as migrating:
            migrations.upgrade(url, ROOT / "migrations", lambda _: None)
        connection = await Connector(replace(settings().database, url=url)).connect()
        with closing(connection), pytest.raises(OperatorError) as starting:
            await verify_database(connection, VERSIONS, {})
    finally:
        maintain(f"drop database {name} with (force)")

    assert str(migrating.value) == str(starting.value)
    assert str(starting.value) == (
        "the database's encoding is LATIN1, but the service needs UTF8: create another one"
        " with: create database NAME encoding 'UTF8' locale 'C' template template0"
    )


# Triggers, indexes and constraints.

ACT = (
    "create function act() returns trigger language plpgsql as"
    " $$ begin return new; end $$; create trigger"
)
ADD = "insert into movies (title, year, runtime, genres) values ('a', 2000, 1, '{a}')"
ADD_MANY = ADD.replace("values ('a'", "select 'a'").replace("'{a}')", "'{a}'")
ADD_MANY += " from generate_series(1, 20000); alter table movies set (autovacuum_enabled = off)"
UNANALYZED = "movies has no statistics, so that lists are slow: run analyze movies"
BEHIND = f"{ACT} zzzz before update on movies for each row execute function act()"
BEHIND_OF_CLIENTS = (
    f"{BEHIND.replace('on movies', 'on clients')}; create trigger zzz_clients_keep_version"
    " before update on clients for each row execute function act()"
)
HIDE_CLIENTS = (
    "alter table clients enable row level security;"
    " create policy readable on clients for select using (true)"
)
ADD_TO_KEPT = "alter table kept add constraint movies_runtime_positive check (runtime > 0)"
DROP = "alter table movies drop constraint movies_runtime_positive"
OFF = "select switch_movie_feed(false)"
LAST = "zzz_movies_keep_version"
RESTRICT = (
    f"drop trigger {LAST} on movies; create trigger {LAST} before update of title on movies"
    " for each row execute function movies_keep_version()"
)

COPY_IT = "copy it from schema.sql, or delete its name from get_schema_faults in queries/schema.sql"
BEHIND_IDS = (
    "sequence movies_id_seq is behind the ids of movies:"
    " run select setval('movies_id_seq', max(id)) from movies"
)
ADD_CLIENT = (
    "insert into clients (name, token_hash, scopes)"
    " values ('a', encode(sha256('a'), 'hex'), '{read}')"
)
BEHIND_CLIENTS = BEHIND_IDS.replace("movies", "clients")
ENDING_IDS = "has fewer than 10000 ids left: run alter sequence {}_id_seq as bigint no maxvalue"
RESORT = (
    "create collation mine (provider = builtin, locale = 'C.UTF-8');"
    " create index movies_mine on movies (title collate mine);"
    " update pg_collation set collversion = '0' where collname = 'mine'"
)
RESORTED = (
    "collation mine is 1 now, and the index movies_mine was sorted by 0: run"
    " reindex index movies_mine; alter collation mine refresh version"
)
RESORTED_ALL = (
    "collation of the database is 1 now, and its indexes were sorted by 0: run reindex database"
    " DATABASE; alter database DATABASE refresh collation version"
)


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        (f"alter table movies disable trigger {LAST}", f"trigger {LAST} is disabled"),
        (f"drop trigger {LAST} on movies", f"trigger {LAST} is missing"),
        (
            "alter table movies disable trigger movies_record_updated",
            "trigger movies_record_updated is disabled",
        ),
        (
            OFF + "; alter table movies enable trigger movies_record_created",
            "trigger movies_record_created is enabled, but the feed is off",
        ),
        ("drop index movies_year", "index movies_year is missing"),
        (
            "update pg_index set indisvalid = false where indexrelid = 'movies_year'::regclass",
            "index movies_year is invalid",
        ),
        (DROP, "constraint movies_runtime_positive is missing"),
        (
            f"{DROP}, add constraint movies_runtime_positive check (runtime > 0) not valid",
            "constraint movies_runtime_positive is not valid",
        ),
        (
            f"{DROP}; create table kept (like movies including all); {ADD_TO_KEPT}",
            "constraint movies_runtime_positive is missing",
        ),
        (RESTRICT, f"trigger {LAST} is restricted to some changes"),
        ("alter table movies alter year drop not null", "not null of column year is missing"),
        ("alter table movies alter version drop default", "default of column version is missing"),
        ("delete from movie_feed", "row of movie_feed is missing"),
        (
            "alter table movies enable row level security",
            "row level security of movies is enabled, and no policy is for select, insert, update,",
        ),
        (
            HIDE_CLIENTS,
            "row level security of clients is enabled, and no policy is for insert, update, delete",
        ),
        (
            "grant execute on function movies_record_created() to public",
            "function movies_record_created() can be used by public in other triggers",
        ),
        (
            BEHIND_OF_CLIENTS,
            "trigger zzzz runs behind zzz_clients_keep_version, so that its changes have ",
        ),
        (
            f"{ADD}; truncate search_words",
            "search_words is empty, so that nothing is suggested: run select add_search_words()",
        ),
        (
            "create rule lose as on insert to movie_changes do instead nothing",
            "rule lose of movie_changes changes what statements do",
        ),
        (
            f"{ADD_MANY}; update pg_class set reltuples = -1 where relname = 'movies'",
            UNANALYZED,
        ),
        (f"{ADD_MANY}; update pg_class set reltuples = 20000 where relname = 'movies'", UNANALYZED),
        *(
            (f"alter table {change}", f"column {name}")
            for change, name in (
                ("movies add own text not null", "own of movies"),
                ("movie_changes alter changed_at drop default", "changed_at of movie_changes"),
                ("movie_changes alter id drop identity", "id of movie_changes"),
                ("idempotency_keys alter expires_at drop default", "expires_at of idempotency_k"),
            )
        ),
        (f"{ADD}; alter table movies alter id restart", BEHIND_IDS),
        (f"{ADD_CLIENT}; alter table clients alter id restart", BEHIND_CLIENTS),
        *(
            (
                f"alter table {table} alter id {change}",
                f"sequence {table}_id_seq {fault.format(table)}",
            )
            for table in ("movies", "clients", "movie_changes")
            for change, fault in (
                ("set maxvalue 9999", ENDING_IDS),
                (
                    "set cycle",
                    "begins again after its last id: run alter sequence {}_id_seq no cycle",
                ),
                ("set increment by -1", "counts down: run alter sequence {}_id_seq increment by 1"),
            )
        ),
        (
            f"{ADD}; select setval('movies_id_seq', {2**63 - 1})",
            f"sequence movies_id_seq {ENDING_IDS.format('movies')}",
        ),
        (RESORT, RESORTED),
        ("update pg_database set datcollversion = '0' where datname = 'DATABASE'", RESORTED_ALL),
        (
            "alter database DATABASE set session_replication_role = replica",
            "session_replication_role is replica, so that triggers do not run",
        ),
        (
            BEHIND,
            f"trigger zzzz runs behind {LAST}, so that its changes have no version",
        ),
    ],
)
async def test_what_the_schema_lacks_is_logged(
    settings: Callable[..., Config], execute: Execute, logs: Logs, sql: str, fault: str
) -> None:
    """By the start, which goes on. After the statements that the line names, nothing is wrong."""
    ((name,),) = execute("select current_database()")
    execute(sql.replace("DATABASE", name))

    await verify_queries(settings(), LOADED)
    (line,) = logs
    verb, _, remedy = line["reason"].rpartition(": ")[2].partition(" ")
    logs.clear()
    if verb == "run" and "setval" not in sql:  # no sequence of PostgreSQL goes further
        for statement in remedy.partition(", or ")[0].split(";"):
            execute(statement)
        await verify_queries(settings(), LOADED)

    assert (line["event"], line["log_level"]) == ("schema incomplete", "warning")
    assert line["reason"].startswith(fault.replace("DATABASE", name))
    assert verb in {"run", "copy", "replace"}
    assert logs == []


@pytest.mark.parametrize(
    ("sql", "fault"),
    [
        ("drop index movies_year", f"index movies_year is missing: {COPY_IT}"),
        # PostgreSQL's message would be about the first query that deletes.
        (
            "create rule lose as on delete to movies do instead nothing",
            "rule lose of movies changes what statements do: run drop rule lose on movies",
        ),
    ],
)
def test_queries_refuses_what_the_schema_lacks(
    execute: Execute, environment: Environment, sql: str, fault: str
) -> None:
    """The command is for a DBA, who can repair it; before mistakes in queries, its effects."""
    execute(sql)

    status, out, err = run_here(environment, "queries")

    assert (status, out) == (1, "")
    assert err == f"Error: the schema is not as the service needs it: {fault}\n"


@pytest.mark.parametrize(
    "sql",
    [
        OFF,
        "alter table movies alter id restart",  # nothing is there
        f"{ADD}; alter table movies alter id set increment by 2 set maxvalue 20000",
        f"{ACT} act before update on movies for each row execute function act()",
        f"{ACT} zzzz after update on movies for each row execute function act()",
        f"{ACT} zzzz before insert on movies for each row execute function act()",
        f"{BEHIND}; alter table movies disable trigger zzzz",
        "create index a on movies (version); alter table movies add unique (title)",
        "alter table movies add own text not null default 'x'",
    ],
)
async def test_what_is_no_fault_of_the_schema(
    connection: aiopg.Connection, execute: Execute, sql: str
) -> None:
    """A feed that is off, and what DBAs may add."""
    execute(sql)
    assert await verify_database(connection, VERSIONS, LOADED, refuse_faults=True)


def test_the_needed_triggers_indexes_and_constraints_are_all_in_the_query(execute: Execute) -> None:
    """All that the migrations make, except of tables that requests do not need."""
    text = LOADED["get_schema_faults"].sql
    made = execute(
        "select tgname from pg_trigger where not tgisinternal"
        " union select x.relname from pg_index join pg_class as x on x.oid = indexrelid"
        " where x.relnamespace = 'public'::regnamespace"
        " union select conname from pg_constraint where conrelid in"
        " (select oid from pg_class where relnamespace = 'public'::regnamespace) and contype <> 'n'"
        " union select attname from pg_attribute where attrelid = 'movies'::regclass"
        " and attnum > 0 and attnotnull and attname not in ('id', 'search')"
    )

    others = ("idempotency_answers_", "alembic_version_", "schema_migrations_")
    names = {name for (name,) in made if not name.startswith(others)}
    assert len(names) > 40
    assert {name for name in names if f"'{name}'" not in text} == set()


@pytest.mark.parametrize(
    "table", [each[4:] for each in EXPECTED if f"delete_{each[4:]}" in EXPECTED]
)
def test_the_table_of_each_resource_is_in_the_query(execute: Execute, table: str) -> None:
    """Its limits, its order of triggers if it has versions, and its ids."""
    text = LOADED["get_schema_faults"].sql
    columns = "select attname from pg_attribute where attrelid = %s::regclass"
    needed = [f"'{table}_limit_{change}'" for change in ("inserted", "updated", "deleted")]
    needed += [f"('{table}', (select max("]
    if ("version",) in execute(columns, table):
        needed += [f"'zzz_{table}_keep_version'"]

    assert [each for each in needed if each not in text] == []


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
        (
            "update, usage on movies_id_seq",
            "needs the privilege USAGE on the sequence movies_id_seq",
        ),
        ("select on movies", "permission denied for table movies"),
        ("insert on idempotency_keys", "permission denied for table idempotency_keys"),
        # PostgreSQL looks into functions only when it runs them; another query reads this table.
        ("select on search_words", "permission denied for table search_words"),
        ("select on schema_migrations", "permission denied for table schema_migrations"),
    ],
)
async def test_a_missing_privilege_is_reported(
    clerk: aiopg.Connection, execute: Execute, revoked: str, reason: str
) -> None:
    """Before the first request; commands may use other logins, and one of two may be enough."""
    ((role,),) = execute("select 'clerk_' || current_database()")
    enough = "usage on movies_id_seq" if "schema" in revoked else "update on movies_id_seq"
    execute(
        f"revoke {enough} from {role}; revoke usage on clients_id_seq from {role};"
        f" revoke insert on clients from {role}"
    )
    assert await verify_database(clerk, VERSIONS, LOADED)
    execute(f"revoke {revoked} from {role}")

    with pytest.raises(OperatorError) as caught:
        await verify_database(clerk, VERSIONS, LOADED)

    assert str(caught.value).endswith(reason)


async def test_a_schema_that_is_not_seen_is_named(
    clerk: aiopg.Connection, execute: Execute
) -> None:
    """Beside the migrations, which would seem to be missing."""
    ((role,),) = execute("select 'clerk_' || current_database()")
    execute(f"revoke usage on schema public from public, {role}")
    with pytest.raises(Unavailable, match=r"if it was, .* usage of its schema"):
        await verify_database(clerk, VERSIONS, LOADED)


@pytest.mark.parametrize(
    "setting",
    [
        *("standard_conforming_strings = off", "quote_all_identifiers = on"),
        *("datestyle = 'German'", "timezone = 'Asia/Tokyo'", "intervalstyle = iso_8601"),
        *("bytea_output = escape", "xmloption = document", "extra_float_digits = -5"),
        *("default_text_search_config = 'pg_catalog.german'", "transform_null_equals = on"),
    ],
)
async def test_settings_of_a_database_change_no_function(
    settings: Callable[..., Config], execute: Execute, setting: str
) -> None:
    """The words of searches are the same, and the queries are right."""
    words = "select movie_search(%s, '{Sci-Fi}')::text, title_query(%s)::text"
    texts = ("8½ Ocean´s LEGO™ " + "x" * 120, "a* ocean's ½ w*rd")
    before = execute(words, *texts)

    set_for_database(execute, setting)
    with closing(psycopg2.connect(settings().database.url)) as session, session.cursor() as cursor:
        cursor.execute(words, texts)
        after = cursor.fetchall()

    assert after == before
    assert await verify_queries(settings(), LOADED)


# Effects of verifying.


async def test_verifying_changes_nothing(verify: Verify, execute: Execute) -> None:
    """Neither rows nor the sequence of ids; the first user finds no transaction and no lock."""
    add_movies(execute, "Moana")
    state = "select m::text, (select last_value from movies_id_seq) from movies as m"
    before = execute(state)

    assert await verify(
        "-- name: drop_all()\ndelete from movies returning id;\n"
        "-- name: rename_all()\nupdate movies set title = 'x' returning id;\n"
        "-- name: add_one()\ninsert into movies (id, title, year, runtime, genres)\n"
        "overriding system value values (99, 'x', 2000, 1, '{x}') returning id;\n"
        "-- name: get_next()\nselect nextval('movies_id_seq');\n"
    )

    assert execute(state) == before
    execute("set lock_timeout = '1s'; lock table movies")


# Temporary failures, which are no query's fault.


@pytest.fixture
def read_only(execute: Execute) -> None:
    """Make the test's database read-only, like a standby, for connections from now on."""
    set_for_database(execute, "default_transaction_read_only = on")


@pytest.mark.usefixtures("read_only")  # before the connection
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{READ}select titel from movies;", 'a.sql:3: column "titel" does not exist'),
        (f"{READ}select id::text as id from movies;", "a.sql:1: get_a must return id as bigint"),
        ("delete from movie returning id;", 'a.sql:2: relation "movie" does not exist'),
    ],
)
async def test_mistakes_are_found_in_a_read_only_database(
    connection: aiopg.Connection, refused: Refused, text: str, reason: str
) -> None:
    """Mistakes that `explain` and reads show; the service's own queries are accepted."""
    expected = reads(id=int)._replace(writes=READ not in text)
    assert not await verify_database(connection, VERSIONS, LOADED)

    refusal = await refused(f"-- name: get_a()\n{text}", get_a=expected)

    assert refusal.startswith(reason)


async def test_a_query_that_waits_for_a_lock_is_named_but_not_refused(
    verify: Verify, execute: Execute, database: str
) -> None:
    """A migration may lock its table."""
    execute("create table a (id bigint)")
    with hold(database, "lock table a"), pytest.raises(Contended) as caught:
        await verify("\n-- name: get_a()\nselect id from a;\n")

    assert "a.sql:2): canceling statement due to lock timeout" in str(caught.value)


async def test_a_mistake_is_refused_however_slow_the_database_is(
    refused: Refused, settings: Callable[..., Config], checkout: Path, database: str
) -> None:
    """Also behind a query that waits for a lock, or if the check takes longer than a request."""
    locked = "-- name: get_a()\nselect id from clients;\n"
    slow = "-- name: add_b()\nselect 'b' as b, pg_sleep(1.5)::text as c;\n"
    with hold(database, "lock table clients"):
        reason = await refused(f"{locked}-- name: get_c()\nselect titel from movies;\n")
    slow_reason = await refused(slow, add_b=writes(b=str))
    with (checkout / "queries" / "clients.sql").open("a") as file:
        file.write("-- name: get_d()\nselect titel from movies;\n")

    app = create_app(settings(root=checkout, database__acquire_timeout=0.001))
    with pytest.raises(OperatorError, match='column "titel" does not exist'):
        await Runner(app).setup()

    assert reason == 'a.sql:4: column "titel" does not exist'
    assert slow_reason == "a.sql:1: add_b must return the columns b; it returns b, c"


async def test_it_does_not_wait_for_an_import(connection: aiopg.Connection, database: str) -> None:
    """A service may start during one that takes hours."""
    text = (ROOT / "queries" / "transfer.sql").read_text()
    locks = re.findall(r"pg_advisory_xact_lock\(hashtextextended\('\w+', \d\)\)", text)
    assert len(locks) == 2  # for ids, and for an update
    with hold(database, f"select {', '.join(locks)}"):
        assert await verify_database(connection, VERSIONS, LOADED)


async def test_a_silent_database_is_reported_in_one_line(
    settings: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `queries check`, and before a reload."""
    monkeypatch.setattr(connections, "POOL_CONNECT_TIMEOUT_S", 0.1)
    config = settings()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/a"
        with pytest.raises(Unavailable, match="timeout expired"):
            await verify_queries(replace(config, database=replace(config.database, url=url)), {})


def test_a_query_without_a_time_limit_is_explained_without_one(
    settings: Callable[..., Config], folder: Path
) -> None:
    """The query's `statement_timeout = 0` overrides the settings."""
    text = "-- name: wait_a_while()\n-- set: statement_timeout = 0\nselect pg_sleep(0.1);\n"
    (folder / "a.sql").write_text(text)
    query = query_files.load(folder, {})["wait_a_while"]
    database = settings(database__statement_timeout=0.01).database

    assert list(explain_query(database, query, {}, analyze=True))


def test_changes_are_cleared_without_jit(settings: Callable[..., Config], execute: Execute) -> None:
    """PostgreSQL never analyses movie_feed, takes its row for thousands, and would compile them."""
    query = LOADED["clear_changes"]
    with closing(psycopg2.connect(settings().database.url)) as session, session.cursor() as cursor:
        cursor.execute(
            f"{query.build_preamble(1)}explain (settings) {query.sql}",
            {"keep_days": 30, "after": "0", "after_id": 0, "at_most": 1},
        )
        plan = cursor.fetchall()

    assert execute("select reltuples from pg_class where relname = 'movie_feed'") == [(-1,)]
    assert "jit = 'off'" in str(plan[-1])
