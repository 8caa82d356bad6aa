"""Records in query_tests/calls.json what the queries return, in a new database: `make record`.

A call that has rows keeps the columns of `*`, and the number of their columns if they have less
than half of them: so a new column does not cut the others.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from service import config as settings
from service.app import load_queries
from service.clients.commands import report
from service.database.embedded import running
from service.database.migrations import runner as migrations
from service.database.query import Query
from service.database.query_files import read_sql_file
from service.database.query_testing import CALLS, Call, Placeholders, ResultRows, run_tests
from service.movies.movie import COLUMN_TYPES
from service.telemetry import logs

KINDS = {"id": "id", "owner": "id", "movie_id": "id", "change": "change", "last_id": "change"}
KINDS |= {"transaction": "transaction", "last_transaction": "transaction"}
KINDS |= {"now": "time", "changed_at": "time", "number": "id"}
SAMPLES = {
    "show_transaction": ["transaction", "now"],
    "expire_keys": ["key"],
    "place_changes": ["transaction", "change"],
    "list_samples": [*COLUMN_TYPES],
    "age_clients": ["id"],
}


def record() -> None:
    """Run all calls on the database of config.toml, and write their rows into the file."""
    recorded = list[ResultRows]()

    def judge(call: Call, query: Query, rows: ResultRows, values: Placeholders) -> None:
        columns = query.expected.columns if query.expected else SAMPLES[query.name]
        named = [[name(*cell, values) for cell in zip(columns, row, strict=True)] for row in rows]
        recorded.append(shorten(named, call[2]))

    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "server") as url:
        config = settings.load(Path("config.toml"), {"DATABASE_URL": url})
        logs.configure(config.log)
        migrations.upgrade(url, config.migrations, report)
        run_tests(config, load_queries(config), report, judge)
    document = orjson.loads(read_sql_file(CALLS))
    found = iter(recorded)
    for calls in document["tests"].values():
        for call in (*document["before"], *calls):
            for _ in call[0].split():
                call[2] = next(found)
    CALLS.write_text("\n".join(render(document)) + "\n")


def name(column: str, value: object, values: Placeholders) -> object:
    """Return the name of a value that differs in each run, and any other value as it is."""
    kind = "time" if str(value) == values.get("time 0") else KINDS.get(column)
    if value is None or not kind:
        return value
    names = [name for name in values if name.startswith(kind)]
    known = next((name for name in names if values[name] == str(value)), f"{kind} {len(names)}")
    values[known] = str(value)
    return known


def shorten(found: ResultRows, former: ResultRows) -> ResultRows:
    """Return the rows with the columns of the former ones, and with their `*`."""
    if not former:
        return found
    hidden = ["*" in column for column in zip(*former, strict=True)]
    width = max(map(len, found), default=0)
    if 2 * len(hidden) > width:
        hidden += [False] * (width - len(hidden))
    return [
        [
            "*" if is_hidden and value is not None else value
            for value, is_hidden in zip(row, hidden, strict=False)
        ]
        for row in found
    ]


def render(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the file: one for each default and each call."""
    defaults = [f"{dump(name)}: {dump(value)}" for name, value in document["defaults"].items()]
    tests = [f"{dump(name)}: [\n{join(calls)}\n]" for name, calls in document["tests"].items()]
    yield '{\n"defaults": {\n' + ",\n".join(defaults) + "\n},"
    yield f'"ordinary": {dump(document["ordinary"])},'
    yield f'"before": [\n{join(document["before"])}\n],'
    yield '"tests": {\n' + ",\n".join(tests) + "\n}\n}"


def join(calls: Iterable[object]) -> str:
    """Return a line for each call."""
    return ",\n".join(map(dump, calls))


def dump(value: object) -> str:
    """Return the value as JSON."""
    return orjson.dumps(value).decode()


if __name__ == "__main__":
    record()
