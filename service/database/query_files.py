"""queries/*.sql, which DBAs edit: aiosql loads the files after their text has been checked here.

aiosql's errors have no lines, and it reads some texts otherwise than PostgreSQL does
(aiosql/utils.py, query_loader.py): `load` refuses these with file, line and the expected form.
`verification.py` lets PostgreSQL check the rest.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import aiosql
from aiosql.utils import SQLLoadException, SQLParseException

from service.database.query import TIMEOUT_SETTING, AiopgAdapter, Expected, Query, Setting
from service.database.sql_files import read_sql_file, refuse
from service.errors import OperatorError

# The parts of a file that are not plain SQL; a comment may be a line `-- name:` or `-- set:`.
# https://www.postgresql.org/docs/current/sql-syntax-lexical.html
TOKEN = re.compile(
    r"""(?P<comment>--[^\n]*)
      | (?P<block>/\*.*?\*/)
      | (?P<dollar>(?<!\w)\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
      | (?P<escaped>\b[eE]'(?:\\.|''|[^'\\])*')
      | (?P<quoted>'(?:''|[^'])*' | "(?:""|[^"])*")
      | (?P<slice>(?<=\w):\w+ | (?<!:):[0-9]\w*)
      | (?<!:):(?P<parameter>\w+)
      | (?P<end>;)
      | (?P<open>['"]|/\*|\$\$)""",
    re.VERBOSE | re.DOTALL,
)
# What aiosql reads otherwise than PostgreSQL: in which tokens, the text in them, what to write.
MISREAD = [
    ("trailing", r"""^/\*|['"]|(?<!:):\w""", "expected this comment on lines of its own"),
    ("block", r"(?s:.)/\*|^/\*\+", "expected lines of `--` for a hint or a nested comment"),
    ("dollar", r"""['"]|--|/\*|(?<!:):\w""", "expected single quotes in place of $$"),
    ("escaped", r"\\'.", r"expected '' in place of \'"),
    (
        "dollar escaped quoted",
        r"[^\S\n]\n|\n\s*--",
        r"expected E'\n' in place of a line end in quotes",
    ),
    ("slice", "", "expected a space behind this colon, as in [1: 2]"),
]
NAME = re.compile(r"--[ \t]*name[ \t]*:[ \t]*([a-z_][a-z0-9_]*)\(([a-z0-9_, ]*)\)\s*")
ANY_NAME = re.compile(r"--\s*name\s*:")  # wherever it is, a query begins there for aiosql
OTHER_LINE_END = re.compile("[\v\f\x1c-\x1e\x85\u2028\u2029]")  # lines end there for aiosql
ANY_SETTING = re.compile(r"(?i)--\s*set.*[:=]")
SETTING = re.compile(r"--[ \t]*set[ \t]*:\s*([a-z_][\w.]*)\s*=\s*(?:'([^']*)'|([\w.+/-]+))\s*;?\s*")
# What the service relies on for each statement.
FIXED_SETTINGS = {
    *("timezone", "datestyle", "intervalstyle", "bytea_output", "client_encoding"),
    *("standard_conforming_strings", "role", "session_authorization", "session_replication_role"),
    *("synchronous_commit", "transaction_isolation"),
}
EXPECTED_NAME = "`-- name: verb_noun(parameter, ...)`"

Token = re.Match[str]


def load(folder: Path, expected: Mapping[str, Expected]) -> dict[str, Query]:
    """Load every query of the folder, and compare them with what the service expects."""
    queries: dict[str, Query] = {}
    for path in sorted(folder.glob("[!.]*.sql")):  # hidden files are editors' locks
        checked = _QueryFile(path).check()
        for query in checked:
            if known := queries.get(query.name):
                raise query.make_error(f"{query.name} is already in {known.location}")
            queries[query.name] = query
        loaded = _load(path, {query.name: query.comment for query in checked})
        for query in checked:
            function = getattr(loaded, query.name)
            parameters = tuple(function.parameters)
            queries[query.name] = replace(
                query, parameters=parameters, sql=function.sql, function=function
            )
    _compare(folder, queries, expected)
    return queries


def _load(path: Path, comments: Mapping[str, str]) -> Any:
    try:
        # Each file by itself: in a folder, aiosql also reads hidden files.
        return aiosql.from_path(
            path, AiopgAdapter, args=[comments], attribute=None, encoding="utf-8-sig"
        )
    except (SQLLoadException, SQLParseException, ValueError) as error:
        refuse(path, 1, str(error))


def _compare(folder: Path, queries: Mapping[str, Query], expected: Mapping[str, Expected]) -> None:
    for name, wanted in expected.items():
        spec = f"{name}({', '.join(wanted.parameters)})"
        if not (found := queries.get(name)):
            for similar in get_close_matches(name, queries.keys() - expected.keys(), 1):
                raise queries[similar].make_error(f"found {similar}, expected `-- name: {spec}`")
            raise OperatorError(f"{folder}: no query `-- name: {spec}`, which the service needs")
        if {*found.parameters} != {*wanted.parameters}:
            raise found.make_error(f"expected {spec}, found ({', '.join(found.parameters)})")
        if not wanted.writes and not found.is_read_only:
            raise found.make_error(
                f"{name} must only read: expected a line"
                " `-- set: transaction_read_only = on` below its name"
            )
        if found.timeout == 0 and not wanted.by_command:
            line = next(s.line for s in found.settings if s.name == TIMEOUT_SETTING)
            raise found.make_error(f"{name} must have a time limit: requests wait for it", line)


class _QueryFile:
    """The text of a file; `code` is the same, of the same length, with blanks for comments."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = read_sql_file(path)
        self._text = text.replace("\r\n", "\n").replace("\r", "\n")
        self._tokens = list(TOKEN.finditer(self._text))
        self._code = TOKEN.sub(_blank_comment, self._text)

    def check(self) -> list[Query]:
        """Return the queries; `OperatorError` for the first mistake."""
        if found := OTHER_LINE_END.search(self._text):
            self._refuse(found.start(), f"the character U+{ord(found[0]):04X}: remove it")
        for token in self._tokens:
            # A quote that closes only in a later query was never closed in its own.
            if token["open"] or (not token["comment"] and ANY_NAME.search(token[0])):
                opening = re.sub(r"(?s)^[eE]?(/\*|\$\w*\$|['\"]).*", r"\1", token[0])
                what = f"{opening} opens here and is not closed before the next query"
                self._refuse(token.start(), what)
            self._check_token(token)
        names = [token for token in self._tokens if ANY_NAME.match(token[0])]
        starts = {name.start() for name in names}
        start = len(self._code) - len(self._code.lstrip())
        if start < min(starts, default=len(self._code)):
            self._refuse(start, f"expected {EXPECTED_NAME} before any SQL")
        for found in ANY_NAME.finditer(self._text):
            if found.start() not in starts:
                self._refuse(found.start(), f"expected a line {EXPECTED_NAME}")
        if not names:
            self._refuse(0, f"no query in it: each starts with {EXPECTED_NAME}")
        ends = [name.start() for name in names[1:]] + [len(self._text)]
        return [self._check_query(name, end) for name, end in zip(names, ends, strict=True)]

    def _check_token(self, token: Token) -> None:
        kind = token.lastgroup
        if token["comment"] or token["block"]:
            rest = self._code[token.end() :].partition("\n")[0]
            if (self._get_line_start(self._code, token) + rest).strip():
                kind = "trailing"
            elif token["comment"]:
                return  # aiosql does not read it
        for kinds, pattern, expected in MISREAD:
            if kind in kinds.split() and re.search(pattern, token[0]):
                self._refuse(token.start(), f"{expected}: aiosql would misread it")

    def _check_query(self, named: Token, end: int) -> Query:
        match = NAME.fullmatch(named[0])
        declared = [p.strip() for p in match[2].split(",")] if match and match[2].strip() else []
        are_valid = all(map(str.isidentifier, declared)) and len({*declared}) == len(declared)
        if not match or not are_valid or self._get_line_start(self._text, named):
            self._refuse(named.start(), f"expected a line {EXPECTED_NAME}")
        name = match[1]
        code = self._code[named.end() : end]
        start = end - len(code.lstrip())
        if not code.strip("; \t\n"):
            self._refuse(named.start(), f"{name} has no SQL")
        tokens = [token for token in self._tokens if named.end() <= token.start() < end]
        settings = self._check_settings(token for token in tokens if token.start() < start)
        statement = [token for token in tokens if token.start() >= start]
        self._check_statement(statement, end, declared)
        used = {token["parameter"] for token in statement}
        if unused := [parameter for parameter in declared if parameter not in used]:
            self._refuse(named.start(), f"the parameter {unused[0]} is declared but not used")
        lines = enumerate(code.split("\n"), self._line(named.end()))
        used_lines = tuple(number for number, line in lines if line.strip())
        return Query(name, self._path, self._line(named.start()), settings, used_lines)

    def _check_settings(self, tokens: Iterable[Token]) -> tuple[Setting, ...]:
        settings: dict[str, Setting] = {}
        for token in tokens:
            if not ANY_SETTING.match(token[0]):
                continue
            here = token.start()
            if not (match := SETTING.fullmatch(token[0])):
                self._refuse(here, "expected `-- set: name = value`, like `-- set: work_mem = 8MB`")
            setting = Setting(match[1], match[2] or match[3] or "", self._line(here))
            if setting.name in FIXED_SETTINGS or setting.name.startswith("catalogue."):
                self._refuse(here, f"{setting.name} cannot be set here: the service relies on it")
            if setting.name == TIMEOUT_SETTING and setting.seconds is None:
                self._refuse(here, "expected a time like 500ms, 5s or 1min")
            if known := settings.get(setting.name):
                self._refuse(here, f"{setting.name} is already set in line {known.line}")
            settings[setting.name] = setting
        return (*settings.values(),)

    def _check_statement(self, tokens: Iterable[Token], end: int, declared: list[str]) -> None:
        for token in tokens:
            if token["end"] and self._code[token.end() : end].strip():
                what = f"more SQL after this semicolon: expected a line {EXPECTED_NAME} before it"
                self._refuse(token.start(), what)
            if token["parameter"] and token["parameter"] not in declared:
                what = f"unknown parameter {token[0]}; declared are ({', '.join(declared)})"
                self._refuse(token.start(), what)
            if re.match(r"--\s*set\s*:", token[0]):
                self._refuse(token.start(), "expected `-- set:` between the name and the SQL")

    def _get_line_start(self, text: str, token: Token) -> str:
        return text[: token.start()].rpartition("\n")[2]

    def _line(self, position: int) -> int:
        return self._text.count("\n", 0, position) + 1

    def _refuse(self, position: int, what: str) -> NoReturn:
        refuse(self._path, self._line(position), what)


def _blank_comment(token: Token) -> str:
    is_comment = token["comment"] or token["block"]
    return re.sub(r"[^\n]", " ", token[0]) if is_comment else token[0]
