"""The connection that migrates a database; its errors, each in one line."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
from psycopg2 import errorcodes
from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import SQLAlchemyError

from service.database.connections import Session, application_name, open_session
from service.database.driver_errors import describe_error
from service.database.migrations.files import Report, Section
from service.database.sql_files import locate
from service.database.urls import parse_url
from service.errors import OperatorError

# While a migration waits for a table, all requests queue behind it, so it must not wait long; its
# work may take as long as it needs. These are options of the connection because `reset all` returns
# to them, and because PgBouncer, which may hand the session's lock to another client, refuses them
# by default: migrations need PostgreSQL itself.
# https://www.postgresql.org/docs/current/runtime-config-client.html
OPTIONS = "-c lock_timeout=5s -c statement_timeout=0"

# The running service may have all connections of a small database, and closes idle ones soon.
CONNECT_WAIT_S = 60.0
CONNECT_POLL_S = 0.5
# PostgreSQL's refusals that pass (53300, 57P03). For a failed connection, the driver has only their
# text; in another language (`lc_messages`), they are reported at once.
# https://www.postgresql.org/docs/current/errcodes-appendix.html
PASSING_REFUSAL = re.compile(
    "too many (clients|connections)|connection slots are reserved|the database system is"
)


@contextmanager
def connect(url: str, report: Report) -> Iterator[Session]:
    """Connect, under autocommit: no other session waits for a transaction of this one.

    Waits for up to `CONNECT_WAIT_S` while the database has no connection left or starts.
    """
    session = _open_session(url, report)
    try:
        session.autocommit = True
        yield session
    except (psycopg2.Error, SQLAlchemyError) as error:
        raise OperatorError(f"the database refused: {describe_failure(error)}") from error
    finally:
        session.close()


def _open_session(url: str, report: Report) -> Session:
    give_up = time.monotonic() + CONNECT_WAIT_S
    has_reported = False
    while True:
        try:
            return open_session(
                url,
                options=f"{parse_url(url).get('options', '')} {OPTIONS}",
                fallback_application_name=f"{application_name()} migrate",
            )
        except OperatorError as error:
            if not PASSING_REFUSAL.search(str(error)):
                raise
            if time.monotonic() >= give_up:
                raise OperatorError(f"{error}; tried for {CONNECT_WAIT_S:g} s") from error
            if not has_reported:
                report(f"{error}; trying for up to {CONNECT_WAIT_S:g} s")
                has_reported = True
        time.sleep(CONNECT_POLL_S)


@contextmanager
def alembic_connection(session: Session) -> Iterator[Connection]:
    """Give the session to SQLAlchemy, which begins and ends the transactions from here on."""
    session.autocommit = False
    engine = create_engine("postgresql+psycopg2://", creator=lambda: session, poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def locate_failure(path: Path, section: Section, error: BaseException) -> str:
    """Name the file and the line; if PostgreSQL names none, the first line of the section.

    The position counts characters of all that was sent, also of several statements:
    https://www.postgresql.org/docs/current/protocol-error-fields.html
    """
    error = find_driver_error(error)
    line, said = section.line, describe_failure(error)
    position = error.diag.statement_position if isinstance(error, psycopg2.Error) else None
    if position:
        line += section.sql.count("\n", 0, int(position) - 1)
    else:
        said = f"in this section: {said}"
    if not section.is_transactional:
        said += (
            "; a transaction:false section holds one statement; a failed create index concurrently "
            "leaves an invalid index: drop it before the next try"
        )
    elif is_lock_timeout(error):
        said += (
            "; nothing of this file was changed: run migrate again when the transaction that "
            "holds the lock has ended"
        )
    return f"{locate(path, line)}: {said}"


def is_lock_timeout(error: BaseException) -> bool:
    """Whether a statement gave up after `lock_timeout`."""
    return getattr(find_driver_error(error), "pgcode", None) == errorcodes.LOCK_NOT_AVAILABLE


def describe_failure(error: BaseException) -> str:
    """Say in one line what PostgreSQL or the driver said, with its details."""
    return describe_error(find_driver_error(error), details=True)


def find_driver_error(error: BaseException) -> BaseException:
    """Find what the driver said: cleaning up after a lost connection fails in words of its own."""
    while not isinstance(error, psycopg2.Error) and (inner := error.__cause__ or error.__context__):
        error = inner
    return error
