"""Tests the sharing of statements; these tests run no SQL."""

import asyncio
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from support import Patch, until

from service.database import sharing
from service.database.sharing import MAX_PAYLOAD_BYTES, SLOW_S, Rows, SharedStatements, count_rows
from service.errors import Contended, Refusal, RuleBroken, StatementFailed, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def max_waiting(monkeypatch: Patch) -> None:
    """Let 50 rows wait, and 5 more for each exclusive key."""
    monkeypatch.setattr(sharing, "MAX_WAITING", 50)
    monkeypatch.setattr(sharing, "MAX_WAITING_FOR_KEY", 5)


class Statements:
    """Fake statements: they record their keys, and the test decides when they end."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.running: list[asyncio.Task[object] | None] = []
        self.max_running = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.stuck_keys: set[int] = set()
        self.find_error: Callable[[list[int]], Exception | None] = lambda _: None

    async def run(self, rows: Rows[str]) -> dict[int, str]:
        """Run a statement; keys from 0 on have a result."""
        keys = [row.key for row in rows]
        self.sent.append(keys)
        self.running.append(asyncio.current_task())
        self.max_running = max(self.max_running, len(self.running))
        try:
            await asyncio.sleep(0)
            await self.may_end.wait()
            if self.stuck_keys & set(keys):
                await asyncio.Event().wait()
            if error := self.find_error(keys):
                raise error
            return {key: f"result {key}" for key in keys if key >= 0}
        finally:
            self.running.remove(asyncio.current_task())


@pytest.fixture
def statements() -> Statements:
    """Return fake statements."""
    return Statements()


async def send(shared: SharedStatements[str], key: int, payload: bytes = b"") -> str | None:
    """Submit a row and wait for its result, as a request does."""
    return await shared.submit(key, payload)


def send_all(shared: SharedStatements[str], *keys: int) -> list[asyncio.Task[str | None]]:
    """Send requests that arrive in the same turn of the event loop."""
    return [asyncio.create_task(send(shared, key)) for key in keys]


async def hold(
    shared: SharedStatements[str], statements: Statements, key: int = 0
) -> list[asyncio.Task[str | None]]:
    """Send a request whose statement runs until the statements may end."""
    statements.may_end.clear()
    request = send_all(shared, key)
    await until(lambda: statements.running)
    return request


# What a statement carries.


@pytest.mark.parametrize(
    ("sizes", "last_rows", "takes_all", "expected"),
    [
        # Half of the rows that wait and of those that were sent last; at least one.
        ([1], 0, False, 1),
        ([1] * 3, 0, False, 2),
        ([1] * 4, 4, False, 4),
        ([1] * 5, 3, False, 4),
        ([1] * 2, 20, False, 2),
        ([], 9, False, 0),
        # Up to 10 rows, here.
        ([1] * 30, 0, False, 10),
        # Up to `MAX_PAYLOAD_BYTES`, or one row that has more.
        ([MAX_PAYLOAD_BYTES - 1, 1, 1], 3, False, 2),
        ([MAX_PAYLOAD_BYTES, 1], 2, False, 1),
        ([MAX_PAYLOAD_BYTES + 1, 1], 2, False, 1),
        # All rows with one result.
        ([1] * 9, 0, True, 9),
        ([1] * 11, 0, True, 10),
    ],
)
def test_a_statement_takes_some_of_the_rows_that_wait(
    sizes: list[int], last_rows: int, expected: int, *, takes_all: bool
) -> None:
    """`sizes` are those of the waiting rows."""
    assert count_rows(sizes, last_rows, 10, takes_all=takes_all) == expected


async def test_each_request_gets_its_own_result(statements: Statements) -> None:
    """Results are returned by key; a key without a result gives None."""
    shared = SharedStatements(statements.run)

    results = await asyncio.gather(*send_all(shared, 3, -1, 1, 3))

    assert results == ["result 3", None, "result 1", "result 3"]
    assert [*chain(*statements.sent)] == [3, -1, 1, 3]


async def test_a_lone_request_is_sent_at_once(statements: Statements) -> None:
    """If no statement runs, a request is sent within two turns of the loop, without a timer."""
    shared = SharedStatements(statements.run)

    (request,) = send_all(shared, 1)
    for _ in range(3):
        await asyncio.sleep(0)

    assert statements.sent == [[1]]
    await request


async def test_requests_that_wait_share_the_next_statement(
    statements: Statements, monkeypatch: Patch
) -> None:
    """Requests that arrive while a statement runs are sent with one statement when it ends."""
    monkeypatch.setattr(sharing, "SLOW_S", 30)
    shared = SharedStatements(statements.run)
    first = await hold(shared, statements, 1)
    rest = send_all(shared, 2)
    await asyncio.sleep(0)
    rest += send_all(shared, 3)
    await asyncio.sleep(0)

    statements.may_end.set()
    await asyncio.gather(*first, *rest)

    assert statements.sent == [[1], [2, 3]]


# Slow and stuck statements.


async def test_an_ended_statement_starts_none_beside_the_next_one(
    statements: Statements, monkeypatch: Patch
) -> None:
    """Only the timer of the statement that runs does."""
    loop = asyncio.get_running_loop()
    timers: list[Callable[[], object]] = []
    call_later = loop.call_later

    def note(delay: float, callback: Any, *parameters: Any) -> asyncio.TimerHandle:
        if delay == SLOW_S:
            timers.append(partial(callback, *parameters))
        return call_later(3600 if delay == SLOW_S else delay, callback, *parameters)

    monkeypatch.setattr(loop, "call_later", note)
    shared = SharedStatements(statements.run)
    await send(shared, 1)
    statements.stuck_keys = {2}
    (stuck,) = send_all(shared, 2)
    await until(lambda: statements.running)
    (waiting,) = send_all(shared, 3)
    await asyncio.sleep(0)

    timers[0]()
    for _ in range(3):
        await asyncio.sleep(0)
    assert statements.sent == [[1], [2]]
    timers[1]()
    assert await waiting == "result 3"
    stuck.cancel()


async def test_a_slow_statement_gets_one_beside_it(statements: Statements) -> None:
    """New requests wait SLOW_S for the slow statement; later ones do not wait for it."""
    shared = SharedStatements(statements.run)
    statements.stuck_keys = {1}
    loop = asyncio.get_running_loop()
    started = loop.time()
    (stuck,) = send_all(shared, 1)
    await until(lambda: statements.running)

    second = await asyncio.wait_for(send(shared, 2), 20)
    waited = loop.time() - started
    (third,) = send_all(shared, 3)
    for _ in range(6):
        await asyncio.sleep(0)

    assert second == "result 2"
    assert waited >= SLOW_S * 0.9
    assert third.done()
    assert not stuck.done()
    stuck.cancel()


async def test_running_statements_are_limited(statements: Statements) -> None:
    """At most two run at the same time, however long they take; the others wait in order."""
    shared = SharedStatements(statements.run)
    requests = await hold(shared, statements)
    for key in range(1, 5):
        requests += send_all(shared, key)
        await asyncio.sleep(SLOW_S * 1.5)

    statements.may_end.set()
    await asyncio.gather(*requests)

    assert statements.max_running == sharing.MAX_RUNNING == 2
    assert [*chain(*statements.sent)] == [0, 1, 2, 3, 4]


async def test_waiting_requests_are_limited(statements: Statements) -> None:
    """A request beyond MAX_WAITING is refused at once; the others get their results."""
    shared = SharedStatements(statements.run)
    served = await hold(shared, statements)
    served += send_all(shared, *range(1, 51))
    await asyncio.sleep(0)

    with pytest.raises(Unavailable):
        await shared.submit(51)

    statements.may_end.set()
    assert len(await asyncio.gather(*served)) == 51


# Statements that fail. The first one has 10 of the 20 rows.

FAULT_OF_A_ROW = StatementFailed("out of range", for_every_row=False)
FAULT_OF_THE_QUERY = StatementFailed("no such column", for_every_row=True)


@pytest.mark.parametrize(
    ("error", "is_repeatable"),
    [
        (RuleBroken("no_nines"), False),
        (Contended("locked"), False),
        (FAULT_OF_A_ROW, False),
        (ValueError("odd"), True),
    ],
)
async def test_a_row_that_breaks_a_statement_fails_alone(
    statements: Statements, error: Exception, *, is_repeatable: bool
) -> None:
    """Each row is sent again alone, and only this one gets the error."""
    shared = SharedStatements(statements.run, is_repeatable=is_repeatable)
    statements.find_error = lambda keys: error if 3 in keys else None

    results = await asyncio.gather(*send_all(shared, *range(20)), return_exceptions=True)

    assert results == [error if key == 3 else f"result {key}" for key in range(20)]
    assert statements.sent[0] == [*range(10)]


@pytest.mark.parametrize(
    ("error", "is_repeatable"),
    [
        (ValueError("year 20000 is out of range"), False),  # of the driver, after the commit
        (Unavailable("gone", Refusal.NO_DATABASE), False),
        (Unavailable("gone", Refusal.NO_DATABASE), True),
        (FAULT_OF_THE_QUERY, True),
    ],
)
async def test_rows_that_may_be_stored_are_not_sent_again(
    statements: Statements, error: Exception, *, is_repeatable: bool
) -> None:
    """If each row would fail again, none is sent again: all requests get the error."""
    shared = SharedStatements(statements.run, is_repeatable=is_repeatable)
    statements.find_error = lambda keys: error if 1 in keys else None

    results = await asyncio.gather(*send_all(shared, *range(20)), return_exceptions=True)

    assert results == [error] * 10 + [f"result {key}" for key in range(10, 20)]
    assert statements.sent == [[*range(10)], [*range(10, 20)]]


@pytest.mark.parametrize(
    "error", [Contended("the table is locked"), Unavailable("gone by now", Refusal.NO_DATABASE)]
)
async def test_rows_are_not_sent_alone_after_a_timeout(
    statements: Statements, monkeypatch: Patch, error: Unavailable
) -> None:
    """If the table is locked, no request waits for the timeouts of all."""
    monkeypatch.setattr(sharing, "ALONE_MAX_S", -1.0)
    shared = SharedStatements(statements.run)
    statements.find_error = lambda keys: RuleBroken("odd") if len(keys) > 1 else error

    results = await asyncio.gather(*send_all(shared, *range(20)), return_exceptions=True)

    assert results == [error] * 20
    assert statements.sent == [[*range(10)], [0], [*range(10, 20)], [10]]


# Requests that are cancelled.


async def test_a_cancelled_request_does_not_cancel_its_statement(statements: Statements) -> None:
    """The other requests of the statement get their results."""
    shared = SharedStatements(statements.run)
    statements.may_end.clear()
    request, other, *_ = send_all(shared, 1, 2, 3, 4)
    await until(lambda: statements.sent == [[1, 2]])

    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    statements.may_end.set()

    assert await other == "result 2"
    assert request.cancelled()


async def test_a_request_cancelled_while_it_waits_is_not_sent(statements: Statements) -> None:
    """So its write is not executed; the next one of the same movie is."""
    shared = SharedStatements(statements.run, exclusive=True)
    first = await hold(shared, statements, 1)
    request, other = send_all(shared, 2, 3)
    await asyncio.sleep(0)

    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    statements.may_end.set()
    await asyncio.gather(*first, other)
    await asyncio.wait_for(send(shared, 2), 20)

    assert statements.sent == [[1], [3], [2]]


# Exclusive keys.


async def test_an_exclusive_key_is_in_one_statement_at_a_time(statements: Statements) -> None:
    """If a write of a movie is stuck, the next write of this movie delays no other movie."""
    shared = SharedStatements(statements.run, exclusive=True)
    statements.stuck_keys = {1}
    (stuck,) = send_all(shared, 1)
    await until(lambda: statements.running)

    again, other = send_all(shared, 1, 2)
    result = await asyncio.wait_for(other, 20)

    assert result == "result 2"
    assert statements.sent == [[1], [2]]
    again.cancel()
    stuck.cancel()


async def test_requests_for_a_busy_key_keep_their_order(statements: Statements) -> None:
    """Changes of one movie are executed in the order of their requests, no two together."""
    order: list[bytes] = []

    async def run(rows: Rows[str]) -> dict[int, str]:
        order.extend(row.payload for row in rows if row.key == 1)
        return await statements.run(rows)

    shared = SharedStatements(run, max_rows=10, exclusive=True)

    await asyncio.gather(
        *(shared.submit(1, payload) for payload in (b"a", b"b", b"c")),
        *(shared.submit(key) for key in range(2, 11)),
        *(shared.submit(1, payload) for payload in (b"d", b"e")),
    )

    assert order == [b"a", b"b", b"c", b"d", b"e"]
    assert all(len(keys) == len(set(keys)) for keys in statements.sent)


async def test_waiting_rows_of_one_exclusive_key_are_limited(statements: Statements) -> None:
    """Further rows with it are refused at once, and those with other keys go through."""
    shared = SharedStatements(statements.run, exclusive=True)
    busy = await hold(shared, statements, 1)
    busy += send_all(shared, *[1] * 100)
    others = send_all(shared, *range(2, 40))
    await asyncio.sleep(0)
    refused = [request for request in busy if request.done()]

    statements.may_end.set()
    results = await asyncio.gather(*busy, *others, return_exceptions=True)

    assert [type(request.exception()) for request in refused] == [Unavailable] * 95
    assert results.count("result 1") == 6
    assert results[len(busy) :] == [f"result {key}" for key in range(2, 40)]


# Rows of the same key.


async def test_rows_of_the_same_key_are_not_sent_again_alone(statements: Statements) -> None:
    """After an error, each of them would fail like all."""
    shared = SharedStatements(statements.run, takes_all=True)
    statements.find_error = lambda _: Contended("a timeout")

    results = await asyncio.gather(*send_all(shared, 1, 1, 1), return_exceptions=True)

    assert [type(result) for result in results] == [Contended] * 3
    assert statements.sent == [[1, 1, 1]]
