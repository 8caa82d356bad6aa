"""Tests GET /v1/changes: the feed of changes."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import psycopg2
import pytest
from conftest import MOANA, Client, Start
from metric_values import TOKEN, read_metrics
from support import (
    Environment,
    Execute,
    Patch,
    add_movies,
    copy_pages,
    follow,
    get_app,
    hold,
    run_here,
    until,
)

from service.changes import feed as changes
from service.changes import handlers as web_changes
from service.changes import waiting as waiting_changes
from service.changes.feed import ChangePage, CursorExpired, Feed, FeedCursor, make_expiry
from service.changes.handlers import decode_change, encode_change
from service.changes.waiting import LongPolls, divide_page
from service.database import clearing
from service.database.clearing import Clearing
from service.database.migrations import session as migration_session
from service.database.statements import Statements
from service.web.middleware import CYCLE
from service.web.pages import seal

EXPIRY = make_expiry(keep_days=7)

PATH = "/v1/changes"
ADD = "insert into movies (title, year, runtime, genres) values ('x', 2000, 1, '{x}')"


async def get(client: Client, after: str | None = None, wait: int = 0) -> tuple[list[Any], str]:
    """Return the changes behind a cursor, and the next cursor."""
    parameters = {"wait": str(wait)} | ({"after": after} if after else {})
    response = await client.get(PATH, params=parameters)
    assert response.status == 200, await response.text()
    answer = await response.json()
    return answer["changes"], answer["metadata"]["next_cursor"]


async def read_all(client: Client, number: int, after: str | None = None) -> list[Any]:
    """Return exactly so many changes: other sessions of the server may hold them back a while."""
    found: list[Any] = []
    while len(found) < number:
        some, after = await get(client, after, wait=20)
        found += some
    more, _ = await get(client, after)
    assert [len(found), more] == [number, []]
    return found


def brief(found: list[Any]) -> list[tuple[str, int, int]]:
    """Return the kind, id and version of each change."""
    return [(change["kind"], change["id"], change["version"]) for change in found]


@pytest.fixture(autouse=True)
def fresh_end(monkeypatch: Patch) -> None:
    """Let lists read the end of the feed each time."""
    monkeypatch.setattr(changes, "END_S", 0)


async def find_end(client: Client) -> str:
    """Return the cursor that comes with the list of all movies."""
    response = await client.get("/v1/movies")
    return response.headers["Changes-Cursor"]


async def test_each_change_comes_once_in_order_with_the_movie_as_it_is_now(client: Client) -> None:
    """A movie that is gone has only its id and its last version, also in earlier changes."""
    after = await find_end(client)
    for title in ("a", "b"):
        await client.post("/v1/movies", json={**MOANA, "title": title})
    await client.patch("/v1/movies/1", json={"year": 2015})
    await client.delete("/v1/movies/2")

    found = await read_all(client, 4, after)

    movie = (await (await client.get("/v1/movies/1")).json())["movie"]
    assert brief(found) == [
        ("created", 1, 1),
        ("created", 2, 1),
        ("updated", 1, 2),
        ("deleted", 2, 1),
    ]
    assert [change.get("movie") for change in found] == [movie, None, movie, None]
    assert list(found[0]) == ["kind", "id", "version", "changed_at", "movie"]
    assert found[2]["changed_at"] == movie["updated_at"]


async def test_limit_is_the_number_of_changes(client: Client, execute: Execute) -> None:
    """From 1 to 1,000, 100 by default; the cursor goes on behind the last one."""
    after = await find_end(client)
    add_movies(execute, *"x" * 250)

    async def get_some(after: str, **query: int) -> tuple[list[int], str]:
        response = await client.get(PATH, params={"after": after, "wait": 20, **query})
        answer = await response.json()
        return [each["id"] for each in answer["changes"]], answer["metadata"]["next_cursor"]

    assert (await get_some(after, limit=1000))[0] == [*range(1, 251)]
    assert (await get_some(after))[0] == [*range(1, 101)]
    first, behind = await get_some(after, limit=2)
    second, _ = await get_some(behind, limit=3)
    assert (first, second) == ([1, 2], [3, 4, 5])
    for wrong in ("0", "1001", "x"):
        assert (await client.get(PATH, params={"limit": wrong})).status == 422


async def test_limit_holds_for_a_request_that_waits(
    client: Client, execute: Execute, monkeypatch: Patch
) -> None:
    """All who wait get the same changes, but one with a limit gets only so many of them."""
    sent = watch_polls(monkeypatch)
    after = await find_end(client)
    query = {"after": after, "wait": "20"}
    requests = [client.get(PATH, params=query | more) for more in ({}, {"limit": "2"})]
    waiting = [asyncio.create_task(each) for each in requests]
    await until(lambda: sent["poll"] > 1)
    add_movies(execute, *"abcde")

    whole, limited = [await (await each).json() for each in waiting]

    assert [len(each["changes"]) for each in (whole, limited)] == [5, 2]
    rest, _ = await get(client, limited["metadata"]["next_cursor"])
    assert [each["id"] for each in rest] == [3, 4, 5]


async def test_every_writer_is_recorded(client: Client, database: str) -> None:
    """Statements of psql on many movies; not what has no effect or is rolled back."""
    add = (
        "insert into movies (title, year, runtime, genres)"
        " select 't' || n, 2000, n, '{x}' from generate_series(1, 3) as n"
    )
    with hold(database, add) as psql:
        run = psql.cursor().execute
        run("update movies set runtime = 2 where id < 3")  # the second one has that already
        run("delete from movies where id = 3")
        run("savepoint s")
        run("delete from movies")
        run("rollback to savepoint s")
        run("truncate movies")
        psql.commit()
        run("delete from movies where false")
        run(ADD)
        psql.rollback()

    created = [("created", number, 1) for number in (1, 2, 3)]
    changed = [("updated", 1, 2), ("deleted", 3, 1), ("deleted", 1, 2), ("deleted", 2, 1)]
    assert brief(await read_all(client, 7)) == created + changed


NESTED = """
create function act() returns trigger language plpgsql as $$ begin %s; return null; end $$;
create trigger act after %s on movies for each row %s execute function act();
"""
AGAIN = "update movies set runtime = runtime + 1 where id = new.id"


@pytest.mark.parametrize(
    ("acts", "wanted"),
    [
        (
            (AGAIN, "insert or update", "when (new.runtime < 4)"),
            # Each movie of the first statement becomes version 3, by a trigger in a trigger.
            [
                *(("created", 1, 1), ("created", 2, 1)),
                *(("updated", 1, 2), ("updated", 1, 3), ("updated", 2, 2), ("updated", 2, 3)),
                *(("updated", 1, 4), ("deleted", 2, 3)),
            ],
        ),
        (
            ("delete from movies where id = new.id", "insert or update", "when (new.id = 2)"),
            [("created", 1, 1), ("created", 2, 1), ("deleted", 2, 1), ("updated", 1, 2)],
        ),
    ],
)
async def test_a_change_by_a_trigger_comes_behind_its_cause(
    client: Client,
    database: str,
    execute: Execute,
    acts: tuple[str, str, str],
    wanted: list[tuple[str, int, int]],
) -> None:
    """Also if triggers of triggers change it, and if the transaction goes on."""
    execute(NESTED % acts)
    add = (
        "insert into movies (title, year, runtime, genres)"
        " values ('a', 2000, 2, '{x}'), ('b', 2000, 2, '{x}')"
    )
    with hold(database, add) as psql:
        psql.cursor().execute("update movies set title = 'c' where id = 1")
        psql.cursor().execute("delete from movies where id = 2")
        psql.commit()

    assert brief(await read_all(client, len(wanted))) == wanted


async def test_a_movie_that_is_created_again_exists_in_the_feed(
    client: Client, execute: Execute
) -> None:
    """A trigger of another table deletes it, and creates it with the same id."""
    execute(
        "create table staging (id bigint);"
        "create function take() returns trigger language plpgsql as $$ begin"
        " delete from movies where id = new.id;"
        " insert into movies (id, title, year, runtime, genres) overriding system value"
        " values (new.id, 'again', 2000, 2, '{x}'); return new; end $$;"
        "create trigger a after insert on staging for each row execute function take()"
    )
    add_movies(execute, "a")
    execute("insert into staging values (1)")

    kinds = [kind for kind, *_ in brief(await read_all(client, 3))]
    assert kinds == ["created", "deleted", "created"]


async def test_a_writer_needs_no_rights_on_the_feed(
    client: Client, execute: Execute, database: str
) -> None:
    """Nor can it lead the triggers to a table of its own."""
    execute("drop role if exists writer_of_movies")
    execute("create role writer_of_movies")
    execute("grant insert on movies to writer_of_movies")
    execute("grant usage on schema public to writer_of_movies")
    try:
        with hold(database, "set role writer_of_movies") as writer, writer.cursor() as cursor:
            columns = "transaction xid8, movie_id bigint, version integer, kind text"
            cursor.execute(f"create temporary table movie_changes ({columns})")
            cursor.execute(ADD)
            cursor.execute("select count(*) from pg_temp.movie_changes")
            assert cursor.fetchall() == [(0,)]
            writer.commit()
    finally:
        execute("drop owned by writer_of_movies")
        execute("drop role writer_of_movies")

    assert brief(await read_all(client, 1)) == [("created", 1, 1)]


async def test_a_transaction_that_is_open_holds_back_later_ones(
    client: Client, database: str
) -> None:
    """Otherwise its changes would come before a cursor that a client has already."""
    after = await find_end(client)
    with hold(database, ADD) as other:
        await client.post("/v1/movies", json=MOANA)
        assert (await get(client, after))[0] == []
        other.commit()

    assert brief(await read_all(client, 2, after)) == [("created", 1, 1), ("created", 2, 1)]


async def test_a_copy_is_right_whatever_the_order_of_a_movies_changes(
    client: Client, database: str
) -> None:
    """A transaction may get its number before another one changes the row that it waits for."""
    path = (await client.post("/v1/movies", json=MOANA)).headers["Location"]
    copy, after = await copy_pages(client)
    seen = []
    for method, sql in (
        ("PATCH", "update movies set year = 2018"),
        ("DELETE", "select restore_movies('[{\"id\": 1}]')"),
    ):
        with hold(database, "select pg_current_xact_id()") as other:
            body = {"year": 2017} if method == "PATCH" else None
            assert (await client.request(method, path, json=body)).status == 200
            other.cursor().execute(sql)
            other.commit()
        seen += brief(await read_all(client, 2, after))
        number, after = await follow(client, copy, after)
        movie = (await (await client.get(path)).json())["movie"]
        assert (number, copy) == (2, {1: movie["version"]})

    assert seen == [("updated", 1, 3), ("updated", 1, 2), ("created", 1, 4), ("deleted", 1, 3)]


async def test_the_feed_says_how_far_it_is_behind(
    start: Start, server_url: str, execute: Execute, monkeypatch: Patch
) -> None:
    """Also if the open transaction is in another database; `as_of` and a metric say it."""
    monkeypatch.setattr(clearing, "INTERVAL_S", 0.05)
    client = await start(operations__token=TOKEN)

    async def read_as_of() -> datetime:
        answer = await (await client.get(PATH)).json()
        return datetime.fromisoformat(answer["metadata"]["as_of"])

    def read_clock() -> datetime:
        ((now,),) = execute("select clock_timestamp()")
        return cast("datetime", now)

    before = read_clock()
    with hold(server_url, "select pg_current_xact_id()") as other:
        assert await read_as_of() > before  # no change is held back
        execute("select pg_sleep(0.1)")
        first = read_clock()
        add_movies(execute, "a")
        behind = read_clock()
        add_movies(execute, "b")
        held = [await read_as_of(), await read_as_of()]
        await until(lambda: read_metrics(client)["changes_delay_seconds"] > 0)
        other.rollback()
    await until(lambda: read_metrics(client)["changes_delay_seconds"] == 0)
    await read_all(client, 2)

    assert held[0] == held[1]
    assert first < held[0] < behind
    assert await read_as_of() > behind


async def test_a_restored_dump_does_not_hold_back_the_feed(
    client: Client, execute: Execute
) -> None:
    """Its changes may have transactions that are in the future of this server."""
    execute(
        "insert into movie_changes (transaction, movie_id, version, kind, changed_at)"
        " values ('999999999999', 1, 1, 'created', '2000-01-01Z')"
    )

    answer = await (await client.get(PATH)).json()

    assert not answer["metadata"]["as_of"].startswith("2000")


async def test_a_request_waits_for_a_change(
    client: Client, database: str, monkeypatch: Patch
) -> None:
    """It is answered when the change is committed, not before."""
    monkeypatch.setattr(waiting_changes, "POLL_PAUSE_S", 0.01)
    sent = watch_polls(monkeypatch)
    after = await find_end(client)
    with hold(database, ADD) as other:
        waiting = asyncio.create_task(get(client, after, wait=20))
        await until(lambda: sent["poll"] > 3)
        assert not waiting.done()
        other.commit()
        found, _ = await waiting

    assert brief(found) == [("created", 1, 1)]


async def test_a_wait_ends_without_changes(start: Start) -> None:
    """After so many seconds, also above request_timeout; the next cursor misses nothing."""
    client = await start(server__request_timeout=0.3)
    after = await find_end(client)

    loop = asyncio.get_running_loop()
    began = loop.time()
    found, after = await get(client, after, wait=1)
    waited = loop.time() - began
    await client.post("/v1/movies", json=MOANA)

    assert found == []
    assert waited >= 1
    assert brief(await read_all(client, 1, after)) == [("created", 1, 1)]


def watch_polls(monkeypatch: Patch, gate: asyncio.Event | None = None) -> Counter[str]:
    """Count the statements of the feed: those of a request, and those for all that wait.

    The latter wait for the gate.
    """
    sent: Counter[str] = Counter()
    fetch = Statements.fetch

    async def spy(self: Statements, name: str, *given: Any, **options: Any) -> Any:
        if name == "get_changes":
            kind = "request" if options["callers"] else "poll"
            sent[kind] += 1
            if kind == "poll" and gate:
                await gate.wait()
        return await fetch(self, name, *given, **options)

    monkeypatch.setattr(Statements, "fetch", spy)
    return sent


async def test_one_statement_asks_for_all_that_wait(
    client: Client, execute: Execute, monkeypatch: Patch
) -> None:
    """However many there are; what it finds answers all of them."""
    after = await find_end(client)
    gate = asyncio.Event()
    sent = watch_polls(monkeypatch, gate)
    waiting = [asyncio.create_task(get(client, after, wait=20)) for _ in range(30)]
    await until(lambda: sent == {"request": 30, "poll": 1})
    add_movies(execute, "x")
    gate.set()
    found = await asyncio.gather(*waiting)

    assert [brief(some) for some, _ in found] == [[("created", 1, 1)]] * 30
    assert sent["request"] == 30
    assert sent["poll"] <= 3  # the change may be held back for a moment


async def test_a_wait_that_begins_during_a_poll_misses_nothing(
    client: Client, execute: Execute, statements: Statements, monkeypatch: Patch
) -> None:
    """Even if its place is in front of those that the poll reads for."""
    earlier = decode_change(await find_end(client))
    add_movies(execute, "a")
    later = decode_change(await find_end(client))
    add_movies(execute, "b")
    fetch, has_read, may_return = statements.fetch, asyncio.Event(), asyncio.Event()

    async def fetch_slowly(*names: Any, **given: Any) -> Any:
        rows = await fetch(*names, **given)
        has_read.set()
        await may_return.wait()
        return rows

    monkeypatch.setattr(statements, "fetch", fetch_slowly)
    waiting = LongPolls(Feed(statements, statements))
    first = asyncio.create_task(waiting.wait(later, 30))
    await has_read.wait()
    second = asyncio.create_task(waiting.wait(earlier, 30))
    await asyncio.sleep(0)
    may_return.set()
    pages = await asyncio.gather(first, second)

    assert [[each.row.movie_id for each in page.changes] for page in pages if page] == [[2], [1, 2]]


def test_a_page_that_lacks_changes_expires_only_the_first_cursor() -> None:
    """Of those behind it, it is not known; the next read says so."""
    now = datetime.now(UTC)
    first, later = FeedCursor("a", 1, 0), FeedCursor("a", 5, 0)
    page = ChangePage([], FeedCursor("a", 9, 0), now, is_expired=True)
    loop = asyncio.new_event_loop()
    answers = loop.create_future(), loop.create_future()

    found = divide_page(page, dict(zip(answers, (first, later), strict=True)))

    assert [type(found.get(answer)) for answer in answers] == [CursorExpired, type(None)]
    loop.close()


async def test_each_request_that_waits_gets_the_changes_after_its_cursor() -> None:
    """Not that of its cursor once more; if there are none, it goes on waiting."""
    changes: Any = [SimpleNamespace(cursor=FeedCursor("a", 7, change)) for change in (1, 2, 3)]
    page = ChangePage(changes, FeedCursor("a", 8, 0), datetime.now(UTC))
    places = (5, 0), (7, 1), (7, 3)
    answers = [asyncio.get_running_loop().create_future() for _ in places]

    cursors = {each: FeedCursor("a", *place) for each, place in zip(answers, places, strict=True)}
    found: dict[Any, Any] = {**divide_page(page, cursors)}

    assert [found[each].changes if each in found else None for each in answers] == [
        *(changes, changes[1:], None)
    ]


async def test_too_many_waiting_requests_are_refused(client: Client, monkeypatch: Patch) -> None:
    """With 503, at once."""
    monkeypatch.setattr(waiting_changes, "MAX_WAITERS", 0)

    response = await client.get(PATH, params={"after": await find_end(client), "wait": "20"})

    assert (response.status, response.headers["Retry-After"]) == (503, "1")


async def test_a_client_that_is_gone_waits_no_longer(client: Client, monkeypatch: Patch) -> None:
    """So it takes no place from others."""
    monkeypatch.setattr(waiting_changes, "MAX_WAITERS", 1)
    monkeypatch.setattr(web_changes, "STOP_CHECK_S", 0.05)
    sent = watch_polls(monkeypatch)
    after = await find_end(client)
    gone = asyncio.create_task(get(client, after, wait=20))
    await until(lambda: sent["poll"] > 0)
    gone.cancel()  # closes the connection

    async with asyncio.timeout(10):
        while (await client.get(PATH, params={"after": after, "wait": "1"})).status == 503:
            pass


async def test_a_stop_ends_waits(client: Client) -> None:
    """The response says that the connection ends."""
    after = await find_end(client)
    get_app(client)[CYCLE].is_draining = True

    response = await client.get(PATH, params={"after": after, "wait": "20"})

    assert (response.status, response.headers["Connection"]) == (200, "close")


async def test_a_wait_fails_with_its_database(
    client: Client, database: str, maintain: Callable[[str], None], monkeypatch: Patch
) -> None:
    """With 503, so that the client tries again."""
    monkeypatch.setattr(waiting_changes, "POLL_PAUSE_S", 0.01)
    sent = watch_polls(monkeypatch)
    after = await find_end(client)
    waiting = asyncio.create_task(client.get(PATH, params={"after": after, "wait": "20"}))
    await until(lambda: sent["poll"] > 3)
    name = psycopg2.extensions.parse_dsn(database)["dbname"]
    maintain(f"alter database {name} allow_connections false")
    maintain(f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'")
    response = await waiting
    maintain(f"alter database {name} allow_connections true")

    assert response.status == 503


@pytest.mark.parametrize("path", ["?title=x", "?page=1", "?page=2", "?cursor"])
async def test_only_the_first_page_of_all_movies_has_the_cursor(
    client: Client, execute: Execute, path: str
) -> None:
    """Other pages may be later than changes that the feed would not repeat."""
    add_movies(execute, *map(str, range(30)))
    first = await client.get("/v1/movies")
    if path == "?cursor":
        path += "=" + (await first.json())["metadata"]["next_cursor"]

    other = await client.get(f"/v1/movies{path}")

    assert "Changes-Cursor" in first.headers
    assert "Changes-Cursor" not in other.headers


async def test_the_cursor_does_not_change_the_entity_tag(client: Client, execute: Execute) -> None:
    """A client that has the list gets a 304, although other transactions have ended since."""
    first = await client.get("/v1/movies")
    for _ in range(3):
        execute("select pg_current_xact_id()")

    again = await client.get("/v1/movies", headers={"If-None-Match": first.headers["ETag"]})

    assert again.status == 304


WRONG = ["after=x", "after=CItQaVsiM2Yy", "after=%00", "after=é", "after="]
WRONG += ["wait=21", "wait=-1", "wait=1.5", "wait=", "x=1"]


async def test_wrong_parameters_are_refused(client: Client) -> None:
    """With the parameter, and what is expected."""
    for query in WRONG:
        response = await client.get(f"{PATH}?{query}")

        (error,) = (await response.json())["errors"]
        assert (response.status, error["parameter"]) == (422, query.partition("=")[0]), query


async def test_a_forged_cursor_is_no_fault(client: Client) -> None:
    """Whatever numbers are in it."""
    for place in ((2**64 - 1, 0), (5, 2**63 - 1), (-1, 0), (0, 2**63 - 1)):
        cursor = encode_change(changes.FeedCursor("x", *place))
        response = await client.get(PATH, params={"after": cursor})

        assert response.status in (410, 422), place
    for content in ('{"a": 1}', '["x", 1]', '["x", "1", 2]', "[1, 1, 2]", '["x", 1, true]', "7"):
        response = await client.get(PATH, params={"after": seal(content.encode())})

        assert response.status == 422, content


async def expired(client: Client, cursor: str) -> bool:
    """Whether the cursor is refused with 410."""
    response = await client.get(PATH, params={"after": cursor})
    answer = await response.json()
    assert response.status in (200, 410)
    return bool(answer.get("type") == "/v1/docs#cursor-expired")


async def test_cleared_changes_expire_cursors(
    client: Client, execute: Execute, statements: Statements, monkeypatch: Patch
) -> None:
    """The oldest changes are cleared in portions; a later cursor stays valid."""
    monkeypatch.setattr(clearing, "BATCH_ROWS", 2)
    before = await find_end(client)
    for title in "abc":
        add_movies(execute, title)
    await read_all(client, 3, before)
    behind = await find_end(client)
    add_movies(execute, "d")
    execute("update movie_changes set changed_at = now() - interval '8 days' where movie_id < 4")
    keeper = Clearing(statements, [EXPIRY])

    cleared = [await keeper.clear(EXPIRY) for _ in range(3)]

    assert cleared == [2, 1, 0]
    assert await expired(client, before)
    assert not await expired(client, behind)
    assert brief(await read_all(client, 1)) == [("created", 4, 1)]


async def test_processes_that_clear_in_turn_leave_nothing_behind(
    execute: Execute, statements: Statements, monkeypatch: Patch
) -> None:
    """Each remembers the last change that it deleted; the other one may have gone on meanwhile."""
    monkeypatch.setattr(clearing, "BATCH_ROWS", 3)
    places = {10: (1, 2, 9), 11: range(4, 9), 12: (10, 11, 12)}
    for transaction, ids in places.items():
        execute(
            "insert into movie_changes (transaction, id, movie_id, version, kind, changed_at)"
            " overriding system value"
            f" select '{transaction}', n, n, 1, 'created', now() - interval '1 year'"
            f" from unnest(array{[*ids]}) as n"
        )
    keepers = [Clearing(statements, [EXPIRY]) for _ in range(2)]

    cleared = [await keepers[number % 2].clear(EXPIRY) for number in range(6)]

    assert sum(cleared) == 11
    assert execute("select transaction, id from movie_changes") == []


async def test_two_processes_do_not_clear_at_once(
    execute: Execute, statements: Statements, database: str
) -> None:
    """One clears, the other one does not wait for it."""
    add_movies(execute, "a")
    execute("update movie_changes set changed_at = now() - interval '8 days'")
    keeper = Clearing(statements, [EXPIRY])

    with hold(database, "select from movie_feed for update") as other:
        first = await keeper.clear(EXPIRY)
        other.rollback()
    second = await keeper.clear(EXPIRY)

    assert (first, second) == (0, 1)


NEW_FEED = "update movie_feed set id = default"
# `pg_restore --clean` makes the tables anew, with the rows of the dump.
RESTORED = (
    "alter table movie_feed rename to former;"
    "create table movie_feed (like former including all); insert into movie_feed table former"
)


@pytest.mark.parametrize("sql", [NEW_FEED, RESTORED])
async def test_a_restore_expires_all_cursors(client: Client, execute: Execute, sql: str) -> None:
    """It may lack changes that clients have seen."""
    before = await find_end(client)
    execute(sql)

    assert await expired(client, before)
    assert not await expired(client, await find_end(client))


async def test_a_truncate_that_does_not_see_all_movies_expires_all_cursors(
    client: Client, execute: Execute, database: str
) -> None:
    """It deletes also those that were created after its snapshot."""
    before = await find_end(client)
    snapshot = "set transaction isolation level repeatable read; select from movies"
    with hold(database, snapshot) as other:
        add_movies(execute, "late")
        other.cursor().execute("truncate movies")
        other.commit()

    assert await expired(client, before)


async def test_a_cursor_is_behind_the_last_change(client: Client, execute: Execute) -> None:
    """After a crash, the numbers of later transactions without changes may be given again."""
    add_movies(execute, "a")
    await read_all(client, 1)
    for _ in range(3):
        execute("select pg_current_xact_id()")
    ((last,),) = execute("select max(transaction)::text from movie_changes")

    assert decode_change(await find_end(client)).transaction == int(last) + 1


async def test_a_restored_dump_does_not_expire_new_cursors(
    client: Client, execute: Execute, statements: Statements
) -> None:
    """It may have cleared a transaction that is in the future of this server."""
    execute("update movie_feed set cleared_to = '999999999999'")
    after = await find_end(client)
    add_movies(execute, "a", "b")

    assert len(await read_all(client, 2)) == len(await read_all(client, 2, after)) == 2

    execute("update movie_changes set changed_at = now() - interval '8 days' where movie_id = 1")
    await Clearing(statements, [EXPIRY]).clear(EXPIRY)

    assert await expired(client, after)


async def test_the_feed_can_be_off(
    start: Start, execute: Execute, environment: Environment, monkeypatch: Patch
) -> None:
    """Without it, nothing is recorded; `migrate` switches it on again, as a new feed."""
    monkeypatch.setattr(changes, "END_S", 60)
    service = await start()
    before = await find_end(await start())
    off = environment | {"CATALOGUE_CHANGES_KEEP_DAYS": "0"}
    _, _, told = run_here(off, "migrate")
    _, _, told_again = run_here(off, "migrate")
    add_movies(execute, "a")
    recorded = execute("select * from movie_changes")
    misled = await service.get(PATH)  # this process expects the feed to be on
    listed = await service.get("/v1/movies")
    without = await start(changes__keep_days=0)
    absent = await without.get(PATH)
    paths = (await (await without.get("/v1/openapi.json")).json())["paths"]
    _, _, told_on = run_here(environment, "migrate")
    await find_end(service)  # that it was off is not remembered
    add_movies(execute, "b")

    assert told.endswith("the feed of changes is off now\n")
    assert "feed" not in told_again
    assert told_on.endswith("the feed of changes is on now\n")
    assert recorded == []
    assert (misled.status, listed.status, absent.status) == (503, 200, 404)
    assert "switched the feed of changes off" in (await absent.json())["detail"]
    assert "Changes-Cursor" not in listed.headers
    assert PATH not in paths
    assert await expired(service, before)
    assert brief(await read_all(service, 1)) == [("created", 2, 1)]


def test_switching_waits_for_writers(
    execute: Execute, environment: Environment, database: str, monkeypatch: Patch
) -> None:
    """For a short time; if a transaction stays open, `migrate` says whose it is."""
    monkeypatch.setattr(migration_session, "GIVE_UP_S", 0)

    with hold(database, "update movies set year = 2000"):
        status, _, told = run_here(environment | {"CATALOGUE_CHANGES_KEEP_DAYS": "0"}, "migrate")

    assert status == 1
    assert "lock timeout" in told
    assert execute("select is_on from movie_feed") == [(True,)]


async def test_lists_remember_the_end_of_the_feed_for_a_while(
    client: Client, monkeypatch: Patch
) -> None:
    """A later list may have an older cursor, behind which some of its movies come again."""
    monkeypatch.setattr(changes, "END_S", 60)
    first = await find_end(client)
    await client.post("/v1/movies", json=MOANA)

    second = await find_end(client)

    assert second == first
    assert brief(await read_all(client, 1, second)) == [("created", 1, 1)]
