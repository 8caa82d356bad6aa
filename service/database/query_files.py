"""queries/*.sql, which DBAs edit: the loader, and the mistakes that the text alone shows.

`load` refuses them with file and line; `verification.py` lets PostgreSQL check the rest.
"""

import re
from collections.abc import Mapping
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import NoReturn

import aiosql

from service.database.queries import TIMEOUT, AiopgAdapter, Expected, Query, Setting, place
from service.errors import OperatorError

NAME = re.compile(r"^(?P<indent>.*?)--[ \t]*name[ \t]*:[ \t]*(?P<spec>.*)$", re.MULTILINE)
SPEC = re.compile(r"(?P<name>[a-z_][a-z0-9_]*)\((?P<parameters>[a-z0-9_, ]*)\)\s*")
SET = re.compile(r"\s*--[ \t]*set[ \t]*:(?P<setting>.*)")
SETTING = re.compile(
    r"\s*(?P<name>[a-z_][a-z0-9_.]*)\s*=\s*(?:'(?P<quoted>[^']*)'|(?P<value>[\w.+/-]+))\s*;?\s*"
)
# What the service relies on for each statement.
FIXED_SETTINGS = {
    *("timezone", "datestyle", "intervalstyle", "bytea_output", "client_encoding"),
    *("standard_conforming_strings", "role", "session_authorization", "session_replication_role"),
}
# Comments that look like a misspelt `-- name:` or `-- set:` line. As a mere comment, it would be
# ignored without a word.
LIKE_A_NAME = re.compile(
    r"\s*--+\s*(?:(?P<word>\w+)(?:\s*[:;=]\s*|\s+)|[:;=]\s*)"
    r"[A-Za-z_]\w*\((?:\s*\w+\s*(?:,\s*\w+\s*)*)?\)\s*;?\s*"
)
LIKE_A_SET = re.compile(
    r"\s*--+\s*(?:set\w*\s*[^=:]*[:=]|(?P<word>\w{2,4})\s*:.*=).*", re.IGNORECASE
)
# The parts of a statement in which a colon, a quote or a semicolon is only text, and those in which
# it is not (https://www.postgresql.org/docs/current/sql-syntax-lexical.html).
TOKENS = re.compile(
    r"""--[^\n]*
      | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
      | \b[eE]'(?:\\.|''|[^'\\])*'
      | '(?:''|[^'])*' | "(?:""|[^"])*"
      | (?P<parameter>(?<![:\w]):(?P<name>[A-Za-z_]\w*))
      | (?P<end>;)
      | (?P<open>['"]|/\*|\$\$)""",
    re.VERBOSE | re.DOTALL,
)
BLOCK_COMMENT = re.compile(
    r"""\$(?P<tag>\w*)\$.*?\$(?P=tag)\$ | '(?:''|[^'])*' | "(?:""|[^"])*" | --[^\n]*
      | (?P<block>/\*(?:/\*.*?\*/|.)*?\*/)""",
    re.VERBOSE | re.DOTALL,
)


def load(folder: Path, expected: Mapping[str, Expected]) -> dict[str, Query]:
    """Load every query of the folder, and compare them with what the service expects."""
    queries: dict[str, Query] = {}
    for path in sorted(folder.glob("[!.]*.sql")):  # hidden files are editors' locks
        for query in _read(path):
            if known := queries.get(query.name):
                raise query.refuse(f"{query.name} is already in {known.path}:{known.line}")
            queries[query.name] = query
    for name, wanted in expected.items():
        spec = f"{name}({', '.join(wanted.parameters)})"
        if not (found := queries.get(name)):
            for similar in get_close_matches(name, queries.keys() - expected.keys(), 1):
                raise queries[similar].refuse(f"found {similar}, expected `-- name: {spec}`")
            raise OperatorError(f"{folder}: no query `-- name: {spec}`, which the service needs")
        if set(found.parameters) != set(wanted.parameters):
            raise found.refuse(
                f"{name} must take ({', '.join(wanted.parameters)}),"
                f" found ({', '.join(found.parameters)})"
            )
        if not wanted.writes and not found.reads:
            raise found.refuse(
                f"{name} must only read: expected a line"
                " `-- set: transaction_read_only = on` below its name"
            )
    return queries


def _read(path: Path) -> list[Query]:
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        _refuse(path, 1, f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        _refuse(path, raw.count(b"\n", 0, error.start) + 1, "not UTF-8: save the file as UTF-8")
    if "\0" in text:
        _refuse(path, text[: text.index("\0")].count("\n") + 1, "a NUL character: remove it")
    # Of the same length, so that places in the two are the same.
    code = BLOCK_COMMENT.sub(_blank, text)
    _refuse_misspelt(path, code)
    names = list(NAME.finditer(code))
    start = names[0].start() if names else len(code)
    for number, line in enumerate(code[:start].split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("--"):
            _refuse(path, number, "expected `-- name: verb_noun(parameter, ...)` before any SQL")
    if not names:
        _refuse(path, 1, "no query in it: each starts with `-- name: verb_noun(parameter, ...)`")
    ends = [name.start() for name in names[1:]] + [len(text)]
    return [
        _query(path, name, text[: name.end()].count("\n") + 1, text[name.end() : end])
        for name, end in zip(names, ends, strict=True)
    ]


def _query(path: Path, named: re.Match[str], line: int, body: str) -> Query:
    spec = SPEC.fullmatch(named["spec"])
    if not spec or named["indent"]:
        _refuse(path, line, "expected a line `-- name: verb_noun(parameter, ...)`")
    name = spec["name"]
    declared = tuple(p for p in re.split(r"[, ]+", spec["parameters"]) if p)
    settings: dict[str, Setting] = {}
    code = BLOCK_COMMENT.sub(_blank, body)
    start = 0
    for number, text in enumerate(code.split("\n"), line):
        if text.strip() and not text.lstrip().startswith("--"):
            start += len(text) - len(text.lstrip())  # behind a comment that ends on this line
            break
        if match := SET.fullmatch(text.rstrip()):
            setting = _setting(path, number, match["setting"])
            if setting.name in settings:
                _refuse(
                    path,
                    number,
                    f"{setting.name} is already set in line {settings[setting.name].line}",
                )
            settings[setting.name] = setting
        elif (like := LIKE_A_SET.fullmatch(text)) and _is_like(like["word"] or "set", "set"):
            _refuse(path, number, "expected a line `-- set: name = value`")
        start += len(text) + 1
    first_line = line + body.count("\n", 0, start)
    sql, used = _statement(path, first_line, body[start:], code[start:], declared)
    if not sql.strip():
        _refuse(path, line, f"{name} has no SQL")
    if unused := [parameter for parameter in declared if parameter not in used]:
        _refuse(path, line, f"the parameter {unused[0]} is declared but not used")
    # aiosql makes the function. It gets no SQL, and the adapter all of it: aiosql would take text
    # in comments, dollar quotes and array slices for parameters.
    source = f"-- name: {name}()\nselect"
    sent = _with_comment(sql, f"/* {name} {place(path, line)} */")
    run = getattr(aiosql.from_str(source, lambda: AiopgAdapter(sent)), name)
    return Query(name, declared, path, line, (*settings.values(),), sent, first_line, run)


def _with_comment(sql: str, comment: str) -> str:
    """Put the comment behind the first word.

    PostgreSQL 18 cuts off comments in front of a statement in pg_stat_statements.
    """
    return re.sub(r"^\w*", lambda word: f"{word[0]} {comment.replace('%', '%%')}", sql, count=1)


def _statement(
    path: Path, line: int, text: str, code: str, declared: tuple[str, ...]
) -> tuple[str, set[str]]:
    """Return the statement as the driver gets it, and the parameters that it uses.

    That is the text up to the semicolon. `code` is the same without block comments.
    """
    parts: list[str] = []
    used: set[str] = set()
    at, end = 0, len(text.rstrip())
    for token in TOKENS.finditer(code):
        here = line + code.count("\n", 0, token.start())
        if token["open"]:
            _refuse(path, here, f"{token['open']} opens here and is never closed")
        if token["end"]:
            end = token.start()
            if re.sub(r"--[^\n]*", "", code[token.end() :]).strip():
                _refuse(path, here, "expected one statement a query; more follows this semicolon")
            break
        if name := token["name"]:
            if name not in declared:
                _refuse(
                    path, here, f"unknown parameter :{name}; declared are ({', '.join(declared)})"
                )
            used.add(name)
            parts += [text[at : token.start()].replace("%", "%%"), f"%({name})s"]
            at = token.end()
        elif SET.fullmatch(token[0]):
            _refuse(path, here, "expected `-- set:` between the name and the SQL")
    return "".join([*parts, text[at:end].replace("%", "%%")]), used


def _setting(path: Path, line: int, text: str) -> Setting:
    match = SETTING.fullmatch(text)
    if not match:
        _refuse(path, line, "expected `-- set: name = value`, like `-- set: work_mem = 8MB`")
    setting = Setting(match["name"], match["value"] or match["quoted"] or "", line)
    if setting.name in FIXED_SETTINGS or setting.name.startswith("catalogue."):
        _refuse(path, line, f"{setting.name} cannot be set here: the service relies on it")
    if setting.name == TIMEOUT and setting.milliseconds is None:
        _refuse(path, line, "expected a time like 500ms, 5s or 1min")
    return setting


def _refuse_misspelt(path: Path, code: str) -> None:
    for number, line in enumerate(code.split("\n"), 1):
        match = LIKE_A_NAME.fullmatch(line.rstrip())
        if match and not NAME.match(line) and _is_like(match["word"] or "name", "name"):
            _refuse(path, number, "expected a line `-- name: verb_noun(parameter, ...)`")


def _is_like(word: str, meant: str) -> bool:
    return SequenceMatcher(None, word.lower(), meant).ratio() > 0.7  # noqa: PLR2004 - by trial


def _blank(token: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", token[0]) if token["block"] else token[0]


def _refuse(path: Path, line: int, what: str) -> NoReturn:
    raise OperatorError(f"{path}:{line}: {what}")
