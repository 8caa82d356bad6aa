"""Asks the primary and its standbys for their WAL positions; reads go to fresh enough ones.

Each server is asked every `POLL_S` (queries/replication.sql), so that a read chooses a replica
without asking first; `freshness.py` decides which may serve it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import nan
from random import sample

import structlog

from service.config import Database
from service.database.caller import Caller
from service.database.freshness import IS_PRIMARY, POLL_S, Primary, Replica
from service.database.pool import Pool
from service.database.query import Query

LOOK_FOR_S = 0.05  # a list waits so long; then the primary serves it

log = structlog.get_logger()


class Replicas:
    """The replicas of a process. `pool`: of the primary.

    What must stay true: no read is older than what its requests must show (`freshness.may_serve`);
    in doubt, it is sent to the primary; what a replica alone refuses is repeated there.
    """

    def __init__(
        self,
        settings: Database,
        queries: Mapping[str, Query],
        pool: Pool,
        limits: Mapping[str, int],
    ) -> None:
        self._pool = pool
        self._primary = Primary(settings, queries, pool)
        self.all = [
            Replica(each, queries, self._primary, Pool(each, None, pool.metrics, limits))
            for each in (replace(settings, url=url) for url in settings.replica_urls)
        ]
        pool.metrics.samplers.append(self._sample)
        pool.metrics.reads.labels("primary")  # creates the series

    def _sample(self) -> None:
        for replica in self.all:
            self._pool.metrics.replica_lag.labels(replica.name).set(replica.measure_age())
            is_used = nan if replica.failure == IS_PRIMARY else replica.may_serve()
            self._pool.metrics.replica_used.labels(replica.name).set(is_used)

    def choose(self, callers: Sequence[Caller]) -> Replica | None:
        """Return a replica that shows what these callers must see; it is chosen at random."""
        transaction = max((caller.min_transaction for caller in callers), default=0)
        # At random: in turns, counts of lists would go to one replica, and their pages to another.
        candidates = sample(self.all, len(self.all))
        chosen = next((each for each in candidates if each.may_serve(transaction)), None)
        self._pool.metrics.reads.labels(chosen.name if chosen else "primary").inc()
        return chosen

    async def look_for(self, transaction: int) -> None:
        """Ask one of the replicas now, unless one is known to show this transaction."""
        ready = [each for each in self.all if each.may_serve()]
        if ready and not any(each.may_serve(transaction) for each in ready):
            await asyncio.wait([each.ask_now() for each in sample(ready, 1)], timeout=LOOK_FOR_S)

    def get_common_horizon(self) -> int:
        """Return a transaction: each replica that serves shows every lower one. 0: not known yet.

        It is some seconds old: the samples reach back further than a replica may lag.
        """
        return self._primary.samples[0].horizon if self._primary.samples else 0

    async def run(self, _: object) -> AsyncIterator[None]:
        """Ask the servers until the service stops (a `cleanup_ctx`)."""
        watches = map(self._watch, self.all)
        running = asyncio.gather(self._watch_primary(), *watches)
        yield
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        for server in [self._primary, *self.all]:
            server.close()
        await asyncio.gather(*[replica.pool.close() for replica in self.all])

    async def _watch_primary(self) -> None:
        while True:
            if self._pool.is_verified:  # without a sample, no replica serves either
                await self._primary.update()
            await asyncio.sleep(POLL_S)

    async def _watch(self, replica: Replica) -> None:
        was_used = None
        while True:
            if len(self._primary.samples) > 1:  # it has had the time to replay the first one
                await replica.ask_now()
                if (is_used := replica.may_serve()) and not was_used:
                    log.info("replica used", replica=replica.name)
                elif not is_used and was_used is not False:
                    log.warning("replica left out", replica=replica.name, reason=replica.explain())
                was_used = is_used
            await asyncio.sleep(POLL_S)
