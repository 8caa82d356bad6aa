"""How fresh a replica is: asks it and the primary for their WAL positions; decides what it serves.

Each server is asked every `POLL_S`. Answers of the primary are kept as samples: the end of its WAL
(LSN) at a time. A replica that has replayed the LSN of a sample shows all that was committed then,
so its data is no older than the sample. A read after a write needs more: the transaction of the
write must be below the horizon of the replica.

The functions `advance`, `measure_age` and `may_serve` decide; they neither ask nor change anything.
docs/decisions/0019-read-from-replicas.md says what each condition prevents.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import psycopg2
from psycopg2.extensions import TransactionRollbackError

from service.config import Database
from service.database.connections import Connection, Connector
from service.database.pool import Pool
from service.database.query import Execution, Expected, Query, Row, describe_error
from service.database.statements import DEFAULTS
from service.database.urls import name_server
from service.errors import CatalogueError, Contended, OperatorError, StatementFailed, Unavailable

PRIMARY = {"database": str, "timeline": str, "lsn": int, "horizon": int}
REPLICA = {"database": str, "timeline": str, "lsn": int, "received": int, "horizon": int}
QUERIES: Mapping[str, Expected] = {
    "get_primary_state": Expected(PRIMARY, [{}], "choosing a replica"),
    "get_replica_state": Expected(REPLICA, [{}], "choosing a replica"),
}
POLL_S = 0.25
POLL_TIMEOUT_S = 2.0
# Why the WAL position of a server is unknown.
IS_PRIMARY, NO_STANDBY = "it is the primary", "it is not a standby"
SILENT = "it does not respond"

Identity = tuple[str, str]  # the database of a primary, with its cluster, and its timeline


class Sample(NamedTuple):
    """The primary at a moment: a replica that has replayed `lsn` shows what was committed then."""

    taken_at: float  # by the loop's clock, before the primary was asked
    lsn: int
    horizon: int = 0  # every lower transaction had ended


class Answer(NamedTuple):
    """A row of `get_replica_state`."""

    database: str
    timeline: str
    lsn: int  # replayed
    received: int
    horizon: int  # it shows every commit of a lower transaction


class Progress(NamedTuple):
    """What the answers of a replica have shown."""

    follows: Identity | None = None  # the primary at the last answer
    min_lsn: int = 0  # only WAL beyond this shows that it follows the primary
    caught: Sample | None = None  # the newest sample that it has replayed beyond `min_lsn`
    horizon: int = 0  # that of its last answer
    is_left_out: bool = False  # until its next answer, as a read has failed


class State(NamedTuple):
    """A replica and the primary as they are known at a moment."""

    progress: Progress
    answers: bool  # the replica, on a connection that has been open since
    primary: Identity | None
    newest: Sample | None  # of the primary
    primary_answers: bool
    primary_is_away: bool  # nobody here reaches it


def advance(
    before: Progress, answer: Answer, primary: Identity | None, samples: Sequence[Sample]
) -> Progress:
    """Return the progress after an answer; `samples`: of this primary, the oldest first.

    Its `min_lsn` stays with the same primary. With another one, it is 0 if the replica is on that
    one's timeline already; otherwise all that it has received, until it says so.
    """
    if before.follows == primary:
        min_lsn = before.min_lsn
    elif primary and answer.timeline == primary[1]:
        min_lsn = 0
    else:
        # After a failover, it may have received WAL that the new primary never had: until it gets
        # beyond this LSN, it may be on the former timeline.
        min_lsn = answer.received
    caught = next((sample for sample in reversed(samples) if sample.lsn <= answer.lsn), None)
    is_beyond = caught is not None and caught.lsn > min_lsn
    return Progress(primary, min_lsn, caught if is_beyond else None, answer.horizon)


def measure_age(state: State, now: float) -> float:
    """Return how old the replica's data may be, in seconds; infinite if that is unknown."""
    caught, follows = state.progress.caught, state.progress.follows
    if not caught or not state.answers or follows != state.primary:
        return inf
    return now - caught.taken_at


def may_serve(state: State, transaction: int, now: float, max_lag: float) -> bool:
    """Whether it shows `transaction` (0: any), and its data is young enough.

    1. Its age is known: it answers, and has caught a sample of the primary as it is now.
    2. No read has failed since its last answer.
    3. The transaction is below the horizon of its last answer.
    4. For a transaction, the primary answers: otherwise a failover may be on its way, and the next
       primary may use the numbers of lost transactions again.
    5. Its age is at most `max_lag`; or the primary is away and the replica has its last sample, so
       that there is nothing newer.
    """
    age, progress = measure_age(state, now), state.progress
    if age == inf or progress.is_left_out or transaction >= progress.horizon:
        return False
    if transaction and not state.primary_answers:
        return False
    return age <= max_lag or (state.primary_is_away and progress.caught is state.newest)


class PolledServer:
    """A server, asked for its state on a connection of its own; `name`: its host and port."""

    def __init__(self, settings: Database, queries: Mapping[str, Query]) -> None:
        self.name = name_server(settings.url)
        self.failure = "it was not asked yet"  # why its state is unknown; "": it is known
        self._connector = Connector(settings)
        self._connection: Connection | None = None
        self._queries = queries

    @property
    def answers(self) -> bool:
        """Whether it answered, and has not ended the connection since, as at a stop or a crash."""
        is_open = self._connection is not None and not self._connection.closed
        return is_open and not self.failure

    async def ask(self, name: str) -> Row | None:
        """Return the row of its state; None if there is none, and then `failure` says why."""
        try:
            if not self._connection or self._connection.closed:
                self.failure = self.failure or "the connection broke"
                self._connection = await self._connector.connect()
            query = self._queries[name]
            execution = Execution(query.build_preamble(POLL_TIMEOUT_S, DEFAULTS), POLL_TIMEOUT_S)
            rows = await query.run(self._connection, execution, {})
        except TimeoutError:
            self.failure = SILENT
        except (psycopg2.Error, CatalogueError, OperatorError) as error:
            self.failure = describe_error(error)
        else:
            self.failure = "" if rows else NO_STANDBY
            return rows[0] if rows else None
        self.close()  # the address may lead to another server by now
        return None

    def close(self) -> None:
        """Close the connection."""
        if self._connection and not self._connection.closed:
            self._connection.close()


class Primary(PolledServer):
    """The primary, and its last samples."""

    def __init__(self, settings: Database, queries: Mapping[str, Query], pool: Pool) -> None:
        super().__init__(settings, queries)
        self.pool = pool
        self.identity: Identity | None = None
        kept = (settings.max_replica_lag + POLL_TIMEOUT_S) / POLL_S
        self.samples: deque[Sample] = deque(maxlen=round(kept))

    async def update(self) -> None:
        """Ask, and keep a sample; drop those of a former primary."""
        now = asyncio.get_running_loop().time()
        if row := await self.ask("get_primary_state"):
            database, timeline, lsn, horizon = row
            if (identity := (database, timeline)) != self.identity:
                self.samples.clear()
            self.identity = identity
            self.samples.append(Sample(now, lsn, horizon))


class Replica(PolledServer):
    """A standby of the primary, its progress, and the pool of its connections."""

    def __init__(
        self, settings: Database, queries: Mapping[str, Query], primary: Primary, pool: Pool
    ) -> None:
        super().__init__(settings, queries)
        self.pool = pool
        self._max_lag = settings.max_replica_lag
        self._primary = primary
        self._progress = Progress()
        self._asking: asyncio.Task[None] | None = None

    def ask_now(self) -> asyncio.Task[None]:
        """Update, unless it is being asked already; return the task that does it."""
        if not self._asking or self._asking.done():
            self._asking = asyncio.create_task(self.update())
        return self._asking

    async def update(self) -> None:
        """Ask, and compare it with the samples of the primary."""
        primary = self._primary
        if row := await self.ask("get_replica_state"):
            answer = Answer(*row)
            if primary.identity is None or answer.database != primary.identity[0]:
                self.failure = "it is not a standby of this primary, or has another database"
            self._progress = advance(self._progress, answer, primary.identity, primary.samples)
        elif self.failure == NO_STANDBY:  # `replica_urls` may list all servers of a cluster
            state = await self.ask("get_primary_state") or ()
            self.failure = IS_PRIMARY if state[:2] == primary.identity else NO_STANDBY

    def measure_age(self) -> float:
        """Return how old its data may be, in seconds; infinite if that is unknown."""
        return measure_age(self._get_state(), asyncio.get_running_loop().time())

    def may_serve(self, transaction: int = 0) -> bool:
        """Whether it shows the transaction (0: any), and its data is young enough."""
        now = asyncio.get_running_loop().time()
        return may_serve(self._get_state(), transaction, now, self._max_lag)

    def leave_out(self, error: StatementFailed | Unavailable) -> None:
        """Serve no reads until its next answer, as one has failed.

        Raises the error if the primary would give the same one: the statement took too long, and
        the replica was fit to serve.
        """
        # A read that replay cancels, because it removes the rows, fails only here.
        is_cancelled = isinstance(error.__cause__, TransactionRollbackError)
        if isinstance(error, Contended) and not is_cancelled and self.may_serve():
            raise error
        self._progress = self._progress._replace(is_left_out=True)

    def explain(self) -> str:
        """Say why it serves no reads."""
        if self.failure:
            return self.failure
        newest, now = self._primary.samples[-1], asyncio.get_running_loop().time()
        is_silent = now - newest.taken_at > self._max_lag
        if failure := self._primary.failure or (is_silent and SILENT):
            return f"the primary cannot be asked: {failure}"
        return "it lags, or was not seen to follow the primary"

    def _get_state(self) -> State:
        primary = self._primary
        return State(
            progress=self._progress,
            answers=self.answers,
            primary=primary.identity,
            newest=primary.samples[-1] if primary.samples else None,
            primary_answers=primary.answers,
            # A poll may also fail because the server is full.
            primary_is_away=not primary.answers and not primary.pool.is_connected,
        )
