"""Runs one named statement on a pooled connection, with errors in the catalogue's own words.

An error of PostgreSQL or the driver becomes `Unavailable` (another try may help), `RuleBroken` (a
client's doing) or `StatementFailed` (anything else), and is logged once per statement.
"""

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Any

import psycopg2
import structlog
from psycopg2 import errors as postgres

from service.database.pool import Pool
from service.database.queries import Query, Session
from service.errors import CatalogueError, Contended, RuleBroken, StatementFailed, Unavailable

Row = tuple[Any, ...]

SHARED_LOCK_TIMEOUT_MS = 250  # of a statement that many wait for; its rows are then sent apart
EARLY_S = 0.02  # a cancellation that comes sooner was meant for the statement before
UNLIMITED_S = 86_400.0  # for the driver, which cannot wait for ever

log = structlog.get_logger()


class Statements:
    """The statements of queries/*.sql, by name.

    `statement_timeout` in seconds, for queries without a setting of their own; `slow` in seconds: a
    statement that takes longer is logged (0: none).

    Settings go in front of each statement, in the same message. `set local` holds for this implicit
    transaction alone: the service relies on no session state and works through PgBouncer in
    transaction mode. Times come in UTC, whatever the database or the role has set.
    https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-MULTI-STATEMENT
    """

    def __init__(
        self, pool: Pool, queries: Mapping[str, Query], statement_timeout: float, slow: float = 0
    ) -> None:
        self._pool = pool
        self._queries = queries
        self.timeout = statement_timeout
        self._slow = slow

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
        `shared`: other requests wait for this statement too, so it gives up soon on what somebody
        else has locked.
        `max_affected`: a statement that changes more movies is refused.
        `timeout`: in seconds, in place of the query's own and of `statement_timeout`.
        Raises `Contended`, `Unavailable`, `RuleBroken` or `StatementFailed`.
        """
        query = self._queries[name]
        if timeout is None:
            timeout = self.timeout if query.timeout is None else query.timeout
        preamble = query.preamble(timeout)
        if shared:
            preamble += f"set local lock_timeout = {SHARED_LOCK_TIMEOUT_MS}; "
        if max_affected is not None:
            preamble += limit_affected(max_affected)
        async with self._pool.connection() as connection:
            session = Session(connection, preamble, timeout + 1 if timeout else UNLIMITED_S)
            started = monotonic()
            try:
                rows = await _send(query, session, timeout, parameters)
            except asyncio.CancelledError as error:
                if not is_timeout(error):
                    raise
                raise _logged(query, error.__context__, started) from error
            except (psycopg2.Error, TimeoutError) as error:
                if not connection.closed:
                    raise _logged(query, error, started) from error
                broken = error
            else:
                self._log_if_slow(query, started, len(rows))
                return rows
        self._pool.distrust_idle()
        if retry:
            return await self.fetch(
                name, shared=shared, max_affected=max_affected, timeout=timeout, **parameters
            )
        log.warning("statement failed", **_about(query, started), reason=message_of(broken))
        lost = Unavailable(f"{name}: the connection broke: {message_of(broken)}")
        lost.query = name
        raise lost from broken

    def _log_if_slow(self, query: Query, started: float, rows: int) -> None:
        if self._slow and monotonic() - started > self._slow:
            log.warning("slow statement", **_about(query, started), rows=rows)


async def _send(
    query: Query,
    session: Session,
    timeout: float,  # noqa: ASYNC109 - the server's
    parameters: dict[str, Any],
) -> list[Row]:
    """Send the statement, once more if it was cancelled before it had begun.

    PostgreSQL does that if the statement before it on this connection ended in the instant of its
    timeout (seen in 3 % of those that took about as long as their timeout, in versions 15 and 18).
    """
    started = monotonic()
    try:
        return [row async for row in query.run(session, **parameters)]
    except asyncio.CancelledError as error:
        if not is_timeout(error) or monotonic() - started > min(EARLY_S, timeout / 2):
            raise
    return [row async for row in query.run(session, **parameters)]


def limit_affected(movies: int) -> str:
    """Have a statement refused that changes more movies (migrations/*limit_affected_movies.sql).

    Not by `set local`: before version 16, pg_stat_statements would list it once for each number.
    """
    return f"select set_config('catalogue.max_affected', '{movies}', true); "


def suppress_timeout_reports(loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop not report statement timeouts.

    aiopg reports each as an error with a traceback and without the query; `fetch` logs them.
    """

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), postgres.QueryCanceled):
            loop.default_exception_handler(context)

    loop.set_exception_handler(report)


def is_timeout(error: asyncio.CancelledError) -> bool:
    """Whether this is how aiopg reports a statement timeout.

    It would pass for a cancelled request, which gets no answer.
    """
    return isinstance(error.__context__, postgres.QueryCanceled)


def translate(query: Query, error: BaseException) -> CatalogueError:
    """Say in the catalogue's words why a statement failed on a connection that works.

    https://www.postgresql.org/docs/current/errcodes-appendix.html
    """
    missing = isinstance(error, postgres.NotNullViolation)  # of a column that no client knows
    if isinstance(error, CAUSED_BY_CLIENTS) and not missing and not query.reads:
        return RuleBroken(error.diag.constraint_name or "")
    reason = f"{query.name}: {message_of(error)}"
    if isinstance(error, CONTENDED):
        return Contended(reason)
    standby = isinstance(error, postgres.ReadOnlySqlTransaction) and not query.reads
    if standby or isinstance(error, psycopg2.OperationalError):
        return Unavailable(reason)
    return StatementFailed(
        f"{query.name} ({query.place}): {message_of(error)}",
        for_every_row=isinstance(error, psycopg2.ProgrammingError),
    )


CONTENDED = (
    postgres.QueryCanceled,  # a timeout, or by hand
    postgres.LockNotAvailable,
    psycopg2.extensions.TransactionRollbackError,
)
# Rules of the database; data that a column cannot hold, or that a DBA's trigger refuses.
CAUSED_BY_CLIENTS = (
    psycopg2.IntegrityError,
    postgres.StringDataRightTruncation,
    postgres.NumericValueOutOfRange,
    postgres.UntranslatableCharacter,
    postgres.RaiseException,
)


def _logged(query: Query, error: BaseException | None, started: float) -> CatalogueError:
    """Log why a statement failed, unless a named rule refused it, and translate the error."""
    error = error or RuntimeError()
    translated = translate(query, error)
    if isinstance(translated, Unavailable | StatementFailed):
        translated.query = query.name
        log.warning("statement failed", **_about(query, started), reason=message_of(error))
    elif isinstance(translated, RuleBroken) and not translated.rule:
        log.warning("refused by the database", **_about(query, started), reason=message_of(error))
    return translated


def _about(query: Query, started: float) -> dict[str, Any]:
    return {
        "query": query.name,
        "file": query.place,
        "duration_ms": round((monotonic() - started) * 1000, 1),
    }


def message_of(error: BaseException) -> str:
    """PostgreSQL's message in one line, without its details, which contain values."""
    message = error.diag.message_primary if isinstance(error, psycopg2.Error) else None
    return " ".join((message or str(error) or type(error).__name__).split())
