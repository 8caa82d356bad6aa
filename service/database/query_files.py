"""queries/*.sql, which DBAs edit: the loader, and the mistakes that the text alone shows.

`load` refuses them with file and line; `verification.py` lets PostgreSQL check the rest.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import NoReturn

import aiosql

from service.database.queries import TIMEOUT_SETTING, AiopgAdapter, Expected, Query, Setting
from service.database.sql_files import locate, read_sql_file
from service.errors import OperatorError

# The parts of a file that are not plain SQL; a comment may be a line `-- name:` or `-- set:`.
# https://www.postgresql.org/docs/current/sql-syntax-lexical.html
TOKEN = re.compile(
    r"""(?P<block>/\*(?:/\*.*?\*/|.)*?\*/)
      | (?P<comment>--+[ \t]*(?P<word>\w*)[ \t]*(?P<sign>[:;=]?)[ \t]*(?P<rest>[^\n]*))
      | (?P<quoted>\$(?P<tag>\w*)\$.*?\$(?P=tag)\$
        | \b[eE]'(?:\\.|''|[^'\\])*' | '(?:''|[^'])*' | "(?:""|[^"])*")
      | (?<![:\w]):(?P<parameter>[A-Za-z_]\w*)
      | (?P<end>;)
      | (?P<open>['"]|/\*|\$\$)""",
    re.VERBOSE | re.DOTALL,
)
NAME = re.compile(r"--[ \t]*name[ \t]*:[ \t]*([a-z_][a-z0-9_]*)\(([a-z0-9_, ]*)\)\s*")
SETTING = re.compile(r"--[ \t]*set[ \t]*:\s*([a-z_][\w.]*)\s*=\s*(?:'([^']*)'|([\w.+/-]+))\s*;?\s*")
CALL = re.compile(r"[A-Za-z_]\w*\([\w\s,]*\)\s*;?\s*")
SIMILARITY = 0.7  # of two words, from 0 to 1; by trial
# What the service relies on for each statement.
FIXED_SETTINGS = {
    *("timezone", "datestyle", "intervalstyle", "bytea_output", "client_encoding"),
    *("standard_conforming_strings", "role", "session_authorization", "session_replication_role"),
}

Token = re.Match[str]


def load(folder: Path, expected: Mapping[str, Expected]) -> dict[str, Query]:
    """Load every query of the folder, and compare them with what the service expects."""
    queries: dict[str, Query] = {}
    for path in sorted(folder.glob("[!.]*.sql")):  # hidden files are editors' locks
        for query in _QueryFile(path).parse():
            if known := queries.get(query.name):
                raise query.make_error(f"{query.name} is already in {known.path}:{known.line}")
            queries[query.name] = query
    for name, wanted in expected.items():
        spec = f"{name}({', '.join(wanted.parameters)})"
        if not (found := queries.get(name)):
            for similar in get_close_matches(name, queries.keys() - expected.keys(), 1):
                raise queries[similar].make_error(f"found {similar}, expected `-- name: {spec}`")
            raise OperatorError(f"{folder}: no query `-- name: {spec}`, which the service needs")
        if set(found.parameters) != set(wanted.parameters):
            raise found.make_error(
                f"{name} must take ({', '.join(wanted.parameters)}),"
                f" found ({', '.join(found.parameters)})"
            )
        if not wanted.writes and not found.is_read_only:
            raise found.make_error(
                f"{name} must only read: expected a line"
                " `-- set: transaction_read_only = on` below its name"
            )
    return queries


class _QueryFile:
    """The text of a file; `code` is the same, of the same length, with blanks for comments."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = read_sql_file(path, _refuse)
        self._text = text.replace("\r\n", "\n").replace("\r", "\n")
        self._tokens = list(TOKEN.finditer(self._text))
        self._code = TOKEN.sub(_blank_comment, self._text)

    def parse(self) -> list[Query]:
        """Return the queries; `OperatorError` for the first mistake."""
        for token in self._tokens:
            # A quote that closes only in a later query was never closed in its own.
            if token["open"] or re.search(r"\n--[ \t]*name[ \t]*:", token["quoted"] or ""):
                opening = re.sub(r"(?s)^[eE]?(\$\w*\$|/\*|['\"]).*", r"\1", token[0])
                self._refuse(token.start(), f"{opening} opens here and is never closed")
        names = [token for token in self._tokens if _is_name(token)]
        start = len(self._code) - len(self._code.lstrip())
        if start < (names[0].start() if names else len(self._code)):
            self._refuse(start, "expected `-- name: verb_noun(parameter, ...)` before any SQL")
        if not names:
            self._refuse(0, "no query in it: each starts with `-- name: verb_noun(parameter, ...)`")
        ends = [name.start() for name in names[1:]] + [len(self._text)]
        return [self._parse_query(name, end) for name, end in zip(names, ends, strict=True)]

    def _parse_query(self, named: Token, end: int) -> Query:
        match = NAME.fullmatch(named[0])
        if not match or self._text[: named.start()].rpartition("\n")[2]:
            self._refuse(named.start(), "expected a line `-- name: verb_noun(parameter, ...)`")
        name, line = match[1], self._line(named.start())
        declared = tuple(p for p in re.split(r"[, ]+", match[2]) if p)
        code = self._code[named.end() : end]
        start = end - len(code.lstrip())
        if not code.strip("; \t\n"):
            self._refuse(named.start(), f"{name} has no SQL")
        tokens = [token for token in self._tokens if named.end() <= token.start() < end]
        settings = self._parse_settings(token for token in tokens if token.start() < start)
        statement = [token for token in tokens if token.start() >= start]
        sql = self._parse_statement(statement, start, end, declared)
        used = {token["parameter"] for token in statement}
        if unused := [parameter for parameter in declared if parameter not in used]:
            self._refuse(named.start(), f"the parameter {unused[0]} is declared but not used")
        # Behind the first word: PostgreSQL 18 cuts off comments in front of a statement in
        # pg_stat_statements.
        comment = f"/* {name} {locate(self._path, line)} */".replace("%", "%%")
        sql = re.sub(r"^\w*", lambda word: f"{word[0]} {comment}", sql, count=1)
        # aiosql makes the function. It gets no SQL, and the adapter all of it: aiosql would take
        # text in comments, dollar quotes and array slices for parameters.
        source = f"-- name: {name}()\nselect"
        run = getattr(aiosql.from_str(source, lambda: AiopgAdapter(sql)), name)
        return Query(name, declared, self._path, line, settings, sql, self._line(start), run)

    def _parse_settings(self, tokens: Iterable[Token]) -> tuple[Setting, ...]:
        settings: dict[str, Setting] = {}
        for token in tokens:
            if not _is_setting(token):
                continue
            here = token.start()
            if not (match := SETTING.fullmatch(token[0])):
                self._refuse(here, "expected `-- set: name = value`, like `-- set: work_mem = 8MB`")
            setting = Setting(match[1], match[2] or match[3] or "", self._line(here))
            if setting.name in FIXED_SETTINGS or setting.name.startswith("catalogue."):
                self._refuse(here, f"{setting.name} cannot be set here: the service relies on it")
            if setting.name == TIMEOUT_SETTING and setting.milliseconds is None:
                self._refuse(here, "expected a time like 500ms, 5s or 1min")
            if known := settings.get(setting.name):
                self._refuse(here, f"{setting.name} is already set in line {known.line}")
            settings[setting.name] = setting
        return (*settings.values(),)

    def _parse_statement(
        self, tokens: Iterable[Token], start: int, end: int, declared: tuple[str, ...]
    ) -> str:
        """Return the text up to the semicolon as the driver gets it: `%(name)s` for parameters."""
        sql = ""
        end = len(self._text[:end].rstrip())
        for token in tokens:
            if token["end"]:
                if self._code[token.end() : end].strip():
                    what = "expected one statement per query; there is more after this semicolon"
                    self._refuse(token.start(), what)
                end = token.start()
                break
            if name := token["parameter"]:
                if name not in declared:
                    what = f"unknown parameter :{name}; declared are ({', '.join(declared)})"
                    self._refuse(token.start(), what)
                sql += self._text[start : token.start()].replace("%", "%%") + f"%({name})s"
                start = token.end()
            elif (token["word"], token["sign"]) == ("set", ":"):
                self._refuse(token.start(), "expected `-- set:` between the name and the SQL")
        return sql + self._text[start:end].replace("%", "%%")

    def _line(self, position: int) -> int:
        return self._text.count("\n", 0, position) + 1

    def _refuse(self, position: int, what: str) -> NoReturn:
        _refuse(self._path, self._line(position), what)


def _is_name(token: Token) -> bool:
    """Whether a comment names a query, or is misspelt: then it would have no effect."""
    word, sign = token["word"], token["sign"]
    if (word, sign) == ("name", ":"):
        return True
    is_similar = _is_similar(word, "name") if word else bool(sign)
    return is_similar and bool(CALL.fullmatch(token["rest"]))


def _is_setting(token: Token) -> bool:
    """Whether a comment is a setting, or is misspelt."""
    word = (token["word"] or "").lower()
    if word.startswith("set"):
        return ":" in token[0] or "=" in token[0]
    return token["sign"] == ":" and "=" in token["rest"] and _is_similar(word, "set")


def _is_similar(word: str, meant: str) -> bool:
    return SequenceMatcher(None, word.lower(), meant).ratio() > SIMILARITY


def _blank_comment(token: Token) -> str:
    is_comment = token["block"] or token["comment"]
    return re.sub(r"[^\n]", " ", token[0]) if is_comment else token[0]


def _refuse(path: Path, line: int, what: str) -> NoReturn:
    raise OperatorError(f"{path}:{line}: {what}")
