"""What each change keeps: what it replaced, and whose it was; the feed and histories show it."""

import asyncio
import io
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from conftest import MOANA, ROOT, Client, Start
from import_file import import_file
from servers import PGBOUNCER, pgbouncer, run
from support import Execute, Patch, add_client, add_movies, bearer, hold, movie_tag, until

from service.changes.feed import FeedCursor
from service.changes.handlers import encode_change
from service.changes.waiting import LongPolls
from service.database import embedded
from service.database.listing import SortKey
from service.database.migrations import runner as migrations
from service.database.statements import Statements
from service.web.pages import encode_cursor

PATH = "/v1/movies/1/changes"
LENIENT = {"Prefer": "handling=lenient"}
RECORDED = "select movie_id, version, kind, previous, client_id, login from movie_changes"
ADD = (
    "insert into movies (title, year, runtime, genres, external_id)"
    " select 'x', 2000, 1, '{{x}}', 'x:' || n from generate_series({}, {}) as n"
)


def client_id(token: str) -> int:
    """Return the id of a token's client."""
    return int(token.split("_")[1])


def find_login(database: str) -> str:
    """Return the login of the tests."""
    return str(psycopg2.extensions.parse_dsn(database)["user"])


def patch(movie: int) -> dict[str, Any]:
    """Return a batch that changes a movie."""
    return {"movies": [{"id": movie, "year": 2001}]}


def put(*movies: int) -> dict[str, Any]:
    """Return a batch that replaces movies, or, from 31 on, creates them."""
    return {"movies": [MOANA | {"external_id": f"x:{movie}"} for movie in movies]}


BATCH = "/v1/movies/batch"
WRITES: dict[str, Any] = {
    "create": lambda _: ("POST", "/v1/movies", MOANA, {}),
    "create with a key": lambda n: ("POST", "/v1/movies", MOANA, {"Idempotency-Key": f"{n}"}),
    "creates": lambda _: ("POST", BATCH, {"movies": [MOANA, MOANA]}, {}),
    "patch": lambda n: ("PATCH", f"/v1/movies/{n}", {"year": 2001}, {}),
    "put": lambda n: ("PUT", f"/v1/movies/{n}", MOANA, {}),
    "puts": lambda n: ("PUT", BATCH, put(n, n + 30), {}),
    "lenient puts": lambda n: ("PUT", BATCH, put(n, n + 30), LENIENT),
    "patches": lambda n: ("PATCH", BATCH, patch(n), {}),
    "lenient patches": lambda n: ("PATCH", BATCH, patch(n), LENIENT),
    "delete": lambda n: ("DELETE", f"/v1/movies/{n}", None, {}),
    "restore": lambda n: ("POST", f"/v1/movies/{n}/restore", None, {}),
}
ALONE = {"creates", "puts", "patches", "restore"}  # statements of one request


@pytest.mark.parametrize("way", WRITES)
async def test_a_change_has_the_client_of_its_request(
    client: Client, execute: Execute, way: str
) -> None:
    """Requests with several tokens, and without one, share statements."""
    execute(ADD.format(1, 30))
    if way == "restore":
        execute("delete from movies")
    ((before,),) = execute("select max(id) from movie_changes")
    tokens = [add_client(execute, "write"), add_client(execute, "admin"), None]

    async def send(number: int) -> dict[int, int | None]:
        token = tokens[number % 3]
        method, path, body, headers = WRITES[way](number)
        headers = headers | (bearer(token) if token else {})
        response = await client.request(method, path, json=body, headers=headers)
        assert response.status < 300, await response.text()
        found = await response.json()
        found = found.get("movies") or found.get("results") or [found]
        ids = [each.get("movie", each)["id"] for each in found]
        return dict.fromkeys(ids, client_id(token) if token else None)

    sent = await asyncio.gather(*map(send, range(1, 31)))

    rows = execute(f"{RECORDED} where id > %s", before)
    assert {row[0]: row[4] for row in rows} == {n: c for each in sent for n, c in each.items()}
    assert {row[5] for row in rows} == {None}
    if way not in ALONE:
        sql = "select count(distinct transaction) < count(*) from movie_changes where id > %s"
        assert execute(sql, before) == [(True,)]


CHANGED = [(1, 2, "updated", {"year": 2000}), (2, 2, "updated", {"year": 2000})]
AGAIN = [(1, 3, "updated", {"year": 1999}), (2, 3, "updated", {"year": 1999})]
CREATED = (3, 1, "created", None)
DELETED = [(1, 1, "deleted", None), (2, 1, "deleted", None)]


@pytest.mark.parametrize(
    ("way", "changes"),
    [
        ("update movies set year = 1999", CHANGED),
        ("update movies set year = 1999; update movies set year = 1998", CHANGED + AGAIN),
        (ADD.format(3, 3), [CREATED]),
        ("delete from movies", DELETED),
        ("truncate movies", DELETED),
        ("copy movies (title, year, runtime, genres) from stdin", [CREATED]),
        ("import", [CHANGED[0], (4, *CREATED[1:])]),
    ],
)
def test_a_change_in_sql_has_the_login(
    execute: Execute, database: str, tmp_path: Path, way: str, changes: list[Any]
) -> None:
    """It has no client; a movie that a transaction changes twice has two changes."""
    execute(ADD.format(1, 2))
    execute("truncate movie_changes")
    if way == "import":
        movie = {"title": "x", "year": 1999, "runtime": "1 mins", "genres": ["x"]}
        lines = [json.dumps(movie | {"external_id": f"x:{number}"}) for number in (1, 3)]
        (tmp_path / "movies.ndjson").write_text("\n".join(lines))
        import_file(database, tmp_path / "movies.ndjson", tmp_path / "rejects", update=True)
    elif way.startswith("copy"):
        with hold(database, "select 1") as psql:
            psql.cursor().copy_expert(way, io.StringIO("x\t2000\t1\t{x}\n"))
            psql.commit()
    else:
        execute(way)

    found = execute(f"{RECORDED} order by version <> 2, id")
    assert found == [(*each, None, find_login(database)) for each in changes]


NESTED = """
create function act() returns trigger language plpgsql as $$ begin %s end $$;
create trigger act %s update on movies for each row
  when (new.runtime = 1 and new.id <> 3) execute function act();
"""
ONE, SEVERAL = '{"1": 7}', '{"1": 7, "2": 8}'
UPDATE = "update movies set year = 1999 where id in (1, 2)"
OTHER = "update movies set runtime = 5 where id = 3; return new;"
ITSELF = "update movies set runtime = 5 where id = new.id; return new;"


@pytest.mark.parametrize(
    ("clients", "acts", "whose"),
    [
        # (movie, version): client; the login is that of psql alone.
        (ONE, ("new.runtime := 5; return new;", "before"), {(1, 2): 7, (2, 2): 7}),
        (ONE, (OTHER, "after"), {(1, 2): 7, (2, 2): 7, (3, 2): 7}),
        (ONE, (OTHER, "before"), {(1, 2): 7, (2, 2): 7, (3, 2): 7}),
        (SEVERAL, (OTHER, "after"), {(1, 2): 7, (2, 2): 8, (3, 2): None}),
        ('{"1": 7, "2": null}', (OTHER, "after"), {(1, 2): 7, (2, 2): None, (3, 2): None}),
        (ONE, (ITSELF, "after"), {(1, 2): 7, (2, 2): 7, (1, 3): 7, (2, 3): 7}),
        (SEVERAL, (ITSELF, "after"), {(1, 2): 7, (2, 2): 8, (1, 3): None, (2, 3): None}),
        ("{}", (OTHER, "after"), {(1, 2): None, (2, 2): None, (3, 2): None}),
        ("", (OTHER, "after"), {(1, 2): None, (2, 2): None, (3, 2): None}),
    ],
)
def test_a_change_by_a_trigger_has_the_client_of_the_statement(
    execute: Execute, database: str, clients: str, acts: tuple[str, str], whose: dict[Any, Any]
) -> None:
    """If there is only one: nobody knows whose request made the trigger change a movie."""
    execute(ADD.format(1, 3))
    execute(NESTED % acts)
    execute("truncate movie_changes")
    execute(f"select set_config('catalogue.clients', '{clients}', true); {UPDATE}")

    rows = execute(f"{RECORDED} order by id")
    assert {row[:2]: row[4] for row in rows} == whose
    assert {row[5] for row in rows} == {None if clients else find_login(database)}
    assert all(row[3] is not None for row in rows)


async def test_a_refused_request_has_no_share_in_what_triggers_do(
    execute: Execute, statements: Statements
) -> None:
    """Only the clients whose movies are written are named, here 7; a foreign key has one, too."""
    execute(ADD.format(1, 3))
    execute(NESTED % (OTHER.replace("= 3", "= 2"), "after"))
    execute("alter table movies add parent bigint references movies on delete set null")
    execute("update movies set parent = 1 where id = 3")
    execute("truncate movie_changes")
    change = {"id": 1, "client": 7, "fields": {"year": 1999}}
    refused = {"id": 2, "client": 8, "fields": {}, "versions": [99]}
    sent = {"all_or_none": False}

    await statements.fetch("update_movies", sent | {"updates": json.dumps([change, refused])})
    await statements.fetch("delete_movies", sent | {"deletions": json.dumps([change, refused])})

    found = execute("select movie_id, kind, client_id from movie_changes order by id")
    assert sorted(found) == [
        (1, "deleted", 7),
        (1, "updated", 7),
        (2, "updated", 7),
        (3, "updated", 7),
    ]


# Of each column: its type, a value, another one, and the value that is kept.
COLUMNS = {
    "n": ("text", "'a'", "null", "a"),
    "o": ("numeric", "1.0", "2", 1.0),
    "m": ("text[]", "'{a,NULL}'", "'{}'", ["a", None]),
    "c": ("jsonb", """'{"a": [1]}'""", "'[]'", {"a": [1]}),
    "was": ("text", "null", "'a'", None),
    "movie": ("jsonb", "null", "'1'", None),
    "clients": ("timestamptz", "'infinity'", "now()", "infinity"),
    "nested_client": ("float8", "'NaN'", "0", "NaN"),
    "ids": ("bytea", r"'\x00'", "null", "\\x00"),
    "previous": ("json", "'1'", "'2'", 1),
    "value": ("int8range", "'[1,2]'", "null", "[1,3)"),
    "Any name; of 'a' DBA": ("text", "null", "'a'", None),
}


@pytest.mark.parametrize("column", COLUMNS)
async def test_columns_of_a_dba_are_kept_and_not_shown(
    client: Client, execute: Execute, column: str
) -> None:
    """Whatever their names and types are, and also when these have changed since."""
    kind, value, other, kept = COLUMNS[column]
    name = '"' + column + '"'
    execute(f"alter table movies add {name} {kind} default {value}")
    execute(ADD.format(1, 1))
    execute(f"update movies set {name} = {other}")
    execute(f"alter table movies drop {name}; alter table movies add {name} point")
    execute("update movies set year = 1999; delete from movies")

    changes = (await (await client.get(PATH)).json())["changes"]
    assert execute("select previous from movie_changes where version = 2") == [({column: kept},)]
    assert [each.get("previous") for each in changes] == [None, {"year": 2000}, {}, None]


def test_an_equal_value_in_another_form_is_no_difference(execute: Execute) -> None:
    """The version is another one, as 1.0 and 1.00 are different bytes."""
    execute("alter table movies add rating numeric default 1.0")
    execute(ADD.format(1, 1))
    execute("update movies set rating = 1.00")

    found = execute(f"{RECORDED} where kind = 'updated'")
    assert [row[1:4] for row in found] == [(2, "updated", {})]


@pytest.mark.skipif(not PGBOUNCER, reason="pgbouncer is not installed")
async def test_no_client_leaks_through_pgbouncer(start: Start, folder: Path) -> None:
    """Its sessions serve one transaction after the other, here of psql and of the service."""
    with ExitStack() as users:
        url = users.enter_context(embedded.running(folder / "server"))
        migrations.upgrade(url, ROOT / "migrations", lambda _: None)
        through = users.enter_context(pgbouncer(url, folder, "default_pool_size = 1"))
        token = add_client(lambda sql, *values: _run_with(url, sql, values), "write")
        client = await start(database__url=through)
        for headers in (bearer(token), {}, bearer(token)):
            response = await client.post("/v1/movies", json=MOANA, headers=headers)
            assert response.status == 201
            add = "insert into movies (title, year, runtime, genres) values ('x', 2000, 1, '{x}')"
            await asyncio.to_thread(run, through, add)
        rows = run(url, f"{RECORDED} order by id")

    number = client_id(token)
    whose = [(number, None), (None, "catalogue"), (None, None), (None, "catalogue")]
    assert [row[4:] for row in rows] == [*whose, *whose[:2]]


def _run_with(url: str, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    with psycopg2.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall() if cursor.description else []


async def show(client: Client, path: str, token: str | None = None) -> list[Any]:
    """Return the changes of a path; no cache may keep them."""
    response = await client.get(path, headers=bearer(token) if token else {})
    assert response.status == 200, await response.text()
    assert response.headers["Cache-Control"] == "no-store"
    changes: list[Any] = (await response.json())["changes"]
    return changes


async def test_clients_are_shown_to_tokens_that_may_write(client: Client, execute: Execute) -> None:
    """In the feed and in the history; others see what was replaced, and not whose it was."""
    reads, writes, rules, gone = (
        add_client(execute, scope) for scope in ("read", "write", "admin", "write")
    )
    await client.post("/v1/movies", json=MOANA | {"external_id": "a:1"})
    for token, body in ((writes, {"genres": ["b"], "runtime": "9 mins"}), (gone, {"year": 2000})):
        await client.patch("/v1/movies/1", json=body, headers=bearer(token))
    execute("update movies set external_id = null")
    execute("delete from clients where id = %s", client_id(gone))
    execute("update clients set name = 'sync' where id = %s", client_id(writes))
    await client.delete("/v1/movies/1", headers=bearer(rules))
    ((login,),) = execute("select session_user::text")
    ((ruler,),) = execute("select name from clients where id = %s", client_id(rules))
    clients: list[Any] = [
        *(None, {"id": client_id(writes), "name": "sync"}, {"id": client_id(gone)}),
        *({"login": login}, {"id": client_id(rules), "name": ruler}),
    ]
    await until(lambda: is_complete(client, 5))

    for path in ("/v1/changes", PATH):
        for viewer in (None, reads, writes, rules):
            changes = await show(client, path, viewer)
            if path == PATH:
                changes.reverse()
            seen = clients if viewer in (writes, rules) else [None] * 5
            assert [each.get("client") for each in changes] == seen
            assert [each.get("previous") for each in changes] == [
                *(None, {"runtime": "107 mins", "genres": ["animation"]}, {"year": 2016}),
                *({"external_id": "a:1"}, None),
            ]
            assert [list(each.get("previous", ())) for each in changes][1] == ["runtime", "genres"]
            tags = [movie_tag(version) for version in (1, 2, 3, 4)]
            assert [each.get("etag") for each in changes] == [*tags, None]
            assert changes[-1]["deleted_movie"]["year"] == 2000


async def is_complete(client: Client, number: int) -> bool:
    """Return whether the feed has so many changes: other sessions may hold them back a while."""
    return len((await (await client.get("/v1/changes")).json())["changes"]) == number


async def test_requests_that_share_a_page_get_their_own_form(
    client: Client, execute: Execute, monkeypatch: Patch
) -> None:
    """The changes that they wait for are encoded once for each form."""
    token, waiting, wait = add_client(execute, "write"), 0, LongPolls.wait

    async def spy(self: LongPolls, after: FeedCursor, seconds: float) -> Any:
        nonlocal waiting
        waiting += 1
        return await wait(self, after, seconds)

    monkeypatch.setattr(LongPolls, "wait", spy)
    requests = [
        asyncio.create_task(show(client, "/v1/changes?wait=20", each))
        for each in (None, token, None, token)
    ]
    await until(lambda: waiting >= 4)
    await client.post("/v1/movies", json=MOANA, headers=bearer(token))

    found = [(await each)[0].get("client") for each in requests]
    assert [client and client["id"] for client in found] == [None, client_id(token)] * 2


async def test_a_history_has_the_newest_change_first(client: Client, database: str) -> None:
    """Page by page, each once, although it grows; also of a deleted movie.

    It shows a change at once, which the feed holds back while another transaction is open.
    """
    with hold(database, "select pg_current_xact_id()"):
        await client.post("/v1/movies", json=MOANA)
        for year in (2001, 2002, 2003):
            await client.patch("/v1/movies/1", json={"year": year})
        first = await (await client.get(f"{PATH}?limit=2")).json()
        await client.delete("/v1/movies/1")
        await client.post("/v1/movies/1/restore")
        await client.delete("/v1/movies/1")
        cursor = first["metadata"]["next_cursor"]
        second = await (await client.get(f"{PATH}?limit=2&cursor={cursor}")).json()
        whole = await (await client.get(PATH)).json()
        assert await show(client, "/v1/changes") == []

    assert [each["version"] for each in first["changes"] + second["changes"]] == [4, 3, 2, 1]
    assert second["metadata"] == {"next_cursor": None} == whole["metadata"]
    assert whole["changes"][3:] == first["changes"] + second["changes"]
    kinds = ["deleted", "created", "deleted", "updated", "updated", "updated", "created"]
    assert [each["kind"] for each in whole["changes"]] == kinds
    assert list(first["changes"][0]) == ["kind", "id", "version", "changed_at", "etag", "previous"]
    assert whole["changes"][0]["deleted_movie"]["version"] == 5


async def test_a_history_exists_as_long_as_the_movie_or_a_change(
    client: Client, execute: Execute
) -> None:
    """Changes that have been cleared are no error; what is no id needs no statement."""
    add_movies(execute, "a")
    execute("delete from movie_changes")
    cleared = await client.get(PATH)
    execute("delete from movies")
    deleted = await client.get(PATH)
    execute("delete from movie_changes")
    statuses = [
        (await client.get(f"/v1/movies/{each}/changes")).status
        for each in ("1", "7", "0", "01", "x", 2**63 - 1, 2**63, 10**19, "٣")
    ]

    assert await cleared.json() == {"changes": [], "metadata": {"next_cursor": None}}
    assert [each["kind"] for each in (await deleted.json())["changes"]] == ["deleted"]
    assert statuses == [404] * 9
    assert (await client.head(PATH)).status == 404
    assert (await client.post(PATH)).headers["Allow"] == "GET, HEAD, OPTIONS"


async def test_wrong_parameters_of_a_history_are_refused(client: Client, execute: Execute) -> None:
    """A cursor belongs to the history of one movie."""
    add_movies(execute, "a", "b", "c")
    execute("update movies set year = 1999")
    answer = await (await client.get("/v1/movies/2/changes?limit=1")).json()
    history = answer["metadata"]["next_cursor"]
    answer = await (await client.get("/v1/movies?page_size=1")).json()
    listed = answer["metadata"]["next_cursor"]
    other = "was made for another path, filter or sort; must be a cursor"
    damaged = "is damaged; must be a cursor"
    forged = (encode_cursor(SortKey(0, 2**63), 1, PATH, backwards=False), damaged)
    cursors = [(history, other), (listed, other), (encode_change(FeedCursor("a", 1, 1)), other)]
    for cursor, told in [*cursors, (history[:-1], damaged), ("x", damaged), forged]:
        response = await client.get(PATH, params={"cursor": cursor})
        (error,) = (await response.json())["errors"]
        assert (response.status, error["parameter"]) == (422, "cursor")
        assert error["detail"].startswith(told), cursor
    for query in ("limit=0", "limit=1001", "limit=x", "cursor=", "after=x", "page=1"):
        assert (await client.get(f"{PATH}?{query}")).status == 422, query
    for path in ("/v1/changes?after=", "/v1/movies?cursor="):
        assert (await client.get(path + history)).status == 422
    assert (await client.get(f"/v1/movies/2/changes?cursor={history}")).status == 200


async def test_the_order_of_a_history_is_that_of_its_changes(
    client: Client, execute: Execute
) -> None:
    """Versions begin again when a DBA inserts a movie with the id of a deleted one."""
    execute(ADD.format(1, 1))
    execute("update movies set year = 1999; update movies set year = 1998; delete from movies")
    again = "insert into movies (id, title, year, runtime, genres) overriding system value"
    execute(f"{again} values (1, 'x', 2000, 1, '{{x}}')")

    changes = await show(client, f"{PATH}?limit=2")
    assert [(each["kind"], each["version"]) for each in changes] == [("created", 1), ("deleted", 3)]
