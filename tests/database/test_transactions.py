"""Tests transactions: refused rows, failures, and reserved ids."""

import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace

import orjson
import psycopg2
import pytest
from conftest import ROOT
from support import Execute, wait_until

from service.database import query_files, transactions
from service.database.query import Query
from service.database.transactions import Transaction
from service.errors import OperatorError
from service.query_registry import EXPECTED

INSERT = "import_movies"
OTHERS = "pid <> pg_backend_pid() and datname = current_database()"


@pytest.fixture(scope="module")
def loaded() -> Mapping[str, Query]:
    """Return the queries of this checkout."""
    return query_files.load(ROOT / "queries", EXPECTED)


@pytest.fixture
def transaction(database: str, loaded: Mapping[str, Query]) -> Iterator[Transaction]:
    """A transaction."""
    with transactions.begin(database, loaded) as begun:
        yield begun


def cut(execute: Execute, transaction: Transaction) -> Transaction:
    """Have PostgreSQL end the connection."""
    execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {OTHERS}")
    return transaction


def movies(years: list[int]) -> list[str]:
    """Return movies of these years."""
    movie = {"title": "a", "runtime": 90, "genres": ["a"]}
    return [orjson.dumps(movie | {"year": year}).decode() for year in years]


def insert(transaction: Transaction, years: list[int]) -> list[tuple[int, str]]:
    """Insert movies of these years; return the refusals."""
    rows = movies(years)
    transaction.start_insert(INSERT, rows)
    return transaction.finish_insert(INSERT, rows)


def years(transaction: Transaction) -> list[int]:
    """Return the years of the movies that the transaction sees."""
    return [row[2] for row in transaction.run("export_movies", after_id=0, size=1000)]


@pytest.mark.parametrize(
    "bad",
    [[], [0], [99], [0, 99], [50, 51, 52], list(range(100)), list(range(0, 100, 2)), [3, 4, 90]],
    ids=str,
)
@pytest.mark.parametrize(
    "rule",
    [
        "check (year > 2000)",
        # Checked at the end of the statement, or by the commit.
        "foreign key (year) references years",
        "foreign key (year) references years deferrable initially deferred",
    ],
    ids=["check", "foreign key", "deferred"],
)
def test_refused_rows_are_found_wherever_they_are(
    execute: Execute, transaction: Transaction, rule: str, bad: list[int]
) -> None:
    """Only they are returned, with the reason; the others are inserted in their order."""
    execute("create table years (year integer primary key)")
    execute("insert into years values (2001)")
    execute(f"alter table movies add constraint movies_rule {rule}")
    given = [1999 if position in bad else 2001 for position in range(100)]

    refusals = insert(transaction, given)

    assert [position for position, _ in refusals] == bad
    assert all("movies_rule" in reason for _, reason in refusals)
    assert years(transaction) == [2001] * (100 - len(bad))


def test_a_trigger_that_refuses_gives_the_reason(
    execute: Execute, transaction: Transaction
) -> None:
    """The message of `raise exception` is the reason."""
    execute(
        "create function refuse() returns trigger language plpgsql as $$ begin"
        " if new.year = 1999 then raise exception 'no such year'; end if; return new; end $$;"
        " create trigger refuse before insert on movies for each row execute function refuse()"
    )

    refusals = insert(transaction, [2001, 1999, 2001])

    assert refusals == [(1, "no such year")]
    assert years(transaction) == [2001, 2001]


def test_a_column_without_a_value_stops_the_transaction(
    execute: Execute, database: str, loaded: Mapping[str, Query]
) -> None:
    """It is no row's fault."""
    execute("alter table movies add column studio text not null")

    with (
        pytest.raises(OperatorError, match='the database refused: null value in column "studio"'),
        transactions.begin(database, loaded) as transaction,
    ):
        insert(transaction, [2001])


def test_a_statement_that_inserts_more_than_it_was_given_is_refused(
    database: str, loaded: Mapping[str, Query]
) -> None:
    """The limit of changed movies applies to imports, too."""
    query = loaded["import_movies"]
    twice = query.sql + " cross join generate_series(1, 2)"
    run_twice = {**loaded, "import_movies": replace(query, sql=twice)}

    with (
        pytest.raises(OperatorError, match="insert changed 2 movies, but at most 1 were requested"),
        transactions.begin(database, run_twice) as transaction,
    ):
        insert(transaction, [1999])


def test_a_connection_that_breaks_is_one_line(
    execute: Execute, database: str, loaded: Mapping[str, Query]
) -> None:
    """The message names the reason that PostgreSQL gave."""
    with (
        pytest.raises(OperatorError, match=r"the connection to the database broke: .*terminating"),
        transactions.begin(database, loaded) as transaction,
    ):
        insert(cut(execute, transaction), [2001])


def test_without_commit_a_transaction_is_rolled_back(
    execute: Execute, database: str, loaded: Mapping[str, Query]
) -> None:
    """Nothing of the transaction stays."""
    with transactions.begin(database, loaded) as transaction:
        insert(transaction, [2001])

    assert execute("select count(*) from movies") == [(0,)]


def test_a_running_statement_is_cancelled_at_the_end(
    execute: Execute, database: str, loaded: Mapping[str, Query]
) -> None:
    """No backend continues to wait for a lock."""
    blocker = psycopg2.connect(database)
    blocker.cursor().execute("lock table movies in access exclusive mode")

    waiting = f"select 1 from pg_stat_activity where wait_event_type = 'Lock' and {OTHERS}"

    with transactions.begin(database, loaded) as transaction:
        transaction.start_insert(INSERT, movies([2001]))
        wait_until(lambda: execute(waiting))

    wait_until(lambda: not execute(waiting))
    blocker.close()


def test_a_lost_result_of_the_commit_is_reported(
    execute: Execute, database: str, loaded: Mapping[str, Query]
) -> None:
    """The commit may have succeeded, so the operator must check."""
    with (
        pytest.raises(OperatorError, match="interrupted during the commit"),
        transactions.begin(database, loaded) as transaction,
    ):
        cut(execute, transaction).commit()


def test_a_commit_that_is_refused_is_not_taken_for_lost(
    execute: Execute, database: str, loaded: Mapping[str, Query]
) -> None:
    """PostgreSQL reported that nothing was committed."""
    execute("create table years (year integer primary key)")
    execute(
        "alter table movies add constraint movies_rule"
        " foreign key (year) references years deferrable initially deferred"
    )

    def insert_and_commit(transaction: Transaction) -> None:
        transaction.execute("set constraints all deferred")
        insert(transaction, [2001])
        transaction.commit()

    with (
        pytest.raises(OperatorError, match=r'the database refused: .*"movies_rule"'),
        transactions.begin(database, loaded) as transaction,
    ):
        insert_and_commit(transaction)


def test_a_host_that_does_not_respond_is_skipped(
    database: str, loaded: Mapping[str, Query]
) -> None:
    """Each host has its own timeout; then the next one is tried."""
    folder = psycopg2.extensions.parse_dsn(database)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = (
            f"postgresql://{folder['user']}@/{folder['dbname']}?host=127.0.0.1,{folder['host']}"
            f"&port={port},{folder['port']}&connect_timeout=1"
        )
        with transactions.begin(url, loaded) as transaction:
            assert years(transaction) == []


def test_one_port_is_for_all_hosts(database: str, loaded: Mapping[str, Query]) -> None:
    """It is read as by libpq: `?host=a,b&port=5433`."""
    folder = psycopg2.extensions.parse_dsn(database)
    url = (
        f"postgresql://{folder['user']}@/{folder['dbname']}"
        f"?host=/nowhere,{folder['host']}&port={folder['port']}"
    )

    with transactions.begin(url, loaded) as transaction:
        assert years(transaction) == []


def test_a_connect_timeout_of_zero_is_none(database: str, loaded: Mapping[str, Query]) -> None:
    """As libpq reads it."""
    with transactions.begin(f"{database}&connect_timeout=0", loaded) as transaction:
        assert years(transaction) == []


def test_no_responding_host_is_one_line(loaded: Mapping[str, Query]) -> None:
    """The message says that the timeout expired."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/a?connect_timeout=1"
        with (
            pytest.raises(OperatorError, match=r"the database is unreachable: .*timeout expired"),
            transactions.begin(url, loaded),
        ):
            pass


@pytest.mark.parametrize(
    ("before", "highest", "drawn"),
    [
        (0, 1, 1),  # of a new sequence, whose last_value is 1 too
        (0, 100, 100),
        (50, 100, 50),
        (1000, 100, 0),
        (0, 0, 0),
        (0, 10**18 - 1, 0),  # too many ids to draw each
    ],
)
def test_reserved_ids_are_passed_by_the_sequence(
    execute: Execute, transaction: Transaction, before: int, highest: int, drawn: int
) -> None:
    """The sequence moves to the highest id, and never back."""
    if before:
        execute("select setval('movies_id_seq', %s)", before)

    rows = transaction.run("reserve_movie_ids", highest=highest)

    last_id = "select case when is_called then last_value else 0 end from movies_id_seq"
    assert rows == [(drawn,)]
    assert execute(last_id) == [(max(before, highest),)]


def test_reserving_never_moves_the_sequence_back(
    execute: Execute, transaction: Transaction, database: str
) -> None:
    """It reads the sequence again under the lock, because another import may have moved it."""
    other = psycopg2.connect(database)
    cursor = other.cursor()
    cursor.execute("select pg_advisory_xact_lock(hashtextextended('reserve_movie_ids', 0))")
    transaction.start("reserve_movie_ids", highest=3_000_000)
    waiting = "select 1 from pg_locks where locktype = 'advisory' and not granted"
    while not execute(waiting):
        pass
    cursor.execute("select setval('movies_id_seq', 5000000)")
    other.commit()
    other.close()

    transaction.finish()

    assert execute("select last_value from movies_id_seq") == [(5_000_000,)]


def test_ids_are_reserved_while_writers_draw_ids(
    execute: Execute, database: str, loaded: Mapping[str, Query]
) -> None:
    """Two imports and a writer at once: every id is higher than the one drawn before it."""
    drawn: list[int] = []

    def draw() -> None:
        with psycopg2.connect(database) as writer, writer.cursor() as cursor:
            for _ in range(300):
                cursor.execute("select nextval('movies_id_seq')")
                drawn.extend(cursor.fetchone() or ())
        writer.close()

    def reserve(step: int) -> None:
        with transactions.begin(database, loaded) as transaction:
            for highest in range(step, 100 * step, step):
                transaction.run("reserve_movie_ids", highest=highest)

    threads = [
        threading.Thread(target=draw),
        threading.Thread(target=reserve, args=(500,)),
        threading.Thread(target=reserve, args=(700,)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert drawn == sorted(set(drawn))
    assert execute("select last_value >= 99 * 700 from movies_id_seq") == [(True,)]
