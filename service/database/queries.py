"""queries/*.sql, which DBAs edit: the loader and its checks, and aiosql's adapter for aiopg.

`load` refuses, with file and line, the mistakes that the text alone shows; `verification.py` lets
PostgreSQL check the rest before the first request.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import aiopg
import aiosql
from aiosql.adapters.apyformat import AsyncPyFormatAdapter

from service.errors import OperatorError

NAME = re.compile(r"^(?P<indent>.*?)--[ \t]*name[ \t]*:[ \t]*(?P<spec>.*)$", re.MULTILINE)
SPEC = re.compile(r"(?P<name>[a-z_][a-z0-9_]*)\((?P<parameters>[a-z0-9_, ]*)\)\s*")
SET = re.compile(r"\s*--[ \t]*set[ \t]*:(?P<setting>.*)")
SETTING = re.compile(
    r"\s*(?P<name>[a-z_][a-z0-9_.]*)\s*=\s*(?P<quote>'?)(?P<value>[\w.+-]+)(?P=quote)\s*"
)
# Comments that look like a misspelt `-- name:` or `-- set:` line. As a mere comment, it would be
# ignored without a word.
LIKE_A_NAME = re.compile(
    r"\s*--+\s*(?:(?P<word>\w+)(?:\s*[:;=]\s*|\s+)|[:;=]\s*)?"
    r"[A-Za-z_]\w*\((?:\s*\w+\s*(?:,\s*\w+\s*)*)?\)\s*;?\s*"
)
LIKE_A_SET = re.compile(r"\s*--+\s*(?P<word>\w+)\s*:\s*[\w.]+\s*(?:=|to)\s*\S+\s*;?\s*")
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
    r"""'(?:''|[^'])*'|"(?:""|[^"])*"|--[^\n]*|(?P<block>/\*.*?\*/)""", re.DOTALL
)
TIMEOUT = "statement_timeout"
MILLISECONDS = {"": 1, "ms": 1, "s": 1000, "min": 60_000}


class Expected(NamedTuple):
    """What the service relies on in a query.

    `columns`: their names and Python types, in this order. `samples`: parameters as the service
    sends them, which find and change nothing; the query is verified with each of these.
    """

    columns: Mapping[str, Any]
    samples: Sequence[Mapping[str, Any]]
    used_by: str
    writes: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.samples[0])


class Setting(NamedTuple):
    """A line `-- set: name = value`."""

    name: str
    value: str
    line: int

    @property
    def sql(self) -> str:
        """The statement that makes it hold for one transaction."""
        return f"set local {self.name} = '{self.value}'; "


@dataclass(frozen=True)
class Query:
    """One query of a file: `run(session, **parameters)` iterates over its rows."""

    name: str
    parameters: tuple[str, ...]
    path: Path
    line: int  # of its name
    settings: tuple[Setting, ...]
    sql: str  # as it is written, with %(name)s for its parameters, and `comment`
    first_line: int  # where `sql` begins
    run: Callable[..., AsyncIterator[tuple[Any, ...]]]

    @property
    def place(self) -> str:
        """The file and line, as logs and comments show them: `queries/movies.sql:9`."""
        return place(self.path, self.line)

    @cached_property
    def timeout(self) -> float | None:
        """Its own `statement_timeout` in seconds (0: none); None: it has no setting of its own."""
        own = [s for s in self.settings if s.name == TIMEOUT]
        return (_milliseconds(own[0]) or 0) / 1000 if own else None

    @property
    def reads(self) -> bool:
        """Whether it is sent read-only."""
        return any((s.name, s.value) == ("transaction_read_only", "on") for s in self.settings)

    def preamble(self, timeout: float) -> str:
        """What is sent in front of the statement: its name, for pg_stat_activity, and settings."""
        return f"{self._opening}set local {TIMEOUT} = {round(timeout * 1000)}; "

    @cached_property
    def _opening(self) -> str:
        settings = "".join([s.sql for s in self.settings if s.name != TIMEOUT])
        comment = f"/* {self.name} {self.place} */".replace("%", "%%")
        return f"{comment}; set local timezone = 'UTC'; {settings}"

    def refuse(self, what: str, line: int | None = None) -> OperatorError:
        """Say what is wrong with it, and where."""
        return OperatorError(f"{self.path}:{line or self.line}: {what.partition(chr(10))[0]}")


class Session(NamedTuple):
    """A connection, the settings that go in front of a statement, and the driver's time limit.

    `patience` in seconds: in case the server no longer answers, not even with a timeout.
    """

    connection: aiopg.Connection
    preamble: str = ""
    patience: float | None = 10


class AiopgAdapter(AsyncPyFormatAdapter):
    """Runs one statement of aiosql's on a `Session`; `sql` is what the driver gets."""

    def __init__(self, sql: str) -> None:
        super().__init__()
        self._sql = sql

    def process_sql(self, query_name: str, op_type: Any, sql: str) -> str:  # noqa: ARG002 - aiosql's protocol
        """Ours, as aiosql takes text in dollar quotes, comments and slices for parameters."""
        return self._sql

    async def select(
        self,
        conn: Session,
        query_name: str,  # noqa: ARG002 - aiosql's protocol
        sql: str,
        parameters: Any,
        record_class: Any = None,  # noqa: ARG002 - aiosql's protocol
    ) -> AsyncGenerator[Any, None]:
        """Run it and yield its rows, as tuples."""
        async with conn.connection.cursor(timeout=conn.patience) as cursor:
            await cursor.execute(conn.preamble + sql, parameters)
            for row in await cursor.fetchall():
                yield row


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
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"{path}:1: cannot be read as UTF-8: {error}") from error
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
    for number, text in enumerate(code.splitlines(keepends=True), line):
        if text.strip() and not text.lstrip().startswith("--"):
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
        start += len(text)
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


def place(path: Path, line: int) -> str:
    """Name a line of a query file: `queries/movies.sql:9`."""
    return f"{path.parent.name}/{path.name}:{line}"


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
    setting = Setting(match["name"], match["value"], line)
    if setting.name == TIMEOUT and _milliseconds(setting) is None:
        _refuse(path, line, "expected a time like 500ms, 5s or 1min")
    return setting


def _milliseconds(setting: Setting) -> int | None:
    match = re.fullmatch("([0-9]{1,9})(ms|s|min|)", setting.value)
    return int(match[1]) * MILLISECONDS[match[2]] if match else None


def _refuse_misspelt(path: Path, code: str) -> None:
    for number, line in enumerate(code.split("\n"), 1):
        text = line.rstrip()
        if not NAME.match(text) and (match := LIKE_A_NAME.fullmatch(text)):
            if not match["word"] or _is_like(match["word"], "name"):
                _refuse(path, number, "expected a line `-- name: verb_noun(parameter, ...)`")
        elif SET.fullmatch(text) or not (match := LIKE_A_SET.fullmatch(text)):
            continue
        elif _is_like(match["word"], "set"):
            _refuse(path, number, "expected a line `-- set: name = value`")


def _is_like(word: str, meant: str) -> bool:
    return SequenceMatcher(None, word.lower(), meant).ratio() > 0.6  # noqa: PLR2004 - by trial


def _blank(token: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", token[0]) if token["block"] else token[0]


def _refuse(path: Path, line: int, what: str) -> NoReturn:
    raise OperatorError(f"{path}:{line}: {what}")
