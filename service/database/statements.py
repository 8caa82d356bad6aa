"""Runs one named statement on a pooled connection, with errors in the catalogue's own words.

An error of PostgreSQL or the driver becomes `Unavailable` (another try may help), `RuleBroken` (a
client's doing) or `StatementFailed` (anything else), and is logged once per statement.
"""

import asyncio
import re
from collections.abc import Mapping
from time import monotonic
from typing import Any

import aiopg
import psycopg2
import structlog
from psycopg2 import errors as postgres

from service.database.driver_errors import (
    OUTDATED,
    describe_error,
    is_statement_timeout,
    translate_error,
)
from service.database.pool import Pool
from service.database.queries import Execution, Query
from service.database.shares import Share
from service.errors import CatalogueError, Refusal, RuleBroken, StatementFailed, Unavailable
from service.tracing import WAITING_CLIENTS, trace_statement

Row = tuple[Any, ...]

SHARED_LOCK_TIMEOUT_MS = 250  # of a statement that many wait for; its rows are then sent apart
STRAY_CANCEL_MAX_S = 0.02  # a cancellation that comes sooner was meant for the statement before
# PostgreSQL has so long to report a timeout. It does not while a commit waits for a standby.
SILENCE_MAX_S = 1.0
MAX_LOGGED_CLIENTS = 10  # of a statement
UNLIMITED_S = 86_400.0  # for the driver, which cannot wait for ever
# What a role or a database may set otherwise: each statement sees what was committed before it, and
# PostgreSQL says if a commit was not replicated.
DEFAULTS = "set local transaction_isolation = 'read committed'; "
WRITE_DEFAULTS = f"{DEFAULTS}set local client_min_messages = warning; "
# "canceling wait for synchronous replication due to user request", in PostgreSQL's languages.
# https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION
NOT_REPLICATED = re.compile("r[eé]pli[ck]|репл|რეპლ|レプリ|복제|复制|複製", re.IGNORECASE)

log = structlog.get_logger()


class Statements:
    """The statements of queries/*.sql, by name.

    `statement_timeout` in seconds, for queries without a setting of their own; `slow` in seconds: a
    statement that takes longer is logged (0: none); `share`: of the pool, for reads.

    Settings go in front of each statement, in the same message: `set local` holds for this implicit
    transaction alone (docs/decisions/0011-send-sql-as-written.md).
    https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-MULTI-STATEMENT
    """

    def __init__(
        self,
        pool: Pool,
        queries: Mapping[str, Query],
        statement_timeout: float,
        slow: float = 0,
        share: Share | None = None,
    ) -> None:
        self._pool = pool
        self.metrics = pool.metrics
        self._queries = queries
        self.timeout = statement_timeout
        self._slow = slow
        self._share = share

    @trace_statement
    async def fetch(
        self,
        name: str,
        *,
        retry: bool = False,
        shared: bool = False,
        max_affected: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the server's, not a cancellation
        **parameters: Any,
    ) -> list[Row]:
        """Run the query `name` and return its rows.

        `retry`: once more on a fresh connection if one broke, if the statement is safe to repeat.
        For other writes it is unknown whether they were executed.
        `shared`: other requests wait for this statement too, so it waits for a lock for at most
        `SHARED_LOCK_TIMEOUT_MS`.
        `max_affected`: a statement that changes more movies is refused.
        `timeout`: in seconds, in place of the query's own and of `statement_timeout`.
        Raises `Contended`, `Unavailable`, `RuleBroken` or `StatementFailed`.
        """
        query = self._queries[name]
        if timeout is None:
            timeout = self.timeout if query.timeout is None else query.timeout
        preamble = query.build_preamble(timeout, DEFAULTS if query.is_read_only else WRITE_DEFAULTS)
        if shared:
            preamble += f"set local lock_timeout = {SHARED_LOCK_TIMEOUT_MS}; "
        if max_affected is not None:
            preamble += limit_affected(max_affected)
        limit = timeout + SILENCE_MAX_S if timeout else UNLIMITED_S
        share = self._share if query.is_read_only else self._pool.writes
        started = monotonic()
        try:
            async with self._pool.connection(share) as connection:
                execution = Execution(connection, preamble, limit)
                return await self._execute(query, execution, timeout, parameters)
        except TimeoutError as error:
            self._pool.distrust()
            raise self._log_unavailable(query, "PostgreSQL does not respond", started) from error
        except psycopg2.Error as error:
            self._pool.distrust()
            if not retry:
                reason = f"the connection broke: {describe_error(error)}"
                raise self._log_unavailable(query, reason, started) from error
        return await self.fetch(
            name, shared=shared, max_affected=max_affected, timeout=timeout, **parameters
        )

    async def _execute(
        self,
        query: Query,
        execution: Execution,
        timeout: float,  # noqa: ASYNC109 - the server's
        parameters: dict[str, Any],
    ) -> list[Row]:
        """Execute the statement; TimeoutError or psycopg2.Error if the connection is lost."""
        connection = execution.connection
        started = monotonic()
        try:
            rows = await _send(query, execution, timeout, parameters)
            if not query.is_read_only:
                connection.raw.poll()  # psycopg2 may not have looked at the last notices yet
        except asyncio.CancelledError as error:
            if not is_statement_timeout(error):
                raise
            raise self._log_failure(query, error.__context__, started) from error
        except psycopg2.Error as error:
            if connection.closed:
                raise
            if isinstance(error, OUTDATED):
                self._pool.renew(connection)
            raise self._log_failure(query, error, started) from error
        finally:
            self.metrics.get_statement(query.name).duration.observe(monotonic() - started)
        if connection.notices:
            self._require_replication(query, connection, started)
        self.metrics.get_statement(query.name).rows.inc(len(rows))
        self._log_if_slow(query, started, len(rows))
        return rows

    def _log_if_slow(self, query: Query, started: float, rows: int) -> None:
        if self._slow and monotonic() - started > self._slow:
            log.warning("slow statement", **_describe(query, started), rows=rows)

    def _require_replication(
        self, query: Query, connection: aiopg.Connection, started: float
    ) -> None:
        """Raise `Unavailable` if somebody cancelled the commit's wait for a synchronous standby."""
        notices = " ".join(connection.notices)
        connection.notices.clear()
        if NOT_REPLICATED.search(notices):
            raise self._log_unavailable(query, notices, started)

    def _log_unavailable(self, query: Query, reason: str, started: float) -> Unavailable:
        """Log why it is unknown whether a statement was executed, and return the error."""
        reason = " ".join(reason.split())
        log.warning("statement failed", **_describe(query, started), reason=reason)
        self.metrics.get_statement(query.name).failures.inc()
        unavailable = Unavailable(f"{query.name}: {reason}", Refusal.STATEMENT_LOST)
        unavailable.query = query.name
        return unavailable

    def _log_failure(
        self, query: Query, error: BaseException | None, started: float
    ) -> CatalogueError:
        """Log why a statement failed, unless a named rule refused it, and translate the error."""
        error = error or RuntimeError()
        translated = translate_error(query, error)
        details = {**_describe(query, started), "reason": describe_error(error)}
        if isinstance(translated, Unavailable | StatementFailed):
            translated.query = query.name
            self.metrics.get_statement(query.name).failures.inc()
            log.warning("statement failed", **details)
        elif isinstance(translated, RuleBroken) and not translated.rule:
            log.warning("refused by the database", **details)
        return translated


async def _send(
    query: Query,
    execution: Execution,
    timeout: float,  # noqa: ASYNC109 - the server's
    parameters: dict[str, Any],
) -> list[Row]:
    """Send the statement, once more if it was cancelled before it had begun.

    PostgreSQL does that if the statement before it on this connection ended in the instant of its
    timeout (seen in 3 % of those that took about as long as their timeout, in versions 15 and 18).
    """
    started = monotonic()
    try:
        return [row async for row in query.run(execution, **parameters)]
    except asyncio.CancelledError as error:
        is_stray = monotonic() - started <= min(STRAY_CANCEL_MAX_S, timeout / 2)
        if not is_statement_timeout(error) or not is_stray:
            raise
    return [row async for row in query.run(execution, **parameters)]


def limit_affected(movies: int) -> str:
    """Return SQL that makes PostgreSQL refuse a statement that changes more movies.

    The trigger is in migrations/*limit_affected_movies.sql. Not by `set local`: before version 16,
    pg_stat_statements would list it once for each number.
    """
    return f"select set_config('catalogue.max_affected', '{movies}', true); "


def suppress_timeout_reports(loop: asyncio.AbstractEventLoop) -> None:
    """Stop the loop from reporting statement timeouts.

    aiopg reports each as an error with a traceback and without the query; `fetch` logs them.
    """

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), postgres.QueryCanceled):
            loop.default_exception_handler(context)

    loop.set_exception_handler(report)


def _describe(query: Query, started: float) -> dict[str, Any]:
    duration_ms = round((monotonic() - started) * 1000, 1)
    clients = list(dict.fromkeys(WAITING_CLIENTS.get()))[:MAX_LOGGED_CLIENTS]
    return {
        "query": query.name,
        "file": query.location,
        "duration_ms": duration_ms,
        **({"clients": clients} if clients else {}),
    }
