"""The session that migrates a database; it waits for a connection, other migrations and locks."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import psycopg2
from psycopg2 import errors as postgres
from sqlalchemy.exc import SQLAlchemyError

from service.database.connections import Session, application_name, open_session
from service.database.migrations.files import Report
from service.database.query import describe_error
from service.database.urls import parse_url
from service.errors import OperatorError

# While a migration waits for the lock of a table, all requests for the table queue behind it, and
# fail after 3 s (statement_timeout in config.toml). So the migration gives up earlier, and pauses
# to let the requests pass. Its statements have no timeout. These are options of the connection
# because `reset all` keeps them, and because PgBouncer refuses them by default: migrations must not
# use PgBouncer, which may give the session's lock to another client. The files are written for
# standard strings, whatever the database has.
# https://www.postgresql.org/docs/current/runtime-config-client.html
OPTIONS = "-c lock_timeout=1s -c statement_timeout=0 -c standard_conforming_strings=on"
RETRY_PAUSE_S = 1.0
GIVE_UP_S = 60.0  # a failed deployment is better than one that hangs
# Advisory locks are numbers; this one spells "movies". Waiting in `pg_advisory_lock` would deadlock
# with `create index concurrently`. pg_locks shows the key as two halves.
# https://www.postgresql.org/docs/current/sql-createindex.html#SQL-CREATEINDEX-CONCURRENTLY
LOCK_KEY = int.from_bytes(b"movies")
LOCK = """
select pg_try_advisory_lock(%(key)s), array(
  select pid from pg_locks join pg_database on pg_database.oid = database
   where locktype = 'advisory' and datname = current_database()
     and (classid::bigint << 32) | objid::bigint = %(key)s)"""
# Who has had locks of tables for two attempts; others may only have queued behind the last one.
HOLDERS = """
select distinct concat_ws(
    ' ', '; it may be held by', coalesce('pid ' || a.pid, 'a prepared transaction'), a.usename,
    a.application_name, 'since ' || a.xact_start, left(translate(a.query, chr(10), ' '), 60))
  from pg_locks as l left join pg_stat_activity as a using (pid)
 where l.granted and l.relation > 16383 and pid is distinct from pg_backend_pid()
   and l.database = (select d.oid from pg_database as d where d.datname = current_database())
   and coalesce(a.xact_start < now() - 2 * current_setting('lock_timeout')::interval, true)"""
# Temporary refusals of a connection (53300, 57P03). The driver has only their text; if it is in
# another language (`lc_messages`), the refusal is reported at once.
# https://www.postgresql.org/docs/current/errcodes-appendix.html
PASSING_REFUSAL = re.compile(
    "too many (clients|connections)|connection slots are reserved|the database system is"
)

Result = TypeVar("Result")


class Busy(OperatorError):
    """Another migration is running."""


@contextmanager
def connect(url: str, report: Report) -> Iterator[Session]:
    """Connect; wait while the database has no connection left or starts."""
    options = f"{parse_url(url).get('options', '')} {OPTIONS}"
    name = f"{application_name()} migrate"
    attempt = partial(open_session, url, options=options, fallback_application_name=name)
    session = retry(attempt, report)
    try:
        session.autocommit = True  # no other session waits for a transaction of this one
        yield session
    except (psycopg2.Error, SQLAlchemyError) as error:
        refusal = describe_error(find_driver_error(error), details=True)
        raise OperatorError(f"the database refused: {refusal}") from error
    finally:
        session.close()


def lock(session: Session) -> None:
    """Lock out other migrations of the database until the session ends; `Busy` if one runs."""
    with session.cursor() as cursor:
        cursor.execute(LOCK, {"key": LOCK_KEY})
        ((is_locked, holders),) = cursor.fetchall()
    if not is_locked:
        raise Busy(f"another migration is running (pid {', '.join(map(str, holders))})")


def call(url: str, report: Report, function: str, argument: object) -> object:
    """Return what a function of the schema returns; wait as a migration does."""
    with connect(url, report) as session, session.cursor() as cursor:
        retry(lambda: cursor.execute(f"select {function}(%s)", (argument,)), report)
        ((result,),) = cursor.fetchall()
        return result


def retry(attempt: Callable[[], Result], report: Report) -> Result:
    """Repeat what changes all or nothing, for `GIVE_UP_S`, while another session prevents it."""
    give_up = time.monotonic() + GIVE_UP_S
    failed = 0
    while True:
        try:
            return attempt()
        except (OperatorError, psycopg2.Error) as error:
            driver_error: Any = find_driver_error(error)
            reason = describe_error(error) if error is driver_error else str(error)
            is_locked = isinstance(driver_error, postgres.LockNotAvailable)
            if not (is_locked or isinstance(error, Busy) or PASSING_REFUSAL.search(reason)):
                raise
            if is_locked:
                with driver_error.cursor.connection as session, session.cursor() as cursor:
                    cursor.execute(HOLDERS)
                    reason += "".join([holder for (holder,) in cursor.fetchall()])
            if time.monotonic() >= give_up:
                raise OperatorError(f"{reason}; tried for {GIVE_UP_S:g} s") from error
            if failed == 1:  # the first failure may be due to a session that is just ending
                report(f"{reason}; trying for up to {GIVE_UP_S:g} s")
            failed += 1
        time.sleep(RETRY_PAUSE_S)


def find_driver_error(error: BaseException) -> BaseException:
    """Find the driver's error in the chain of causes, also after a failed cleanup; raise Ctrl-C."""
    chain = [error]
    while inner := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(inner)
    if any(isinstance(found, KeyboardInterrupt) for found in chain):
        raise KeyboardInterrupt
    return next((found for found in chain if isinstance(found, psycopg2.Error)), chain[-1])
