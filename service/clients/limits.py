"""The rate limit of each client, or of each address without a token.

The library `limits` counts, in memory or in Redis, by a sliding window counter: the units of the
previous window are weighted by the part of it that the sliding window still overlaps
(https://limits.readthedocs.io/en/stable/strategies.html). While Redis is away, requests pass.

Identities are `client:7` or `address:192.0.2.1`; an IPv6 address counts as its /64, the smallest
network that providers give to a customer.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv6Address
from math import inf
from typing import NamedTuple

import structlog

from service.config import Limits as Settings
from service.database.caller import Caller
from service.errors import LimitReached, OperatorError, Policy
from service.telemetry.metrics import Metrics

KNOWN_REQUESTERS = 4096  # in the cache
REDIS_TIMEOUT_S = 0.25  # for Redis to respond, with the wait for a connection
REDIS_RETRY_S = 1.0  # after a failure, until Redis is asked again
MAX_REDIS_CONNECTIONS = 10
ROUNDING_S = 0.001  # clocks and floats; otherwise, who waits as told may come too early

log = structlog.get_logger()


class Window(NamedTuple):
    """The units of the previous window and of this one; each is kept until the next one ends."""

    previous: int
    previous_kept_s: float
    current: int
    current_kept_s: float


class RateLimiter:
    """Refuses requests over the limit, with `LimitReached`."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._rate = settings.rate
        self._metrics = metrics
        self.are_on = settings.rate > 0
        if not self.are_on:
            return
        from limits import RateLimitItemPerSecond  # noqa: PLC0415 - the import takes 0.1 s
        from limits.aio.storage import MemoryStorage, RedisStorage  # noqa: PLC0415 - as above
        from limits.aio.strategies import SlidingWindowCounterRateLimiter  # noqa: PLC0415 - as above
        from redis.asyncio import BlockingConnectionPool  # noqa: PLC0415 - as above

        # Windows are whole seconds. A burst that is no multiple of the rate is rounded up: if only
        # its window were rounded up, clients would get less than the rate.
        window_s = -(-settings.burst // settings.rate)
        self._policy = Policy("rate", settings.rate * window_s, window_s)
        self._item = RateLimitItemPerSecond(self._policy.quota, window_s, namespace="rate")
        self._storage: MemoryStorage | RedisStorage = MemoryStorage()
        self._pool: BlockingConnectionPool | None = None
        if settings.redis_url:
            try:
                self._pool = BlockingConnectionPool.from_url(
                    settings.redis_url, max_connections=MAX_REDIS_CONNECTIONS
                )
                self._pool.make_connection()  # type: ignore[no-untyped-call] # connects later
            except Exception as error:  # of any type; the message has no password
                raise OperatorError(
                    "[limits] redis_url: expected redis://:password@host:6379/0, rediss://... or"
                    f" unix:///path/of/socket, with parameters that redis-py knows: {error}"
                ) from error
            self._storage = RedisStorage(
                "redis://",
                implementation="redispy",
                key_prefix="catalogue",
                connection_pool=self._pool,  # type: ignore[arg-type] # its docstring allows it
            )
        self._limiter = SlidingWindowCounterRateLimiter(self._storage)
        self._redis_failed_at = -inf  # by the loop's clock; -inf: Redis responds

    async def charge(self, caller: Caller, cost: int, charged: int = 0) -> None:
        """Count `cost` units, at most the whole burst, minus `charged`; `LimitReached`."""
        units = min(cost, self._policy.quota)
        if units <= charged:
            return
        window = await self._take(choose_key(caller.client_id, caller.address), units - charged)
        if window:
            self._metrics.limited.inc()
            # The client will send all of it again: say when there is room for all.
            remaining, retry_after_s = find_room(window, units, self._policy)
            raise LimitReached(
                f"the limit is {self._rate} units per second, and {self._policy.quota} at once;"
                f" this request takes {units}: try again in {retry_after_s} s",
                self._policy,
                remaining,
                retry_after_s,
            )

    async def _take(self, key: str, cost: int) -> Window | None:
        """Count the cost; if that is over the limit, count nothing and return the window."""
        now = asyncio.get_running_loop().time()
        if now < self._redis_failed_at + REDIS_RETRY_S:
            self._metrics.unlimited.inc()
            return None
        window = None
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_S):
                if not await self._limiter.hit(self._item, key, cost=cost):
                    found = await self._storage.get_sliding_window(
                        self._item.key_for(key), self._policy.window_s
                    )
                    window = Window._make(found)
        except Exception as error:  # noqa: BLE001 - no error of Redis may fail the request
            self._metrics.unlimited.inc()
            if self._redis_failed_at == -inf:
                log.warning("limits without redis", reason=str(error) or "no response in time")
            self._redis_failed_at = now
            return None
        if self._redis_failed_at > -inf:
            self._redis_failed_at = -inf
            log.info("limits with redis")
        return window

    async def run(self, _: object) -> AsyncIterator[None]:
        """Close the connections to Redis at the end (a `cleanup_ctx`)."""
        yield
        if self.are_on and self._pool:
            with suppress(Exception):
                async with asyncio.timeout(REDIS_TIMEOUT_S):
                    await self._pool.disconnect()


def find_room(window: Window, units: int, policy: Policy) -> tuple[int, int]:
    """Return how many units are left, and in how many seconds `units` will be.

    The units of the previous window count less and less, and not at all when this window ends.
    """
    quota, window_s = policy.quota, policy.window_s
    left_s = max(0.0, window.current_kept_s - window_s)
    counted = int(window.previous * left_s / window_s)
    if window.current + units <= quota:  # in this window, when the previous one counts less
        start_s, end_s = 0.0, left_s
        former, may_count = window.previous, quota - window.current - units
    else:  # in the next window, when this one counts less
        start_s, end_s = left_s, left_s + window_s
        former, may_count = window.current, quota - units
    wait_s = max(start_s, end_s - (may_count + 1) * window_s / max(1, former))
    return max(0, quota - window.current - counted), int(wait_s + ROUNDING_S) + 1


@lru_cache(KNOWN_REQUESTERS)
def choose_key(client_id: int | None, address: str) -> str:
    """Return the identity that a request counts for: its client, or else its address."""
    if client_id is not None:
        return f"client:{client_id}"
    if ":" not in address:  # IPv4, or `unix`
        return f"address:{address}"
    network = int(IPv6Address(address)) >> 64
    return f"address:{network:x}/64"
