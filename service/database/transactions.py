"""A transaction for commands, on its own connection."""

import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import psycopg2
from psycopg2 import errors as postgres
from psycopg2.extensions import POLL_OK, POLL_READ, TRANSACTION_STATUS_IDLE

from service.database.connections import Session, application_name, open_session
from service.database.query import (
    NO_PARAMETERS,
    Parameters,
    Query,
    Row,
    describe_error,
    limit_affected,
    translate_error,
)
from service.errors import OperatorError, RuleBroken

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


def wait_interruptibly(session: Session) -> None:
    """Wait until PostgreSQL responds, or cancel the statement and the session at Ctrl-C.

    For psycopg2's `set_wait_callback`, as libpq itself ignores Ctrl-C meanwhile. `wait_select` of
    psycopg2 cancels only the statement, and forgets that the user wanted to stop.
    """
    try:
        while (state := session.poll()) != POLL_OK:
            ready = [session.fileno()]
            select.select(*((ready, []) if state == POLL_READ else ([], ready)), [])
    except KeyboardInterrupt:
        with suppress(psycopg2.Error):  # it is not connected yet
            session.cancel()
        raise  # psycopg2 then closes the connection


class Transaction:
    """Runs named queries, one at a time."""

    def __init__(self, session: Session, queries: Mapping[str, Query]) -> None:
        self._session = session
        self._cursor = session.cursor()
        self._queries = queries

    def run(
        self, name: str, parameters: Parameters = NO_PARAMETERS, *, max_affected: int | None = None
    ) -> list[Row]:
        """Return the rows of a query; it is refused if it changes more than `max_affected`."""
        query = self._queries[name]
        limit = "" if max_affected is None else limit_affected(max_affected)
        self._cursor.execute(
            query.build_preamble(query.timeout or 0) + limit + query.sql, parameters
        )
        return self._cursor.fetchall() if self._cursor.description else []

    def execute(self, sql: str) -> None:
        """Run a statement that begins, ends or divides the transaction."""
        self._cursor.execute(sql)

    def insert(self, name: str, rows: Sequence[str]) -> tuple[list[Row], list[tuple[int, str]]]:
        """Insert rows, each a JSON object.

        Return what the query returned, and index and reason of each row that is refused. PostgreSQL
        does not say which one it refuses: so a part that fails is halved, down to one row.
        """
        (parameter,) = self._queries[name].parameters
        returned: list[Row] = []
        refused: list[tuple[int, str]] = []
        parts = [(0, rows)]  # the next one last
        while parts:
            start, part = parts.pop()
            self.execute("savepoint insert_rows")
            try:
                sent = {parameter: f"[{','.join(part)}]"}
                returned += self.run(name, sent, max_affected=len(part))
            except psycopg2.Error as error:
                is_refused = isinstance(translate_error(self._queries[name], error), RuleBroken)
                # A unique violation is of an id that the file gives.
                if not is_refused and not isinstance(error, postgres.UniqueViolation):
                    raise
                self.execute("rollback to savepoint insert_rows; release savepoint insert_rows")
                if len(part) == 1:
                    refused.append((start, describe_error(error, details=True)))
                else:
                    middle = len(part) // 2
                    parts += [(start + middle, part[middle:]), (start, part[:middle])]
            else:
                self.execute("release savepoint insert_rows")
        return returned, refused

    def cancel(self) -> None:
        """Have PostgreSQL end the statement that another thread runs, if any."""
        with suppress(psycopg2.Error):
            self._session.cancel()

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
    """Begin a transaction, which is rolled back unless it is committed; raises `OperatorError`."""
    session = open_session(url, application_name=application_name())
    session.autocommit = True  # the transaction begins and ends by its own statements
    transaction = Transaction(session, queries)
    try:
        transaction.execute(start)
        yield transaction
    except psycopg2.Error as error:
        broke = "the connection to the database broke"
        lost = broke if session.closed else "the database refused"
        hint = next((hint for kinds, hint in HINTS if isinstance(error, kinds)), "")
        raise OperatorError(f"{lost}: {describe_error(error, details=True)}{hint}") from error
    finally:
        # PostgreSQL sees a close later than the next session begins, which may want a lock.
        with suppress(psycopg2.Error):
            if session.info.transaction_status != TRANSACTION_STATUS_IDLE:
                session.cursor().execute("rollback")
        session.close()
