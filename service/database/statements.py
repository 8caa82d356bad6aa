"""Runs one named statement on a pooled connection, with errors in the catalogue's own words.

An error of PostgreSQL or the driver becomes `Unavailable` (another try may help), `RuleBroken` (a
client's doing) or `StatementFailed` (anything else), and is logged once per statement.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from operator import attrgetter, itemgetter
from time import monotonic
from typing import Any

import psycopg2
import structlog
from psycopg2 import errors as postgres

from service.context import RequestContext
from service.database.batching import Rows
from service.database.driver_errors import (
    OUTDATED,
    describe_error,
    is_statement_timeout,
    translate_error,
)
from service.database.pool import Pool, Share
from service.database.query import Execution, Query
from service.errors import CatalogueError, Refusal, RuleBroken, StatementFailed, Unavailable

Row = tuple[Any, ...]

SHARED_LOCK_TIMEOUT_MS = 250  # of a statement that many wait for; its rows are then sent alone
# PostgreSQL has so long to report a timeout. It does not while a commit waits for a standby.
SILENCE_MAX_S = 1.0
MAX_LOGGED_CLIENTS = 10  # of a statement
UNLIMITED_S = 86_400.0  # for the driver, which cannot wait for ever
# What a role or a database may set otherwise: each statement sees what was committed before it, and
# PostgreSQL warns if a commit was not replicated.
DEFAULTS = "set local transaction_isolation = 'read committed'; "
WRITE_DEFAULTS = f"{DEFAULTS}set local client_min_messages = warning; "

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

    async def fetch(  # noqa: PLR0913 - each is a keyword that most callers leave out
        self,
        name: str,
        *,
        retry: bool = False,
        shared: bool = False,
        max_affected: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the server's, not a cancellation
        waiting: Sequence[RequestContext] = (),
        **parameters: Any,
    ) -> list[Row]:
        """Run the query `name` and return its rows.

        `retry`: the statement is safe to repeat: run it once more, on another connection, if its
        own broke. For other writes it is unknown whether they were executed.
        `shared`: other requests wait for this statement too, so it waits for a lock for at most
        `SHARED_LOCK_TIMEOUT_MS`.
        `max_affected`: a statement that changes more movies is refused.
        `timeout`: in seconds, in place of the query's own and of `statement_timeout`.
        `waiting`: the requests that wait for it, for logs and traces.
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
        execution = Execution(preamble, timeout + SILENCE_MAX_S if timeout else UNLIMITED_S)
        spans = [context.span for context in waiting if context.span]
        with spans[0].trace_statement(name, spans) if spans else nullcontext() as report_rows:
            try:
                rows = await self._run(query, execution, parameters, waiting)
            except psycopg2.Error as error:  # the connection broke
                if not retry:
                    raise self._lose(query, describe_error(error)) from error
                try:
                    rows = await self._run(query, execution, parameters, waiting)
                except psycopg2.Error as again:
                    raise self._lose(query, describe_error(again)) from again
            if report_rows:
                report_rows(len(rows))
        return rows

    def require_sent(
        self, name: str, rows: Rows[Any], fetched: Sequence[Row], column: int = 0
    ) -> None:
        """Raise `StatementFailed` unless each of the `fetched` has another key of `rows`.

        Otherwise a mistake in the query would give requests the results of others. `column`: of the
        key, an id or position.
        """
        found = set(map(itemgetter(column), fetched))
        if len(found) < len(fetched) or not found.issubset(map(attrgetter("key"), rows)):
            raise self.fail(name, "it returned an id or position that was not sent, or one twice")

    def fail(self, name: str, error: Exception | str) -> CatalogueError:
        """Return the error of a query that failed, or returned wrong rows; log what is not logged.

        `fetch` has logged each `CatalogueError` that it raised.
        """
        if isinstance(error, CatalogueError):
            return error
        reason = error if isinstance(error, str) else describe_error(error)
        location = self._queries[name].location
        self.metrics.get_statement(name).failures.inc()
        log.warning("statement failed", query=name, file=location, reason=reason)
        return StatementFailed(f"{name} ({location}): {reason}", for_every_row=True)

    async def _run(
        self,
        query: Query,
        execution: Execution,
        parameters: dict[str, Any],
        waiting: Sequence[RequestContext],
    ) -> list[Row]:
        """Run it on a connection; psycopg2.Error if that breaks."""
        share = self._share if query.is_read_only else self._pool.writes
        async with self._pool.connection(share) as connection:
            started = monotonic()
            try:
                rows = await query.run(connection, execution, parameters)
            except asyncio.CancelledError as error:
                if not is_statement_timeout(error):
                    raise
                raise self._fail(query, error.__context__, started, waiting) from error
            except TimeoutError as error:
                if query.is_read_only:  # a write may only wait for a lost synchronous standby
                    self._pool.distrust()
                raise self._lose(query, "PostgreSQL does not respond") from error
            except psycopg2.Error as error:
                if connection.closed:
                    self._pool.distrust()
                    raise
                if isinstance(error, OUTDATED):
                    self._pool.renew(connection)
                raise self._fail(query, error, started, waiting) from error
            finally:
                seconds = monotonic() - started
                self.metrics.get_statement(query.name).duration.observe(seconds)
            # A warning about a write: it may not be on the standby, if somebody has cancelled the
            # commit's wait for it.
            if connection.notices and not query.is_read_only:
                raise self._lose(query, " ".join(connection.notices))
        self.metrics.get_statement(query.name).rows.inc(len(rows))
        if self._slow and seconds > self._slow:
            log.warning("slow statement", **_describe(query, started, waiting), rows=len(rows))
        return rows

    def _lose(self, query: Query, reason: str) -> Unavailable:
        """Log why it is unknown whether a statement was executed, and return the error."""
        reason = " ".join(reason.split())
        log.warning("statement lost", query=query.name, file=query.location, reason=reason)
        self.metrics.get_statement(query.name).failures.inc()
        return Unavailable(f"{query.name}: {reason}", Refusal.STATEMENT_LOST)

    def _fail(
        self,
        query: Query,
        error: BaseException | None,
        started: float,
        waiting: Sequence[RequestContext],
    ) -> CatalogueError:
        """Log why a statement failed, unless a named rule refused it, and translate the error."""
        error = error or RuntimeError()
        translated = translate_error(query, error)
        details = {**_describe(query, started, waiting), "reason": describe_error(error)}
        if isinstance(translated, Unavailable | StatementFailed):
            self.metrics.get_statement(query.name).failures.inc()
            log.warning("statement failed", **details)
        elif isinstance(translated, RuleBroken) and not translated.rule:
            log.warning("refused by the database", **details)
        return translated


def _describe(query: Query, started: float, waiting: Sequence[RequestContext]) -> dict[str, Any]:
    """Return the fields of a line about a statement in the log."""
    clients = list(dict.fromkeys(context.client for context in waiting))[:MAX_LOGGED_CLIENTS]
    return {
        "query": query.name,
        "file": query.location,
        "duration_ms": round((monotonic() - started) * 1000, 1),
        **({"clients": clients} if clients else {}),
    }


def limit_affected(movies: int) -> str:
    """Return SQL that makes PostgreSQL refuse a statement that changes more movies.

    The trigger is in migrations/*limit_affected_movies.sql. Not by `set local`: before version 16,
    pg_stat_statements would list it once for each number.
    """
    return f"select set_config('catalogue.max_affected', '{movies}', true); "


def suppress_timeout_reports(loop: asyncio.AbstractEventLoop) -> None:
    """Stop the loop from reporting statement timeouts.

    aiopg reports each as an error with a traceback and without the query; `_fail` logs them.
    """

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), postgres.QueryCanceled):
            loop.default_exception_handler(context)

    loop.set_exception_handler(report)
