"""Tests the sharing of statements; these tests run no SQL."""

import asyncio
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from support import until

from service.config import Sharing
from service.database.batching import WAIT_FOR_STATEMENT_S, Batcher, SharedRow
from service.errors import Contended, Refusal, RuleBroken, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = Sharing(enabled=True, max_rows=10, max_bytes=100, max_under_way=3, max_waiting=50)


class Statements:
    """Fake statements: they record their keys, and the test decides when they end."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.running = 0
        self.max_running = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.stuck_keys: set[int] = set()
        self.find_error: Callable[[list[int]], Exception | None] = lambda _: None

    async def run(self, rows: list[SharedRow[str]]) -> dict[int, str]:
        """Run a statement; keys from 0 on have a result."""
        keys = [row.key for row in rows]
        self.sent.append(keys)
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        try:
            await asyncio.sleep(0)
            await self.may_end.wait()
            if self.stuck_keys & set(keys):
                await asyncio.Event().wait()
            if error := self.find_error(keys):
                raise error
            return {key: f"result {key}" for key in keys if key >= 0}
        finally:
            self.running -= 1


@pytest.fixture
def statements() -> Statements:
    """Return fake statements."""
    return Statements()


def submit_all(batcher: Batcher[str], *keys: int) -> list[asyncio.Task[str | None]]:
    """Submit requests that arrive in the same turn of the event loop."""
    return [asyncio.create_task(batcher.submit(key)) for key in keys]


async def test_each_request_gets_its_own_result(statements: Statements) -> None:
    """Results are returned by key; a key without a result gives None."""
    batcher = Batcher(statements.run, SETTINGS)

    results = await asyncio.gather(*submit_all(batcher, 3, -1, 1, 3))

    assert results == ["result 3", None, "result 1", "result 3"]
    assert statements.sent == [[3, -1, 1, 3]]


async def test_a_lone_request_is_sent_at_once(statements: Statements) -> None:
    """If no statement runs, a request is sent within two turns of the loop, without a timer."""
    batcher = Batcher(statements.run, SETTINGS)

    request = asyncio.create_task(batcher.submit(1))
    for _ in range(3):
        await asyncio.sleep(0)

    assert statements.sent == [[1]]
    await request


async def test_requests_that_wait_share_the_next_statement(statements: Statements) -> None:
    """Requests that arrive while a statement runs are sent with one statement when it ends."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.may_end.clear()
    first = submit_all(batcher, 1, 2)
    await until(lambda: statements.running)
    rest = submit_all(batcher, 3) + submit_all(batcher, 4)
    await asyncio.sleep(0)

    statements.may_end.set()
    await asyncio.gather(*first, *rest)

    assert statements.sent == [[1, 2], [3, 4]]


async def test_clients_split_into_two_halves(statements: Statements) -> None:
    """Clients that repeat requests soon form two alternating batches of the same size."""
    batcher = Batcher(statements.run, SETTINGS)

    async def client(key: int, requests: int) -> None:
        for _ in range(requests):
            await batcher.submit(key)

    await asyncio.gather(*(client(key, 20) for key in range(8)))

    assert {len(keys) for keys in statements.sent[5:-5]} == {4}


async def test_the_next_statement_is_sent_before_results_return(statements: Statements) -> None:
    """So the database works while the service makes the responses of the last statement."""
    batcher = Batcher(statements.run, SETTINGS)
    sent_at_result = []

    async def client(key: int) -> None:
        await batcher.submit(key)
        sent_at_result.append(len(statements.sent))

    statements.may_end.clear()
    clients = [asyncio.create_task(client(key)) for key in range(4)]
    await until(lambda: statements.running)
    clients += [asyncio.create_task(client(key)) for key in range(4, 8)]
    await asyncio.sleep(0)
    statements.may_end.set()
    await asyncio.gather(*clients)

    assert sent_at_result[:4] == [2, 2, 2, 2]


async def test_one_of_two_clients_does_not_wait_for_the_other(statements: Statements) -> None:
    """Two rows get a statement each (`UNSHARED_ROWS`)."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.may_end.clear()
    first = submit_all(batcher, 1)
    await until(lambda: statements.running)

    second = submit_all(batcher, 2)
    for _ in range(3):
        await asyncio.sleep(0)

    assert statements.running == 2
    statements.may_end.set()
    await asyncio.gather(*first, *second)
    assert statements.sent == [[1], [2]]


async def test_a_stuck_statement_delays_others_only_briefly(statements: Statements) -> None:
    """After WAIT_FOR_STATEMENT_S, other statements are sent, and later ones without delay."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.stuck_keys = {1}
    loop = asyncio.get_running_loop()
    started = loop.time()
    stuck = submit_all(batcher, 1, -1, -2, -3, -4)
    await until(lambda: statements.running)

    second = await asyncio.wait_for(batcher.submit(3), 20)
    waited = loop.time() - started
    statements.may_end.clear()
    rest = submit_all(batcher, 4)
    await until(lambda: statements.running == 2)
    rest += submit_all(batcher, 5, 6)  # these wait for the statement with key 4, until it has ended
    await asyncio.sleep(0)
    statements.may_end.set()
    for _ in range(10):
        await asyncio.sleep(0)
    rest += submit_all(batcher, 7)
    for _ in range(6):
        await asyncio.sleep(0)

    assert second == "result 3"
    assert waited >= WAIT_FOR_STATEMENT_S * 0.9
    assert all(request.done() for request in rest)
    assert not stuck[0].done()
    for request in stuck:
        request.cancel()


async def test_rows_that_do_not_fit_pass_a_stuck_statement(statements: Statements) -> None:
    """Rows beyond the limit of a stuck statement are sent, even if no more requests arrive."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.stuck_keys = {0}

    requests = submit_all(batcher, *range(15))
    results = await asyncio.wait_for(asyncio.gather(*requests[10:]), WAIT_FOR_STATEMENT_S * 20)

    assert results == [f"result {key}" for key in range(10, 15)]
    for request in requests[:10]:
        request.cancel()


async def test_an_unexpected_error_fails_only_its_row(statements: Statements) -> None:
    """If the rows are idempotent, each is sent again alone, whatever the error."""
    batcher = Batcher(statements.run, SETTINGS, idempotent=True)
    statements.find_error = lambda keys: ValueError("odd") if 2 in keys else None

    results = await asyncio.gather(*submit_all(batcher, 1, 2, 3), return_exceptions=True)

    assert [type(result) for result in results] == [str, ValueError, str]
    assert statements.sent[0] == [1, 2, 3]


async def test_rows_that_may_be_stored_are_not_sent_again(statements: Statements) -> None:
    """For example, if the driver cannot parse the result of an insert that was committed."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.find_error = lambda _: ValueError("year 20000 is out of range")

    results = await asyncio.gather(*submit_all(batcher, 1, 2, 3), return_exceptions=True)

    assert [type(result) for result in results] == [ValueError] * 3
    assert statements.sent == [[1, 2, 3]]


async def test_a_cancelled_statement_fails_its_requests() -> None:
    """They get `Unavailable`, and do not wait for ever."""

    async def run(_: list[SharedRow[str]]) -> dict[int, str]:
        raise asyncio.CancelledError

    batcher: Batcher[str] = Batcher(run, SETTINGS)

    with pytest.raises(Unavailable):
        await asyncio.wait_for(batcher.submit(1), 20)


async def test_running_statements_are_limited(statements: Statements) -> None:
    """At most max_under_way statements run at the same time, however long they take."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.may_end.clear()
    requests = []
    for key in range(6):
        requests += submit_all(batcher, key)
        await asyncio.sleep(WAIT_FOR_STATEMENT_S * 1.5)

    statements.may_end.set()
    await asyncio.gather(*requests)

    assert statements.max_running == 3
    assert [*chain(*statements.sent)] == [0, 1, 2, 3, 4, 5]


async def test_rows_of_a_statement_are_limited(statements: Statements) -> None:
    """A statement has at most max_rows rows; the others are sent with the next, in order."""
    batcher = Batcher(statements.run, SETTINGS)

    await asyncio.gather(*submit_all(batcher, *range(25)))

    assert [len(keys) for keys in statements.sent] == [10, 10, 5]
    assert [*chain(*statements.sent)] == list(range(25))


async def test_bytes_of_a_statement_are_limited(statements: Statements) -> None:
    """A statement has at most max_bytes, but always at least one row."""
    batcher = Batcher(statements.run, SETTINGS)

    await asyncio.gather(
        *(batcher.submit(key, b"x" * size) for key, size in enumerate((60, 40, 1, 500, 1)))
    )

    assert statements.sent == [[0, 1], [2], [3], [4]]


async def test_waiting_requests_are_limited(statements: Statements) -> None:
    """A request beyond max_waiting is refused at once; the others get their results."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.may_end.clear()
    served = submit_all(batcher, 0)
    await until(lambda: statements.running)
    served += submit_all(batcher, *range(1, 51))
    await asyncio.sleep(0)

    with pytest.raises(Unavailable):
        await batcher.submit(51)

    statements.may_end.set()
    assert len(await asyncio.gather(*served)) == 51


async def test_waiting_rows_of_one_exclusive_key_are_limited(statements: Statements) -> None:
    """Further rows with it are refused at once, and those with other keys go through."""
    batcher = Batcher(statements.run, SETTINGS, exclusive=True)
    statements.may_end.clear()
    busy = submit_all(batcher, 1)
    await until(lambda: statements.running)
    busy += submit_all(batcher, *[1] * 100)
    others = submit_all(batcher, *range(2, 40))
    await asyncio.sleep(0)
    refused = [request for request in busy if request.done()]

    statements.may_end.set()
    results = await asyncio.gather(*busy, *others, return_exceptions=True)

    assert [type(request.exception()) for request in refused] == [Unavailable] * 95
    assert results.count("result 1") == 6
    assert results[len(busy) :] == [f"result {key}" for key in range(2, 40)]


async def test_a_cancelled_request_frees_its_exclusive_key(statements: Statements) -> None:
    """The next row with the key is sent, wherever the others were when they left."""
    batcher = Batcher(statements.run, SETTINGS, exclusive=True)
    statements.may_end.clear()
    first = submit_all(batcher, 1)
    await until(lambda: statements.running)
    leavers, stayers = submit_all(batcher, 2, 2, 1), submit_all(batcher, 2, 1)
    await asyncio.sleep(0)

    for leaver in leavers:
        leaver.cancel()
    await asyncio.gather(*leavers, return_exceptions=True)
    statements.may_end.set()

    assert await asyncio.gather(*first, *stayers) == ["result 1", "result 2", "result 1"]
    assert sorted(chain(*statements.sent)) == [1, 1, 2]


async def test_an_error_of_the_database_fails_all_requests(statements: Statements) -> None:
    """`Unavailable` is no row's fault: all requests of the statement get it, and no later one."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.find_error = lambda keys: (
        Unavailable("gone", Refusal.NO_DATABASE) if 1 in keys else None
    )

    results = await asyncio.gather(*submit_all(batcher, 1, 2), return_exceptions=True)
    after = await batcher.submit(3)

    assert [type(result) for result in results] == [Unavailable, Unavailable]
    assert statements.sent == [[1, 2], [3]]
    assert after == "result 3"


@pytest.mark.parametrize("error", [RuleBroken("no_twos"), Contended("locked")])
async def test_a_row_that_breaks_a_statement_fails_alone(
    statements: Statements, error: Exception
) -> None:
    """Each row is sent again alone, and only this one gets the error."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.find_error = lambda keys: error if 2 in keys else None

    results = await asyncio.gather(*submit_all(batcher, 1, 2, 3), return_exceptions=True)

    assert results == ["result 1", error, "result 3"]
    assert statements.sent[0] == [1, 2, 3]


@pytest.mark.parametrize(
    "error", [Contended("the table is locked"), Unavailable("gone by now", Refusal.NO_DATABASE)]
)
async def test_rows_are_not_sent_alone_after_a_timeout(
    statements: Statements, error: Unavailable
) -> None:
    """If the table is locked, no request waits for more than one round of timeouts."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.find_error = lambda keys: RuleBroken("odd") if len(keys) > 1 else error

    results = await asyncio.gather(*submit_all(batcher, *range(20)), return_exceptions=True)

    assert results == [error] * 20
    shared = [keys for keys in statements.sent if len(keys) > 1]
    assert len(shared[0]) == 10
    assert len(statements.sent) <= len(shared) * (1 + SETTINGS.max_under_way)


async def test_a_timeout_counts_for_the_rows_of_all_statements() -> None:
    """If the table is locked, rows of another statement fail without a timeout of their own."""
    sent = []
    unlocked = asyncio.Event()

    async def run(rows: list[SharedRow[str]]) -> dict[int, str]:
        sent.append([row.key for row in rows])
        if len(rows) == 1:
            await unlocked.wait()
        raise Contended("locked")

    batcher = Batcher(run, SETTINGS)
    requests = submit_all(batcher, *range(10))
    await until(lambda: len(sent) == 1 + SETTINGS.max_under_way)
    requests += submit_all(batcher, 11, 12, 13)
    await until(lambda: sent[-1] == [11, 12, 13])
    unlocked.set()
    results = await asyncio.gather(*requests, return_exceptions=True)

    assert {type(result) for result in results} == {Contended}
    assert sent == [[*range(10)], [0], [1], [2], [11, 12, 13]]


async def test_a_cancelled_request_does_not_cancel_its_statement(statements: Statements) -> None:
    """The other requests of the statement get their results."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.may_end.clear()
    request, other = submit_all(batcher, 1, 2)
    await until(lambda: statements.running)
    assert statements.sent == [[1, 2]]

    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    statements.may_end.set()

    assert await other == "result 2"
    assert request.cancelled()


async def test_a_request_cancelled_while_it_waits_is_not_sent(statements: Statements) -> None:
    """So its write is not executed."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.may_end.clear()
    first = submit_all(batcher, 1)
    await until(lambda: statements.running)
    request, other = submit_all(batcher, 2, 3)
    await asyncio.sleep(0)

    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    statements.may_end.set()
    await asyncio.gather(*first, other)

    assert statements.sent == [[1], [3]]


async def test_a_batch_of_cancelled_requests_uses_no_slot(statements: Statements) -> None:
    """After max_under_way such batches, the next request still gets its result."""
    batcher = Batcher(statements.run, SETTINGS)
    for key in range(SETTINGS.max_under_way):
        request = asyncio.create_task(batcher.submit(key))
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.sleep(WAIT_FOR_STATEMENT_S * 1.5)

    assert await asyncio.wait_for(batcher.submit(100), 20) == "result 100"
    assert statements.sent == [[100]]


async def test_a_cancelled_request_is_not_sent_again(statements: Statements) -> None:
    """After a failed statement, only rows whose requests still wait are sent alone."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.find_error = lambda keys: RuleBroken("no_ones") if 1 in keys else None
    statements.may_end.clear()
    requests = submit_all(batcher, 1, 2, 3)
    await until(lambda: statements.running)

    requests[1].cancel()
    await asyncio.gather(requests[1], return_exceptions=True)
    statements.may_end.set()
    await asyncio.gather(*requests, return_exceptions=True)

    assert statements.sent == [[1, 2, 3], [1], [3]]


async def test_requests_for_a_busy_key_keep_their_order(statements: Statements) -> None:
    """Changes of one movie are executed in the order of their requests."""
    order: list[bytes] = []

    async def run(rows: list[SharedRow[str]]) -> dict[int, str]:
        order.extend(row.payload for row in rows if row.key == 1)
        return await statements.run(rows)

    batcher = Batcher(run, SETTINGS, exclusive=True)

    others = [batcher.submit(key) for key in range(2, SETTINGS.max_rows + 1)]
    await asyncio.gather(
        batcher.submit(1, b"a"),
        *(batcher.submit(1, payload) for payload in (b"b", b"c")),
        *others,
        *(batcher.submit(1, payload) for payload in (b"d", b"e")),
    )

    assert order == [b"a", b"b", b"c", b"d", b"e"]


async def test_an_exclusive_key_is_once_in_a_statement(statements: Statements) -> None:
    """Two writes of one movie are sent in two statements; other movies do not wait for that."""
    batcher = Batcher(statements.run, SETTINGS, exclusive=True)

    await asyncio.gather(*submit_all(batcher, 1, 1, 2, 1))

    assert statements.sent == [[1, 2], [1], [1]]


async def test_an_exclusive_key_is_in_one_statement_at_a_time(statements: Statements) -> None:
    """If a write of a movie is stuck, the next write of this movie delays no other movie."""
    batcher = Batcher(statements.run, SETTINGS, exclusive=True)
    statements.stuck_keys = {1}
    stuck = submit_all(batcher, 1)
    await until(lambda: statements.running)

    again, other = submit_all(batcher, 1, 2)
    result = await asyncio.wait_for(other, 20)

    assert result == "result 2"
    assert statements.sent == [[1], [2]]
    again.cancel()
    stuck[0].cancel()


async def test_without_sharing_each_request_has_a_statement(statements: Statements) -> None:
    """`enabled = false` sends each request alone."""
    settings = Sharing(enabled=False, max_rows=10, max_bytes=100, max_under_way=3, max_waiting=1)
    batcher = Batcher(statements.run, settings)

    results: list[Any] = await asyncio.gather(*submit_all(batcher, 1, 2, -3))

    assert results == ["result 1", "result 2", None]
    assert statements.sent == [[1], [2], [-3]]
