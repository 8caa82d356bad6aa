"""Creates with an Idempotency-Key: one result and one response, however often they are sent."""

import asyncio
import json
import random
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import orjson
import pytest
from batches import BAD_YEAR, BATCH, LENIENT, name, send_batch, titles
from conftest import MOANA, ROOT, Client, Start
from support import (
    Execute,
    Logs,
    Patch,
    add_client,
    add_trigger,
    bearer,
    count_deadlocks,
    hold,
    set_for_database,
    until,
)

from service.app import EXPECTED
from service.database import clearing, query_files
from service.database import statements as shared_statements
from service.database.clearing import Clearing
from service.database.migrations import runner as migrations
from service.database.statements import Statements
from service.database.store import Store
from service.movies import keys as idempotency
from service.movies.keys import EXPIRY, IdempotentCreates
from service.movies.movie import MOVIES

MIGRATIONS = ROOT / "migrations"
COUNT = "select count(*) from movies"
OTHER = {**MOANA, "title": "Another"}
LARGE = {**MOANA, "title": "é" * 250, "genres": [letter * 100 for letter in "abcde"]}
ODD = {**MOANA, "title": 'é "\\\n\t😀', "genres": ["a,b", "{c}", "null", '"', "é"]}
FIELDS = {**MOANA, "runtime": 107}
WAITS_FOR_ROW = "select 1 from pg_locks where locktype = 'transactionid' and not granted"
WAIT = "pg_advisory_xact_lock(4711)"  # for the test, which holds this lock
WAITS = "select 1 from pg_locks where locktype = 'advisory' and not granted"
# As if these keys had been sent a day ago.
EXPIRE = "update idempotency_keys set expires_at = now()"


class Got(NamedTuple):
    """The parts of a response that must be the same for a repeat."""

    status: int
    location: str | None
    retry_after: str | None
    body: bytes


async def create_once(
    client: Client, key: str, movie: dict[str, Any] = MOANA, *, replayed: bool | None = None
) -> Got:
    """POST a movie with this key; `replayed`: the response must be marked as a repeat."""
    response = await client.post("/v1/movies", json=movie, headers={"Idempotency-Key": key})
    if replayed is not None:
        marked = response.headers.get("Idempotency-Replayed")
        assert marked == ("true" if replayed else None)
    headers = response.headers
    return Got(
        response.status, headers.get("Location"), headers.get("Retry-After"), await response.read()
    )


def problem(got: Got) -> tuple[int, str]:
    """Status and kind."""
    return got.status, orjson.loads(got.body)["type"].partition("#")[2]


async def until_found(execute: Execute, sql: str) -> None:
    """Wait until a query returns a row."""
    await until(lambda: asyncio.to_thread(execute, sql))


@pytest.mark.parametrize("movie", [ODD, LARGE], ids=["odd", "large"])
async def test_a_repeat_gets_the_first_response(
    start: Start, execute: Execute, movie: dict[str, Any]
) -> None:
    """Byte for byte, on any process, also after the movie was changed and deleted."""
    set_for_database(execute, "timezone = 'Asia/Kolkata'")
    client, other = await start(), await start()

    first = await create_once(client, "a", movie, replayed=False)
    kept_for = execute("select k.expires_at - m.created_at from idempotency_keys as k, movies as m")
    again = [await create_once(each, "a", movie, replayed=True) for each in (client, other)]
    assert first.location
    await client.patch(first.location, json={"title": "Vaiana"})
    after_patch = await create_once(other, "a", movie, replayed=True)
    await client.delete(first.location)
    after_delete = await create_once(other, "a", movie, replayed=True)

    assert first.status == 201
    assert {*again, after_patch, after_delete} == {first}
    assert kept_for == [(timedelta(hours=24),)]
    assert execute("select last_value from movies_id_seq") == [(1,)]


async def test_a_repeat_of_what_a_trigger_made_of_the_movie(
    client: Client, execute: Execute
) -> None:
    """If a DBA's trigger changes the movie, so is the repeat; if it drops it, there is none."""
    add_trigger(
        execute,
        "if new.year = 2000 then return null; end if;"
        " new.title := upper(new.title); new.version := 7; return new;",
    )

    first = await create_once(client, "a")
    dropped = [(await create_once(client, "b", {**MOANA, "year": 2000})).status for _ in range(2)]

    assert b'"MOANA"' in first.body
    assert await create_once(client, "a", replayed=True) == first
    assert dropped == [500, 500]
    assert (await create_once(client, "b", replayed=False)).status == 201


@pytest.mark.parametrize("stored", ["null", '{"movies": []}', "[]", '[{"movie": 1}]', "7"])
async def test_a_key_that_a_newer_release_stored_in_another_form(
    client: Client, execute: Execute, stored: str
) -> None:
    """The 409 says so, also for a batch; requests that share the statement are not concerned."""
    batch = {"movies": [MOANA]}
    await create_once(client, "a")
    await client.post(BATCH, json=batch, headers={"Idempotency-Key": "a"})
    await create_once(client, "b")
    execute("update idempotency_keys set response = %s where key <> 'b'", stored)

    got, other, neighbour = await asyncio.gather(
        create_once(client, "a"),
        create_once(client, "a", OTHER),
        create_once(client, "b", replayed=True),
    )
    response = await client.post(BATCH, json=batch, headers={"Idempotency-Key": "a"})
    batch_problem = await response.json()

    assert problem(got) == (409, "idempotency-key-in-use")
    assert (response.status, batch_problem["type"]) == (409, "/v1/docs#idempotency-key-in-use")
    details = [orjson.loads(got.body)["detail"], batch_problem["detail"]]
    assert details == [idempotency.FROM_OTHER_RELEASE] * 2
    assert problem(other) == (422, "idempotency-key-reused")
    assert neighbour.status == 201
    assert execute(COUNT) == [(3,)]


SPELLED = '{ "runtime":"107 mins",\n "genres": ["anim\\u0061tion"], "year":2016, "title": "Moana" }'


@pytest.mark.parametrize(
    ("key", "movie", "status", "is_replayed"),
    [
        ("a", SPELLED, 201, True),
        ("a", json.dumps(OTHER), 422, False),
        ("A", json.dumps(MOANA), 201, False),
        (None, json.dumps(MOANA), 201, False),
    ],
    ids=["in another spelling", "another movie", "another key", "without a key"],
)
async def test_only_the_same_key_and_fields_are_a_repeat(  # noqa: PLR0913 - the cases
    client: Client, execute: Execute, key: str | None, movie: str, status: int, *, is_replayed: bool
) -> None:
    """Spaces, escapes and the order of fields do not matter. After a 422, the key is as before."""
    first = await create_once(client, "a")
    headers = {"Idempotency-Key": key} if key else {}

    response = await client.post("/v1/movies", data=movie, headers=headers)

    assert response.status == status
    assert ("Idempotency-Replayed" in response.headers) == is_replayed
    assert (await response.read() == first.body) == is_replayed
    assert await create_once(client, "a", replayed=True) == first
    assert execute(COUNT) == [(2 if status == 201 and not is_replayed else 1,)]


async def test_other_methods_have_no_keys(client: Client, execute: Execute) -> None:
    """Other methods ignore the header, even an invalid one."""
    path = (await create_once(client, "a")).location
    assert path
    for key in ("a", ""):
        headers = {"Idempotency-Key": key}
        assert (await client.patch(path, json={"year": 2000}, headers=headers)).status == 200
        assert (await client.get(path, headers=headers)).status == 200

    assert execute("select key from idempotency_keys") == [("a",)]


async def test_the_same_keys_on_two_services_at_once(start: Start, execute: Execute) -> None:
    """In any order, and again after they have expired: one movie and one response for each key."""
    set_for_database(execute, "deadlock_timeout = '1ms'")  # before lock_timeout ends them
    keys = [str(number) for number in range(50)]
    sent = [(client, key) for client in (await start(), await start()) for key in 2 * keys]
    for turn in (1, 2):
        random.shuffle(sent)
        got = await asyncio.gather(
            *(create_once(client, key, {**MOANA, "title": key}) for client, key in sent)
        )
        assert {each.status for each in got} <= {201, 409}
        created: dict[str, set[Got]] = {key: set() for key in keys}
        for each, (_, key) in zip(got, sent, strict=True):
            created[key] |= {each} if each.status == 201 else set()
        for key, (response,) in created.items():
            assert f'"title": "{key}"'.encode() in response.body
        assert execute(COUNT) == [(turn * len(keys),)]
        execute(EXPIRE)
    assert count_deadlocks(execute) == 0


async def test_a_movie_that_breaks_a_rule_fails_alone_and_frees_its_key(
    client: Client, execute: Execute
) -> None:
    """One bad row in a shared statement: its key is not stored, the other keys are."""
    execute("alter table movies add constraint movies_year_no_1999 check (year <> 1999)")
    years = [1999 if number % 10 == 0 else 2000 for number in range(40)]

    got = await asyncio.gather(
        *(create_once(client, str(n), {**MOANA, "year": year}) for n, year in enumerate(years))
    )

    assert [each.status for each in got] == [422 if year == 1999 else 201 for year in years]
    assert execute("select count(*) from idempotency_keys") == [(36,)]
    execute("alter table movies drop constraint movies_year_no_1999")
    assert (await create_once(client, "0", {**MOANA, "year": 1999}, replayed=False)).status == 201


@pytest.mark.parametrize(("retries", "status"), [(idempotency.RETRIES, 409), (1000, 201)])
async def test_a_repeat_while_the_first_is_under_way(  # noqa: PLR0913, PLR0917 - the cases
    start: Start, execute: Execute, database: str, monkeypatch: Patch, retries: int, status: int
) -> None:
    """It waits briefly for the first response; then it gets a 409, on any process."""
    monkeypatch.setattr(idempotency, "RETRIES", retries)
    monkeypatch.setattr(
        shared_statements, "LOCK_TIMEOUT_MS", 30_000
    )  # the first one keeps its lock
    clients = [await start(), await start()]
    add_trigger(execute, f"perform {WAIT}; return new;")
    with hold(database, f"select {WAIT}"):
        first = asyncio.create_task(create_once(clients[0], "a"))
        await until_found(execute, WAITS)
        repeats = [asyncio.create_task(create_once(client, "a")) for client in clients]
        await asyncio.wait(repeats, timeout=None if status == 409 else 0.3)
        assert not first.done()
        assert [repeat.done() for repeat in repeats] == 2 * [status == 409]

    created, *others = await asyncio.gather(first, *repeats)

    assert created.status == 201
    if status == 409:
        assert {problem(each) for each in others} == {(409, "idempotency-key-in-use")}
        assert {each.retry_after for each in others} == {"1"}
    else:
        assert {*others} == {created}
    assert await create_once(clients[1], "a", replayed=True) == created
    assert execute(COUNT) == [(1,)]


@pytest.mark.parametrize("path", ["/v1/movies", BATCH])
async def test_a_repeat_waits_for_a_locked_key(client: Client, database: str, path: str) -> None:
    """A DBA has locked its row, for longer than a statement waits."""
    body = MOANA if path == "/v1/movies" else {"movies": [MOANA]}
    send = partial(client.post, path, json=body, headers={"Idempotency-Key": "a"})
    assert (await send()).status == 201
    with hold(database, "select from idempotency_keys for update"):
        repeat = asyncio.create_task(send())
        await asyncio.sleep(0.6)
        assert not repeat.done()

    assert (await repeat).status == 201


async def test_a_key_in_use_holds_up_nobody_else(client: Client, database: str) -> None:
    """A session holds a key and does not end: other requests of the shared statement succeed."""
    with hold(database, "select pg_advisory_xact_lock(hashtextextended('a', 2))"):
        async with asyncio.timeout(20):
            got = await asyncio.gather(
                *(create_once(client, key) for key in ("x", "a", "y", "a", "z"))
            )

    assert [each.status for each in got] == [201, 409, 201, 409, 201]


@pytest.mark.parametrize("is_old", [False, True], ids=["new", "expired"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_key_that_another_session_gets_first(
    client: Client, execute: Execute, database: str, end: str, *, is_old: bool
) -> None:
    """After its commit, the first response is sent, and no movie created. A rollback frees it."""
    if is_old:
        await create_once(client, "a")
        execute(EXPIRE)
    insert = (
        "insert into idempotency_keys (key, fingerprint, response)"
        """ values ('a', 'x', '{"id": 1, "version": 1}') on conflict (key)"""
        " do update set fingerprint = 'x', expires_at = excluded.expires_at"
    )
    with hold(database, insert) as other:
        waits = asyncio.create_task(create_once(client, "a"))
        await until_found(execute, WAITS_FOR_ROW)
        getattr(other, end)()
        got = await waits

    if end == "commit":
        assert problem(got) == (422, "idempotency-key-reused")
    else:
        assert got.status == 201
    assert execute(COUNT) == [(is_old + (end == "rollback"),)]  # of the expired key, and now


async def test_a_create_without_a_migration_is_503(
    client: Client, execute: Execute, database: str, logs: Logs
) -> None:
    """As after `migrate down`. The log names query and file; a repeat creates a movie later."""
    assert (await create_once(client, "a")).status == 201
    await asyncio.to_thread(migrations.downgrade, database, MIGRATIONS, lambda _: None)
    execute("alter table idempotency_keys rename response to former")
    got = await asyncio.gather(*(create_once(client, str(number)) for number in range(5)))
    execute("alter table idempotency_keys rename former to response")
    await asyncio.to_thread(migrations.upgrade, database, MIGRATIONS, lambda _: None)
    again = await create_once(client, "0", replayed=False)

    assert {problem(each) for each in got} == {(503, "unavailable")}
    assert {each.retry_after for each in got} == {"1"}
    (failed, *_) = [line for line in logs if line["event"] == "statement failed"]
    assert failed["query"] == "create_movies_once"
    assert failed["file"].startswith("queries/idempotency.sql:")
    assert again.status == 201
    assert execute(COUNT) == [(2,)]


# Batches.


async def test_only_the_same_batch_is_a_repeat(start: Start, execute: Execute) -> None:
    """It gets the first response, byte for byte, on any process, also after movies were changed.

    Another order, another number or a single movie is not; a single create has other keys.
    """
    client, other = await start(), await start()
    sent = name("é", "b", *map(str, range(20)))
    first = await send_batch(client, sent, idempotency_key="k")
    others = [sent[::-1], sent[:1], [*sent, MOANA]]

    reused = [await send_batch(client, other, idempotency_key="k") for other in others]
    single = await client.post("/v1/movies", json=sent[0], headers={"Idempotency-Key": "k"})
    await client.patch("/v1/movies/1", json={"title": "x"})
    await client.delete("/v1/movies/2")
    again = await other.post(BATCH, json={"movies": sent}, headers={"Idempotency-Key": '"k"'})

    assert (first[0], titles(first[1]["movies"])) == (201, titles(sent))
    for status, problem, _ in reused:
        assert (status, problem["type"]) == (422, "/v1/docs#idempotency-key-reused")
    assert (single.status, "Idempotency-Replayed" in single.headers) == (201, False)
    assert (again.status, await again.read()) == (201, first[2])
    assert again.headers["Idempotency-Replayed"] == "true"
    keys = "select key from idempotency_keys order by key"
    assert execute(keys) == [("batch\tk",), ("k",)]
    assert execute("select last_value from movies_id_seq") == [(23,)]


async def test_a_repeat_while_the_first_batch_is_under_way_is_409(
    start: Start, execute: Execute, database: str
) -> None:
    """On any process; afterwards it gets the response."""
    clients = [await start(), await start()]
    waits = "select 1 from pg_locks where relation = 'movies'::regclass and not granted"
    with hold(database, "lock table movies in share mode") as other:
        first = asyncio.create_task(send_batch(clients[0], [MOANA] * 2, idempotency_key="a"))
        await until_found(execute, waits)
        repeat = await send_batch(clients[0], [MOANA] * 2, idempotency_key="a")
        other.rollback()
        created = await first

    assert (repeat[0], repeat[1]["type"]) == (409, "/v1/docs#idempotency-key-in-use")
    assert created[0] == 201
    assert await send_batch(clients[1], [MOANA] * 2, idempotency_key="a") == created
    assert execute(COUNT) == [(2,)]


async def test_a_repeated_lenient_batch_goes_on_where_it_stopped(
    client: Client, execute: Execute
) -> None:
    """Movies that exist are replayed, the others are created, another movie at a place is a 422."""
    headers = {**LENIENT, "idempotency_key": "k"}
    first = await send_batch(client, [*name("a", "b"), BAD_YEAR], **headers)
    execute("delete from idempotency_keys where key = 'batch\tk\t1'")  # as if it had stopped there

    status, body, _ = await send_batch(client, [*name("a", "b", "c"), MOANA], **headers)
    _, other, _ = await send_batch(client, name("x"), **headers)

    assert [result["status"] for result in first[1]["results"]] == [201, 201, 422]
    assert status == 207
    assert [each["status"] for each in body["results"]] == [201] * 4
    assert [result.get("replayed") for result in body["results"]] == [True, None, None, None]
    assert body["results"][0]["movie"] == first[1]["results"][0]["movie"]
    assert other["results"][0]["problem"]["type"] == "/v1/docs#idempotency-key-reused"
    assert execute("select key from idempotency_keys order by key") == [
        (f"batch\tk\t{place}",) for place in range(4)
    ]


async def test_keys_of_batches_never_meet_those_of_other_clients(
    start: Start, execute: Execute
) -> None:
    """A lenient batch without a token whose key is the id of a client; keys of two clients."""
    client = await start()
    token = bearer(add_client(execute, "write"))
    await client.post("/v1/movies", json=MOANA, headers={"Idempotency-Key": "0", **token})

    _, body, _ = await send_batch(client, [MOANA], idempotency_key="1", **LENIENT)
    await send_batch(client, [MOANA], idempotency_key="1", **token)
    await send_batch(client, [MOANA], idempotency_key="1", **token, **LENIENT)

    assert "replayed" not in body["results"][0]
    assert execute("select key from idempotency_keys order by key") == [
        ("1\t0",),
        ("1\tbatch\t1",),
        ("1\tbatch\t1\t0",),
        ("batch\t1\t0",),
    ]


# Expiry.


@pytest.fixture
def creates(statements: Statements) -> IdempotentCreates:
    """Return the keys of a process, without the task that deletes expired ones."""
    return IdempotentCreates(Store(MOVIES, statements), statements)


async def test_expired_keys_are_cleared_in_portions(
    creates: IdempotentCreates,
    statements: Statements,
    execute: Execute,
    database: str,
    monkeypatch: Patch,
) -> None:
    """The oldest first; valid keys, and those that another session has locked, stay."""
    monkeypatch.setattr(clearing, "BATCH_ROWS", 2)
    keys = Clearing(statements, [EXPIRY])
    for key in "abcde":
        await creates.create(key, FIELDS)
    execute(EXPIRE + " - interval '1 minute' where key in ('b', 'c')")
    execute(EXPIRE + " where key in ('a', 'd')")

    with hold(database, "select 1 from idempotency_keys where key = 'd' for update"):
        first = await keys.clear(EXPIRY)
        left = execute("select key from idempotency_keys order by key")
        second = await keys.clear(EXPIRY)
        third = await keys.clear(EXPIRY)

    assert (first, left, second, third) == (2, [("a",), ("d",), ("e",)], 1, 0)
    assert execute("select key from idempotency_keys order by key") == [("d",), ("e",)]
    assert execute(COUNT) == [(5,)]


def test_the_estimate_of_keys_is_0_before_the_first_vacuum(execute: Execute) -> None:
    """PostgreSQL says -1 for a table that it has not counted yet."""
    queries = query_files.load(ROOT / "queries", EXPECTED)

    assert execute(queries["estimate_idempotency_keys"].sql) == [(0,)]


ADD_PORTIONS = "insert into idempotency_keys select n, '', now() from generate_series(1, 95) as n"
GONE = "select 1 where not exists (select from idempotency_keys)"


@pytest.fixture
def small_portions(monkeypatch: Patch) -> None:
    """Clear ten keys at a time, ten times a second."""
    monkeypatch.setattr(clearing, "BATCH_ROWS", 10)
    monkeypatch.setattr(clearing, "BATCH_PAUSE_S", 0.001)
    monkeypatch.setattr(clearing, "INTERVAL_S", 0.1)


@pytest.mark.usefixtures("small_portions")
async def test_all_portions_are_cleared_at_once(
    start: Start, execute: Execute, monkeypatch: Patch
) -> None:
    """Not one after each interval."""
    execute(ADD_PORTIONS)

    await start()
    monkeypatch.setattr(clearing, "INTERVAL_S", 3600)  # from the second interval on

    await until_found(execute, GONE)


@pytest.mark.usefixtures("small_portions")
async def test_the_service_clears_them_by_itself(
    start: Start, execute: Execute, logs: Logs
) -> None:
    """It deletes all portions, repeatedly, also after a failure, which is logged."""
    await start()
    for _ in range(2):
        execute(ADD_PORTIONS)
        await until_found(execute, GONE)
    execute("alter table idempotency_keys rename to hidden")
    await until(lambda: "clear_idempotency_keys" in [line.get("query") for line in logs])
    execute("alter table hidden rename to idempotency_keys")
    execute(ADD_PORTIONS)

    await until_found(execute, GONE)
