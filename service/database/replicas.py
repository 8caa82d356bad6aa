"""Asks the primary and its standbys where they are, and sends reads to those that are fresh enough.

Each server is asked every `POLL_S` where it is (queries/replication.sql), so that a read chooses a
replica without a question of its own; `freshness.py` decides which may serve it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from math import nan
from random import randrange
from typing import Any

import psycopg2
import structlog
from psycopg2.extensions import TransactionRollbackError

from service.config import Database
from service.context import RequestContext
from service.database import freshness
from service.database.connections import Connection, Connector
from service.database.driver_errors import describe_error
from service.database.freshness import Answer, Identity, Progress, Sample, State
from service.database.pool import Pool
from service.database.query import NO_PARAMETERS, Execution, Expected, Parameters, Query, Row
from service.database.statements import DEFAULTS, RowLists, Statements
from service.database.urls import name_server
from service.errors import CatalogueError, Contended, StatementFailed, Unavailable

PRIMARY = {"database": str, "timeline": str, "lsn": int}
REPLICA = {"database": str, "timeline": str, "lsn": int, "received": int, "horizon": int}
QUERIES: Mapping[str, Expected] = {
    "get_primary_state": Expected(PRIMARY, [{}], "choosing a replica"),
    "get_replica_state": Expected(REPLICA, [{}], "choosing a replica"),
}
POLL_S = 0.25
POLL_TIMEOUT_S = 2.0
ATTACHMENT_S = 1.0  # between two reads of it
CLOSE_TIMEOUT_S = 2.0
IS_PRIMARY, NO_STANDBY = "it is the primary", "it is not a standby"

log = structlog.get_logger()


class PolledServer:
    """A server that is asked on a connection of its own; `name`: its host and port."""

    def __init__(self, settings: Database, queries: Mapping[str, Query]) -> None:
        self.name = name_server(settings.url)
        self.failure: str | None = "it was not asked yet"  # why it is unknown where it is
        self._connector = Connector(settings)
        self._connection: Connection | None = None
        self._queries = queries

    @property
    def answers(self) -> bool:
        """Whether it answered, and has not ended the connection since, as at a stop or a crash."""
        is_open = self._connection is not None and not self._connection.closed
        return self.failure is None and is_open

    async def ask(self, name: str) -> Row | None:
        """Return the row that says where it is; None, and `failure`, if there is none."""
        try:
            if not self._connection or self._connection.closed:
                self.failure = self.failure or "the connection broke"
                self._connection = await self._connector.connect()
            query = self._queries[name]
            execution = Execution(query.build_preamble(POLL_TIMEOUT_S, DEFAULTS), POLL_TIMEOUT_S)
            rows = await query.run(self._connection, execution, {})
        except (TimeoutError, psycopg2.Error, CatalogueError) as error:
            is_silent = isinstance(error, TimeoutError)
            self.failure = "it does not respond" if is_silent else describe_error(error)
            self.close()  # the address may lead to another server by now
            return None
        self.failure = None if rows else NO_STANDBY
        return rows[0] if rows else None

    def close(self) -> None:
        """Close the connection."""
        if self._connection and not self._connection.closed:
            self._connection.close()


class Primary(PolledServer):
    """The primary, and its last samples."""

    def __init__(self, settings: Database, queries: Mapping[str, Query], pool: Pool) -> None:
        super().__init__(settings, queries)
        self._pool = pool
        self.identity: Identity | None = None
        kept = (settings.max_replica_lag + POLL_TIMEOUT_S) / POLL_S
        self.samples: deque[Sample] = deque(maxlen=round(kept))

    @property
    def is_away(self) -> bool:
        """Whether nobody here reaches it; a poll may also fail because the server is full."""
        return not self.answers and not self._pool.is_connected

    async def update(self, attachment: object) -> None:
        """Ask, and keep a sample; drop those of a former primary."""
        now = asyncio.get_running_loop().time()
        if row := await self.ask("get_primary_state"):
            database, timeline, lsn = row
            if (identity := (database, timeline)) != self.identity:
                self.samples.clear()
            self.identity = identity
            self.samples.append(Sample(now, lsn, attachment))


class Replica(PolledServer):
    """A standby of the primary, where it is, and the pool of its connections."""

    def __init__(
        self, settings: Database, queries: Mapping[str, Query], primary: Primary, pool: Pool
    ) -> None:
        super().__init__(settings, queries)
        self.pool = pool
        self._max_lag = settings.max_replica_lag
        self._primary = primary
        self._progress = Progress()

    @property
    def state(self) -> State:
        """What is known of it and of the primary now."""
        primary = self._primary
        return State(
            progress=self._progress,
            answers=self.answers,
            primary=primary.identity,
            newest=primary.samples[-1] if primary.samples else None,
            primary_answers=primary.answers,
            primary_is_away=primary.is_away,
        )

    async def update(self) -> None:
        """Ask, and compare it with the samples of the primary."""
        primary = self._primary
        if row := await self.ask("get_replica_state"):
            answer = Answer(*row)
            if primary.identity is None or answer.database != primary.identity[0]:
                self.failure = "it is not a standby of this primary, or has another database"
            self._progress = freshness.advance(
                self._progress, answer, primary.identity, primary.samples
            )
        elif self.failure == NO_STANDBY:  # `replica_urls` may list all servers of a cluster
            state = await self.ask("get_primary_state") or ()
            self.failure = IS_PRIMARY if state[:2] == primary.identity else NO_STANDBY

    def leave_out(self, error: StatementFailed | Unavailable) -> None:
        """Serve no reads until its next answer, as one has failed.

        Raises the error if the statement took too long, as it would on the primary.
        """
        # A read that replay cancels, because it removes the rows, fails only here.
        is_cancelled = isinstance(error.__cause__, TransactionRollbackError)
        if isinstance(error, Contended) and not is_cancelled and self.shows(0):
            raise error
        self._progress = self._progress._replace(horizon=0)

    def explain(self) -> str:
        """Say why it serves no reads."""
        primary, now = self._primary, asyncio.get_running_loop().time()
        is_silent = now - primary.samples[-1].taken_at > self._max_lag
        if failure := primary.failure or (is_silent and "it does not respond"):
            return self.failure or f"the primary cannot be asked: {failure}"
        return self.failure or "it lags, or was not seen to follow the primary"

    def measure_age(self) -> float:
        """Return how old its data may be, in seconds; infinite if that is unknown."""
        return freshness.measure_age(self.state, asyncio.get_running_loop().time())

    def shows(self, transaction: int) -> bool:
        """Whether it shows the transaction `transaction` (0: any), and its data is young enough."""
        now = asyncio.get_running_loop().time()
        return freshness.may_serve(self.state, transaction, now, self._max_lag)


class Replicas:
    """The replicas of a process. `pool`: of the primary;

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
        # Reads on the primary what is kept with each sample: the end of the feed.
        self.read_attachment: Callable[[], Awaitable[object]] | None = None
        self._attachment: object = None
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
            is_used = nan if replica.failure == IS_PRIMARY else replica.shows(0)
            self._pool.metrics.replica_used.labels(replica.name).set(is_used)

    def choose(self, waiting: Sequence[RequestContext]) -> Replica | None:
        """Return a replica that shows what these requests must show; it is chosen at random."""
        transaction = max((context.min_transaction for context in waiting), default=0)
        # At random: in turns, counts of lists would go to one replica, and their pages to another.
        first = randrange(len(self.all))  # noqa: S311 - nothing secret
        candidates = self.all[first:] + self.all
        chosen = next((each for each in candidates if each.shows(transaction)), None)
        self._pool.metrics.reads.labels(chosen.name if chosen else "primary").inc()
        return chosen

    def get_oldest_attachment(self) -> object:
        """Return an attachment that is older than what every replica shows; None: there is none.

        The samples reach back further than `max_replica_lag`.
        """
        return self._primary.samples[0].attachment if self._primary.samples else None

    async def run(self, _: object) -> AsyncIterator[None]:
        """Ask the servers until the service stops (a `cleanup_ctx`)."""
        watches = map(self._watch, self.all)
        running = asyncio.gather(self._watch_primary(), self._keep_attachment(), *watches)
        yield
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        for server in [self._primary, *self.all]:
            server.close()
        await asyncio.gather(*[replica.pool.close(CLOSE_TIMEOUT_S) for replica in self.all])

    async def _watch_primary(self) -> None:
        is_verified = False
        while True:
            with suppress(CatalogueError):
                if not is_verified:  # the pool verifies the database before it lends a connection
                    async with self._pool.connection():
                        pass
                    if (
                        self.read_attachment
                    ):  # a replica that serves is newer than the first attachment
                        self._attachment = await self.read_attachment()
                    is_verified = True
                await self._primary.update(self._attachment)
            await asyncio.sleep(POLL_S)

    async def _keep_attachment(self) -> None:
        while self.read_attachment:
            with suppress(CatalogueError):
                self._attachment = await self.read_attachment()
            await asyncio.sleep(ATTACHMENT_S)

    async def _watch(self, replica: Replica) -> None:
        was_used = None
        while True:
            if len(self._primary.samples) > 1:  # it has had the time to replay the first one
                await replica.update()
                if (is_used := replica.shows(0)) and not was_used:
                    log.info("replica used", replica=replica.name)
                elif not is_used and was_used is not False:
                    log.warning("replica left out", replica=replica.name, reason=replica.explain())
                was_used = is_used
            await asyncio.sleep(POLL_S)


@dataclass(eq=False)
class Reads(Statements):
    """Statements for reads: on a replica that is fresh enough, otherwise on the primary."""

    replicas: Replicas = field(kw_only=True)

    def __post_init__(self) -> None:
        """Make the statements of each replica; what fails there is repeated on the primary."""
        super().__post_init__()
        self._on_replicas = {
            each: Statements(
                each.pool, self.queries, self.timeout, self.slow, self.limit, repeats_reads=False
            )
            for each in self.replicas.all
        }

    async def fetch(
        self,
        name: str,
        parameters: Parameters = NO_PARAMETERS,
        *,
        waiting: Sequence[RequestContext] = (),
        **options: Any,
    ) -> list[Row]:
        """Run the query as `Statements.fetch` does; if a replica fails, on the primary."""
        if replica := self.replicas.choose(waiting):
            try:
                statements = self._on_replicas[replica]
                return await statements.fetch(name, parameters, waiting=waiting, **options)
            except (StatementFailed, Unavailable) as error:
                replica.leave_out(error)
        return await super().fetch(name, parameters, waiting=waiting, **options)

    async def stream(self, name: str, context: RequestContext, parameters: Parameters) -> RowLists:
        """Yield all rows as `Statements.stream` does; if a replica fails first, on the primary."""
        chunks, first = super().stream(name, context, parameters), list[Row]()
        if replica := self.replicas.choose([context]):
            on_replica = self._on_replicas[replica].stream(name, context, parameters)
            try:
                first = await anext(on_replica, [])
                chunks = on_replica
            except (StatementFailed, Unavailable) as error:
                replica.leave_out(error)
        async with aclosing(chunks):
            if first:
                yield first
            async for rows in chunks:
                yield rows
