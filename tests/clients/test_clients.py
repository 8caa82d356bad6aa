"""Finding the client of a token: what is known, for how long, and what a lookup costs."""

import asyncio
from collections.abc import MutableMapping
from functools import partial
from traceback import format_exception
from typing import Any

import pytest
from conftest import MakeStatements, Start
from structlog.testing import capture_logs
from support import Execute, Patch, add_client, add_movies, bearer, hold, until
from support import set_for_database as set_default

from service.clients import clients as access
from service.clients.clients import (
    EXPIRED,
    KNOWN_S,
    MALFORMED,
    MARK_RETRY_S,
    REVOKED,
    ROTATED,
    UNKNOWN,
    Clients,
    make_token,
    parse_token,
)
from service.database.statements import Statements
from service.errors import Unauthorized, Unavailable
from service.web.route import Scope

ALMOST_S = 0.001  # before a cached client is looked up again


class Process:
    """The clients of one process of the service, by a clock that the test sets."""

    def __init__(self, statements: Statements) -> None:
        self.now = 1.0
        self._clients = Clients(statements, lambda: self.now)

    async def find(self, token: str) -> access.Client:
        """Return the client with this token, as the service does."""
        return self._clients.get_known(token) or await self._clients.look_up(token)

    async def verdict(self, token: str) -> str:
        """Return "valid", or why not."""
        try:
            await self.find(token)
        except (Unauthorized, Unavailable) as error:
            return str(error)
        return "valid"


@pytest.fixture
def process(make_statements: MakeStatements) -> Process:
    """A process that looks clients up, and logs each statement."""
    return Process(make_statements(Statements, slow=1e-9))


LOCK = "lock table clients in access exclusive mode"
WAITING = "select 1 from pg_locks where not granted"
REVOKE = "update clients set revoked_at = now()"
ROTATE = (
    "update clients set previous_token_hash = token_hash, previous_expires_at = now() + %s,"
    " token_hash = repeat('0', 64)"
)


def lookups(logged: list[MutableMapping[str, Any]]) -> int:
    """Count the statements that looked clients up."""
    return len([line for line in logged if line.get("query") == "get_clients"])


@pytest.mark.parametrize(
    ("scopes", "scope"),
    [
        (["read"], Scope.READ),
        (["read", "write"], Scope.WRITE),
        (["admin", "read"], Scope.ADMIN),
        # Of a later release, which may change the constraint while this one still runs.
        (["x"], Scope.NONE),
        (["x", "read"], Scope.READ),
    ],
)
async def test_a_client_has_its_strongest_scope(
    process: Process, execute: Execute, scopes: list[str], scope: Scope
) -> None:
    """Each scope includes the weaker ones; unknown ones allow nothing."""
    execute("alter table clients drop constraint clients_scopes_are_known")
    found = await process.find(add_client(execute, *scopes))

    assert (found.id, found.scope) == (1, scope)


async def test_a_bug_in_a_lookup_logs_no_token(
    process: Process, execute: Execute, monkeypatch: Patch
) -> None:
    """Its traceback, with all errors that led to it."""
    token = add_client(execute, "read")
    monkeypatch.setattr("service.clients.clients.hash_token", lambda _: 1 // 0)

    with pytest.raises(ZeroDivisionError) as raised:
        await process.find(token)

    assert token not in "".join(format_exception(raised.value))


async def test_a_client_is_known_for_30_s_however_often_it_is_used(
    process: Process, execute: Execute
) -> None:
    """A revocation takes effect 30 s after the lookup, and use does not extend that."""
    token = add_client(execute, "read")
    await process.find(token)
    execute(REVOKE)
    start = process.now

    with capture_logs() as logged:
        verdicts = []
        for passed in (1, 10, 20, KNOWN_S - ALMOST_S, KNOWN_S):
            process.now = start + passed
            verdicts.append(await process.verdict(token))

    assert verdicts == ["valid"] * 4 + [REVOKED]
    assert lookups(logged) == 1


async def test_a_slow_lookup_counts_from_its_beginning(
    process: Process, execute: Execute, database: str
) -> None:
    """The client may have been revoked while the statement ran."""
    token = add_client(execute, "read")
    with hold(database, LOCK):
        lookup = asyncio.create_task(process.find(token))
        await until(lambda: execute(WAITING))
        process.now += 20
    await lookup
    execute(REVOKE)

    process.now += KNOWN_S - 20

    assert await process.verdict(token) == REVOKED


async def test_expiry_is_exact_although_the_client_is_known(
    process: Process, execute: Execute
) -> None:
    """Also that of a token before a rotation; the process looks once again, to say why."""
    token, rotated = add_client(execute, "read"), add_client(execute, "read")
    execute("update clients set expires_at = now() + interval '300 ms' where id = 1")
    execute(f"{ROTATE} where id = 2", "300 ms")

    async def has_verdict(token: str, expected: str) -> bool:
        return await process.verdict(token) == expected

    before = [await process.verdict(token), await process.verdict(rotated)]
    with capture_logs() as logged:
        for each, reason in ((token, EXPIRED), (rotated, ROTATED)):
            await until(partial(has_verdict, each, reason))

    assert before == ["valid", "valid"]
    assert lookups(logged) == 2


async def test_a_client_that_is_restored_can_go_on(process: Process, execute: Execute) -> None:
    """At once: a process remembers no refusal."""
    token = add_client(execute, "read", revoked="now()")
    verdicts = [await process.verdict(token)]
    execute("update clients set revoked_at = null")
    verdicts.append(await process.verdict(token))

    assert verdicts == [REVOKED, "valid"]


@pytest.mark.parametrize("id_", [1, 4711])
async def test_a_flood_of_unknown_tokens_costs_few_statements_and_locks_nobody_out(
    process: Process, execute: Execute, id_: int
) -> None:
    """Also of one that has a client's id: that client is known all the time, and after it."""
    token = add_client(execute, "read")
    await process.find(token)
    flood = [make_token(id_) for _ in range(2000)]
    senders = asyncio.Semaphore(64)

    async def try_token(wrong: str) -> str:
        async with senders:
            return await process.verdict(wrong)

    with capture_logs() as logged:
        verdicts = await asyncio.gather(
            *map(try_token, flood), *map(process.verdict, [token] * 100)
        )

    assert verdicts == [UNKNOWN] * 2000 + ["valid"] * 100
    assert lookups(logged) < 200


async def test_a_flood_delays_no_known_client(process: Process, execute: Execute) -> None:
    """Although more unknown tokens arrive at once than may wait, it is looked up again."""
    token = add_client(execute, "read")
    await process.find(token)
    process.now += KNOWN_S

    *flood, verdict = await asyncio.gather(
        *(process.verdict(make_token(1000 + number)) for number in range(1100)),
        process.verdict(token),
    )

    assert verdict == "valid"
    assert set(flood) > {UNKNOWN}


@pytest.fixture
def ten_tokens(monkeypatch: Patch) -> None:
    """Let a process remember ten tokens."""
    monkeypatch.setattr(access, "MAX_KNOWN", 10)


@pytest.mark.usefixtures("ten_tokens")
async def test_unknown_tokens_push_no_known_one_out(process: Process, execute: Execute) -> None:
    """More unknown tokens than may be remembered: the client is not looked up again."""
    token = add_client(execute, "read")
    await process.find(token)
    await asyncio.gather(*(process.verdict(make_token(4711)) for _ in range(50)))

    with capture_logs() as logged:
        verdict = await process.verdict(token)

    assert (verdict, lookups(logged)) == ("valid", 0)


@pytest.mark.parametrize(
    "token", ["", "x", "mc_1_", "mc_1_" + 43 * "A", pytest.param(make_token(2**63), id="large")]
)
async def test_a_malformed_token_costs_no_statement(process: Process, token: str) -> None:
    """It is recognized by its checksum."""
    with capture_logs() as logged:
        verdict = await process.verdict(token)

    assert verdict == MALFORMED
    assert lookups(logged) == 0


async def test_the_day_of_use_is_recorded_once(process: Process, execute: Execute) -> None:
    """In UTC; later lookups of the day write nothing."""
    *tokens, last = [add_client(execute, "read") for _ in range(4)]
    marked = "select 1 from clients where id = %s and last_used_on is not null"

    def marks() -> list[str]:
        return [line["event"] for line in logged if line.get("query") == "mark_clients_used"]

    with capture_logs() as logged:
        for token in tokens:
            found = await process.find(token)
            await until(partial(execute, marked, found.id))
        process.now += KNOWN_S
        await asyncio.gather(*map(process.find, tokens))
        await process.find(last)
        await until(lambda: len(marks()) > 3)  # so it would follow another mark

    assert marks() == ["slow statement"] * 4


async def test_a_locked_client_delays_no_mark_of_others(
    process: Process, execute: Execute, database: str
) -> None:
    """Its own day is recorded at a later lookup."""
    locked, free = [add_client(execute, "read") for _ in range(2)]
    marked = "select id from clients where last_used_on is not null order by id"

    with hold(database, "select from clients where id = 1 for update"):
        await asyncio.gather(process.find(locked), process.find(free))
        await until(lambda: execute(marked) == [(2,)])
    process.now += KNOWN_S
    await process.find(locked)

    await until(lambda: execute(marked) == [(1,), (2,)])


async def test_a_standby_finds_clients_and_warns_once(process: Process, execute: Execute) -> None:
    """It can record no day of use; it is tried again after an hour."""
    tokens = [add_client(execute, "read") for _ in range(20)]
    set_default(execute, "default_transaction_read_only = on")

    def failures() -> int:
        return len([line for line in logged if line["event"] == "statement failed"])

    with capture_logs() as logged:
        verdicts = [await process.verdict(tokens[0])]
        await until(failures)
        verdicts += [await process.verdict(token) for token in tokens]
        warnings = failures()
        process.now += MARK_RETRY_S
        await process.verdict(tokens[0])
        await until(lambda: failures() > 1)

    assert verdicts == ["valid"] * 21
    assert warnings == 1


# Over HTTP.


@pytest.mark.parametrize("fault", [LOCK, "alter table clients rename to gone"])
async def test_a_failed_lookup_is_503(
    start: Start, execute: Execute, database: str, fault: str
) -> None:
    """With Retry-After, never 401; requests without a token are served; it is not remembered."""
    client = await start(database__statement_timeout=0.3)
    add_movies(execute, "Moana")
    token = add_client(execute, "read")
    with hold(database, fault) as dba:
        if fault != LOCK:
            dba.commit()
        response = await client.get("/v1/movies/1", headers=bearer(token))
        anonymous = await client.get("/v1/movies/1")
    later = await client.get("/v1/movies/1", headers=bearer(token))

    assert (response.status, "Retry-After" in response.headers) == (503, True)
    assert anonymous.status == 200
    assert later.status == (200 if fault == LOCK else 503)


def test_a_token_has_the_id_of_its_client() -> None:
    """Up to the largest bigint; each token is another one."""
    tokens = {make_token(2**63 - 1) for _ in range(100)}

    assert len(tokens) == 100
    assert {parse_token(token) for token in tokens} == {2**63 - 1}
    assert {len(token) for token in tokens} == {len("mc_9223372036854775807_") + 43}
