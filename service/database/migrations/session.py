"""The session that migrates a database; it waits for a connection, other migrations and locks."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import psycopg2
from psycopg2 import errors as postgres
from sqlalchemy.exc import SQLAlchemyError

from service.database.connections import Session, application_name, open_session
from service.database.driver_errors import describe_error
from service.database.migrations.files import Report
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
WATCH_S = 0.5  # less than lock_timeout: the session that holds the lock is still found

# Advisory locks are numbers; this one spells "movies".
LOCK_KEY = int.from_bytes(b"movies")
# The sessions that block the session `pid`, and that of another migration; and the session itself
# with its progress, which a long migration sets as application_name. pg_locks shows a key as two
# halves: https://www.postgresql.org/docs/current/view-pg-locks.html
HOLDERS = r"""
select pid, application_name
  from pg_stat_activity
 where pid = %(pid)s and application_name like 'progress: %%'
 union all
select pid, format('pid %%s, application "%%s", %%s, query: %%s', pid, application_name, state,
                   left(regexp_replace(query, '\s+', ' ', 'g'), 200))
  from pg_stat_activity
 where pid = any (pg_blocking_pids(%(pid)s))
    or pid <> %(pid)s and datname = current_database() and pid in (
         select pid from pg_locks
          where locktype = 'advisory' and (classid::bigint << 32) | objid::bigint = %(key)s
       )"""
# Temporary refusals of a connection (53300, 57P03). The driver has only their text; if it is in
# another language (`lc_messages`), the refusal is reported at once.
# https://www.postgresql.org/docs/current/errcodes-appendix.html
PASSING_REFUSAL = re.compile(
    "too many (clients|connections)|connection slots are reserved|the database system is"
)

Result = TypeVar("Result")


class Busy(OperatorError):
    """An attempt that changed nothing, and may succeed later."""


@contextmanager
def connect(url: str, report: Report) -> Iterator[Session]:
    """Connect; wait while the database has no connection left or starts."""
    session = retry(partial(_open, url), report)
    try:
        session.autocommit = True  # no other session waits for a transaction of this one
        yield session
    except (psycopg2.Error, SQLAlchemyError) as error:
        refusal = describe_error(find_driver_error(error), details=True)
        raise OperatorError(f"the database refused: {refusal}") from error
    finally:
        session.close()


def lock(url: str, session: Session) -> None:
    """Lock out other migrations of the database until the session ends; `Busy` if one runs.

    Waiting in `pg_advisory_lock` would deadlock with `create index concurrently`.
    https://www.postgresql.org/docs/current/sql-createindex.html#SQL-CREATEINDEX-CONCURRENTLY
    """
    with session.cursor() as cursor:
        cursor.execute("select pg_try_advisory_lock(%s)", (LOCK_KEY,))
        if cursor.fetchone() != (True,):
            holders = _find_holders(url, session).values()
            raise Busy("; ".join(["another migration is running", *holders]))


@dataclass
class Watch:
    """Runs a step of a migration in `session`; reports its progress, and who holds a lock."""

    url: str
    session: Session
    report: Report
    step: Callable[[], None]  # changes all or nothing, or reports progress and can run again
    holders: dict[int, str] = field(default_factory=dict)  # by pid
    progress: str = ""

    def run(self) -> None:
        """Run the step; `Busy` if it waited too long for a lock. Ctrl-C cancels its statement."""
        # In a thread, because libpq ignores Ctrl-C until PostgreSQL responds.
        with ThreadPoolExecutor(max_workers=1) as thread:
            work = thread.submit(self.step)
            try:
                while not wait([work], WATCH_S).done:
                    found = _find_holders(self.url, self.session)
                    progress = found.pop(self.session.info.backend_pid, self.progress)
                    if progress != self.progress:
                        self.report(progress)
                        self.progress = progress
                    for pid in found.keys() - self.holders.keys():
                        self.report(f"waiting for a lock that is held by {found[pid]}")
                    self.holders |= found
            except BaseException:
                self.session.cancel()
                raise
        try:
            work.result()
        except Exception as error:
            if not isinstance(find_driver_error(error), postgres.LockNotAvailable):
                raise
            held = [f"the lock was held by {holder}" for holder in self.holders.values()]
            changed = "what is done stays" if self.progress else "nothing of this file was changed"
            reason = [describe_error(error), changed, *held]
            raise Busy("; ".join(reason)) from error


def find_driver_error(error: BaseException) -> BaseException:
    """Find the driver's error behind others: after a lost connection, the cleanup fails, too."""
    while not isinstance(error, psycopg2.Error) and (inner := error.__cause__ or error.__context__):
        error = inner
    return error


def retry(attempt: Callable[[], Result], report: Report) -> Result:
    """Repeat the attempt while it is `Busy`, for up to `GIVE_UP_S`; report the reason once."""
    give_up = time.monotonic() + GIVE_UP_S
    failed = 0
    while True:
        try:
            return attempt()
        except Busy as error:
            if time.monotonic() >= give_up:
                raise OperatorError(f"{error}; tried for {GIVE_UP_S:g} s") from error
            if failed == 1:  # the first failure may be due to a session that is just ending
                report(f"{error}; trying for up to {GIVE_UP_S:g} s")
            failed += 1
        time.sleep(RETRY_PAUSE_S)


def _find_holders(url: str, session: Session) -> dict[int, str]:
    """Describe the sessions that block this one, by pid; {} if no second session can be opened."""
    info = session.info  # the URL may list several hosts
    server = {"host": info.host, "port": str(info.port), "connect_timeout": 2}
    try:
        with closing(open_session(url, **server)) as second, second.cursor() as cursor:
            cursor.execute(HOLDERS, {"pid": info.backend_pid, "key": LOCK_KEY})
            return dict(cursor.fetchall())
    except (OperatorError, psycopg2.Error):
        return {}


def _open(url: str) -> Session:
    try:
        return open_session(
            url,
            options=f"{parse_url(url).get('options', '')} {OPTIONS}",
            fallback_application_name=f"{application_name()} migrate",
        )
    except OperatorError as error:
        if PASSING_REFUSAL.search(str(error)):
            raise Busy(str(error)) from error
        raise
