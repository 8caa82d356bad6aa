"""Runs one named statement on a pooled connection, with errors in the catalogue's own words.

What PostgreSQL or the driver report becomes `Unavailable` (worth another try) or `RuleBroken`
(what a client sent); anything else is a fault of ours and stays as it is.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import psycopg2
from psycopg2 import errors as postgres

from service.database.pool import Pool
from service.database.queries import Query, Session
from service.errors import Contended, RuleBroken, Unavailable

Row = tuple[Any, ...]

LOCK_TIMEOUT = 250  # ms; for a statement that many wait for, whose rows are then sent apart

# The words of movies gather in a list, until there are so many kB of them; then the statement at
# hand merges them into their index: for 0.15 s at the usual 4 MB, and 7 ms at the least there is,
# which is the same work in all. https://www.postgresql.org/docs/current/gin.html#GIN-FAST-UPDATE
MERGED = 64


class Statements:
    """The statements of queries/*.sql, by name; `statement_timeout` in seconds.

    The settings go in front of each statement, in the same message: `set local` holds for this
    implicit transaction alone, so no session state is relied upon and PgBouncer in transaction
    mode may stand in between. The driver waits a little longer than the server.
    https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-MULTI-STATEMENT
    """

    def __init__(self, pool: Pool, queries: Mapping[str, Query], statement_timeout: float) -> None:
        self._pool = pool
        self._queries = queries
        self.timeout = statement_timeout
        alone = _settings(statement_timeout)
        writing = f"set local gin_pending_list_limit = {MERGED}; {alone}"
        sharing = f"set local lock_timeout = {LOCK_TIMEOUT}; {writing}"
        self._prefixes = {None: alone, False: writing, True: sharing}

    async def fetch(
        self,
        name: str,
        *,
        retry: bool = False,
        shared: bool | None = None,
        around: tuple[str, str] = ("", ""),
        timeout: float | None = None,  # noqa: ASYNC109 - the server's, not a cancellation
        **parameters: Any,
    ) -> list[Row]:
        """Run the query `name` and return its rows.

        `retry`: once more on a fresh connection where one broke, for statements that may be carried
        out twice; of any other that writes, nobody can tell whether it was.
        `shared`, of one that writes movies: give up soon on what somebody else has locked, as other
        requests wait for this statement too.
        `around`: what goes before and after the query's own text, to count what it finds, say.
        `timeout`: in seconds, in place of `statement_timeout`; for a statement of its own kind.
        Raises `Contended`, `Unavailable` or `RuleBroken`.
        """
        async with self._pool.connection() as connection:
            prefix = self._prefixes[shared] if timeout is None else _settings(timeout)
            patience = (self.timeout if timeout is None else timeout) + 1
            session = Session(connection, prefix + around[0], around[1], patience)
            try:
                return [row async for row in self._queries[name].run(session, **parameters)]
            except asyncio.CancelledError as error:
                raise_if_timed_out(name, error)
                raise
            except (psycopg2.Error, TimeoutError) as error:
                if not connection.closed:
                    raise translated(name, error) from error
                broken = error
        self._pool.distrust_idle()
        if retry:
            return await self.fetch(
                name, shared=shared, around=around, timeout=timeout, **parameters
            )
        raise Unavailable(f"{name}: the connection broke: {broken}") from broken


def _settings(timeout: float) -> str:
    """Times come in UTC, whatever the database or the role has set."""
    return f"set local statement_timeout = {round(timeout * 1000)}; set local timezone = 'UTC'; "


def leave_timeouts_to_us(loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop not report statement timeouts.

    aiopg does, each as an error with a traceback and without a word of whose it is; here they are
    raised, and told by whoever asked.
    """

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), postgres.QueryCanceled):
            loop.default_exception_handler(context)

    loop.set_exception_handler(report)


def raise_if_timed_out(name: str, error: asyncio.CancelledError) -> None:
    """Raise `Contended` where this is how aiopg reports a statement timeout.

    It would pass for a request that is given up, and leave that without an answer.
    """
    if isinstance(error.__context__, postgres.QueryCanceled):
        raise Contended(f"{name}: {error.__context__}".strip()) from error


def translated(name: str, error: Exception) -> Exception:
    """What a statement's failure on a sound connection means to those who asked for it.

    https://www.postgresql.org/docs/current/errcodes-appendix.html
    """
    if isinstance(error, psycopg2.IntegrityError) and not isinstance(
        error, postgres.NotNullViolation
    ):
        return RuleBroken(error.diag.constraint_name or "")
    # Class 22: too long for a narrowed column, say. The other one is a DBA's trigger that refuses.
    if isinstance(error, psycopg2.DataError | postgres.RaiseException):
        return RuleBroken("")
    if isinstance(error, postgres.LockNotAvailable | psycopg2.extensions.TransactionRollbackError):
        return Contended(f"{name}: {error}".strip())
    if isinstance(error, psycopg2.OperationalError | postgres.ReadOnlySqlTransaction):
        return Unavailable(f"{name}: {error}".strip())
    return error
