"""The connection that migrates a database; its errors, each in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
from psycopg2 import errorcodes
from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import SQLAlchemyError

from service.database.connections import Session, application_name, open_session, parse_url
from service.database.driver_errors import describe_error
from service.database.migrations.files import Section
from service.database.sql_files import locate
from service.errors import OperatorError

# While a migration waits for a table, all requests queue behind it, so it must not wait long; its
# work may take as long as it needs. These are options of the connection because `reset all` returns
# to them, and because PgBouncer, which may hand the session's lock to another client, refuses them
# by default: migrations need PostgreSQL itself.
# https://www.postgresql.org/docs/current/runtime-config-client.html
OPTIONS = "-c lock_timeout=5s -c statement_timeout=0"


@contextmanager
def connect(url: str) -> Iterator[Session]:
    """Connect, under autocommit: no other session waits for a transaction of this one."""
    session = open_session(
        url,
        options=f"{parse_url(url).get('options', '')} {OPTIONS}",
        fallback_application_name=f"{application_name()} migrate",
    )
    try:
        session.autocommit = True
        yield session
    except (psycopg2.Error, SQLAlchemyError) as error:
        raise OperatorError(f"the database refused: {describe_failure(error)}") from error
    finally:
        session.close()


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
