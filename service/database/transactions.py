"""A transaction for commands, on its own connection; Python works on while a statement runs.

A thread runs the statements, because libpq ignores Ctrl-C until PostgreSQL responds.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress

import psycopg2
from psycopg2 import errors as postgres
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from service.database.connections import Session, application_name, open_session
from service.database.driver_errors import describe_error, translate_error
from service.database.query import NO_PARAMETERS, Parameters, Query, Row, limit_affected
from service.errors import OperatorError, RuleBroken

CANCEL_AFTER_S = 0.1
# If a role or a database sets these timeouts, they are meant for requests, not for commands.
DISABLE_TIMEOUTS = """
select set_config(name, '0', true) from pg_settings where name in (
  'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout'
)
"""
# A deferred constraint would fail at the commit, which does not say which row is refused.
BEGIN_WRITING = f"begin; set constraints all immediate; {DISABLE_TIMEOUTS}"
BEGIN_TESTING = BEGIN_WRITING.replace("begin", "begin isolation level repeatable read", 1)
BEGIN_READING = f"begin isolation level repeatable read, read only; {DISABLE_TIMEOUTS}"

HINTS = (
    (
        (postgres.UndefinedTable, postgres.UndefinedColumn),
        "; is it migrated? python -m service migrate",
    ),
    (postgres.InsufficientPrivilege, "; use the role that owns the tables, as for migrate"),
)


class Transaction:
    """Runs named queries in `thread`, one at a time."""

    def __init__(
        self, session: Session, queries: Mapping[str, Query], thread: ThreadPoolExecutor
    ) -> None:
        self._session = session
        self._cursor = session.cursor()
        self._queries = queries
        self._thread = thread
        self._running: Future[list[Row]]

    def start(
        self,
        name: str,
        parameters: Parameters = NO_PARAMETERS,
        *,
        max_affected: int | None = None,
    ) -> None:
        """Send the query; a statement that changes more than `max_affected` rows is refused."""
        query = self._queries[name]
        limit = "" if max_affected is None else limit_affected(max_affected)
        sql = query.build_preamble(query.timeout or 0) + limit + query.sql
        self._running = self._thread.submit(self._fetch, sql, parameters)

    def finish(self) -> list[Row]:
        """Wait for the rows of the query that was started."""
        return self._running.result()

    def run(self, name: str, parameters: Parameters = NO_PARAMETERS) -> list[Row]:
        """Start a query and finish it."""
        self.start(name, parameters)
        return self.finish()

    def execute(self, sql: str) -> None:
        """Run a statement that begins, ends or divides the transaction."""
        self._thread.submit(self._fetch, sql).result()

    def _fetch(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        self._cursor.execute(sql, parameters)
        return self._cursor.fetchall() if self._cursor.description else []

    def start_insert(self, name: str, rows: Sequence[str]) -> None:
        """Send the query with these rows, each a JSON object, as its only parameter."""
        (parameter,) = self._queries[name].parameters
        self.execute("savepoint insert_rows")
        self.start(name, {parameter: f"[{','.join(rows)}]"}, max_affected=len(rows))

    def finish_insert(self, name: str, rows: Sequence[str]) -> list[tuple[int, str]]:
        """Wait until the rows are inserted; return position and reason of each that is refused.

        PostgreSQL does not say which row it refuses, so the rows are inserted again by halves.
        """
        try:
            self.finish()
        except psycopg2.Error as error:
            is_refused = isinstance(translate_error(self._queries[name], error), RuleBroken)
            if not is_refused and not isinstance(error, postgres.UniqueViolation):  # files have ids
                raise
            self.execute("rollback to savepoint insert_rows; release savepoint insert_rows")
            if len(rows) == 1:
                return [(0, describe_error(error, details=True))]
        else:
            self.execute("release savepoint insert_rows")
            return []
        refusals = []
        half = len(rows) // 2
        for first, some in ((0, rows[:half]), (half, rows[half:])):
            self.start_insert(name, some)
            for position, reason in self.finish_insert(name, some):
                refusals.append((first + position, reason))
        return refusals

    def commit(self) -> None:
        """Commit; raises `OperatorError` if it is unknown whether the commit succeeded."""
        try:
            self.execute("commit")
        except (KeyboardInterrupt, psycopg2.Error) as error:
            if isinstance(error, psycopg2.Error) and not self._session.closed:
                raise
            raise OperatorError(
                "interrupted during the commit: it is unknown whether it succeeded, so check"
            ) from error


@contextmanager
def begin(
    url: str, queries: Mapping[str, Query], *, start: str = BEGIN_WRITING
) -> Iterator[Transaction]:
    """Connect and begin a transaction, which is rolled back unless it is committed.

    `start`: one of the statements above. A failure is an `OperatorError`.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        session = open_session(url, application_name=application_name())
        session.autocommit = True  # the transaction begins and ends by its own statements
        transaction = Transaction(session, queries, thread)
        try:
            transaction.execute(start)
            yield transaction
        except psycopg2.Error as error:
            broke = "the connection to the database broke"
            lost = broke if session.closed else "the database refused"
            hint = next((hint for kinds, hint in HINTS if isinstance(error, kinds)), "")
            raise OperatorError(f"{lost}: {describe_error(error, details=True)}{hint}") from error
        finally:
            is_idle = thread.submit(bool)  # runs behind the last statement
            with suppress(psycopg2.Error):
                # A backend that waits for a lock does not notice a close.
                while wait([is_idle], CANCEL_AFTER_S).not_done:
                    session.cancel()
                # PostgreSQL sees a close later than the next session begins, which may want a lock.
                if session.info.transaction_status != TRANSACTION_STATUS_IDLE:
                    session.cursor().execute("rollback")
            session.close()
