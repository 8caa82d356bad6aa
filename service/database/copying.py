"""Many movies at once, into the table and out of it: COPY and a cursor of the server.

aiopg has neither, so this is a plain psycopg2 connection, used by one command at a time. Each works
in one transaction, and nothing relies on session state but its temporary table, which ends with it.
"""

import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import psycopg2
from psycopg2 import errors as postgres
from psycopg2.extensions import connection as Session  # noqa: N812 (a class, whatever its case)

from service.database.sessions import open_session, origin, words
from service.database.statements import CAUSED_BY_CLIENTS
from service.errors import OperatorError

FEWEST = 16  # rows that are copied at once where many are refused
FETCHED = 2000  # rows that are read at once
MOST_DRAWN = 1_000_000  # ids that are drawn one by one, which takes some 0.3 s
CANCEL_EVERY = 0.1  # seconds
HEED_EVERY = 1  # seconds; a signal just before the main thread waits does not wake it
LEAPING = int.from_bytes(b"imports")  # advisory locks are numbers

# Where a role or a database has these, they are for requests. Each with the version it came with.
TIMEOUTS = {
    "statement_timeout": 14,
    "lock_timeout": 14,
    "idle_in_transaction_session_timeout": 14,
    "transaction_timeout": 17,
}
# What the table holds of the rules by itself. New ids are far from those that rows may bring.
REHEARSAL = """
create temporary table movies_rehearsal (
  like movies including constraints including defaults including generated including identity
) on commit drop;
alter table movies_rehearsal
  alter column id restart with 1000000000000000000,
  add constraint movies_pkey primary key (id);
"""
TAKEN = """
insert into movies_rehearsal
  (id, title, year, runtime, genres, version, created_at, updated_at)
overriding system value
select m.id, m.title, m.year, m.runtime, m.genres, m.version, m.created_at, m.updated_at
from movies as m
where m.id = any (%s)
on conflict do nothing
"""


class Refusal(NamedTuple):
    """The row at this position of those given is refused by the database, which said why."""

    position: int
    reason: str


class Outcome(NamedTuple):
    """What work returned, or else raised."""

    result: Any
    error: BaseException | None


class Worker:
    """Runs what waits for the database in a thread of its own.

    The main thread stays free for its own work and for signals: Python heeds none while it is
    inside libpq. It may be interrupted anywhere, and so the two share nothing but queues that are
    written in C: a KeyboardInterrupt within Python's Condition, and with it within a Future or an
    executor, can leave its lock taken, for which the thread would then wait for ever.

    `started`: how many works are begun and not yet finished.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._given: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._done: SimpleQueue[Outcome | None] = SimpleQueue()  # None: the thread has ended
        self.started = 0
        # A daemon: after a second Ctrl-C, within `close`, the process ends without it.
        Thread(target=self._work, daemon=True).start()

    def start(self, work: Callable[..., Any], *given: Any) -> None:
        """Have `work(*given)` begin, once what was started before is done."""
        self.started += 1
        self._given.put(partial(work, *given))

    def finish(self) -> Any:
        """Wait for the first of what is started, without which it never ends; return its result."""
        outcome = None
        while not outcome:
            with suppress(Empty):
                outcome = self._done.get(timeout=HEED_EVERY)
        self.started -= 1
        if outcome.error:
            raise outcome.error
        return outcome.result

    def run(self, work: Callable[..., Any], *given: Any) -> Any:
        """Start and finish; nothing else is under way."""
        self.start(work, *given)
        return self.finish()

    def close(self) -> None:
        """End, cancelling what is still under way."""
        self._given.put(None)
        while True:
            try:
                if self._done.get(timeout=CANCEL_EVERY) is None:
                    return
            except Empty:
                with suppress(psycopg2.Error):
                    self._session.cancel()

    def _work(self) -> None:
        while work := self._given.get():
            try:
                outcome = Outcome(work(), None)
            except BaseException as error:  # noqa: BLE001 - for the main thread to raise
                outcome = Outcome(None, error)
            self._done.put(outcome)
            del outcome, work  # neither rows nor a chunk are kept until the next
        self._done.put(None)


@contextmanager
def working(url: str, *, reading: bool = False) -> Iterator[tuple[Session, Worker]]:
    """Connect and begin one transaction, which ends undone unless it is committed within.

    `reading`: of one snapshot, and nothing is written. What fails is an `OperatorError`.
    """
    session = open_session(url, application_name="movie-catalogue")
    worker = Worker(session)
    try:
        if reading:
            session.set_session(isolation_level="REPEATABLE READ", readonly=True)
        worker.run(_unhurry, session)
        yield session, worker
    except (postgres.UndefinedTable, postgres.UndefinedColumn) as error:
        raise OperatorError(
            f"the database refused: {words(error)}; is it migrated? python -m service migrate"
        ) from error
    except psycopg2.Error as error:
        lost = "the connection to the database broke" if session.closed else "the database refused"
        raise OperatorError(f"{lost}: {words(error)}") from error
    finally:
        worker.close()
        session.close()


def commit(session: Session, worker: Worker) -> None:
    """Commit; where nobody can tell whether that was carried out, say so."""
    try:
        worker.run(session.commit)
    except (KeyboardInterrupt, psycopg2.OperationalError) as error:
        raise OperatorError(
            "cut off during the commit: either all of the movies were imported or none; look"
        ) from error


def analyze(session: Session, worker: Worker) -> None:
    """Tell the planner what the table is like now; autovacuum does it later if this fails."""
    with suppress(psycopg2.Error, KeyboardInterrupt):
        worker.run(_unhurry, session)
        worker.run(_execute, session, "analyze movies")
        worker.run(session.commit)


class Copying:
    """Copies rows into the table, each chunk within a savepoint; so does a rehearsal into another.

    https://www.postgresql.org/docs/current/sql-copy.html
    """

    def __init__(self, session: Session, *, rehearsal: bool = False) -> None:
        self._session = session
        self._rehearsal = rehearsal
        self._table = "movies_rehearsal" if rehearsal else "movies"
        self._context = re.compile(rf"^COPY {self._table}, \D*([0-9]+)", re.MULTILINE)
        # A rule that waits for the commit could name no row.
        _execute(session, "set constraints all immediate")
        if rehearsal:
            _execute(session, REHEARSAL)

    def reserve(self, ids: Sequence[int]) -> None:
        """Make way for rows with these ids: all new movies get higher ones, at once and for good.

        A sequence must never go back, and `setval` knows only where to go. So ids are drawn as for
        new movies. Where that would be too many, `setval` leaps to far above what others can draw
        meanwhile; the lock is against another import that leaps.

        A rehearsal leaves the sequence alone, and meets the movies that have these ids.
        """
        if self._rehearsal:
            with self._session.cursor() as cursor:
                cursor.execute(TAKEN, (list(ids),))
            return
        highest = max(ids)
        if _missing(self._session, highest) > MOST_DRAWN:
            _execute(self._session, f"select pg_advisory_xact_lock({LEAPING})")
            if _missing(self._session, highest) > MOST_DRAWN:
                _execute(self._session, f"select setval('movies_id_seq', {highest})")
        missing = _missing(self._session, highest)
        if missing > 0:
            _execute(
                self._session,
                f"select max(nextval('movies_id_seq')) from generate_series(1, {missing})",
            )

    def copy(self, columns: Sequence[str], lines: Sequence[str]) -> list[Refusal]:
        """Copy rows (`line` makes them) and return those that the database refuses.

        A refused row is told from the context of the error: those before it are sent again, it is
        left out, and so on. Where there is no such context (a foreign key, a constraint trigger) it
        is looked for by halves. How many are sent at once follows how many were fine before.
        """
        refusals = []
        at = 0
        most = len(lines)
        while at < len(lines):
            some = lines[at : at + most]
            error = self._attempt(columns, some)
            if error is None:
                at += len(some)
                most *= 2
            elif (bad := self._place(error, len(some))) == 0:
                refusals.append(Refusal(at, words(error)))
                at += 1
                most = max(FEWEST, len(some) // 4)
            else:
                most = bad or len(some) // 2
        return refusals

    def _attempt(self, columns: Sequence[str], lines: Sequence[str]) -> psycopg2.Error | None:
        """Copy all of these or none; return the error where a row is to blame."""
        data = io.BytesIO("".join(lines).encode())
        with self._session.cursor() as cursor:
            cursor.execute("savepoint rows")
            try:
                with _first_error():
                    cursor.copy_expert(
                        f"copy {self._table} ({', '.join(columns)}) from stdin", data, size=1 << 16
                    )
            except psycopg2.Error as error:
                if not isinstance(error, (psycopg2.IntegrityError, *CAUSED_BY_CLIENTS)):
                    raise
                cursor.execute("rollback to savepoint rows; release savepoint rows")
                return error
            cursor.execute("release savepoint rows")
        return None

    def _place(self, error: psycopg2.Error, rows: int) -> int | None:
        """Find the index of the refused one of so many rows; None where nobody says."""
        if rows == 1:
            return 0
        found = self._context.search(error.diag.context or "")
        number = int(found[1]) if found else 0
        return number - 1 if 1 <= number <= rows else None


def line(values: Sequence[Any]) -> str:
    """Write a row in the text format of COPY; a list is an array of text.

    https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-FILE-FORMATS
    """
    return "\t".join([_cell(value) for value in values]) + "\n"


def read(
    session: Session, worker: Worker, columns: Sequence[str]
) -> Iterator[list[tuple[Any, ...]]]:
    """Yield all movies by id, some thousands at once; the next are fetched meanwhile."""
    worker.run(_execute, session, "set local time zone 'UTC'")
    # It ends with the transaction: to close it here would wait for a fetch that is under way.
    cursor = session.cursor("movies")
    worker.run(cursor.execute, f"select {', '.join(columns)} from movies order by id")
    worker.start(cursor.fetchmany, FETCHED)
    try:
        while rows := worker.finish():
            worker.start(cursor.fetchmany, FETCHED)
            yield rows
    except (ValueError, OverflowError) as error:  # a time before the year 1 or after 9999
        raise OperatorError(f"a movie cannot be read: {error}") from error


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        value = '{"' + '","'.join([_IN_ARRAY.sub(r"\\\g<0>", text) for text in value]) + '"}'
    elif isinstance(value, datetime):
        return value.isoformat()
    return _SPECIAL.sub(_escaped, value)


def _escaped(special: re.Match[str]) -> str:
    return _ESCAPES[special[0]]


_IN_ARRAY = re.compile(r'["\\]')
_SPECIAL = re.compile(r"[\\\t\n\r]")
_ESCAPES = {"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"}


def _unhurry(session: Session) -> None:
    """Begin a transaction that may take its time."""
    for name, version in TIMEOUTS.items():
        if session.server_version >= version * 10_000:
            _execute(session, f"set local {name} = 0")


@contextmanager
def _first_error() -> Iterator[None]:
    """Raise why a connection was ended, where COPY would print that and raise that it is gone.

    psycopg2 meets the second error while the first is set, and gives that to `sys.excepthook`:
    https://github.com/psycopg/psycopg2/issues/551. That is the process's, which copies one thing at
    a time.
    """
    printed: list[BaseException] = []
    before, sys.excepthook = sys.excepthook, lambda _, error, __: printed.append(error)
    try:
        yield
    except psycopg2.Error as error:
        raise origin(printed[0]) if printed else error from None
    finally:
        sys.excepthook = before


def _execute(session: Session, sql: str) -> None:
    with session.cursor() as cursor:
        cursor.execute(sql)


def _missing(session: Session, highest: int) -> int:
    """How many ids the sequence is behind; it only ever goes ahead."""
    with session.cursor() as cursor:
        cursor.execute(
            "select %s - case when is_called then last_value else last_value - 1 end"
            " from movies_id_seq",
            (highest,),
        )
        ((missing,),) = cursor.fetchall()
        return int(missing)
