"""Tests transactions: refused rows, failures, and reserved ids."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace

import orjson
import pytest
from conftest import ROOT
from support import Execute, hold, wait_until

from service.app import EXPECTED
from service.database import query_files, transactions
from service.database.query import Query
from service.database.transactions import Transaction
from service.errors import OperatorError

INSERT = "import_movies"
YEARS = "create table years (year integer primary key); insert into years values (2001)"
LOADED = query_files.load(ROOT / "queries", EXPECTED)
OTHERS = "pid <> pg_backend_pid() and datname = current_database()"


Begin = Callable[..., AbstractContextManager[Transaction]]


@pytest.fixture
def begin(database: str) -> Begin:
    """Begin a transaction with the queries of this checkout, some of them changed."""

    def run(**changes: Query) -> AbstractContextManager[Transaction]:
        return transactions.begin(database, {**LOADED, **changes})

    return run


@pytest.fixture
def transaction(begin: Begin) -> Iterator[Transaction]:
    """A transaction."""
    with begin() as begun:
        yield begun


def cut(execute: Execute, transaction: Transaction) -> Transaction:
    """Have PostgreSQL end the connection."""
    execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {OTHERS}")
    return transaction


def insert(transaction: Transaction, years: list[int]) -> list[tuple[int, str]]:
    """Insert movies of these years; return the refusals."""
    movie = {"title": "a", "runtime": 90, "genres": ["a"]}
    rows = [orjson.dumps(movie | {"year": year}).decode() for year in years]
    return transaction.insert(INSERT, rows)[1]


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        *(("check (year > 2000)", bad) for bad in ([], [0, 9], list(range(10)))),
        # Checked at the end of the statement, or by the commit.
        ("foreign key (year) references years", [3, 4]),
        ("foreign key (year) references years deferrable initially deferred", [3, 4]),
    ],
)
def test_refused_rows_are_found_wherever_they_are(
    execute: Execute, transaction: Transaction, rule: str, bad: list[int]
) -> None:
    """Only they are returned, with the reason; the others are inserted in their order."""
    execute(YEARS)
    execute(f"alter table movies add constraint movies_rule {rule}")
    given = [1999 if position in bad else 2001 for position in range(10)]

    refusals = insert(transaction, given)
    stored = transaction.run("export_movies", {"after_id": 0, "size": 1000})

    assert [position for position, _ in refusals] == bad
    assert all("movies_rule" in reason for _, reason in refusals)
    assert [year for _, _, year, *_ in stored] == [2001] * (10 - len(bad))


def test_a_statement_that_inserts_more_than_it_was_given_is_refused(begin: Begin) -> None:
    """The limit of changed movies applies to imports, too."""
    query = LOADED[INSERT]
    twice = query.sql + " cross join generate_series(1, 2)"

    with (
        pytest.raises(OperatorError, match="insert changed 2 movies, but at most 1 were requested"),
        begin(**{INSERT: replace(query, sql=twice)}) as transaction,
    ):
        insert(transaction, [1999])


def test_a_connection_that_breaks_is_one_line(execute: Execute, begin: Begin) -> None:
    """The message says so; PostgreSQL's own log has the reason."""
    with (
        pytest.raises(OperatorError, match=r"\Athe connection to the database broke: .+\Z"),
        begin() as transaction,
    ):
        insert(cut(execute, transaction), [2001])


def test_a_lost_result_of_the_commit_is_reported(execute: Execute, begin: Begin) -> None:
    """The commit may have succeeded, so the operator must check."""
    with (
        pytest.raises(OperatorError, match="interrupted during the commit"),
        begin() as transaction,
    ):
        cut(execute, transaction).commit()


def test_a_commit_that_is_refused_is_not_taken_for_lost(execute: Execute, begin: Begin) -> None:
    """PostgreSQL reported that nothing was committed."""
    execute(YEARS)
    execute(
        "alter table movies add constraint movies_rule"
        " foreign key (year) references years deferrable initially deferred"
    )

    def insert_and_commit(transaction: Transaction) -> None:
        transaction.execute("set constraints all deferred")
        insert(transaction, [1999])
        transaction.commit()

    with (
        pytest.raises(OperatorError, match=r'the database refused: .*"movies_rule"'),
        begin() as transaction,
    ):
        insert_and_commit(transaction)


@pytest.mark.parametrize(
    ("before", "highest"),
    [
        (0, 1),  # of a new sequence, whose last_value is 1 too
        (0, 100),
        (50, 100),
        (1000, 100),
        (0, 0),
        (0, 10**18 - 1),  # too many ids to draw each
    ],
)
def test_reserved_ids_are_passed_by_the_sequence(
    execute: Execute, transaction: Transaction, before: int, highest: int
) -> None:
    """The sequence moves to the highest id, and never back."""
    if before:
        execute("select setval('movies_id_seq', %s)", before)

    transaction.run("reserve_movie_ids", {"highest": highest})

    last_id = "select case when is_called then last_value else 0 end from movies_id_seq"
    assert execute(last_id) == [(max(before, highest),)]


def test_reserving_never_moves_the_sequence_back(
    execute: Execute, transaction: Transaction, database: str
) -> None:
    """It reads the sequence again under the lock, because another import may have moved it."""
    lock = "select pg_advisory_xact_lock(hashtextextended('reserve_movie_ids', 0))"
    with hold(database, lock) as other, ThreadPoolExecutor(1) as thread:
        reserved = thread.submit(transaction.run, "reserve_movie_ids", {"highest": 3_000_000})
        waiting = "select 1 from pg_locks where locktype = 'advisory' and not granted"
        wait_until(lambda: execute(waiting))
        other.cursor().execute("select setval('movies_id_seq', 5000000)")
        other.commit()

        reserved.result()

    assert execute("select last_value from movies_id_seq") == [(5_000_000,)]
