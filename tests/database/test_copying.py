"""COPY: which row is refused, whatever the database says of it; and the text that it is given."""

import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import connection as Session  # noqa: N812 (a class, whatever its case)

from service.database import copying
from service.database.copying import Copying
from service.errors import OperatorError

Execute = Callable[..., list[tuple[Any, ...]]]
FIELDS = ("title", "year", "runtime", "genres")


@pytest.fixture
def session(database: str) -> Iterator[Session]:
    """A transaction."""
    with copying.working(database) as (session, _):
        yield session


def lines(years: list[int]) -> list[str]:
    """Rows of movies with these years."""
    return [copying.line(("a", year, 90, ["a"])) for year in years]


def years(session: Session) -> list[int]:
    """The years of the movies as the transaction sees them."""
    with session.cursor() as cursor:
        cursor.execute("select year from movies order by id")
        return [year for (year,) in cursor.fetchall()]


@pytest.mark.parametrize(
    "bad",
    [[], [0], [99], [0, 99], [50, 51, 52], list(range(100)), list(range(0, 100, 2)), [3, 4, 90]],
    ids=str,
)
@pytest.mark.parametrize(
    "rule",
    [
        "check (year > 2000)",
        # Checked at the end of the statement, where no row is named; or only by the commit.
        "foreign key (year) references years",
        "foreign key (year) references years deferrable initially deferred",
    ],
    ids=["check", "foreign key", "deferred"],
)
def test_refused_rows_are_found_wherever_they_are(
    execute: Execute, session: Session, rule: str, bad: list[int]
) -> None:
    """Exactly those, with the reason; the others are there, in their order."""
    execute("create table years (year integer primary key)")
    execute("insert into years values (2001)")
    execute(f"alter table movies add constraint movies_rule {rule}")
    given = [1999 if position in bad else 2001 for position in range(100)]

    refusals = Copying(session).copy(FIELDS, lines(given))

    assert [refusal.position for refusal in refusals] == bad
    assert all("movies_rule" in refusal.reason for refusal in refusals)
    assert years(session) == [2001] * (100 - len(bad))


def test_many_refused_rows_take_few_attempts(execute: Execute, session: Session) -> None:
    """The work grows with their number, not with its square: what is sent again stays small."""
    execute("alter table movies add constraint movies_rule check (year > 2000)")
    sent = []

    class Counting(Copying):
        def _attempt(self, columns: Sequence[str], lines: Sequence[str]) -> psycopg2.Error | None:
            sent.append(len(lines))
            return super()._attempt(columns, lines)

    refusals = Counting(session).copy(FIELDS, lines([1999] * 2000))

    assert len(refusals) == 2000
    assert sum(sent) < 2000 * 20


def cut(execute: Execute, session: Session) -> Session:
    """Break the connection at its other end."""
    execute("select pg_terminate_backend(%s)", session.info.backend_pid)
    return session


def test_a_trigger_that_refuses(execute: Execute, session: Session) -> None:
    """What it says is the reason."""
    execute(
        "create function refuse() returns trigger language plpgsql as $$ begin"
        " if new.year = 1999 then raise exception 'no such year'; end if; return new; end $$;"
        " create trigger refuse before insert on movies for each row execute function refuse()"
    )

    refusals = Copying(session).copy(FIELDS, lines([2001, 1999, 2001]))

    assert refusals == [(1, "no such year")]
    assert years(session) == [2001, 2001]


def test_what_is_nobodys_fault_is_no_refusal(execute: Execute, database: str) -> None:
    """A column that no row brings stops it all."""
    execute("alter table movies add column studio text not null")

    with (
        pytest.raises(OperatorError, match='the database refused: null value in column "studio"'),
        copying.working(database) as (session, _),
    ):
        Copying(session).copy(FIELDS, lines([2001]))


def test_a_connection_that_breaks_is_one_line(execute: Execute, database: str) -> None:
    """It says so."""
    with (
        pytest.raises(OperatorError, match="the connection to the database broke: "),
        copying.working(database) as (session, worker),
    ):
        worker.run(Copying(cut(execute, session)).copy, FIELDS, lines([2001]))


def test_an_end_without_commit_leaves_nothing(execute: Execute, database: str) -> None:
    """All of it is one transaction."""
    with copying.working(database) as (session, _):
        Copying(session).copy(FIELDS, lines([2001]))

    assert execute("select count(*) from movies") == [(0,)]


def test_what_is_under_way_ends_with_the_transaction(execute: Execute, database: str) -> None:
    """A statement that waits for a lock is cancelled when nobody wants it any more."""
    blocker = psycopg2.connect(database)
    with blocker.cursor() as cursor:
        cursor.execute("lock table movies in access exclusive mode")
    with copying.working(database) as (session, worker):
        worker.start(Copying(session).copy, FIELDS, lines([2001]))
    blocker.close()

    assert execute("select count(*) from movies") == [(0,)]


def test_a_broken_commit_says_that_nobody_knows(execute: Execute, database: str) -> None:
    """Whether it was carried out is for the operator to look up."""
    with (
        pytest.raises(OperatorError, match="either all of the movies were imported or none; look"),
        copying.working(database) as (session, worker),
    ):
        copying.commit(cut(execute, session), worker)


def test_a_sequence_is_drawn_from_or_leapt_over(
    execute: Execute, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either way the next id is beyond, and lower ids later change nothing."""
    monkeypatch.setattr(copying, "MOST_DRAWN", 100)
    table = Copying(session)
    following = []
    for ids in ([100, 7], [1000], [900], [1001]):
        table.reserve(ids)
        following += execute("select last_value, is_called from movies_id_seq")

    assert following == [(100, True), (1000, True), (1000, True), (1001, True)]


@pytest.fixture
def alarm() -> Iterator[Callable[[type[BaseException], float], None]]:
    """Raise this so many seconds from now, wherever the main thread is; 0 for no more."""

    def set_(error: type[BaseException], seconds: float) -> None:
        def raise_(*_: object) -> None:
            raise error

        signal.signal(signal.SIGALRM, raise_)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.getsignal(signal.SIGALRM)
    yield set_
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
