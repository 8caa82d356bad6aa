"""Counts for several processes, in Redis or Valkey, by the sliding window counter of `limits`.

While Redis is away, each process counts for itself: no request fails, or waits longer than
`TIMEOUT_S`. This module is imported only if `[limits] redis_url` is set: the import takes 0.3 s.
"""

import asyncio
from contextlib import suppress

import structlog
from limits import RateLimitItemPerSecond
from limits.aio.storage import RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from service.access.counts import MemoryCounts, RetryLater, make_retry_later
from service.errors import OperatorError, Policy

log = structlog.get_logger()

TIMEOUT_S = 0.25  # of a request to Redis, with the wait for a connection
RETRY_S = 0.2  # meanwhile each process allows the whole rate
PROBE = RateLimitItemPerSecond(1, namespace="probe")


class RedisCounts:
    """Counts for all processes with the same Redis.

    The requests of this process are also counted in its memory. If that count refuses a request,
    Redis is not asked. While Redis is away, or after it has lost its data, that count still works.
    """

    def __init__(self, policy: Policy, url: str) -> None:
        try:
            self._pool = BlockingConnectionPool.from_url(
                url,
                max_connections=10,
                timeout=TIMEOUT_S,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                retry=Retry(NoBackoff(), 1),  # on a new connection, if Redis has closed this one
            )
        except (ValueError, TypeError) as error:  # the message may contain the password
            raise OperatorError(
                "[limits] redis_url: expected redis://:password@host:6379/0, rediss://... or"
                " unix:///path/of/socket"
            ) from error
        self._storage = RedisStorage(
            "redis://",
            implementation="redispy",
            key_prefix="catalogue",
            connection_pool=self._pool,  # type: ignore[arg-type] # its docstring allows it
        )
        self._limiter = SlidingWindowCounterRateLimiter(self._storage)
        self._policy = policy
        self._item = RateLimitItemPerSecond(policy.quota, policy.window_s, namespace=policy.name)
        self._memory = MemoryCounts(policy)
        self.is_there = False  # Redis responds
        self._search: asyncio.Task[None] | None = None

    async def take(self, identity: str, cost: int) -> RetryLater | None:
        """Count the cost; if that is over the limit, count nothing and return `RetryLater`."""
        refused = await self._memory.take(identity, cost)
        if refused or not self.is_there:
            return refused
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if await self._limiter.hit(self._item, identity, cost=cost):
                    return None
                previous, _, current, kept_s = await self._storage.get_sliding_window(
                    self._item.key_for(identity), self._policy.window_s
                )
        except Exception as error:  # noqa: BLE001 - no error of Redis may fail the request
            self._lose(error)
            return None
        await self._memory.give_back(identity, cost)
        # Redis keeps the counts of a window until the next window has ended, too.
        left_s = max(0.0, kept_s - self._policy.window_s)
        return make_retry_later(self._policy, cost, previous, current, left_s)

    async def connect(self) -> None:
        """Connect; if that fails, go on trying."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                # A write: a full Redis, or a replica, would answer a ping.
                await self._limiter.hit(PROBE, cost=0)
            self.is_there = True
        except Exception as error:  # noqa: BLE001 - as in `take`
            self._lose(error)

    async def close(self) -> None:
        """Close the connections."""
        if self._search:
            self._search.cancel()
        with suppress(Exception):
            async with asyncio.timeout(TIMEOUT_S):
                await self._pool.disconnect()

    def _lose(self, error: Exception) -> None:
        """Count without Redis until it responds again."""
        self.is_there = False
        if self._search is None:
            reason = str(error) or "it did not respond in time"
            log.warning("limits without redis", reason=reason)
            self._search = asyncio.create_task(self._connect_again())

    async def _connect_again(self) -> None:
        while not self.is_there:
            await asyncio.sleep(RETRY_S)
            await self.connect()
        self._search = None
        log.info("limits with redis")
