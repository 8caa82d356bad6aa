"""ops/roles.sql: the service works with few rights, and each role has no more than it needs."""

import re
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import psycopg2
import pytest
from conftest import MOANA, ROOT, Start
from processes import run
from psycopg2.extensions import parse_dsn
from support import Environment, Logs, Patch, add_client, bearer, run_here, until, with_user

from service.database import clearing
from service.database.embedded import find_programs
from service.database.migrations import runner as migrations

# What everybody's tables and functions say about their owners and rights.
RIGHTS = """
select relname, relowner::regrole::text, relacl::text
from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'S')
union all
select proname, proowner::regrole::text, proacl::text
from pg_proc where pronamespace = 'public'::regnamespace
union all
select 'defaults', defaclrole::regrole::text, defaclacl::text from pg_default_acl
union all
select datname, '', datacl::text from pg_database where datname = current_database()
union all
select attname, '', attacl::text from pg_attribute where attrelid = 'clients'::regclass
order by 1, 2, 3
"""


class Roles(NamedTuple):
    """The URLs of the three roles, of which each is made for one database."""

    owner: str
    app: str
    reader: str


def make_roles(url: str, name: str | None = None) -> Roles:
    """Run ops/roles.sql with names of this database's own, because servers share roles."""
    name = name or str(parse_dsn(url)["dbname"])
    names = [f"{role}_{name}" for role in Roles._fields]
    variables = [f"--set={role}={name}" for role, name in zip(Roles._fields, names, strict=True)]
    psql = [str(find_programs() / "psql"), "--no-psqlrc", "-d", url, "-f", "ops/roles.sql"]
    status, _, err = run([*psql, *variables], {})
    assert (status, err) == (0, "")
    return Roles(*(with_user(url, name) for name in names))


def migrate(url: str) -> None:
    """Apply all migrations."""
    migrations.upgrade(url, ROOT / "migrations", lambda _: None)


def query(url: str, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Run SQL and return its rows."""
    with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(sql, parameters or None)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def owned(new_database: Callable[[str], str]) -> str:
    """Return the name of a database that its owner has migrated; it has no connections."""
    url = new_database("template0")
    migrate(make_roles(url).owner)
    return str(parse_dsn(url)["dbname"])


@pytest.fixture
def migrated(owned: str, brief_database: Callable[[str], str]) -> str:
    """Return the URL of a copy of this database, whose roles it has."""
    return brief_database(owned)


@pytest.fixture
def roles(owned: str, migrated: str) -> Roles:
    """The roles of this copy."""
    return make_roles(migrated, owned)


async def test_the_application_role_serves_requests(roles: Roles, start: Start) -> None:
    """Every kind of request and the readiness check."""
    client = await start(database__url=roles.app)
    key = {"Idempotency-Key": "once"}
    steps: list[tuple[str, str, dict[str, Any], int]] = [
        ("GET", "/v1/healthcheck/ready", {}, 200),
        ("POST", "/v1/movies", {"json": MOANA}, 201),
        ("POST", "/v1/movies", {"json": MOANA, "headers": key}, 201),
        ("POST", "/v1/movies", {"json": MOANA, "headers": key}, 201),
        ("PATCH", "/v1/movies/1", {"json": {"title": "Vaiana"}}, 200),
        ("PUT", "/v1/movies/1", {"json": MOANA}, 200),
        ("DELETE", "/v1/movies/1", {}, 200),
        ("GET", "/v1/movies/2", {}, 200),
        ("GET", "/v1/movies?title=moana", {}, 200),
        ("GET", "/v1/genres", {}, 200),
        ("GET", "/v1/movies?title=moanaa", {}, 200),
        ("POST", "/v1/movies/batch", {"json": {"movies": [MOANA]}, "headers": key}, 201),
        ("POST", "/v1/movies/batch", {"json": {"movies": [MOANA]}, "headers": key}, 201),
        ("GET", "/v1/changes", {}, 200),
        ("GET", "/v1/movies/1/changes", {}, 200),
    ]

    seen = [(await client.request(method, path, **sent)).status for method, path, sent, _ in steps]

    assert seen == [status for *_, status in steps]
    assert query(roles.reader, "select count(*) from movies") == [(2,)]
    whose = "select distinct client_id, login from movie_changes"
    assert query(roles.reader, whose) == [(None, None)]
    assert query(roles.reader, "select word from search_words") == [("moana",), ("vaiana",)]
    assert query(roles.owner, "truncate search_words; select add_search_words()") == [(1,)]


@pytest.mark.parametrize("table", ["movies", "clients", "schema_migrations"])
async def test_a_table_that_row_level_security_hides_is_not_ready(
    roles: Roles, start: Start, logs: Logs, table: str
) -> None:
    """At the start and later, also with a policy for another role; with one of its own, it is."""
    enable = f"alter table {table} enable row level security"
    policy = f"create policy own on {table} to {{}} using (true)"
    app, reader = (parse_dsn(url)["user"] for url in (roles.app, roles.reader))
    query(roles.owner, enable)
    client = await start(database__url=roles.app)

    async def is_ready() -> bool:
        return (await client.get("/v1/healthcheck/ready")).status == 200

    assert not await is_ready()
    remedy = f"run alter table {table} disable row level security, or create a policy"
    hidden = f"row level security hides every row of {table} from {app}: {remedy}"
    assert hidden in {line.get("reason") for line in logs}
    query(roles.owner, f"alter table {table} disable row level security")
    await until(is_ready)
    query(roles.owner, f"{enable}; {policy.format(reader)}")
    assert not await is_ready()
    query(roles.owner, f"drop policy own on {table}; {policy.format(app)}")
    assert await is_ready()


async def test_the_application_role_looks_clients_up(roles: Roles, start: Start) -> None:
    """It records the day of use, too, and the reader may see that."""
    client = await start(database__url=roles.app, access__anonymous="none")
    token = add_client(partial(query, roles.owner), "read")

    response = await client.get("/v1/movies", headers=bearer(token))

    assert response.status == 200
    used = "select last_used_on = (now() at time zone 'UTC')::date from clients"
    await until(lambda: query(roles.reader, used) == [(True,)])


def test_a_statement_ends_with_its_client(roles: Roles) -> None:
    """That of a process that was killed; other roles may run long statements."""
    asked = "select current_setting('client_connection_check_interval')"

    assert (query(roles.app, asked), query(roles.owner, asked)) == ([("2s",)], [("0",)])


def test_the_owner_manages_clients(roles: Roles, environment: Environment) -> None:
    """Other roles read in one line which one is needed; the reader may list them."""
    add = ("clients", "add", "reports", "--scopes", "read")
    environment["DATABASE_URL"] = roles.owner
    added = run_here(environment, *add)
    environment["DATABASE_URL"] = roles.app
    status, out, err = run_here(environment, *add)
    environment["DATABASE_URL"] = roles.reader
    listed = run_here(environment, "clients", "list")

    assert (added[0], listed[0]) == (0, 0)
    assert "reports" in listed[1]
    assert (status, out) == (1, "")
    assert err.startswith("Error: the database refused: permission denied for ")
    assert err.endswith("; use the role that owns the tables, as for migrate\n")


def test_each_login_tests_the_queries(roles: Roles, environment: Environment) -> None:
    """What the application may not do is named, and needs the owner: it is not passed."""
    expected = f"the queries of {ROOT / 'queries'} return what the service expects\n"
    environment["DATABASE_URL"] = roles.owner
    by_owner, shown, reported = run_here(environment, "queries", "test")
    environment["DATABASE_URL"] = roles.app
    status, out, err = run_here(environment, "queries", "test")

    assert (by_owner, shown.endswith(expected), reported) == (0, True, "")
    assert (status, out) == (1, "")
    assert err == (
        "not tested: changes: permission denied for table movie_changes\n"
        "not tested: changes, cleared: permission denied for table movie_changes\n"
        "not tested: changes, detected: permission denied for table movie_changes\n"
        "not tested: clients: permission denied for sequence clients_id_seq\n"
        "Error: not all was tested: use the role that owns the tables, as for migrate\n"
    )


def test_a_trigger_that_lacks_a_grant_is_found(roles: Roles, environment: Environment) -> None:
    """With the login of the service, for which each write would be a 500."""
    query(
        roles.owner,
        "create table audit (title text);"
        "create function keep() returns trigger language plpgsql as"
        " $$ begin insert into audit values (new.title); return new; end $$;"
        "create trigger keep after insert on movies for each row execute function keep()",
    )
    environment["DATABASE_URL"] = roles.app

    status, _, err = run_here(environment, "queries", "test")

    assert status == 1
    assert "permission denied for table audit" in err


# The application must not change the schema, the list of migrations, or clients.
REFUSED = {
    "app": [
        "create table a (b integer)",
        "create temporary table a (b integer)",
        "create schema a",
        "create function a() returns integer language sql return 1",
        "drop table movies",
        "alter table movies disable trigger all",
        "alter table idempotency_keys alter expires_at drop default",
        "truncate movies",
        "select setval('movies_id_seq', 1)",
        "insert into schema_migrations (version) values ('29990101000000')",
        "update schema_migrations set checksum = null",
        "delete from schema_migrations",
        "delete from alembic_version",
        "insert into clients (name, token_hash, scopes) values ('a', repeat('0', 64), '{admin}')",
        "update clients set scopes = '{admin}'",
        "update clients set revoked_at = null",
        "delete from clients",
        "select nextval('clients_id_seq')",
        "insert into movie_changes default values",
        "update movie_changes set version = 2",
        "truncate movie_changes",
        "select nextval('movie_changes_id_seq')",
        "update movie_feed set id = default",
        "update movie_feed set is_on = false",
        "delete from movie_feed",
        "select switch_movie_feed(false)",
        "insert into search_words (word) values ('a')",
        "delete from search_words",
        "delete from idempotency_answers",
    ],
    "reader": [
        "delete from movies",
        "select nextval('movies_id_seq')",
        "select token_hash from clients",
        "select previous_token_hash from clients",
        "update clients set last_used_on = null",
    ],
}


@pytest.mark.parametrize("role", REFUSED)
def test_a_role_may_do_nothing_else(roles: Roles, role: str) -> None:
    """The reader only reads, and sees no hashes of tokens."""
    url = getattr(roles, role)

    assert query(url, "select count(*) from idempotency_keys") == [(0,)]
    for sql in REFUSED[role]:
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            query(url, sql)


@pytest.mark.parametrize("is_restored", [False, True])
def test_nobody_else_writes_with_the_rights_of_the_owner(
    empty_database: str, *, is_restored: bool
) -> None:
    """Through a trigger on a table of their own, also after a dump was restored without rights."""
    migrate(empty_database)
    if is_restored:
        query(empty_database, "grant execute on all functions in schema public to public")
        make_roles(empty_database)
    name = parse_dsn(empty_database)["dbname"]
    query(empty_database, f"create role tenant_{name} login")
    query(empty_database, f"grant all on database {name} to public")
    query(empty_database, "grant usage on schema public to public")

    with pytest.raises(psycopg2.errors.InsufficientPrivilege, match="movies_record_created"):
        query(
            with_user(empty_database, f"tenant_{name}"),
            "create temporary table own (id bigint, version integer); create trigger own after"
            " insert on own referencing new table as new_movies for each statement"
            " execute function movies_record_created()",
        )
    # These run with the rights of the owner, or another role needs no right to execute them.
    functions = query(
        empty_database,
        "select has_function_privilege(%s, p.oid, 'execute'),"
        " not p.prosecdef or 'search_path=public, pg_temp' = any (p.proconfig) from pg_proc as p"
        " where pronamespace = 'public'::regnamespace"
        " and (p.prosecdef or p.prorettype = 'trigger'::regtype)",
        f"tenant_{name}",
    )
    assert set(functions) == {(False, True)}


def test_every_order_gives_the_same_rights(brief_database: Callable[[str], str]) -> None:
    """Of ops/roles.sql and the migrations."""

    def migrate_as_owner(url: str) -> None:
        migrate(with_user(url, f"owner_{parse_dsn(url)['dbname']}"))

    def find_rights(*steps: Callable[[str], object]) -> list[list[str]]:
        url = brief_database("template0")
        for step in steps:
            step(url)
        name = str(parse_dsn(url)["dbname"])
        # The entries of an access control list have no order.
        return [sorted(re.split("[{},]", f"{row}".replace(name, ""))) for row in query(url, RIGHTS)]

    rights = find_rights(make_roles, migrate_as_owner)

    assert find_rights(migrate, make_roles) == rights
    assert find_rights(make_roles, migrate_as_owner, make_roles) == rights


def test_the_migrations_close_clients_to_everybody(empty_database: str) -> None:
    """Also to public, where default privileges give it all rights; the service goes on."""
    query(empty_database, "alter default privileges grant all on tables to public")
    name = parse_dsn(empty_database)["dbname"]
    query(empty_database, f"create role anybody_{name} login")
    migrate(empty_database)
    anybody = with_user(empty_database, f"anybody_{name}")

    assert query(anybody, "update clients set last_used_on = null returning id") == []
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        query(anybody, "update clients set scopes = '{admin}'")


@pytest.mark.parametrize("is_run_again", [False, True])
def test_later_tables_can_only_be_read(
    roles: Roles, owned: str, migrated: str, *, is_run_again: bool
) -> None:
    """Such as an audit that a DBA's trigger writes; a grant for the trigger stays."""
    if is_run_again:
        make_roles(migrated, owned)
    query(roles.owner, "create table audit (text text); insert into audit values ('a')")
    changes = ("insert into audit values ('b')", "update audit set text = 'b'", "delete from audit")

    for sql in changes:
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            query(roles.app, sql)
    query(roles.owner, f"grant insert on audit to {parse_dsn(roles.app)['user']}")
    make_roles(migrated, owned)
    query(roles.app, changes[0])

    assert query(roles.reader, "select text from audit") == [("a",), ("b",)]
    assert query(roles.app, "select text from audit") == [("a",), ("b",)]


async def test_the_application_role_clears(roles: Roles, start: Start, monkeypatch: Patch) -> None:
    """Changes and keys that have expired."""
    monkeypatch.setattr(clearing, "INTERVAL_S", 0.1)
    client = await start(database__url=roles.app)
    await client.post("/v1/movies", json=MOANA, headers={"Idempotency-Key": "a"})

    query(roles.owner, "update movie_changes set changed_at = now() - interval '1 year'")
    query(roles.owner, "update idempotency_keys set expires_at = now()")

    count = "select (select count(*) from movie_changes), (select count(*) from idempotency_keys)"
    await until(lambda: query(roles.reader, count) == [(0, 0)])


def test_other_roles_may_not_connect(roles: Roles, migrated: str) -> None:
    """Only the three roles and superusers."""
    name = f"other_{parse_dsn(migrated)['dbname']}"
    query(migrated, f"create role {name} login")

    with pytest.raises(psycopg2.OperationalError, match="permission denied for database"):
        query(with_user(roles.app, name), "select 1")


def test_the_database_s_owner_may_make_the_roles(empty_database: str) -> None:
    """Platforms give out no superuser: CREATEROLE and the database are enough."""
    name = str(parse_dsn(empty_database)["dbname"])
    query(empty_database, f"create role admin_{name} login createrole")
    query(empty_database, f"alter database {name} owner to admin_{name}")
    query(empty_database, f"alter schema public owner to admin_{name}")  # as in PostgreSQL 15
    admin = with_user(empty_database, f"admin_{name}")

    for _ in range(2):
        made = make_roles(admin)

    migrate(made.owner)
    assert query(made.app, "select count(*) from movies") == [(0,)]
