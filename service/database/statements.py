"""Runs one named statement on a pooled connection, with errors in the catalogue's own words.

An error of PostgreSQL or the driver becomes `Unavailable` (a retry may help), `RuleBroken` (caused
by a client's data) or `StatementFailed` (anything else), and is logged once per statement,
except a broken rule that has a name.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import NamedTuple, Protocol

import aiopg
import psycopg2
import structlog
from psycopg2.errors import LockNotAvailable

from service.database.caller import Caller
from service.database.pool import Pool
from service.database.query import (
    CONTENDED,
    NO_PARAMETERS,
    NOT_SENT,
    OUTDATED,
    Execution,
    Parameters,
    Query,
    Row,
    absorb_late_timeout,
    describe_error,
    limit_affected,
    translate_error,
)
from service.errors import CatalogueError, Refusal, RuleBroken, StatementFailed, Unavailable

LOCK_TIMEOUT_MS = 50  # short, so that a write that waits gives its connection back
# How long PostgreSQL may take to report a timeout. It reports none for a commit that waits for
# a standby: then the driver's timeout ends it.
SILENCE_MAX_S = 1.0
MAX_LOGGED_CLIENTS = 10  # of a statement
UNLIMITED_S = 86_400.0  # for the driver, which cannot wait for ever
# Override defaults of the role or the database: each statement must see what was committed before
# it, and PostgreSQL must warn if a commit was not replicated.
DEFAULTS = "set local transaction_isolation = 'read committed'; "
WRITE_DEFAULTS = f"{DEFAULTS}set local client_min_messages = warning; "
# The function of PostgreSQL that warns that a commit may not have been replicated, because somebody
# has cancelled its wait for the standby (src/backend/replication/syncrep.c).
NOT_REPLICATED = "SyncRepWaitForLSN"
MAX_NOTICE_LENGTH = 500  # characters in the log; auto_explain quotes whole statements
NOTICE_LOG_S = 60.0  # between two lines in the log about other notices

log = structlog.get_logger()


class Statement(NamedTuple):
    """A statement that is ready to be sent."""

    query: Query
    execution: Execution
    parameters: Parameters
    callers: Sequence[Caller]


class Standby(Protocol):
    """A replica that may serve a read."""

    pool: Pool

    def leave_out(self, error: StatementFailed | Unavailable) -> None:
        """Serve no reads for now; raises the error if the primary would give the same one."""


class Standbys(Protocol):
    """The replicas of a process."""

    def choose(self, callers: Sequence[Caller]) -> Standby | None:
        """Return a replica that shows what these callers must see; None: ask the primary."""


@dataclass(eq=False)
class Statements:
    """The statements of queries/*.sql, by name.

    What must stay true: `fetch` sends a write twice only if it is repeatable; an error is
    `Unavailable` if nobody knows whether a write was committed; settings, notices and a late
    timeout of one statement do not reach the next one on its connection; each failure is logged
    once.

    `timeout` in seconds, for queries without a setting of their own; `slow` in seconds: a statement
    that takes longer is logged (0: none); `limit`: of the pool, for reads. `standbys`: reads are
    sent to one of them where it is fresh enough, and to the primary if it fails.
    `require_migrations` raises `Unavailable` while a migration is missing.

    Settings go in front of each statement, in the same message: `set local` holds for this implicit
    transaction alone (docs/decisions/0011-send-sql-as-written.md).
    https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-MULTI-STATEMENT
    """

    pool: Pool
    queries: Mapping[str, Query]
    timeout: float
    slow: float = 0
    limit: str | None = None
    standbys: Standbys | None = None
    require_migrations: Callable[[], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        """Count in the metrics of the pool."""
        self.metrics = self.pool.metrics
        self._notice_logged_at = -inf

    async def fetch(  # noqa: PLR0913 - the options of a statement
        self,
        name: str,
        parameters: Parameters = NO_PARAMETERS,
        *,
        is_repeatable: bool = False,
        is_resent: bool = False,
        max_affected: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the server's, not a cancellation
        expects_timeout: bool = False,
        callers: Sequence[Caller] = (),
    ) -> list[Row]:
        """Run the query `name` and return its rows.

        If its connection breaks, a read is run once more on a new one; so is a write that
        `is_repeatable` or was `NOT_SENT`. Otherwise it is unknown whether it was executed.
        `max_affected`: a statement that changes more rows is refused. `is_resent`: it waits for a
        lock for at most `LOCK_TIMEOUT_MS`; then it is `Contended`, which is not logged, as the
        caller sends it again.
        `timeout`: in seconds, in place of the query's own and of `statement_timeout`; with
        `expects_timeout`, it is neither logged nor counted as a failure.
        `callers`: the clients that it runs for; they decide which replica may serve a read.
        Raises `Contended`, `Unavailable`, `RuleBroken` or `StatementFailed`.
        """
        query = self.queries[name]
        execution = self._prepare(
            query, max_affected, timeout, expects_timeout=expects_timeout, is_resent=is_resent
        )
        statement = Statement(query, execution, parameters, callers)
        if self.standbys and (standby := self.standbys.choose(callers)):
            try:
                return await self._fetch(standby.pool, statement, may_repeat=False)
            except (StatementFailed, Unavailable) as error:
                standby.leave_out(error)
        may_repeat = is_repeatable or query.is_read_only
        try:
            return await self._fetch(self.pool, statement, may_repeat=may_repeat)
        except StatementFailed as error:
            # The query was right when it was verified: a migration may have been reverted since.
            if error.for_every_row and self.require_migrations:
                await self.require_migrations()
            raise

    async def _fetch(self, pool: Pool, statement: Statement, *, may_repeat: bool) -> list[Row]:
        """Run the statement in this pool; `may_repeat`: once more if its connection breaks."""
        try:
            try:
                return await self.run(pool, statement)
            except psycopg2.Error as error:  # the connection broke
                if not may_repeat and not NOT_SENT.match(str(error)):
                    raise
                return await self.run(pool, statement)
        except psycopg2.Error as error:
            raise self.to_unavailable(statement.query, describe_error(error)) from error

    def find_limit(self, pool: Pool) -> asyncio.Semaphore | None:
        """Return the limit of reads in this pool."""
        return pool.limits[self.limit] if self.limit else None

    def require_sent(self, name: str, returned: Sequence[int], sent: Collection[int]) -> None:
        """Raise `StatementFailed` unless each key that a query returned was sent, and no key twice.

        Keys are ids or positions. Otherwise a mistake in the query would give requests the results
        of others.
        """
        found = set(returned)
        if len(found) < len(returned) or not found.issubset(sent):
            raise self.report(name, "it returned an id or position that was not sent, or one twice")

    def report(self, name: str, error: Exception | str) -> CatalogueError:
        """Log a failure that `fetch` has not logged, such as wrong rows; return its error."""
        if isinstance(error, CatalogueError):
            return error
        query = self.queries[name]
        reason = error if isinstance(error, str) else describe_error(error)
        self.metrics.get_statement(name).failures.inc()
        log.warning("statement failed", query=name, file=query.location, reason=reason)
        return StatementFailed(f"{name} ({query.location}): {reason}", for_every_row=True)

    def _prepare(
        self,
        query: Query,
        max_affected: int | None,
        timeout: float | None,
        *,
        expects_timeout: bool,
        is_resent: bool,
    ) -> Execution:
        """Return how to run the statement: the settings in front of it, and its time."""
        own = self.timeout if query.timeout is None else query.timeout
        timeout_s = own if timeout is None else timeout
        defaults = DEFAULTS if query.is_read_only else WRITE_DEFAULTS
        preamble = query.build_preamble(timeout_s, defaults)
        if max_affected is not None:
            preamble += limit_affected(max_affected)
        if is_resent:
            preamble += f"set local lock_timeout = {LOCK_TIMEOUT_MS}; "
        driver_timeout = timeout_s + SILENCE_MAX_S if timeout_s else UNLIMITED_S
        return Execution(
            preamble, driver_timeout, expects_timeout=expects_timeout, is_resent=is_resent
        )

    async def run(
        self, pool: Pool, statement: Statement, held: aiopg.Connection | None = None
    ) -> list[Row]:
        """Run a statement on `held`, or another connection; psycopg2.Error if that breaks."""
        query, execution, parameters, _ = statement
        limit = self.find_limit(pool) if query.is_read_only else pool.writes
        metrics = self.metrics.get_statement(query.name)
        async with nullcontext(held) if held else pool.connection(limit) as connection:
            started = monotonic()
            try:
                rows = await query.run(connection, execution, parameters)
            except TimeoutError as error:
                pool.distrust()
                raise self.to_unavailable(query, "PostgreSQL does not respond") from error
            except psycopg2.Error as error:
                if connection.closed or isinstance(error, OUTDATED):
                    pool.distrust()
                if connection.closed:
                    raise
                raise self._to_error(statement, error, started) from error
            finally:
                seconds = monotonic() - started
                metrics.duration.observe(seconds)
            if connection.notices and not query.is_read_only:
                self._read_notices(query, connection.notices)
            if seconds > execution.driver_timeout - SILENCE_MAX_S:
                await absorb_late_timeout(connection)
        metrics.rows.inc(len(rows))
        if self.slow and seconds > self.slow:
            log.warning("slow statement", rows=len(rows), **_describe_statement(statement, started))
        return rows

    def _read_notices(self, query: Query, notices: Sequence[str]) -> None:
        """Raise `Unavailable` if the commit may not have been replicated; log other notices."""
        reason = " ".join(" ".join(notices).split())[:MAX_NOTICE_LENGTH]
        # The last line of a notice names the source file; other lines may quote a client.
        if any(NOT_REPLICATED in notice.rstrip().rpartition("\n")[2] for notice in notices):
            raise self.to_unavailable(query, reason)
        if monotonic() - self._notice_logged_at > NOTICE_LOG_S:
            self._notice_logged_at = monotonic()
            log.warning("notice", query=query.name, file=query.location, reason=reason)

    def to_unavailable(self, query: Query, reason: str) -> Unavailable:
        """Return why a statement was lost as an error; log that, unless it was not sent."""
        line = " ".join(reason.split())
        if NOT_SENT.match(line):  # the pool logs the outage
            return Unavailable(f"{query.name}: {line}", Refusal.NO_DATABASE)
        self.metrics.get_statement(query.name).failures.inc()
        log.warning("statement lost", query=query.name, file=query.location, reason=line)
        return Unavailable(f"{query.name}: {line}", Refusal.STATEMENT_LOST)

    def _to_error(
        self, statement: Statement, error: psycopg2.Error, started: float
    ) -> CatalogueError:
        """Log why PostgreSQL refused a statement, unless a named rule did; return the error."""
        query, execution, *_ = statement
        translated = translate_error(query, error)
        # A write that waits for a lock is sent again; the line of a request that gives up has this.
        is_resent = execution.is_resent and isinstance(error, LockNotAvailable)
        if is_resent or (execution.expects_timeout and isinstance(error, CONTENDED)):
            return translated
        fields = {"reason": describe_error(error), **_describe_statement(statement, started)}
        if not isinstance(translated, RuleBroken):
            self.metrics.get_statement(query.name).failures.inc()
            log.warning("statement failed", **fields)
        elif not translated.rule:
            log.warning("refused by the database", **fields)
        return translated


def _describe_statement(statement: Statement, started: float) -> dict[str, object]:
    """Return the fields of a line about a statement in the log."""
    names = dict.fromkeys(caller.name for caller in statement.callers if caller.name)
    clients = list(names)[:MAX_LOGGED_CLIENTS]
    return {
        "query": statement.query.name,
        "file": statement.query.location,
        "duration_ms": round((monotonic() - started) * 1000, 1),
        **({"clients": clients} if clients else {}),
    }
