"""The limits of each client, or of each address without a token: a rate, and quotas per day.

Identities are `client:7` or `address:192.0.2.1`; an IPv6 address counts as its /64, the smallest
network that providers give to a customer.
"""

from collections.abc import AsyncIterator
from functools import lru_cache
from ipaddress import IPv6Address
from typing import TYPE_CHECKING

from service.access.counts import ADDRESS, Counts, MemoryCounts
from service.access.quotas import Quotas
from service.config import Limits as Settings
from service.errors import Limit, LimitReached, Policy
from service.metrics import Metrics

if TYPE_CHECKING:
    from service.access.redis_counts import Redis

KNOWN_REQUESTERS = 4096  # the latest
DAY_S = 86_400


class Limits:
    """Refuses what is more than the limits, with `LimitReached`."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._count_refusal = metrics.count_limited
        self._redis = _make_redis(settings.redis_url) if settings.are_on else None
        self.has_rate = settings.rate > 0
        window_s = settings.burst // settings.rate if self.has_rate else 1
        self._rate = Policy(Limit.RATE, settings.burst, window_s)
        self._used = self._make_counts(self._rate)
        creates = Policy(Limit.CREATES_PER_DAY, settings.creates_per_day, DAY_S)
        keys = Policy(Limit.KEYS_PER_DAY, settings.keys_per_day, DAY_S)
        self.quotas = Quotas(
            {policy: self._make_counts(policy) for policy in (creates, keys) if policy.quota},
            metrics.count_limited,
        )

    async def charge(self, identity: str, cost: int) -> None:
        """Count a request of so many units; raises `LimitReached`."""
        refused = await self._used.take(identity, cost)
        if refused:
            self._count_refusal(self._rate.name)
            rate, burst = self._settings.rate, self._settings.burst
            raise LimitReached(
                f"the limit is {rate} units per second, and {burst} at once; this request takes"
                f" {cost}: try again in {refused.retry_after_s} s",
                self._rate,
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

    def _make_counts(self, policy: Policy) -> Counts:
        if self._redis is None:
            return MemoryCounts(policy)
        from service.access.redis_counts import RedisCounts  # noqa: PLC0415 - as below

        return RedisCounts(policy, self._redis)


@lru_cache(KNOWN_REQUESTERS)
def identify(client_id: int | None, address: str) -> str:
    """Return whom a request counts for: its client, or else its address."""
    if client_id is not None:
        return f"client:{client_id}"
    if ":" not in address:  # IPv4, or `unix`
        return ADDRESS + address
    network = int(IPv6Address(address)) >> 64
    return f"{ADDRESS}{network:x}/64"


def _make_redis(url: str) -> "Redis | None":
    if not url:
        return None
    from service.access.redis_counts import Redis  # noqa: PLC0415 - it takes 0.3 s

    return Redis(url)
