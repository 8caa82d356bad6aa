"""The sliding window of limits, in memory."""

import pytest
from limits.aio.storage import memory
from support import Patch, StoppedClock

from service.clients.limits import RateLimiter
from service.config import Limits as Settings
from service.database.caller import Caller
from service.errors import LimitReached, OperatorError
from service.telemetry.metrics import Metrics

START = 1_000_000.0  # a window of five seconds begins


@pytest.fixture
def clock(monkeypatch: Patch) -> StoppedClock:
    """The clock of the windows."""
    clock = StoppedClock(START)
    monkeypatch.setattr(memory, "time", clock)
    return clock


def make_limits(rate: int, burst: int) -> RateLimiter:
    """Make limits in memory."""
    return RateLimiter(Settings(rate, burst, ""), Metrics(is_enabled=False))


async def take(
    limits: RateLimiter, cost: int, client_id: int | None = 7, address: str = "192.0.2.1"
) -> LimitReached | None:
    """Charge the client; return the refusal."""
    try:
        await limits.charge(Caller(address, client_id), cost)
    except LimitReached as refusal:
        return refusal
    return None


async def take_all(limits: RateLimiter) -> int:
    """Take units until one is refused, and return how many were taken."""
    taken = 0
    while not await take(limits, 1):
        taken += 1
    return taken


@pytest.mark.usefixtures("clock")
async def test_no_more_than_the_burst_is_taken_at_once() -> None:
    """A cost that does not fit is refused; smaller ones are still taken."""
    limits = make_limits(2, 10)
    await take(limits, 8)

    refused = await take(limits, 3)

    assert refused
    assert (refused.remaining, refused.retry_after) == (2, 6)
    assert await take(limits, 2) is None
    assert await take(limits, 10, client_id=8) is None


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("rate", "burst", "policy"), [(1, 5, (5, 5)), (3, 10, (12, 4))])
async def test_the_burst_is_whole_seconds_of_the_rate(
    rate: int, burst: int, policy: tuple[int, int]
) -> None:
    """It is rounded up, so that the rate holds."""
    limits = make_limits(rate, burst)

    assert await take_all(limits) == policy[0]
    refused = await take(limits, 1)

    assert refused
    assert refused.policy[1:] == policy


async def test_units_come_back_steadily(clock: StoppedClock) -> None:
    """In the long run, it is the burst per window."""
    limits = make_limits(20, 100)
    await take_all(limits)
    clock.now += 5  # the window of the first hundred is over

    taken = []
    for _ in range(200):
        clock.now += 0.1
        taken.append(await take_all(limits))

    assert sum(taken) == pytest.approx(400, rel=0.05)
    assert max(taken) <= 3


@pytest.mark.parametrize("cost", [1, 4, 10])
@pytest.mark.parametrize("used", [(10, 0.0), (6, 1.5), (9, 4.9)])
@pytest.mark.parametrize("later", [0.0, 2.2, 5.0, 7.7])
async def test_a_client_that_waits_as_told_is_not_refused_again(
    clock: StoppedClock, cost: int, used: tuple[int, float], later: float
) -> None:
    """Whatever it used before, and when."""
    limits = make_limits(2, 10)
    clock.now += used[1]
    await take(limits, used[0])
    clock.now += later
    await take_all(limits)

    refused = await take(limits, cost)

    assert refused
    clock.now += refused.retry_after
    assert await take(limits, cost) is None


@pytest.mark.usefixtures("clock")
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
async def test_an_ipv6_address_counts_by_network(one: str, other: str, *, is_same: bool) -> None:
    """A customer has a /64, and could send each request from another address of it."""
    limits = make_limits(1, 5)
    await take(limits, 5, None, one)

    assert bool(await take(limits, 1, None, other)) is is_same


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://:secret@h/0?foo=1", "foo"),
        ("unix:///path?foo=1", "foo"),
        ("redis://:secret@h/0?protocol=9", "protocol"),
        ("redis://:secret@h/0?db=x", "db"),
        ("redis://:secret@h/0?socket_timeout=soon", "socket_timeout"),
        ("redis://:secret@h:65536/0", "Port out of range"),
        ("redis://:secret@h:port/0", "expected redis://"),
        ("rediss://:secret@h/0?ssl_cert_reqs=foo", "SSL Certificate Requirements"),
        ("redis://:secret@h/0?parser_class=a", "not callable"),
    ],
)
def test_a_url_that_redis_does_not_accept_stops_the_start(url: str, reason: str) -> None:
    """Otherwise nothing is limited, as while Redis is away; nothing is sent to find it."""
    with pytest.raises(OperatorError, match=r"^\[limits\] redis_url: ") as caught:
        RateLimiter(Settings(1, 100, url), Metrics(is_enabled=False))

    assert reason in str(caught.value)
    assert "secret" not in str(caught.value)
