"""One migration of a database at a time, and a report of who holds a lock that it waits for."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

import psycopg2
from psycopg2.extensions import set_wait_callback

from service.database.connections import Session, open_polled_session, wait
from service.database.migrations.files import Report
from service.database.migrations.session import connect, is_lock_timeout
from service.errors import OperatorError

# Advisory locks are numbers; this one spells "movies".
LOCK_KEY = int.from_bytes(b"movies")
LOCK_WAIT_S = 60.0
LOCK_POLL_S = 0.2
BLOCKER_POLL_S = 1.0
QUERY_SHOWN_CHARS = 200

BLOCKERS = "select unnest(pg_blocking_pids(%s))"
# pg_locks shows a key as two halves: https://www.postgresql.org/docs/current/view-pg-locks.html
KEY_HOLDERS = """
select pid
  from pg_locks
 where locktype = 'advisory' and objsubid = 1 and granted
   and database = (select oid from pg_database where datname = current_database())
   and (classid::bigint << 32) | objid::bigint = %s"""


@contextmanager
def locked_session(url: str, report: Report) -> Iterator[Session]:
    """Connect as the only migration of this database; the lock ends with the session.

    While a statement waits for a lock, `report` is told who holds it. Ctrl-C cancels a statement.
    """
    with connect(url, report) as session:
        _wait_for_lock(session, report)
        watch = _Watch(url, session, report)
        set_wait_callback(watch.wait)
        try:
            yield session
        except Exception as error:
            if watch.is_interrupted:
                raise KeyboardInterrupt from error
            if watch.blockers and is_lock_timeout(error):
                raise OperatorError(f"{error}; the lock was held by {watch.blockers}") from error
            raise
        finally:
            set_wait_callback(None)


def _wait_for_lock(session: Session, report: Report) -> None:
    """Take the lock by asking again and again, and report who holds it.

    Waiting inside `pg_advisory_lock` would deadlock with `create index concurrently`.
    https://www.postgresql.org/docs/current/sql-createindex.html#SQL-CREATEINDEX-CONCURRENTLY
    """
    give_up = time.monotonic() + LOCK_WAIT_S
    reported: set[int] = set()
    cursor = session.cursor()
    while True:
        cursor.execute("select pg_try_advisory_lock(%s)", (LOCK_KEY,))
        if cursor.fetchone() == (True,):
            return
        time.sleep(LOCK_POLL_S)  # a session that was closed just now has the lock a little longer
        holders = _describe_processes(session, KEY_HOLDERS, LOCK_KEY)
        for pid in holders.keys() - reported:
            report(
                f"another migration is running: waiting for up to {LOCK_WAIT_S:g} s for"
                f" {holders[pid]}"
            )
        reported |= holders.keys()
        if holders and time.monotonic() >= give_up:
            raise OperatorError(
                f"another migration has been running for {LOCK_WAIT_S:g} s: nothing was changed;"
                f" it is {'; '.join(holders.values())}"
            )


@dataclass
class _Watch:
    """Waits for the statements of `session`, and reports who holds a lock that they wait for."""

    url: str
    session: Session
    report: Report
    reported: set[int] = field(default_factory=set)  # pids
    blockers: str = ""  # the last ones, described
    is_interrupted: bool = False

    def wait(self, session: Session) -> None:
        """Wait in place of libpq, which blocks until PostgreSQL responds, Ctrl-C or not.

        https://www.psycopg.org/docs/advanced.html#support-for-coroutine-libraries
        """
        while True:
            try:
                with suppress(TimeoutError):
                    wait(session, seconds=BLOCKER_POLL_S)
                    break
                if session is self.session:
                    self._report_blockers()
            except KeyboardInterrupt:
                self.is_interrupted = True
            if self.is_interrupted:
                session.cancel()
        if self.is_interrupted:
            raise KeyboardInterrupt

    def _report_blockers(self) -> None:
        """Report each once; report nothing if a second connection cannot be opened."""
        info = self.session.info  # the URL may list several hosts
        server = {"host": info.host, "port": str(info.port), "connect_timeout": 2}
        with suppress(OperatorError, psycopg2.Error):
            with closing(open_polled_session(self.url, **server)) as second:
                blockers = _describe_processes(second, BLOCKERS, info.backend_pid)
            for pid in blockers.keys() - self.reported:
                self.report(f"waiting for a lock that is held by {blockers[pid]}")
            self.reported |= blockers.keys()
            self.blockers = "; ".join(blockers.values()) or self.blockers


def _describe_processes(session: Session, pids: str, key: int) -> dict[int, str]:
    """Describe the processes that the query `pids` finds, each in one line, by pid."""
    cursor = session.cursor()
    cursor.execute(
        f"select pid, application_name, state, query from ({pids}) as found (pid)"
        " left join pg_stat_activity using (pid)",
        (key,),
    )
    wait(session)
    return {pid: _describe(pid, *rest) for pid, *rest in cursor}


def _describe(pid: int, application: str | None, state: str | None, query: str | None) -> str:
    if not pid:
        return "a prepared transaction (see pg_prepared_xacts)"
    shown = " ".join((query or "").split())[:QUERY_SHOWN_CHARS]
    return f'pid {pid}, application "{application or ""}", {state or "unknown"}, query: {shown}'
