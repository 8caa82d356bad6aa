"""queries/*.sql, which DBAs edit: aiosql loads the files, and their text is checked here.

aiosql takes misspelt names and settings for comments, and reads some texts otherwise than
PostgreSQL does. `load` refuses these; `verification.py` lets PostgreSQL check the rest.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import aiosql
from aiosql.utils import SQLLoadException, SQLParseException

from service.database.query import TIMEOUT_SETTING, AiopgAdapter, Expected, Query, parse_seconds
from service.errors import FileError, OperatorError

# https://www.postgresql.org/docs/current/sql-syntax-lexical.html
BLANK = re.compile(r"(?:\s+|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
TOKEN = re.compile(
    r"""(?P<comment>^[ \t]*--[^\n]* | /\*.*?\*/)
      | (?P<trailing>--[^\n]* | [ \t]+$)
      | (?<!\w)\$(?P<tag>\w*)\$.*?\$(?P=tag)\$
      | \b[eE]'(?:\\.|''|[^'\\])*' | '(?:''|[^'])*' | "(?:""|[^"])*"
      | (?<![:\w]):(?P<parameter>[a-zA-Z_]\w*)
      | (?P<end>;)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
ANY_NAME = re.compile(r"--\s*name\s*:")  # wherever it is, a query begins there for aiosql
NAME = re.compile(
    r"^-- *name *: *([a-z_][a-z0-9_]*)\( *((?:\w+(?: *, *\w+)*)?) *\) *$", re.MULTILINE
)
EXPECTED_NAME = "`-- name: verb_noun(parameter, ...)`"
ANY_SETTING = re.compile(r"(?i)\s*--\s*set.*[:=]")
SETTING = re.compile(r"\s*-- *set *: *([a-z_][a-z0-9_.]*) *= *(?:'([^']*)'|([\w.+/-]+))\s*;?\s*")
# What the service relies on for each statement.
FIXED_SETTINGS = {
    *("timezone", "datestyle", "intervalstyle", "bytea_output", "client_encoding"),
    *("standard_conforming_strings", "role", "session_authorization", "session_replication_role"),
    *("synchronous_commit", "transaction_isolation", "client_min_messages"),
}
MISREAD = (
    "aiosql reads this otherwise than PostgreSQL: write comments on lines of their own,"
    r" '...' in place of $$...$$, '' in place of \', and [1: 2] in place of [1:2]"
)


def load(folder: Path, expected: Mapping[str, Expected]) -> dict[str, Query]:
    """Load every query of the folder; `OperatorError` if one is not as the service expects."""
    queries: dict[str, Query] = {}
    for path in sorted(folder.glob("[!.]*.sql")):  # hidden files are editors' locks
        read = _read_queries(path)
        for query in read:
            if known := queries.get(query.name):
                raise query.make_error(f"{query.name} is already in {known.location}")
            queries[query.name] = query
        queries |= _load_queries(path, read, expected)
    _compare(folder, queries, expected)
    return queries


def read_sql_file(path: Path) -> str:
    """Return the text of the file; line ends and all else stay as they are."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise FileError(path, 1, f"cannot be read: {error.strerror}") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FileError(path, line, "not UTF-8: save the file as UTF-8") from error
    if "\0" in text:
        raise FileError(path, _get_line(text, text.index("\0")), "a NUL character: remove it")
    return text


def _read_queries(path: Path) -> list[Query]:
    """Return the queries as PostgreSQL would read them, but for their parameters."""
    text = read_sql_file(path).replace("\r\n", "\n").replace("\r", "\n")
    names = []
    for found in ANY_NAME.finditer(text):
        if not (name := NAME.match(text, found.start())):
            line = _get_line(text, found.start())
            raise FileError(path, line, f"expected a line {EXPECTED_NAME}")
        names.append(name)
    starts = [*(name.start() for name in names), len(text)]
    if (first := _skip_blank(text)) < starts[0]:
        line = _get_line(text, first)
        raise FileError(path, line, f"expected {EXPECTED_NAME} before any SQL")
    return [_read_query(path, name, end) for name, end in zip(names, starts[1:], strict=True)]


def _read_query(path: Path, name: re.Match[str], end: int) -> Query:
    """Read the query whose text is between its name and `end`."""
    first_line, text = _get_line(name.string, name.start()), name.string[name.end() : end]
    start = _skip_blank(text)
    settings: dict[str, str] = {}
    for token in TOKEN.finditer(text):
        problem = ""
        match = SETTING.fullmatch(token[0])
        if ANY_SETTING.match(token[0]) and bool(match) != (token.start() < start):
            problem = "expected a line like `-- set: work_mem = 8MB` between the name and the SQL"
        elif match:
            setting, value = match[1], match[2] or match[3] or ""
            settings[setting] = value
            if setting in FIXED_SETTINGS or setting.startswith("catalogue."):
                problem = f"{setting} cannot be set here: the service relies on it"
            elif setting == TIMEOUT_SETTING and parse_seconds(value) is None:
                problem = "expected a time like 500ms, 5s or 1min"
        elif token["end"] and _skip_blank(text, token.end()) < len(text):
            problem = f"more SQL after this semicolon: expected a line {EXPECTED_NAME} before it"
        if problem:
            raise FileError(path, first_line + _get_line(text, token.start()) - 1, problem)
    sql = TOKEN.sub(_write_token, text.replace("%", "%%")).rstrip("; \n")
    lines = [n for n, line in enumerate(sql.split("\n"), first_line) if line.strip()]
    return Query(name[1], path, first_line, settings, (*lines,), sql)


def _write_token(token: re.Match[str]) -> str:
    """Return it as the driver should get it."""
    if token["comment"]:
        return "\n" * token[0].count("\n")
    if token["trailing"]:
        return token[0].rstrip()
    return f"%({token['parameter']})s" if token["parameter"] else token[0]


def _load_queries(
    path: Path, read: Sequence[Query], expected: Mapping[str, Expected]
) -> dict[str, Query]:
    """Load the queries of a file; refuse what aiosql reads otherwise than we did."""
    comments = {query.name: query.comment for query in read}
    try:
        # Each file by itself: in a folder, aiosql also reads hidden files.
        loaded = aiosql.from_path(
            path, AiopgAdapter, args=[comments], attribute=None, encoding="utf-8-sig"
        )
    except (SQLLoadException, SQLParseException) as error:
        named = [query.line for query in read if re.search(rf"\b{query.name}\b", str(error))]
        raise FileError(path, named[0], str(error).partition(" at ")[0]) from error
    queries = {}
    for query in read:
        function = getattr(loaded, query.name)
        sql = function.sql.replace(f" {query.comment}", "", 1)
        for line, ours, sent in zip_longest(query.lines, _list_lines(query.sql), _list_lines(sql)):
            if ours != sent:
                raise FileError(path, line or query.line, MISREAD)
        queries[query.name] = replace(
            query,
            parameters=(*function.parameters,),
            sql=function.sql,
            function=function,
            expected=expected.get(query.name),
        )
    return queries


def _list_lines(sql: str) -> list[str]:
    return [line.lstrip() for line in sql.split("\n") if line.strip()]


def _compare(folder: Path, queries: Mapping[str, Query], expected: Mapping[str, Expected]) -> None:
    for name, wanted in expected.items():
        spec = f"{name}({', '.join(wanted.parameters)})"
        if not (found := queries.get(name)):
            raise OperatorError(f"{folder}: no query `-- name: {spec}`, which the service needs")
        if {*found.parameters} != {*wanted.parameters}:
            raise found.make_error(f"expected {spec}, found ({', '.join(found.parameters)})")
        if not wanted.writes and not found.is_read_only:
            what = "expected a line `-- set: transaction_read_only = on` below its name"
            raise found.make_error(f"{name} must only read: {what}")
        if found.timeout == 0 and not wanted.by_command:
            raise found.make_error(f"{name} must have a time limit: requests wait for it")


def _skip_blank(text: str, start: int = 0) -> int:
    """Return where the next SQL begins, behind blanks and comments."""
    blank = BLANK.match(text, start)
    return blank.end() if blank else start


def _get_line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
