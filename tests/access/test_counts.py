"""Sliding window counters in memory."""

import pytest
from support import StoppedClock

from service.access import counts
from service.access.counts import MemoryCounts, RetryLater
from service.access.limits import choose_key
from service.errors import Policy

TEN = Policy("rate", 10, 5)
START = 1_000_000.0  # a window of five seconds begins


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    """The clock of the counters."""
    clock = StoppedClock(START)
    monkeypatch.setattr(counts, "time", clock)
    return clock


async def take_all(counter: MemoryCounts, identity: str = "client:7") -> int:
    """Take units until one is refused, and return how many were taken."""
    taken = 0
    while not await counter.take(identity, 1):
        taken += 1
    return taken


@pytest.mark.usefixtures("clock")
async def test_no_more_than_the_quota_is_taken_at_once() -> None:
    """A cost that does not fit is refused; smaller ones are still taken."""
    counter = MemoryCounts(TEN)
    await counter.take("client:7", 8)

    refused = await counter.take("client:7", 3)

    assert refused == RetryLater(2, 6)
    assert await counter.take("client:7", 2) is None
    assert await counter.take("client:8", 10) is None


async def test_units_come_back_steadily(clock: StoppedClock) -> None:
    """In the long run, it is the quota per window."""
    counter = MemoryCounts(Policy("rate", 100, 5))
    await take_all(counter)
    clock.now += 5  # the window of the first hundred is over

    taken = []
    for _ in range(200):
        clock.now += 0.1
        taken.append(await take_all(counter))

    assert sum(taken) == pytest.approx(400, rel=0.05)
    assert max(taken) <= 3


@pytest.mark.parametrize("cost", [1, 4, 10])
@pytest.mark.parametrize("used", [(10, 0.0), (6, 1.5), (9, 4.9)])
@pytest.mark.parametrize("later", [0.0, 2.2, 5.0, 7.7])
async def test_a_client_that_waits_as_told_is_not_refused_again(
    clock: StoppedClock, cost: int, used: tuple[int, float], later: float
) -> None:
    """Whatever it used before, and when."""
    counter = MemoryCounts(TEN)
    clock.now += used[1]
    await counter.take("client:7", used[0])
    clock.now += later
    await take_all(counter)

    refused = await counter.take("client:7", cost)

    assert refused
    clock.now += refused.retry_after_s
    assert await counter.take("client:7", cost) is None


@pytest.mark.usefixtures("clock")
async def test_what_is_given_back_can_be_taken_again() -> None:
    """No more than was taken."""
    counter = MemoryCounts(TEN)
    await counter.take("client:7", 4)

    await counter.give_back("client:7", 1)
    await counter.give_back("client:8", 1)

    assert (await take_all(counter), await take_all(counter, "client:8")) == (7, 10)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("has_failed", [False, True])
async def test_a_flood_of_addresses_takes_no_more_memory(
    monkeypatch: pytest.MonkeyPatch, *, has_failed: bool
) -> None:
    """Addresses above the limit share one count, but not with clients or after failed requests."""
    monkeypatch.setattr(counts, "MAX_ADDRESSES", 100)
    counter = MemoryCounts(TEN)
    for number in range(200):
        await counter.take(f"address:{number}", 1)
        if has_failed:
            await counter.give_back(f"address:{number}", 1)

    known, other = [await take_all(counter, f"address:{number}") for number in (99, 300)]
    assert (known, other) == ((10, 10) if has_failed else (9, 0))
    assert await take_all(counter, "client:7") == 10


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:0:0:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("unix", "unix", True),
    ],
)
def test_an_ipv6_address_counts_as_its_network(one: str, other: str, *, is_same: bool) -> None:
    """A customer has a /64, and could send each request from another address of it."""
    assert (choose_key(None, one) == choose_key(None, other)) is is_same
