"""Tests shared statements over HTTP: clients notice no difference."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from conftest import MOANA, Client, MakeStatements, Start
from link import opened
from structlog.testing import capture_logs
from support import (
    Execute,
    Logs,
    Patch,
    add_movies,
    add_trigger,
    count_deadlocks,
    get_app,
    hold,
    movie_tag,
    set_for_database,
    until,
)

from service.app import EXPECTED, POOL, REGISTRY
from service.database import query_files
from service.database.resource import Condition, ItemChange, Written
from service.database.statements import Statements
from service.database.store import Store
from service.errors import Contended, NotFound, PreconditionFailed, RuleBroken
from service.movies import search_help
from service.movies.keys import IdempotentCreates
from service.movies.movie import MOVIES


async def test_a_write_is_seen_by_every_list_after_it(start: Start, database: str) -> None:
    """None of many requests for the same two lists gets a list that is older than the request.

    Another process writes, so the one that lists knows nothing of writes. Its network is slow:
    there are nearly always results on their way that are older than a request.
    """
    missed = []

    async def find(lists: Client, movie_id: int, query: str) -> dict[str, Any] | None:
        response = await lists.get(f"/v1/movies?page_size=40&{query}")
        movies = (await response.json())["movies"]
        return next((movie for movie in movies if movie["id"] == movie_id), None)

    async def write_and_list(writes: Client, lists: Client) -> None:
        movie = {**MOANA, "genres": ["hot"]}
        path = (await writes.post("/v1/movies", json=movie)).headers["Location"]
        for year in range(1900, 1910):
            created = (await (await writes.post("/v1/movies", json=MOANA)).json())["movie"]
            if await find(lists, created["id"], "sort=-id") != created:
                missed.append(created["id"])
            changed = (await (await writes.patch(path, json={"year": year})).json())["movie"]
            if await find(lists, changed["id"], "genres=hot") != changed:
                missed.append(changed["id"])

    async with opened(database, delay_s=0.005) as link:
        writes, lists = await start(), await start(database__url=link.url)
        await asyncio.gather(*(write_and_list(writes, lists) for _ in range(10)))
        await lists.close()

    assert missed == []


async def test_a_page_is_not_kept_if_a_movie_changes_while_it_is_fetched(
    client: Client, execute: Execute, monkeypatch: Patch
) -> None:
    """Also if the next list finds the change before the fetch has ended."""
    add_movies(execute, "Casablanca")
    suggest = search_help.suggest

    async def search() -> Any:
        return await (await client.get("/v1/movies?title=casablnca")).json()

    async def change_and_find(*args: Any) -> Any:
        monkeypatch.undo()
        add_movies(execute, "Casablnca")
        await client.get("/v1/movies")
        return await suggest(*args)

    for _ in range(3):
        await client.get("/v1/movies")
    monkeypatch.setattr(search_help, "suggest", change_and_find)
    assert (await search())["movies"] == []

    assert (await search())["metadata"]["total_records"] == 1


async def test_a_reload_is_seen_by_the_next_list(
    start: Start, checkout: Path, execute: Execute, logs: Logs
) -> None:
    """It drops the pages that the former queries have fetched."""
    add_movies(execute, "a")
    client = await start(root=checkout)

    async def find_title() -> str:
        (movie,) = (await (await client.get("/v1/movies")).json())["movies"]
        return str(movie["title"])

    assert [await find_title() for _ in range(4)] == ["a"] * 4
    file = checkout / "queries/listing.sql"
    file.write_text(
        file.read_text().replace(
            "m.title, m.year, m.runtime, m.g", "upper(m.title) as title, m.year, m.runtime, m.g"
        )
    )
    get_app(client)[REGISTRY].reload()
    await until(lambda: [line for line in logs if line["event"] == "queries reloaded"])

    assert await find_title() == "A"


@pytest.mark.parametrize(("method", "locked"), [("PATCH", 1), ("DELETE", 8)])
async def test_a_locked_row_delays_only_its_own_requests(
    start: Start, execute: Execute, database: str, method: str, locked: int
) -> None:
    """A DBA's open transaction on movies: 503 for these; other movies can be read and changed.

    Also if more movies are locked than statements may run. The 503 comes after `statement_timeout`.
    """
    client = await start(database__statement_timeout=1)
    add_movies(execute, *[f"Movie {n}" for n in range(1, 21)])
    lock = f"update movies set year = 2001 where id <= {locked}"
    with hold(database, lock), capture_logs() as logged:
        responses = await asyncio.gather(
            *(
                client.request(method, f"/v1/movies/{id_}", json={"year": 2002})
                for id_ in range(1, 21)
            )
        )

    assert [response.status for response in responses] == [
        503 if id_ <= locked else 200 for id_ in range(1, 21)
    ]
    assert {line["reason"] for line in logged if "reason" in line} == {
        f"movie {id_} is locked" for id_ in range(1, locked + 1)
    }


@pytest.mark.parametrize(
    ("theirs", "status"),
    [
        ("select from movies where id = 1 for update", 200),
        ("update movies set year = 1999 where id = 1", 412),
        ("delete from movies where id = 1", 404),
    ],
)
async def test_a_change_waits_until_its_movie_is_free(
    client: Client, execute: Execute, database: str, theirs: str, status: int
) -> None:
    """The change applies to the movie as another transaction left it."""
    await client.post("/v1/movies", json=MOANA)
    with hold(database, theirs) as dba:
        change = asyncio.create_task(
            client.patch("/v1/movies/1", json={"year": 2017}, headers={"If-Match": movie_tag()})
        )
        running = "select 1 from pg_stat_activity where query like '%\"year\":2017%'"
        await until(lambda: execute(f"{running} and pid <> pg_backend_pid()"))
        dba.commit()

    assert (await change).status == status


async def test_a_row_that_refers_to_a_movie_does_not_lock_it(
    start: Start, execute: Execute, database: str
) -> None:
    """Of a DBA's table, in an open transaction: its foreign key only keeps the movie there."""
    client = await start(database__statement_timeout=1)
    await client.post("/v1/movies", json={**MOANA, "external_id": "a"})
    execute("create table reviews (movie_id bigint references movies)")
    with hold(database, "insert into reviews values (1)"):
        patched = await client.patch("/v1/movies/1", json={"external_id": "b"})
        movies = [{**MOANA, "external_id": "b", "year": 2017}]
        put = await client.put("/v1/movies/batch", json={"movies": movies})
        deleted = await client.delete("/v1/movies/1")

    assert [response.status for response in (patched, put, deleted)] == [200, 200, 503]


async def test_a_movie_is_deleted_once(client: Client) -> None:
    """If many requests delete one movie at once, one of them gets it."""
    path = (await client.post("/v1/movies", json=MOANA)).headers["Location"]

    responses = await asyncio.gather(*(client.delete(path) for _ in range(30)))

    assert sorted(response.status for response in responses) == [200, *[404] * 29]


async def test_writers_on_two_services_do_not_lock_each_other_out(
    start: Start, execute: Execute
) -> None:
    """Two processes that change the same movies at once: all changes are made, and no deadlock."""
    set_for_database(execute, "deadlock_timeout = '1ms'")  # before lock_timeout ends them
    first, second = await start(), await start()
    add_movies(execute, *[f"Movie {n}" for n in range(1, 51)])

    responses = await asyncio.gather(
        *(
            client.patch(f"/v1/movies/{id_}", json={"year": 1900 + round_})
            for round_ in range(3)
            for client, ids in ((first, range(1, 51)), (second, range(50, 0, -1)))
            for id_ in ids
        )
    )

    assert {response.status for response in responses} == {200}
    assert count_deadlocks(execute) == 0


async def test_lists_have_their_own_share_of_the_connections(start: Start) -> None:
    """While they take all of it, movies are read by id and written."""
    client = await start(database__acquire_timeout=0.3)
    share = get_app(client)[POOL].limits["lists"]
    while not share.locked():
        await share.acquire()

    lists = [await client.get(f"/v1/{path}") for path in ("movies", "genres")]
    written = await client.post("/v1/movies", json=MOANA)
    read = await client.get(written.headers["Location"])

    assert [response.status for response in lists] == [503, 503]
    assert (written.status, read.status) == (201, 200)


FIELDS = {**MOANA, "runtime": 107}
WAITING = "select 1 from pg_stat_activity where wait_event = 'advisory'"
Make = Callable[..., Statements]


@pytest.fixture
def make(make_statements: MakeStatements, checkout: Path) -> Make:
    """Make statements, with `old` replaced by `new` in the service's queries."""

    def begin(old: str, new: str) -> Any:
        file = checkout / "queries" / "movies.sql"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
        return make_statements(Statements, query_files.load(checkout / "queries", EXPECTED))

    return begin


async def test_movies_are_told_apart_by_position(make: Make) -> None:
    """PostgreSQL may return the rows of a statement in any order."""
    joined = "join new as n on n.id = c.id"
    catalogue = Store(MOVIES, make(f"{joined};", f"{joined} order by n.position desc;"))

    movies = await asyncio.gather(
        *(catalogue.create({**FIELDS, "title": title}) for title in ("a", "b", "c"))
    )

    assert [movie.item.title for movie in movies] == ["a", "b", "c"]


async def test_an_external_id_that_comes_and_goes_is_no_broken_rule(statements: Statements) -> None:
    """Each time, another session commits it during the statement, and then deletes its movie."""
    lost = [RuleBroken("movies_external_id_unique") for _ in range(3)]

    async def send() -> str:
        if lost:
            raise lost.pop()
        return "written"

    assert await Store(MOVIES, statements).resender.send(send) == "written"
    statements.timeout = -1  # then it may succeed later
    lost.append(RuleBroken("movies_external_id_unique"))
    with pytest.raises(Contended):
        await Store(MOVIES, statements).resender.send(send)


async def test_a_create_is_on_disk_before_its_response(
    statements: Statements, execute: Execute
) -> None:
    """`synchronous_commit` stays as the DBA has set it."""
    set_for_database(execute, "synchronous_commit = on")
    execute("create table seen (setting text)")
    note = "insert into seen values (current_setting('synchronous_commit')); return new"
    add_trigger(execute, f"{note};")

    store = Store(MOVIES, statements)
    await store.create(FIELDS)
    await IdempotentCreates(store, statements).create("a", FIELDS)

    assert execute("select setting from seen") == [("on",)] * 2


async def test_a_statement_has_at_most_32_keys(statements: Statements, monkeypatch: Patch) -> None:
    """Each key takes a lock, and all sessions together have 6400 by default."""
    fetch = statements.fetch
    keys = []

    async def fetch_and_count(name: str, parameters: dict[str, str], **options: Any) -> Any:
        keys.append(len(orjson.loads(parameters["requests"])))
        return await fetch(name, parameters, **options)

    monkeypatch.setattr(statements, "fetch", fetch_and_count)
    store = Store(MOVIES, statements)
    idempotent_creates = IdempotentCreates(store, statements)

    await asyncio.gather(*(idempotent_creates.create(str(number), FIELDS) for number in range(100)))

    assert (max(keys), sum(keys)) == (32, 100)


@pytest.mark.parametrize("method", ["update", "delete"])
@pytest.mark.parametrize(
    ("theirs", "condition", "error"),
    [
        ("update movies set year = 2000", Condition(versions=[1]), PreconditionFailed),
        ("update movies set year = 2000", Condition(versions=[2]), None),
        ("update movies set year = 2000", Condition(other_than=[1]), None),
        ("delete from movies", Condition(versions=[1]), NotFound),
        ("select from movies", Condition(versions=[1]), None),
    ],
)
async def test_conditions_are_checked_under_the_lock(  # noqa: PLR0913, PLR0917 - the cases
    make: Make,
    execute: Execute,
    database: str,
    method: str,
    theirs: str,
    condition: Condition,
    error: type[Exception] | None,
) -> None:
    """Not in the statement's snapshot, because another session may change the movie after it."""
    gate = "from pg_advisory_xact_lock_shared(1), jsonb_to_recordset(:"
    catalogue = Store(MOVIES, make("from jsonb_to_recordset(:", gate))
    execute("insert into movies (title, year, runtime, genres) values ('x', 1999, 1, '{x}')")
    change = ItemChange(1, {"runtime": 2} if method == "update" else None, condition)

    with hold(database, "select pg_advisory_lock(1)"):
        outcome = asyncio.create_task(catalogue.change(change))
        await until(lambda: execute(f"{WAITING} and datname = current_database()"))
        execute(theirs)

    assert type((await asyncio.gather(outcome, return_exceptions=True))[0]) is (error or Written)
