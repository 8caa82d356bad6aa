"""queries/*.sql, which DBAs edit, through aiosql: the aiopg adapter, the loader and its checks.

`load` refuses, with file and line, what can be told from the text alone; `schema.py` asks
PostgreSQL about the rest before the first request.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import aiopg
import aiosql
from aiosql.adapters.apyformat import AsyncPyFormatAdapter

from service.errors import OperatorError

NAME = re.compile(r"^(?P<indent>.*?)--[ \t]*name[ \t]*:[ \t]*(?P<spec>.*)$", re.MULTILINE)
SPEC = re.compile(r"(?P<name>[a-z_][a-z0-9_]*)\((?P<parameters>[a-z0-9_, ]*)\)\s*")
# What a stretch of SQL is. aiosql takes `:name` for a parameter in all of them but plain quotes
# (https://www.postgresql.org/docs/current/sql-syntax-lexical.html).
TOKENS = re.compile(
    r"""(?P<comment>--[^\n]*)
      | (?P<dollar>\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
      | (?P<escape>\b[eE]'(?:\\.|''|[^'\\])*')
      | (?P<quoted>'(?:''|[^'])*'|"(?:""|[^"])*")
      | (?P<parameter>(?<!:):(?P<name>\w+))
      | (?P<end>;)""",
    re.VERBOSE | re.DOTALL,
)
BLOCK_COMMENT = re.compile(
    r"""'(?:''|[^'])*'|"(?:""|[^"])*"|--[^\n]*|(?P<block>/\*(?!\+).*?\*/)""", re.DOTALL
)


class Expected(NamedTuple):
    """What the service relies on in a query: its parameters, and its columns in this order."""

    parameters: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Query:
    """One query of a file: `run(session, **parameters)` iterates over its rows."""

    name: str
    parameters: tuple[str, ...]
    path: Path
    line: int
    sql: str  # as aiosql prepared it, with %(name)s for its parameters
    lines: tuple[int, ...]  # for each line of `sql`, its line in the file
    run: Callable[..., AsyncIterator[tuple[Any, ...]]]


class Session(NamedTuple):
    """A connection, what goes around each statement in the same message, and the driver's wait.

    `patience` in seconds: for the case that the server is no longer there to tell of a timeout.
    """

    connection: aiopg.Connection
    prefix: str = ""
    suffix: str = ""
    patience: float = 10


class AiopgAdapter(AsyncPyFormatAdapter):
    """What aiosql needs to know of aiopg; its `conn` is a `Session`."""

    def process_sql(self, query_name: str, op_type: Any, sql: str) -> str:
        """`:name` to `%(name)s`, with every other percent sign meant literally."""
        return str(super().process_sql(query_name, op_type, sql.replace("%", "%%")))  # type: ignore[no-untyped-call] # aiosql leaves it untyped

    async def select(
        self,
        conn: Session,
        query_name: str,  # noqa: ARG002 - aiosql's protocol
        sql: str,
        parameters: Any,
        record_class: Any = None,  # noqa: ARG002 - aiosql's protocol
    ) -> AsyncGenerator[Any, None]:
        """Run it and hand over its rows, as tuples."""
        async with conn.connection.cursor(timeout=conn.patience) as cursor:
            await cursor.execute(conn.prefix + sql + conn.suffix, parameters)
            for row in await cursor.fetchall():
                yield row


def load(folder: Path, expected: Mapping[str, Expected]) -> dict[str, Query]:
    """Load every query of the folder, and hold them against what the service expects of them."""
    queries: dict[str, Query] = {}
    for path in sorted(folder.glob("*.sql")):
        for query in _queries(path):
            if known := queries.get(query.name):
                raise fault(
                    path, query.line, f"{query.name} is already in {known.path}:{known.line}"
                )
            queries[query.name] = query
    for name, wanted in expected.items():
        if not (found := queries.get(name)):
            spec = f"{name}({', '.join(wanted.parameters)})"
            raise OperatorError(f"{folder}: no query `-- name: {spec}`, which the service needs")
        if set(found.parameters) != set(wanted.parameters):
            raise fault(
                found.path,
                found.line,
                f"{name} must take ({', '.join(wanted.parameters)}),"
                f" found ({', '.join(found.parameters)})",
            )
    return queries


def _queries(path: Path) -> list[Query]:
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"{path}: cannot be read as UTF-8: {error}") from error
    text = BLOCK_COMMENT.sub(_blank, text)
    names = list(NAME.finditer(text))
    if not names:
        raise fault(
            path, 1, "no query in it: each starts with `-- name: verb_noun(parameter, ...)`"
        )
    ends = [name.start() for name in names[1:]] + [len(text)]
    return [
        _query(path, text.count("\n", 0, name.start()) + 1, name, text[name.end() : end])
        for name, end in zip(names, ends, strict=True)
    ]


def _query(path: Path, line: int, name: re.Match[str], body: str) -> Query:
    spec = SPEC.fullmatch(name["spec"])
    if not spec or name["indent"]:
        raise fault(path, line, "expected a line `-- name: verb_noun(parameter, ...)`")
    declared = tuple(p for p in re.split(r"[, ]+", spec["parameters"]) if p)
    # aiosql drops the lines that are only a comment, and blank ones around the statement.
    kept = [
        (number, text)
        for number, text in enumerate(body.split("\n"), start=line)
        if not text.lstrip().startswith("--")
    ]
    while kept and not kept[0][1].strip():
        del kept[0]
    if not kept:
        raise fault(path, line, f"{spec['name']} has no SQL")
    sql = _checked(path, kept, declared, line)
    source = f"-- name: {spec['name']}({', '.join(declared)})\n{sql}"
    try:
        loaded = aiosql.from_str(source, AiopgAdapter, attribute=None)
    except (aiosql.SQLParseException, aiosql.SQLLoadException) as error:
        raise fault(path, line, str(error)) from error
    run = getattr(loaded, spec["name"])
    return Query(spec["name"], declared, path, line, run.sql, tuple(n for n, _ in kept), run)


def _checked(path: Path, kept: list[tuple[int, str]], declared: tuple[str, ...], line: int) -> str:
    """Return the statement, without its semicolon and what follows.

    Refuse what aiosql would misread, and parameters that do not match the declared ones.
    """
    sql = "\n".join(text for _, text in kept)
    end = len(sql)
    used: set[str] = set()
    for token in TOKENS.finditer(sql):
        at = kept[sql.count("\n", 0, token.start())][0]
        if token.lastgroup in ("comment", "dollar", "escape") and re.search(r"[^:]:\w", token[0]):
            raise fault(
                path, at, f"a colon and a name within {token[0]!r} would be taken for a parameter"
            )
        if token["end"]:
            end = token.start()
            if re.sub(r"--[^\n]*", "", sql[token.end() :]).strip():
                raise fault(path, at, "expected one statement a query; more follows this semicolon")
            break
        if parameter := token["name"]:
            if parameter not in declared:
                raise fault(
                    path,
                    at,
                    f"unknown parameter :{parameter}; declared are ({', '.join(declared)})",
                )
            used.add(parameter)
    if unused := [name for name in declared if name not in used]:
        raise fault(path, line, f"the parameter {unused[0]} is declared but not used")
    return sql[:end]


def _blank(token: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", token[0]) if token["block"] else token[0]


def fault(path: Path, line: int, what: str | None) -> OperatorError:
    """What is wrong with a query file, and where."""
    return OperatorError(f"{path}:{line}: {(what or '').partition(chr(10))[0]}")
