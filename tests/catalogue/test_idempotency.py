"""POST /v1/movies with an Idempotency-Key: one movie and one response, however often it is sent."""

import asyncio
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from email.message import Message
from typing import Any, NamedTuple

import orjson
import psycopg2
import pytest
from conftest import MOANA, Client, Start
from structlog.testing import capture_logs
from support import (
    Environment,
    Execute,
    approve,
    count_deadlocks,
    set_for_database,
    until,
    wait_until,
)
from test_faults import assert_whole, pool_of
from test_process import SERVE, serving

from service.catalogue import idempotency
from service.config import Config
from service.database import query_files
from service.database.pool import Pool
from service.database.statements import Statements
from service.errors import Refusal, Unavailable
from service.queries import EXPECTED

OTHER = {**MOANA, "title": "Another"}
REPLAYED = "Idempotency-Replayed"
WAITS_FOR_TABLE = "select 1 from pg_locks where relation = 'movies'::regclass and not granted"
WAITS_FOR_ROW = "select 1 from pg_locks where locktype = 'transactionid' and not granted"
DAWDLES = "select 1 from pg_stat_activity where wait_event = 'PgSleep'"
# As if these keys had been sent a day ago.
EXPIRE = "update idempotency_keys set expires_at = now()"
# A DBA's trigger that makes every create slow.
DAWDLE = """
create function dawdle() returns trigger language plpgsql as
  $$ begin perform pg_sleep(1.5); return new; end $$;
create trigger dawdle before insert on movies for each row execute function dawdle()
"""


class Got(NamedTuple):
    """The parts of a response that must be the same for a repeat."""

    status: int
    location: str | None
    body: bytes


async def send(
    client: Client, key: str, movie: dict[str, Any] = MOANA, *, replayed: bool | None = None
) -> Got:
    """POST a movie with this key; `replayed`: the response must be marked as a repeat."""
    response = await client.post("/v1/movies", json=movie, headers={"Idempotency-Key": key})
    if replayed is not None:
        assert response.headers.get(REPLAYED) == ("true" if replayed else None)
    return Got(response.status, response.headers.get("Location"), await response.read())


def problem(got: Got) -> tuple[int, str]:
    """Status and kind."""
    return got.status, orjson.loads(got.body)["type"].partition("#")[2]


def movies(execute: Execute) -> int:
    """Count the movies."""
    ((count,),) = execute("select count(*) from movies")
    return int(count)


async def until_found(execute: Execute, sql: str) -> None:
    """Wait until a query returns a row."""
    await until(lambda: asyncio.to_thread(execute, sql))


# Responses to repeats.


@pytest.mark.parametrize("services", [1, 2])
async def test_a_repeat_gets_the_first_response(
    start: Start, execute: Execute, services: int
) -> None:
    """Status, Location and body are the same to the byte, on any process of the service."""
    clients = [await start() for _ in range(services)]
    first = await send(clients[0], "a", replayed=False)

    again = await send(clients[-1], "a", replayed=True)

    assert first.status == 201
    assert again == first
    assert movies(execute) == 1


async def test_a_repeat_after_the_movie_changed_or_went(client: Client) -> None:
    """The response has the movie as created."""
    first = await send(client, "a")
    assert first.location

    await client.patch(first.location, json={"title": "Vaiana"})
    after_patch = await send(client, "a", replayed=True)
    await client.delete(first.location)
    after_delete = await send(client, "a", replayed=True)

    assert after_patch == after_delete == first


async def test_a_repeat_of_what_a_trigger_made_of_the_movie(
    client: Client, execute: Execute
) -> None:
    """A DBA's trigger that changes stored movies does not change the repeat."""
    execute(
        "create function shout() returns trigger language plpgsql as"
        " $$ begin new.title := upper(new.title); new.version := 7; return new; end $$"
    )
    execute("create trigger shout before insert on movies for each row execute function shout()")

    first = await send(client, "a")
    again = await send(client, "a")

    assert b'"MOANA"' in first.body
    assert again == first


async def test_a_movie_that_a_trigger_did_not_create_has_no_repeat(
    client: Client, execute: Execute
) -> None:
    """The key stays unused, so that it is not answered with a movie that does not exist."""
    execute(
        "create function swallow() returns trigger language plpgsql as $$ begin return null; end $$"
    )
    execute(
        "create trigger swallow before insert on movies for each row execute function swallow()"
    )

    first = await send(client, "a")
    again = await send(client, "a")
    execute("drop trigger swallow on movies")
    created = await send(client, "a")

    assert [first.status, again.status, created.status] == [500, 500, 201]
    assert movies(execute) == 1


async def test_a_repeat_of_what_the_release_before_stored(client: Client, execute: Execute) -> None:
    """A copy of the movie, and no id in the key."""
    first = await send(client, "a")
    execute(
        "insert into idempotency_answers select k.key, m.id, m.title, m.year, m.runtime, m.genres,"
        " m.version, m.created_at, m.updated_at from idempotency_keys as k, movies as m"
    )
    execute("update idempotency_keys set movie_id = null, created_at = null")
    execute("delete from movies")

    assert await send(client, "a", replayed=True) == first


async def test_a_key_takes_the_same_space_for_every_movie(client: Client, execute: Execute) -> None:
    """Its movie is not stored again, as a repeat brings all of it."""
    large = {**MOANA, "title": "x" * 500, "genres": [letter * 100 for letter in "abcde"]}

    for key, movie in (("a", MOANA), ("b", large)):
        await send(client, key, movie)

    ((small_size,), (large_size,)) = execute("select pg_column_size(k) from idempotency_keys as k")
    assert small_size == large_size < 200
    assert execute("select count(*) from idempotency_answers") == [(0,)]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
async def test_a_repeat_in_every_time_zone(client: Client, execute: Execute, zone: str) -> None:
    """Times are equal to the microsecond, and in UTC, in every time zone of the database."""
    set_for_database(execute, f"timezone = '{zone}'")
    await send(client, "first")
    await assert_whole(client, 10)  # the first look at the genres is over
    pool_of(client).close_idle()  # the setting is for new connections
    odd = {**MOANA, "title": 'é "\\\n\t😀', "genres": ["a,b", "{c}", "null", '"', "é"]}

    first = await send(client, "a", odd)
    again = await send(client, "a", odd, replayed=True)

    assert first.status == 201
    assert again == first


async def test_the_same_movie_in_another_spelling(client: Client, execute: Execute) -> None:
    """Spaces, escapes and the order of the fields do not matter."""
    first = await send(client, "a", {**MOANA, "title": "Amélie"})
    body = (
        '{ "genres": ["animation"],\n "title": "Am\\u00e9lie", "runtime":"107 mins", "year":2016 }'
    )

    again = await client.post("/v1/movies", data=body, headers={"Idempotency-Key": "a"})

    assert (again.status, await again.read()) == (201, first.body)
    assert movies(execute) == 1


async def test_another_movie_with_the_same_key(client: Client, execute: Execute) -> None:
    """422; the key keeps its response."""
    first = await send(client, "a")

    other = await send(client, "a", OTHER, replayed=False)

    assert problem(other) == (422, "idempotency-key-reused")
    assert await send(client, "a") == first
    assert movies(execute) == 1


async def test_other_keys_are_other_movies(client: Client, execute: Execute) -> None:
    """The same body with another key or none creates another movie. Keys are case-sensitive."""
    for key in ("a", "b", "A"):
        assert (await send(client, key, replayed=False)).status == 201
    for _ in range(2):
        response = await client.post("/v1/movies", json=MOANA)
        assert REPLAYED not in response.headers

    assert movies(execute) == 5


async def test_other_methods_have_no_keys(client: Client, execute: Execute) -> None:
    """Other methods ignore the header, even an invalid one."""
    path = (await send(client, "a")).location
    assert path
    for key in ("a", ""):
        headers = {"Idempotency-Key": key}
        assert (await client.patch(path, json={"year": 2000}, headers=headers)).status == 200
        assert (await client.get(path, headers=headers)).status == 200

    assert execute("select key from idempotency_keys") == [("a",)]


async def test_a_refusal_is_not_remembered(client: Client, execute: Execute) -> None:
    """After a 400 or a 422 the key can be used again."""
    for wrong, status in (({"titel": "x"}, 400), ({**MOANA, "year": 1800}, 422)):
        assert (await send(client, "a", wrong)).status == status

    assert (await send(client, "a", replayed=False)).status == 201
    assert movies(execute) == 1


# Many requests at once.


@pytest.mark.parametrize("services", [1, 2])
async def test_one_key_many_times_at_once(start: Start, execute: Execute, services: int) -> None:
    """50 at once, to one service or two: one movie; each gets its response or a 409."""
    clients = [await start() for _ in range(services)]

    got = await asyncio.gather(*(send(clients[n % services], "a") for n in range(50)))

    created = {each for each in got if each.status == 201}
    assert len(created) == 1
    assert {each.status for each in got} <= {201, 409}
    assert movies(execute) == 1
    assert await send(clients[0], "a", replayed=True) == created.pop()


async def test_many_keys_at_once_on_two_services(start: Start, execute: Execute) -> None:
    """100 keys, each sent to both, in opposite order: 100 movies, and no deadlock."""
    set_for_database(execute, "deadlock_timeout = '1ms'")  # before lock_timeout ends them
    first, second = await start(), await start()
    keys = [str(number) for number in range(100)]

    async def send_all(client: Client, keys: Iterable[str]) -> dict[str, Got]:
        movies = ({**MOANA, "title": key} for key in keys)
        return dict(
            zip(keys, await asyncio.gather(*map(send, [client] * 100, keys, movies)), strict=True)
        )

    by_first, by_second = await asyncio.gather(send_all(first, keys), send_all(second, keys[::-1]))

    for key in keys:
        (created,) = {got for got in (by_first[key], by_second[key]) if got.status != 409}
        assert created.status == 201
        assert f'"title": "{key}"'.encode() in created.body
    assert movies(execute) == 100
    assert count_deadlocks(execute) == 0


async def test_requests_with_keys_share_statements(start: Start) -> None:
    """200 creates with a key each cost the database far fewer than 200 statements."""
    client = await start(log__slow_statement=1e-9)  # each statement is logged

    with capture_logs() as logged:
        got = await asyncio.gather(*(send(client, str(number)) for number in range(200)))

    assert {each.status for each in got} == {201}
    assert 0 < len([line for line in logged if line.get("query") == "create_movies_once"]) < 100


async def test_two_movies_with_one_key_at_once(client: Client, execute: Execute) -> None:
    """One of them is created; requests with the other movie get 422."""
    got = await asyncio.gather(
        *(send(client, "a", movie) for _ in range(10) for movie in (MOANA, OTHER))
    )

    assert len({each for each in got if each.status == 201}) == 1
    assert {each.status for each in got} <= {201, 409, 422}
    assert {(await send(client, "a", movie)).status for movie in (MOANA, OTHER)} == {201, 422}
    assert movies(execute) == 1


async def test_a_movie_that_breaks_a_rule_fails_alone_and_frees_its_key(
    client: Client, execute: Execute
) -> None:
    """One bad row in a shared statement: its key is not stored, the other keys are."""
    execute("alter table movies add constraint movies_year_no_1999 check (year <> 1999)")
    years = [1999 if number % 10 == 0 else 2000 for number in range(40)]

    got = await asyncio.gather(
        *(send(client, str(n), {**MOANA, "year": year}) for n, year in enumerate(years))
    )

    assert [each.status for each in got] == [422 if year == 1999 else 201 for year in years]
    assert execute("select count(*) from idempotency_keys") == [(36,)]
    execute("alter table movies drop constraint movies_year_no_1999")
    assert (await send(client, "0", {**MOANA, "year": 1999}, replayed=False)).status == 201


# A repeat during the first request.


@pytest.mark.parametrize("services", [1, 2])
async def test_a_repeat_while_the_first_is_under_way(
    start: Start, execute: Execute, services: int
) -> None:
    """409 on both services until the first request ends, then its response."""
    clients = [await start() for _ in range(services)]
    execute(DAWDLE)
    first = asyncio.create_task(send(clients[0], "a"))
    await until_found(execute, DAWDLES)

    response = await clients[-1].post("/v1/movies", json=MOANA, headers={"Idempotency-Key": "a"})

    assert not first.done()
    got = await first
    assert (response.status, response.headers["Retry-After"]) == (409, "1")
    assert (await response.json())["type"].endswith("#idempotency-key-in-use")
    assert got.status == 201
    assert await send(clients[-1], "a", replayed=True) == got
    assert movies(execute) == 1


@pytest.mark.parametrize("services", [1, 2])
async def test_a_repeat_shortly_before_the_first_is_over(
    start: Start, execute: Execute, monkeypatch: pytest.MonkeyPatch, services: int
) -> None:
    """The repeat waits briefly and gets the response of the first request instead of a 409."""
    monkeypatch.setattr(idempotency, "RETRY_DELAYS_S", (0.05,) * 100)
    clients = [await start() for _ in range(services)]
    execute(DAWDLE.replace("1.5", "0.3"))
    first = asyncio.create_task(send(clients[0], "a"))
    await until_found(execute, DAWDLES)

    again = await send(clients[-1], "a", replayed=True)

    assert again == await first
    assert again.status == 201


@asynccontextmanager
async def held_up(
    client: Client, execute: Execute, database: str
) -> AsyncIterator[tuple[asyncio.Task[Got], Any]]:
    """Yield a create with the key a that waits for a DBA's lock, and the DBA's cursor."""
    with closing(psycopg2.connect(database)) as dba, dba.cursor() as cursor:
        cursor.execute("lock table movies in share mode")
        first = asyncio.create_task(send(client, "a"))
        await until_found(execute, WAITS_FOR_TABLE)
        yield first, cursor


async def test_a_repeat_while_the_first_waits_for_the_table(
    client: Client, execute: Execute, database: str
) -> None:
    """The repeat does not wait for the table: 409 at once, and later 201 for the first request."""
    async with held_up(client, execute, database) as (first, _):
        got = await asyncio.gather(*(send(client, "a") for _ in range(20)))

    assert {problem(each) for each in got} == {(409, "idempotency-key-in-use")}
    assert (await first).status == 201
    assert movies(execute) == 1


async def test_a_key_in_use_holds_up_nobody_else(start: Start, database: str) -> None:
    """A session holds a key and does not end: other requests of the shared statement succeed."""
    client = await start()
    with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
        cursor.execute("select pg_advisory_xact_lock(hashtextextended('a', 0))")
        async with asyncio.timeout(20):
            got = await asyncio.gather(*(send(client, key) for key in ("x", "a", "y", "a", "z")))

    assert [each.status for each in got] == [201, 409, 201, 409, 201]


async def test_a_key_that_is_given_back(client: Client, execute: Execute, database: str) -> None:
    """Another session inserts the key, without the advisory lock, and rolls back: it is unused."""
    with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
        cursor.execute("insert into idempotency_keys (key, fingerprint) values ('a', 'x')")
        waits = asyncio.create_task(send(client, "a"))
        await until_found(execute, WAITS_FOR_ROW)
        other.rollback()

        assert (await waits).status == 201

    assert movies(execute) == 1


@pytest.mark.parametrize("old", [False, True], ids=["new", "expired"])
async def test_a_key_that_another_one_gets_first(
    client: Client, execute: Execute, database: str, *, old: bool
) -> None:
    """It commits after this statement's snapshot: no movie is created; its response is sent."""
    if old:
        await send(client, "a")
        execute(EXPIRE)
    before = movies(execute)
    with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
        cursor.execute(
            "insert into idempotency_keys (key, fingerprint) values ('a', 'x') on conflict (key)"
            " do update set fingerprint = 'x', expires_at = excluded.expires_at"
        )
        cursor.execute(
            "insert into idempotency_answers values ('a', 1, 'x', 2000, 9, '{x}', 1, now(), now())"
            " on conflict do nothing"
        )
        waits = asyncio.create_task(send(client, "a"))
        await until_found(execute, WAITS_FOR_ROW)
        other.commit()

        assert problem(await waits) == (422, "idempotency-key-reused")

    assert movies(execute) == before


async def test_a_client_that_leaves_and_comes_again(
    client: Client, execute: Execute, database: str
) -> None:
    """A cancelled request is still executed, and its repeat gets the response."""
    async with held_up(client, execute, database) as (first, _):
        first.cancel()
        await asyncio.wait([first])
    await until(lambda: asyncio.to_thread(lambda: movies(execute) == 1))

    assert (await send(client, "a", replayed=True)).status == 201
    assert movies(execute) == 1


# Failures.


async def test_a_service_killed_between_the_commit_and_the_response(
    environment: Environment, execute: Execute
) -> None:
    """The repeat, to another process, gets the movie that was created."""
    execute(DAWDLE)
    request = b'{"title": "Moana", "year": 2016, "runtime": "107 mins", "genres": ["animation"]}'

    def post(base: str) -> urllib.request.Request:
        return urllib.request.Request(  # noqa: S310 - ours
            f"{base}/v1/movies", request, {"Idempotency-Key": "a"}
        )

    async def lost(base: str) -> None:
        with pytest.raises(OSError):  # noqa: PT011 - reset or closed, as it happens
            await asyncio.to_thread(fetch, post(base))

    with serving(SERVE, environment) as (base, process):
        request_lost = asyncio.create_task(lost(base))
        await until_found(execute, DAWDLES)
        os.kill(process.pid, signal.SIGSTOP)  # the statement is sent; its result is not read
        assert movies(execute) == 0
        await asyncio.to_thread(wait_until, lambda: movies(execute) == 1)
        process.kill()
        await request_lost
    execute("drop trigger dawdle on movies")

    with serving(SERVE, environment) as (base, _):
        status, headers, body = await asyncio.to_thread(fetch, post(base))
        _, _, kept = await asyncio.to_thread(fetch, f"{base}{headers['Location']}")

    assert (status, headers[REPLAYED]) == (201, "true")
    assert body == kept
    assert movies(execute) == 1


def fetch(request: urllib.request.Request | str) -> tuple[int, Message, bytes]:
    """Status, headers and body."""
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 - ours
        return response.status, response.headers, response.read()


async def test_a_connection_that_breaks_under_a_create(
    client: Client, execute: Execute, database: str
) -> None:
    """The create is retried at once on another connection, which is safe with a key."""
    async with held_up(client, execute, database) as (first, cursor):
        cursor.execute(
            "select pg_terminate_backend(pid, 5000) from pg_locks"
            " where relation = 'movies'::regclass and not granted"
        )

    assert (await first).status == 201
    assert movies(execute) == 1


async def test_a_repeat_after_a_503(start: Start, execute: Execute, database: str) -> None:
    """The statement that timed out stored nothing: the same key creates the movie."""
    client = await start(database__statement_timeout=0.3)
    with closing(psycopg2.connect(database)) as dba, dba.cursor() as cursor:
        cursor.execute("lock table movies in share mode")
        got = await asyncio.gather(*(send(client, str(number)) for number in range(5)))

    assert {each.status for each in got} == {503}
    assert (await send(client, "0", replayed=False)).status == 201
    assert movies(execute) == 1


async def test_a_read_only_database(client: Client, execute: Execute) -> None:
    """During a failover the response is 503, as for any other create."""
    await send(client, "first")
    set_for_database(execute, "default_transaction_read_only = on")
    await assert_whole(client, 10)  # the first look at the genres is over
    pool_of(client).close_idle()  # the setting is for new connections

    assert (await send(client, "a")).status == 503


# Expiry.


class Process:
    """The keys of one process of the service, without the task that deletes expired ones."""

    def __init__(self, config: Config) -> None:
        self.pool = Pool(config.database, approve)
        loaded = query_files.load(config.root / "queries", EXPECTED)
        statements = Statements(self.pool, loaded, config.database.statement_timeout)
        self.once_only = idempotency.OnceOnly(statements, config.sharing)
        self.fetch = statements.fetch


@pytest.fixture
async def process(settings: Callable[..., Config]) -> AsyncIterator[Process]:
    """Return the keys of a process with the settings of config.toml."""
    process = Process(settings())
    yield process
    await process.pool.close(timeout=0)


FIELDS = {"title": "Moana", "year": 2016, "runtime": 107, "genres": ["animation"]}


async def test_a_key_is_kept_for_24_hours(process: Process, execute: Execute) -> None:
    """The column expires_at has this time from the start."""
    await process.once_only.create("a", FIELDS)

    assert execute("select expires_at - created_at from idempotency_keys") == [
        (timedelta(hours=24),)
    ]


async def test_an_expired_key_is_unused(process: Process, execute: Execute) -> None:
    """Before it is deleted, an expired key can create another movie and stores its response."""
    await process.once_only.create("a", FIELDS)
    execute(EXPIRE)
    other = {"title": "Another", "year": 2000, "runtime": 90, "genres": ["drama", "war"]}

    second = await process.once_only.create("a", other)
    again = await process.once_only.create("a", other)

    assert (second[1], again[1]) == (False, True)
    assert second[0] == again[0]
    assert second[0]._asdict().items() >= other.items()
    assert execute("select expires_at > now() + interval '23 hours' from idempotency_keys") == [
        (True,)
    ]


async def test_an_expired_key_replaces_its_copy(process: Process, execute: Execute) -> None:
    """A movie that a trigger changed is stored with its key, until the key has another movie."""
    execute(
        "create function shout() returns trigger language plpgsql as"
        " $$ begin new.title := upper(new.title); return new; end $$;"
        "create trigger shout before insert on movies for each row execute function shout()"
    )
    first = await process.once_only.create("a", FIELDS)
    execute("drop trigger shout on movies")
    execute(EXPIRE)

    second = await process.once_only.create("a", FIELDS)
    again = await process.once_only.create("a", FIELDS)

    assert (first[0].title, second[0].title) == ("MOANA", "Moana")
    assert again == (second[0], True)


async def test_expired_keys_are_cleared_in_portions(
    process: Process, execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest are deleted first, with their responses, a portion at once; valid keys stay."""
    monkeypatch.setattr(idempotency, "CLEAR_BATCH_ROWS", 2)
    for key in "abcd":
        await process.once_only.create(key, FIELDS)
    execute(EXPIRE + " - interval '1 minute' where key in ('b', 'c')")
    execute(EXPIRE + " where key = 'a'")

    first = await process.once_only.clear()
    left = execute("select key from idempotency_keys order by key")
    second = await process.once_only.clear()
    third = await process.once_only.clear()

    assert (first, left, second, third) == (2, [("a",), ("d",)], 1, 0)
    assert execute("select key from idempotency_keys") == [("d",)]
    assert movies(execute) == 4


async def test_clearing_waits_for_nobody(process: Process, execute: Execute, database: str) -> None:
    """A key that another session has locked is deleted the next time."""
    for key in "ab":
        await process.once_only.create(key, FIELDS)
    execute(EXPIRE)
    with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
        cursor.execute("select 1 from idempotency_keys where key = 'a' for update")

        assert await process.once_only.clear() == 1

    assert execute("select key from idempotency_keys") == [("a",)]


async def test_the_service_clears_them_by_itself(
    start: Start, execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It deletes all portions, repeatedly, also after a failure, which is logged."""
    monkeypatch.setattr(idempotency, "CLEAR_BATCH_ROWS", 10)
    monkeypatch.setattr(idempotency, "CLEAR_BATCH_PAUSE_S", 0.001)
    monkeypatch.setattr(idempotency, "CLEAR_INTERVAL_S", 0.1)
    add = "insert into idempotency_keys select n, '', now() from generate_series(1, 95) as n"
    gone = "select 1 where not exists (select from idempotency_keys)"

    with capture_logs() as logged:
        await start()
        for _ in range(2):
            execute(add)
            await until_found(execute, gone)
        execute("alter table idempotency_keys rename to hidden")
        await until(lambda: "clear_idempotency_keys" in [line.get("query") for line in logged])
    execute("alter table hidden rename to idempotency_keys")
    execute(add)

    await until_found(execute, gone)


async def test_clearing_pauses_long_after_a_failure(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if keys are left: a database with a problem should not get more queries."""
    calls = 0

    async def clear() -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return idempotency.CLEAR_BATCH_ROWS
        monkeypatch.setattr(idempotency, "CLEAR_INTERVAL_S", 1000)
        raise Unavailable("no database", Refusal.NO_DATABASE)

    monkeypatch.setattr(process.once_only, "clear", clear)
    monkeypatch.setattr(idempotency, "CLEAR_BATCH_PAUSE_S", 0)
    monkeypatch.setattr(idempotency, "CLEAR_INTERVAL_S", 0)

    async with process.once_only.clear_regularly():
        await until(lambda: calls > 1)
        await asyncio.sleep(0.05)

    assert calls == 2


async def test_the_check_of_the_queries_clears_nothing(process: Process, execute: Execute) -> None:
    """The check runs every query with null for every parameter."""
    await process.once_only.create("a", FIELDS)
    execute(EXPIRE)

    assert await process.fetch("clear_idempotency_keys", at_most=None) == [(0,)]
    assert await process.fetch("create_movies_once", requests=None) == []


# Changes of a DBA.


async def test_a_key_that_a_dba_deletes_is_unused(client: Client, execute: Execute) -> None:
    """Its response is deleted with it."""
    await send(client, "a")

    execute("delete from idempotency_keys where key = 'a'")

    assert execute("select * from idempotency_answers") == []
    assert (await send(client, "a", replayed=False)).status == 201
