"""The rate limit of each client, or of each address without a token.

Identities are `client:7` or `address:192.0.2.1`; an IPv6 address counts as its /64, the smallest
network that providers give to a customer.
"""

from collections.abc import AsyncIterator
from functools import lru_cache
from ipaddress import IPv6Address
from typing import TYPE_CHECKING

from service.access.counts import ADDRESS, MemoryCounts
from service.config import Limits as Settings
from service.context import RequestContext
from service.errors import LimitReached, Policy
from service.metrics import Metrics

if TYPE_CHECKING:
    from service.access.redis_counts import RedisCounts

KNOWN_REQUESTERS = 4096  # in the cache


class Limits:
    """Refuses requests over the limit, with `LimitReached`."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._rate = settings.rate
        self._refusals = metrics.limited
        self.are_on = settings.rate > 0
        # Windows are whole seconds, as in Redis. A burst that is no multiple of the rate is rounded
        # up: if only its window were rounded up, clients would get less than the rate.
        window_s = -(-settings.burst // settings.rate) if self.are_on else 1
        self._policy = Policy("rate", settings.rate * window_s, window_s)
        self._redis: RedisCounts | None = None
        if self.are_on and settings.redis_url:
            from service.access import redis_counts  # noqa: PLC0415 - it takes 0.3 s

            self._redis = redis_counts.RedisCounts(self._policy, settings.redis_url)
        self._counts = self._redis or MemoryCounts(self._policy)

    async def charge(self, context: RequestContext, cost: int, charged: int = 0) -> None:
        """Count `cost` units, at most the whole burst, less those `charged`; `LimitReached`."""
        units = min(cost, self._policy.quota)
        if units <= charged:
            return
        key = choose_key(context.client_id, context.address)
        refused = await self._counts.take(key, units - charged)
        if charged:
            # The client will send all of it again: say when there is room for all.
            refused = refused and await self._counts.take(key, units)
        if refused:
            self._refusals.inc()
            raise LimitReached(
                f"the limit is {self._rate} units per second, and {self._policy.quota} at once;"
                f" this request takes {units}: try again in {refused.retry_after_s} s",
                self._policy,
                refused.remaining,
                refused.retry_after_s,
            )

    async def run(self, _: object) -> AsyncIterator[None]:
        """Keep the connections to Redis, if there is one (a `cleanup_ctx`)."""
        if self._redis:
            await self._redis.connect()
        yield
        if self._redis:
            await self._redis.close()


@lru_cache(KNOWN_REQUESTERS)
def choose_key(client_id: int | None, address: str) -> str:
    """Return the identity that a request counts for: its client, or else its address."""
    if client_id is not None:
        return f"client:{client_id}"
    if ":" not in address:  # IPv4, or `unix`
        return ADDRESS + address
    network = int(IPv6Address(address)) >> 64
    return f"{ADDRESS}{network:x}/64"
