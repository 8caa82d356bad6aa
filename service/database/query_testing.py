"""Runs queries for DBAs, to test or explain them; all that they do is rolled back.

The tests are in query_tests/calls.json. A test is a list of calls: the names of one or more
queries, their parameters, and the rows that each of them must return. `before` has the calls that
each test begins with. A parameter that a call lacks is the one of `defaults`, or null. A row may
lack its last columns, and `*` is any value but null. Ids, transactions and times differ in each
run, so rows and parameters have names for them: the first row with a name gives it the value that
is found. A test that a rule of the DBA's own or the login's privileges prevent is run again, with
the values of `ordinary` for extreme ones.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psycopg2
from psycopg2 import errors as postgres

from service.config import Config, Database
from service.database import query_files
from service.database.query import (
    TIMEOUT_SETTING,
    Parameters,
    Query,
    describe_error,
    translate_error,
)
from service.database.transactions import BEGIN_TESTING, Transaction, begin
from service.errors import FileError, OperatorError, Unavailable

TESTS_FOLDER = Path(__file__).with_name("query_tests")
CALLS = TESTS_FOLDER / "calls.json"
WORD = "qxzvjwk"  # in the samples only
SHARED = {"count_genres", "list_clients"}  # also return rows of others
PLACEHOLDER = re.compile(r"\b(?:id|change|transaction|time) \d+\b")
# The machine may be busy. What is rolled back must not wait for others: its own locks delay them
# meanwhile.
MIN_TIMEOUT_S = 10
OTHERWISE = "; if this query is right, one that the test called before it is wrong"
MAX_AFFECTED = 20  # movies, by one statement

ResultRows = Sequence[Sequence[object]]
Call = tuple[str, Parameters, ResultRows]
Placeholders = dict[str, str]  # by their names
Judge = Callable[[Call, Query, ResultRows, Placeholders], None]


def compare(call: Call, query: Query, rows: ResultRows, values: Placeholders) -> None:
    """Raise a `FileError` that names the query and the first difference from the call's rows."""
    prefix = f"{query.name} {_dump(call[1]):.200}"
    if len(rows) != len(call[2]):
        what = f"expected {len(call[2])} rows, found {len(rows)}"
        raise query.make_error(f"{prefix}: {what}{OTHERWISE}")
    columns = query.expected.columns if query.expected else [f"column {n}" for n in range(1, 10)]
    for number, cells in enumerate(zip(rows, call[2], strict=True)):
        for column, found, expected in zip(columns, *cells, strict=False):
            if PLACEHOLDER.fullmatch(str(expected)):
                is_same = values.setdefault(str(expected), str(found)) == str(found)
            else:
                is_same = found is not None if expected == "*" else found == expected
            if not is_same:
                what = f"expected {_dump(expected)}, found {_dump(found)}"
                raise query.make_error(f"{prefix}: {column} of row {number}: {what}{OTHERWISE}")


def run_tests(
    config: Config,
    queries: Mapping[str, Query],
    report: Callable[[str], None],
    judge: Judge = compare,
) -> bool:
    """Run the tests, `report` those that cannot run, and return whether the login may run all."""
    may_run_all = True
    text = query_files.read_sql_file(CALLS)
    document = orjson.loads(text)
    extremes = re.compile(rf"\b(?:{'|'.join(document['ordinary'])})\b")
    ordinary = orjson.loads(extremes.sub(lambda value: document["ordinary"][value[0]], text))
    sent = {}
    for name, query in {**queries, **query_files.load(TESTS_FOLDER, {})}.items():
        timeout_ms = round(max(query.timeout or 0, MIN_TIMEOUT_S) * 1000)
        settings = {TIMEOUT_SETTING: str(timeout_ms), "lock_timeout": "2s"}
        if name == "export_movies":
            settings["enable_indexscan"] = "off"  # it may hide that the order is missing
        sent[name] = replace(query, settings={**query.settings, **settings})
    for test in document["tests"]:
        if test.startswith("changes") and not config.changes.keep_days:
            report(f"not tested: {test}: the feed is off")
            continue
        run = partial(_run_test, config.database.url, sent, test, judge)
        if refusal := run(document):
            what = "not tested" if run(ordinary) else "not tested with extreme values"
            report(f"{what}: {test}: {describe_error(refusal)}")
            may_run_all &= not isinstance(refusal, postgres.InsufficientPrivilege)
    return may_run_all


def _run_test(
    url: str, sent: Mapping[str, Query], test: str, judge: Judge, document: Mapping[str, Any]
) -> Exception | None:
    """Run a test; return the refusal by the login's privileges or by a rule of the DBA's own."""
    values: Placeholders = {}
    with begin(url, sent, start=BEGIN_TESTING) as transaction:
        tested: Query | None = None  # the last query of the service
        try:
            for call in (*document["before"], *document["tests"][test]):
                parameters = {**document["defaults"], **call[1]}
                for query in map(sent.__getitem__, call[0].split()):
                    judge(call, query, _run_query(transaction, query, parameters, values), values)
                    tested = query if query.expected else tested
        except FileError as error:
            if refusal := _find_own_rule(error, query, transaction, sent["get_schema_faults"].sql):
                return refusal
            if query.expected or not tested:
                raise
            # The query is one of `TESTS_FOLDER`, which is right.
            what = f"{tested.name}, or a query that the test called before it, is wrong: {error}"
            raise tested.make_error(what) from error
        except postgres.InsufficientPrivilege as error:
            return error
    return None


def _find_own_rule(
    error: FileError, query: Query, transaction: Transaction, needed: str
) -> Exception | None:
    """Return the refusal of samples by a rule that is none of `needed`."""
    cause = error.__cause__
    if isinstance(cause, psycopg2.IntegrityError | postgres.RaiseException):
        # A column without a default could not be filled by requests, either.
        is_needed = f"'{cause.diag.constraint_name}'" in needed
        is_fault = is_needed or isinstance(cause, postgres.NotNullViolation) or query.is_read_only
        return None if is_fault else cause
    is_list = not cause and "movie_matches" in query.sql
    is_hidden = is_list and transaction.run("find_hidden_samples")
    return OperatorError("movie_matches hides samples from lists") if is_hidden else None


def _run_query(
    transaction: Transaction, query: Query, parameters: Parameters, values: Placeholders
) -> ResultRows:
    """Run the query; return its rows in an order that does not differ, with values as in JSON."""
    filled = {name: _fill(parameters.get(name), values) for name in query.parameters}
    try:
        if query.is_read_only:  # a transaction that was read-only cannot write any more
            transaction.execute("savepoint reading")
        rows = transaction.run(query.name, filled, max_affected=MAX_AFFECTED)
        if query.is_read_only:
            transaction.execute("rollback to savepoint reading; release savepoint reading")
    except psycopg2.Error as error:
        if isinstance(unavailable := translate_error(query, error), Unavailable):
            raise unavailable from error
        is_denied = isinstance(error, postgres.InsufficientPrivilege)
        if is_denied and (not query.expected or query.expected.by_command):
            raise
        raise query.make_error(f"{query.name}: {describe_error(error, details=True)}") from error
    if query.name in SHARED:
        rows = [row for row in rows if WORD in repr(row).lower()]
    if not (query.expected and query.expected.in_order):
        rows.sort(key=lambda row: [(value is not None, value) for value in row])
    return [[str(v) if isinstance(v, datetime | float) else v for v in row] for row in rows]


def _fill(parameter: object, values: Placeholders) -> object:
    """Return what is sent: lists and objects as JSON, and values in place of their names."""
    text = _dump(parameter) if isinstance(parameter, list | dict) else parameter
    return PLACEHOLDER.sub(lambda name: values[name[0]], text) if isinstance(text, str) else text


def _dump(value: object) -> str:
    return orjson.dumps(value).decode()


def explain_query(
    settings: Database, query: Query, parameters: Mapping[str, str], *, analyze: bool
) -> list[str]:
    """Return the lines of the plan; `analyze`: run the query, too.

    `parameters`: text as in SQL literals; those that are missing are null. `OperatorError` if
    PostgreSQL refuses it.
    """
    timeout = settings.statement_timeout if query.timeout is None else query.timeout
    options = "analyze, buffers" if analyze else "costs"
    explained = replace(
        query,
        sql=f"explain ({options}) {query.sql}",
        settings={**query.settings, TIMEOUT_SETTING: f"{round(timeout * 1000)}"},
    )
    with begin(settings.url, {query.name: explained}) as transaction:
        try:
            lines = transaction.run(query.name, dict.fromkeys(query.parameters) | dict(parameters))
        except psycopg2.Error as error:
            raise query.make_error(f"{query.name}: {describe_error(error)}") from error
    return [line for (line,) in lines]
