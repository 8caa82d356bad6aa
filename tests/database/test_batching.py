"""The mechanism by which requests share statements; its statements here are the test's own."""

import asyncio
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from support import until

from service.config import Sharing
from service.database.batching import WAIT_FOR_STATEMENT_S, Batcher, SharedRow
from service.errors import Contended, RuleBroken, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = Sharing(enabled=True, max_rows=10, max_bytes=100, max_under_way=3, max_waiting=50)


class Statements:
    """Statements that take as long as the test wants, and remember what they carried."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.under_way = 0
        self.most_under_way = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.stuck: set[int] = set()
        self.failing: Callable[[list[int]], Exception | None] = lambda _: None

    async def run(self, rows: list[SharedRow[str]]) -> dict[int, str]:
        """Carry out a statement."""
        keys = [row.key for row in rows]
        self.sent.append(keys)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(0)
            await self.gate.wait()
            if self.stuck & set(keys):
                await asyncio.Event().wait()
            if error := self.failing(keys):
                raise error
            return {key: f"result {key}" for key in keys if key >= 0}
        finally:
            self.under_way -= 1


@pytest.fixture
def statements() -> Statements:
    """The test's own statements."""
    return Statements()


def together(batcher: Batcher[str], *keys: int) -> list[asyncio.Task[str | None]]:
    """Requests that arrive in the same turn."""
    return [asyncio.create_task(batcher.submit(key)) for key in keys]


async def test_each_request_gets_its_own_result(statements: Statements) -> None:
    """Results go by key, and a key without a result gives None."""
    batcher = Batcher(statements.run, SETTINGS)

    results = await asyncio.gather(*together(batcher, 3, -1, 1, 3))

    assert results == ["result 3", None, "result 1", "result 3"]
    assert statements.sent == [[3, -1, 1, 3]]


async def test_a_lone_request_leaves_at_once(statements: Statements) -> None:
    """With nothing under way a statement leaves within two turns of the loop, without a timer."""
    batcher = Batcher(statements.run, SETTINGS)

    request = asyncio.create_task(batcher.submit(1))
    for _ in range(3):
        await asyncio.sleep(0)

    assert statements.sent == [[1]]
    await request


async def test_those_that_arrive_meanwhile_share_the_next(statements: Statements) -> None:
    """While one statement is under way requests collect, and leave together when it ends."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.gate.clear()
    first = together(batcher, 1, 2)
    await until(lambda: statements.under_way)
    rest = together(batcher, 3) + together(batcher, 4)
    await asyncio.sleep(0)

    statements.gate.set()
    await asyncio.gather(*first, *rest)

    assert statements.sent == [[1, 2], [3, 4]]


async def test_clients_that_ask_again_go_in_two_halves(statements: Statements) -> None:
    """However unevenly they begin, the database soon has one half, and the service the other."""
    batcher = Batcher(statements.run, SETTINGS)

    async def client(key: int, requests: int) -> None:
        for _ in range(requests):
            await batcher.submit(key)

    await asyncio.gather(*(client(key, 20) for key in range(8)))

    assert {len(keys) for keys in statements.sent[5:-5]} == {4}


async def test_the_next_statement_leaves_before_answers_are_made(statements: Statements) -> None:
    """The database has work again before the service turns to what the last statement brought."""
    batcher = Batcher(statements.run, SETTINGS)
    sent_when_answered = []

    async def client(key: int) -> None:
        await batcher.submit(key)
        sent_when_answered.append(len(statements.sent))

    statements.gate.clear()
    clients = [asyncio.create_task(client(key)) for key in range(4)]
    await until(lambda: statements.under_way)
    clients += [asyncio.create_task(client(key)) for key in range(4, 8)]
    await asyncio.sleep(0)
    statements.gate.set()
    await asyncio.gather(*clients)

    assert sent_when_answered[:4] == [2, 2, 2, 2]


async def test_one_of_two_clients_does_not_wait_for_the_other(statements: Statements) -> None:
    """A row each is not worth the waiting."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.gate.clear()
    first = together(batcher, 1)
    await until(lambda: statements.under_way)

    second = together(batcher, 2)
    for _ in range(3):
        await asyncio.sleep(0)

    assert statements.under_way == 2
    statements.gate.set()
    await asyncio.gather(*first, *second)
    assert statements.sent == [[1], [2]]


async def test_a_stuck_statement_is_waited_for_only_so_long(statements: Statements) -> None:
    """After WAIT_FOR_STATEMENT_S others leave beside it, and are not held up from then on."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.stuck = {1}
    loop = asyncio.get_running_loop()
    started = loop.time()
    stuck = together(batcher, 1, -1, -2, -3, -4)
    await until(lambda: statements.under_way)

    second = await asyncio.wait_for(batcher.submit(3), 20)
    waited = loop.time() - started
    statements.gate.clear()
    rest = together(batcher, 4)
    await until(lambda: statements.under_way == 2)
    rest += together(batcher, 5, 6)  # these wait for a young one, but not once it has ended
    await asyncio.sleep(0)
    statements.gate.set()
    for _ in range(10):
        await asyncio.sleep(0)
    rest += together(batcher, 7)
    for _ in range(6):
        await asyncio.sleep(0)

    assert second == "result 3"
    assert waited >= WAIT_FOR_STATEMENT_S * 0.9
    assert all(request.done() for request in rest)
    assert not stuck[0].done()
    for request in stuck:
        request.cancel()


async def test_what_did_not_fit_leaves_beside_a_stuck_statement(statements: Statements) -> None:
    """Rows that were too many for a stuck statement leave although no more arrive."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.stuck = {0}

    requests = together(batcher, *range(15))
    results = await asyncio.wait_for(asyncio.gather(*requests[10:]), WAIT_FOR_STATEMENT_S * 20)

    assert results == [f"result {key}" for key in range(10, 15)]
    for request in requests[:10]:
        request.cancel()


async def test_a_failure_that_nobody_foresaw_is_not_the_neighbours(statements: Statements) -> None:
    """Whatever one row makes a statement raise, the others are sent again apart."""
    batcher = Batcher(statements.run, SETTINGS, idempotent=True)
    statements.failing = lambda keys: ValueError("odd") if 2 in keys else None

    results = await asyncio.gather(*together(batcher, 1, 2, 3), return_exceptions=True)

    assert [type(result) for result in results] == [str, ValueError, str]
    assert statements.sent[0] == [1, 2, 3]


async def test_what_may_have_been_done_is_not_done_again(statements: Statements) -> None:
    """An answer that cannot be read, say: the rows are there, and would be there twice."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.failing = lambda _: ValueError("year 20000 is out of range")

    results = await asyncio.gather(*together(batcher, 1, 2, 3), return_exceptions=True)

    assert [type(result) for result in results] == [ValueError] * 3
    assert statements.sent == [[1, 2, 3]]


async def test_a_statement_that_is_given_up_leaves_nobody_waiting() -> None:
    """Even a statement that ends in a cancellation ends the waiting of its requests."""

    async def run(_: list[SharedRow[str]]) -> dict[int, str]:
        raise asyncio.CancelledError

    batcher: Batcher[str] = Batcher(run, SETTINGS)

    with pytest.raises(Unavailable):
        await asyncio.wait_for(batcher.submit(1), 20)


async def test_statements_under_way_are_bounded(statements: Statements) -> None:
    """However long they take, no more than max_under_way are under way at once."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.gate.clear()
    requests = []
    for key in range(6):
        requests += together(batcher, key)
        await asyncio.sleep(WAIT_FOR_STATEMENT_S * 1.5)

    statements.gate.set()
    await asyncio.gather(*requests)

    assert statements.most_under_way == 3
    assert [*chain(*statements.sent)] == [0, 1, 2, 3, 4, 5]


async def test_batches_are_bounded_in_rows(statements: Statements) -> None:
    """A statement carries max_rows at most; the rest leaves with the next, in order."""
    batcher = Batcher(statements.run, SETTINGS)

    await asyncio.gather(*together(batcher, *range(25)))

    assert [len(keys) for keys in statements.sent] == [10, 10, 5]
    assert [*chain(*statements.sent)] == list(range(25))


async def test_batches_are_bounded_in_bytes(statements: Statements) -> None:
    """A statement carries max_bytes at most, but always at least one row."""
    batcher = Batcher(statements.run, SETTINGS)

    await asyncio.gather(
        *(batcher.submit(key, b"x" * size) for key, size in enumerate((60, 40, 1, 500, 1)))
    )

    assert statements.sent == [[0, 1], [2], [3], [4]]


async def test_what_waits_is_bounded(statements: Statements) -> None:
    """Beyond max_waiting a request is refused at once, and the others are served."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.gate.clear()
    served = together(batcher, 0)
    await until(lambda: statements.under_way)
    served += together(batcher, *range(1, 51))
    await asyncio.sleep(0)

    with pytest.raises(Unavailable):
        await batcher.submit(51)

    statements.gate.set()
    assert len(await asyncio.gather(*served)) == 51


async def test_one_exclusive_key_takes_a_tenth_of_what_waits(statements: Statements) -> None:
    """Further rows with it are refused at once, and those with other keys go through."""
    batcher = Batcher(statements.run, SETTINGS, exclusive=True)
    statements.gate.clear()
    busy = together(batcher, 1)
    await until(lambda: statements.under_way)
    busy += together(batcher, *[1] * 100)
    others = together(batcher, *range(2, 40))
    await asyncio.sleep(0)
    refused = [request for request in busy if request.done()]

    statements.gate.set()
    results = await asyncio.gather(*busy, *others, return_exceptions=True)

    assert [type(request.exception()) for request in refused] == [Unavailable] * 95
    assert results.count("result 1") == 6
    assert results[len(busy) :] == [f"result {key}" for key in range(2, 40)]


async def test_who_left_hands_an_exclusive_key_on(statements: Statements) -> None:
    """The next row with the key is sent, wherever the others were when they left."""
    batcher = Batcher(statements.run, SETTINGS, exclusive=True)
    statements.gate.clear()
    first = together(batcher, 1)
    await until(lambda: statements.under_way)
    leavers, stayers = together(batcher, 2, 2, 1), together(batcher, 2, 1)
    await asyncio.sleep(0)

    for leaver in leavers:
        leaver.cancel()
    await asyncio.gather(*leavers, return_exceptions=True)
    statements.gate.set()

    assert await asyncio.gather(*first, *stayers) == ["result 1", "result 2", "result 1"]
    assert sorted(chain(*statements.sent)) == [1, 1, 2]


async def test_a_failure_reaches_everybody_it_concerns(statements: Statements) -> None:
    """An error that is nobody's own is everybody's, and the next statement is not affected."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.failing = lambda keys: Unavailable("gone") if 1 in keys else None

    results = await asyncio.gather(*together(batcher, 1, 2), return_exceptions=True)
    after = await batcher.submit(3)

    assert [type(result) for result in results] == [Unavailable, Unavailable]
    assert statements.sent == [[1, 2], [3]]
    assert after == "result 3"


@pytest.mark.parametrize("error", [RuleBroken("no_twos"), Contended("locked")])
async def test_a_row_that_breaks_a_statement_fails_alone(
    statements: Statements, error: Exception
) -> None:
    """Its neighbours are sent again apart, and it gets its own error."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.failing = lambda keys: error if 2 in keys else None

    results = await asyncio.gather(*together(batcher, 1, 2, 3), return_exceptions=True)

    assert results == ["result 1", error, "result 3"]
    assert statements.sent[0] == [1, 2, 3]


@pytest.mark.parametrize("error", [Contended("the table is locked"), Unavailable("gone by now")])
async def test_no_more_are_tried_apart_once_one_has_timed_out(
    statements: Statements, error: Unavailable
) -> None:
    """With the whole table locked nobody waits for more than a round of timeouts."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.failing = lambda keys: RuleBroken("odd") if len(keys) > 1 else error

    results = await asyncio.gather(*together(batcher, *range(20)), return_exceptions=True)

    assert results == [error] * 20
    shared = [keys for keys in statements.sent if len(keys) > 1]
    assert len(shared[0]) == 10
    assert len(statements.sent) <= len(shared) * (1 + SETTINGS.max_under_way)


async def test_a_timeout_ends_the_waiting_of_all_statements() -> None:
    """With the whole table locked, the rows of one do not wait after those of another have."""
    sent = []
    unlocked = asyncio.Event()

    async def run(rows: list[SharedRow[str]]) -> dict[int, str]:
        sent.append([row.key for row in rows])
        if len(rows) == 1:
            await unlocked.wait()
        raise Contended("locked")

    batcher = Batcher(run, SETTINGS)
    requests = together(batcher, *range(10))
    await until(lambda: len(sent) == 1 + SETTINGS.max_under_way)
    requests += together(batcher, 11, 12, 13)
    await until(lambda: sent[-1] == [11, 12, 13])
    unlocked.set()
    results = await asyncio.gather(*requests, return_exceptions=True)

    assert {type(result) for result in results} == {Contended}
    assert sent == [[*range(10)], [0], [1], [2], [11, 12, 13]]


async def test_leaving_cancels_nobody_elses_statement(statements: Statements) -> None:
    """A request that is given up leaves its statement and its neighbours alone."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.gate.clear()
    leaver, stayer = together(batcher, 1, 2)
    await until(lambda: statements.under_way)
    assert statements.sent == [[1, 2]]

    leaver.cancel()
    await asyncio.gather(leaver, return_exceptions=True)
    statements.gate.set()

    assert await stayer == "result 2"
    assert leaver.cancelled()


async def test_who_left_while_waiting_is_not_sent(statements: Statements) -> None:
    """A write whose request was given up before it left is not carried out."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.gate.clear()
    first = together(batcher, 1)
    await until(lambda: statements.under_way)
    leaver, stayer = together(batcher, 2, 3)
    await asyncio.sleep(0)

    leaver.cancel()
    await asyncio.gather(leaver, return_exceptions=True)
    statements.gate.set()
    await asyncio.gather(*first, stayer)

    assert statements.sent == [[1], [3]]


async def test_those_who_all_left_while_waiting_hold_no_place(statements: Statements) -> None:
    """However often it happens, the next request is served."""
    batcher = Batcher(statements.run, SETTINGS)
    for key in range(SETTINGS.max_under_way):
        leaver = asyncio.create_task(batcher.submit(key))
        await asyncio.sleep(0)
        leaver.cancel()
        await asyncio.sleep(WAIT_FOR_STATEMENT_S * 1.5)

    assert await asyncio.wait_for(batcher.submit(100), 20) == "result 100"
    assert statements.sent == [[100]]


async def test_who_leaves_before_it_is_sent_apart_is_not_sent(statements: Statements) -> None:
    """Of a statement that failed, only those are tried again who still wait for it."""
    batcher = Batcher(statements.run, SETTINGS)
    statements.failing = lambda keys: RuleBroken("no_ones") if 1 in keys else None
    statements.gate.clear()
    requests = together(batcher, 1, 2, 3)
    await until(lambda: statements.under_way)

    requests[1].cancel()
    await asyncio.gather(requests[1], return_exceptions=True)
    statements.gate.set()
    await asyncio.gather(*requests, return_exceptions=True)

    assert statements.sent == [[1, 2, 3], [1], [3]]


async def test_who_waits_for_a_busy_key_keeps_the_place_in_line(statements: Statements) -> None:
    """Changes of one movie are made in the order in which they came."""
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


async def test_an_exclusive_key_stands_once_in_a_statement(statements: Statements) -> None:
    """Two writes of one movie go one after the other, and nobody else waits for that."""
    batcher = Batcher(statements.run, SETTINGS, exclusive=True)

    await asyncio.gather(*together(batcher, 1, 1, 2, 1))

    assert statements.sent == [[1, 2], [1], [1]]


async def test_an_exclusive_key_stands_in_one_statement_at_a_time(statements: Statements) -> None:
    """While a movie's write is stuck, another write of it does not drag neighbours in."""
    batcher = Batcher(statements.run, SETTINGS, exclusive=True)
    statements.stuck = {1}
    stuck = together(batcher, 1)
    await until(lambda: statements.under_way)

    again, other = together(batcher, 1, 2)
    result = await asyncio.wait_for(other, 20)

    assert result == "result 2"
    assert statements.sent == [[1], [2]]
    again.cancel()
    stuck[0].cancel()


async def test_with_sharing_off_each_request_has_its_own(statements: Statements) -> None:
    """The same requests, a statement each, for comparison and for doubt."""
    settings = Sharing(enabled=False, max_rows=10, max_bytes=100, max_under_way=3, max_waiting=1)
    batcher = Batcher(statements.run, settings)

    results: list[Any] = await asyncio.gather(*together(batcher, 1, 2, -3))

    assert results == ["result 1", "result 2", None]
    assert statements.sent == [[1], [2], [-3]]
