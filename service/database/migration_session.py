"""The one connection that migrates a database, under a lock; its errors, in one line of words."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
from psycopg2 import errorcodes
from psycopg2.extensions import connection as Session  # noqa: N812 (a class, whatever its case)
from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import SQLAlchemyError

from service.database.migration_files import Section, locate
from service.database.sessions import open_session, origin, words
from service.database.urls import parameters
from service.errors import OperatorError

Report = Callable[[str], None]

# Advisory locks are numbers; this one spells "movies".
LOCK = int.from_bytes(b"movies")
LOCK_WAIT = 60.0  # seconds
LOCK_POLL = 0.2
# A migration that waits for a table stops everybody behind it in the queue, so it must not wait
# long; how long it works is its own affair. They are options of the connection because `reset all`
# returns to these, and because PgBouncer, which may hand the session's lock to another client,
# refuses them by default: migrations need PostgreSQL itself.
# https://www.postgresql.org/docs/current/runtime-config-client.html
OPTIONS = "-c lock_timeout=5s -c statement_timeout=0"


@contextmanager
def connected(url: str) -> Iterator[Session]:
    """Connect, under autocommit: while it waits, no transaction of ours is in others' way."""
    given = parameters(url)
    session = open_session(url, options=f"{given.get('options', '')} {OPTIONS}")
    try:
        session.autocommit = True
        yield session
    except (psycopg2.Error, SQLAlchemyError) as error:
        raise OperatorError(f"the database refused: {words(error)}") from error
    finally:
        session.close()


@contextmanager
def locked(url: str, report: Report) -> Iterator[Session]:
    """Connect as the only one that migrates this database; the lock ends with the session.

    By asking again and again: who waits inside `pg_advisory_lock` holds a snapshot, and
    `create index concurrently` waits for the end of every older one (a deadlock).
    https://www.postgresql.org/docs/current/sql-createindex.html#SQL-CREATEINDEX-CONCURRENTLY
    """
    with connected(url) as session:
        give_up = time.monotonic() + LOCK_WAIT
        waiting = False
        while not _has_lock(session):
            if time.monotonic() >= give_up:
                raise OperatorError(
                    f"another migration has been running for {LOCK_WAIT:g} s: nothing was changed"
                )
            if not waiting:
                report(f"another migration is running: waiting for up to {LOCK_WAIT:g} s")
                waiting = True
            time.sleep(LOCK_POLL)
        yield session


def _has_lock(session: Session) -> bool:
    with session.cursor() as cursor:
        cursor.execute("select pg_try_advisory_lock(%s)", (LOCK,))
        return cursor.fetchone() == (True,)


@contextmanager
def alembic_connection(session: Session) -> Iterator[Connection]:
    """Hand the session to SQLAlchemy, which begins and ends the transactions from here on."""
    session.autocommit = False
    engine = create_engine("postgresql+psycopg2://", creator=lambda: session, poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def explain(path: Path, section: Section, error: BaseException) -> str:
    """Name the file and the line; without PostgreSQL's word on it, where the section begins.

    The position counts characters of all that was sent, also of several statements:
    https://www.postgresql.org/docs/current/protocol-error-fields.html
    """
    error = origin(error)
    line, said = section.line, words(error)
    position = error.diag.statement_position if isinstance(error, psycopg2.Error) else None
    if position:
        line += section.sql.count("\n", 0, int(position) - 1)
    else:
        said = f"in what begins here: {said}"
    if not section.transaction:
        said += (
            "; a transaction:false section holds one statement, and an index that could not be "
            "built concurrently stays, invalid, until it is dropped"
        )
    elif getattr(error, "pgcode", None) == errorcodes.LOCK_NOT_AVAILABLE:
        said += (
            "; another transaction holds what this needs: the lock was not had within 5 s "
            "and nothing of this file was changed, so try again when that one has ended"
        )
    return f"{locate(path, line)}: {said}"
