"""One migration of a database at a time, and a report of who holds a lock that it waits for."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from functools import partial

import psycopg2
from psycopg2.extensions import connection as Session  # noqa: N812 (a class, whatever its case)

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


def run_locked(url: str, report: Report, work: Callable[[Session], None]) -> None:
    """Run `work` as the only migration of this database; the lock ends with the session.

    It runs in a thread, because libpq blocks its thread until PostgreSQL answers, Ctrl-C or not.
    This thread meanwhile reports who holds a lock that `work` waits for, and takes Ctrl-C.
    """
    with connect(url) as session, ThreadPoolExecutor(max_workers=1) as pool:
        _wait_for_lock(session, report)
        server = {"host": session.info.host, "port": session.info.port}  # the URL may list several
        connect_again = partial(connect, url, **server, connect_timeout=2)
        pid = session.info.backend_pid
        running = pool.submit(work, session)
        try:
            blockers = _report_blockers(connect_again, pid, running, report)
        except KeyboardInterrupt:
            while not wait([running], LOCK_POLL_S).done:
                with suppress(psycopg2.Error):
                    session.cancel()
            raise
        try:
            running.result()
        except OperatorError as error:
            if blockers and is_lock_timeout(error):
                raise OperatorError(f"{error}; the lock was held by {blockers}") from error
            raise


def _wait_for_lock(session: Session, report: Report) -> None:
    """Take the lock by asking again and again, and report who holds it.

    A session that waits inside `pg_advisory_lock` has a snapshot, and `create index concurrently`
    waits for the end of every older snapshot: a deadlock.
    https://www.postgresql.org/docs/current/sql-createindex.html#SQL-CREATEINDEX-CONCURRENTLY
    """
    give_up = time.monotonic() + LOCK_WAIT_S
    reported: set[int] = set()
    while not _take_lock(session):
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


def _take_lock(session: Session) -> bool:
    with session.cursor() as cursor:
        cursor.execute("select pg_try_advisory_lock(%s)", (LOCK_KEY,))
        return cursor.fetchone() == (True,)


def _report_blockers(
    connect_again: Callable[[], AbstractContextManager[Session]],
    pid: int,
    running: Future[None],
    report: Report,
) -> str:
    """Report, once each, who holds a lock that `pid` waits for; return the last ones.

    Without a second connection it reports nothing: the migration does not depend on it.
    """
    reported: set[int] = set()
    last = ""
    if wait([running], BLOCKER_POLL_S).done:
        return last
    with suppress(OperatorError), connect_again() as session:
        while not running.done():
            blockers = _describe_processes(session, BLOCKERS, pid)
            for blocker in blockers.keys() - reported:
                report(f"waiting for a lock that is held by {blockers[blocker]}")
            reported |= blockers.keys()
            last = "; ".join(blockers.values()) or last
            wait([running], BLOCKER_POLL_S)
    wait([running])
    return last


def _describe_processes(session: Session, pids: str, key: int) -> dict[int, str]:
    """Describe the processes that the query `pids` finds, each in one line, by pid."""
    with session.cursor() as cursor:
        cursor.execute(
            f"select pid, application_name, state, query from ({pids}) as found (pid)"
            " left join pg_stat_activity using (pid)",
            (key,),
        )
        return {pid: _describe(pid, *rest) for pid, *rest in cursor}


def _describe(pid: int, application: str | None, state: str | None, query: str | None) -> str:
    if not pid:
        return "a prepared transaction (see pg_prepared_xacts)"
    shown = " ".join((query or "").split())[:QUERY_SHOWN_CHARS]
    return f'pid {pid}, application "{application or ""}", {state or "unknown"}, query: {shown}'
