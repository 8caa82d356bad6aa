"""queries/*.sql, which DBAs edit: checks their text, and loads it with aiosql.

aiosql takes misspelt names and settings for comments, so `load` refuses these. `verification.py`
lets PostgreSQL check the rest.

What must stay true: PostgreSQL gets the SQL as it is written, without its comments; what psql would
read in another way is refused, with file and line.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import aiopg
import aiosql
from aiosql.adapters.pyformat import PyFormatAdapter
from aiosql.types import SQLOperationType
from aiosql.utils import SQLLoadException, SQLParseException

from service.database.query import (
    TIMEOUT_SETTING,
    Execution,
    Expected,
    Parameters,
    Query,
    Row,
    parse_seconds,
)
from service.errors import FileError, OperatorError, locate
from service.text_files import decode

# https://www.postgresql.org/docs/current/sql-syntax-lexical.html
# Block comments nest; those that begin with + are hints for pg_hint_plan, and stay in the SQL.
COMMENT_PATTERN = r"--[^\n]* | /\*(?!\+)(?:/\*.*?\*/|(?!/\*|\*/).)*\*/"
BLANK_SQL = re.compile(rf"(?:\s+|{COMMENT_PATTERN})*", re.DOTALL | re.VERBOSE)
# `blank` is not sent, `literal` is hidden from aiosql, and `open` is a mistake.
TOKEN = re.compile(
    rf"""(?P<blank>{COMMENT_PATTERN}|[\v\f])
      | (?P<literal>  # aiosql must not look into it
          /\*\+.*?\*/  # a hint
        | (?<!\w)\$(?P<tag>\w*)\$.*?\$(?P=tag)\$
        | \b[eE]'(?:\\.|''|[^'\\])*' | '(?:''|[^'])*' | "(?:""|[^"])*"
        | ::+ | :(?![a-zA-Z_])  # casts and slices: colons without a parameter
        | [\x1c-\x1e\x85\u2028\u2029]  # lines end there for aiosql
        )
      | (?P<open>/\*|'|"|(?<!\w)\$[a-zA-Z_]*\$)  # it has no end
      | (?P<end>;)""",
    re.VERBOSE | re.DOTALL,
)
ANY_NAME = re.compile(r"^\s*--\s*name\s*:", re.MULTILINE)
NAME_LINE = re.compile(r"(?m)^-- *name *: *([a-z_][a-z0-9_]*)\( *((?:\w+(?: *, *\w+)*)?) *\) *$")
# A comment like `-- nmae: get_movies(ids)`, `-- name; x` or `/* Name get_movies */`, but not like
# `-- Names are compared` or `-- -- name: get_movies(ids)`. Group 1 is `name` with a separator;
# group 2 are other words in front of a `verb_noun` or a `(`, which must be close to "name".
LIKE_A_NAME = re.compile(
    r"(?i)(?:--+|/\*+)[^\w\n-]*"
    r"(?:(name)[^\S\n]*[:;=\uff1a]|(\w[\w ]*?)\b[^\w\n]*\b(?:[a-z0-9]+_\w|[\w.-]+\())"
)
EXPECTED_NAME = "`-- name: verb_noun(parameter, ...)`"
MISSING_NAME = f"expected a line {EXPECTED_NAME} before this SQL"
EXPECTED_SETTING = "expected a line like `-- set: work_mem = 8MB` between the name and the SQL"
ANY_SETTING = re.compile(r"(?i)\s*--\s*set.*[:=]")
SETTING = re.compile(r"\s*-- *set *: *([a-z_][a-z0-9_.]*) *= *(?:'([^']*)'|([\w.+/-]+))\s*;?\s*")
ONE_STATEMENT = "expected one statement, with settings as lines like `-- set: jit = off` before it"
NO_QUERY = re.compile(r"(?i)(?:begin|start|set|reset|savepoint|lock|do)\b")
# What the service relies on for each statement.
FIXED_SETTINGS = {
    "bytea_output",
    "client_encoding",
    "client_min_messages",
    "datestyle",
    "intervalstyle",
    "role",
    "session_authorization",
    "session_replication_role",
    "standard_conforming_strings",
    "synchronous_commit",
    "timezone",
    "transaction_isolation",
}


class AiopgAdapter(PyFormatAdapter):
    """Runs one query of aiosql with aiopg; `comment` names the query.

    aiosql would take comments for documentation, and colons in literals for parameters. So it gets
    what `hide` returns, and `process_sql` puts the literals back.

    For aiosql it is a synchronous adapter, whose `select` returns a coroutine: with an asynchronous
    one, each row would pass through two generators.
    """

    def __init__(self, comment: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._comment = comment
        self._literals: list[str] = []

    def hide(self, sql: str) -> str:
        """Return the SQL without comments, and with a number in quotes for each literal.

        So each quoted text that is left is one of ours: `select 'a:b'` becomes `select '0'`.
        """

        def replace_token(token: re.Match[str]) -> str:
            if token["blank"]:
                return "\n" * token[0].count("\n") or " "
            if token["literal"]:
                self._literals.append(token[0])
                return f"'{len(self._literals) - 1}'"
            return token[0]

        return TOKEN.sub(replace_token, sql.replace("%", "%%"))

    def process_sql(self, query_name: str, op_type: SQLOperationType, sql: str) -> str:
        """Return the SQL for the driver: with placeholders, literals, and the comment.

        The comment is after the first word: PostgreSQL 18 cuts off comments in front of a
        statement in pg_stat_statements. The last semicolon is for psql.
        """
        processed: str = super().process_sql(query_name, op_type, sql.rstrip("; \n"))  # type: ignore[no-untyped-call]
        first_word = re.compile(r"(?:'\d+'\s*)*\w*")  # after hints
        named = first_word.sub(lambda word: f"{word[0]} {self._comment}", processed, count=1)
        return re.sub(r"'(\d+)'", lambda number: self._literals[int(number[1])], named)

    async def select(  # type: ignore[override] # see above
        self,
        conn: tuple[aiopg.Connection, Execution],
        query_name: str,  # noqa: ARG002 - aiosql's protocol
        sql: str,
        parameters: Parameters,
        record_class: object = None,  # noqa: ARG002 - aiosql's protocol
    ) -> list[Row]:
        """Run it and return its rows."""
        connection, execution = conn
        async with connection.cursor(timeout=execution.driver_timeout) as cursor:
            await cursor.execute(execution.preamble + (execution.statement or sql), parameters)
            rows: list[Row] = await cursor.fetchall()
            return rows


def load(folder: Path, expected: Mapping[str, Expected]) -> dict[str, Query]:
    """Load every query of the folder; `OperatorError` if one is not as the service expects."""
    queries: dict[str, Query] = {}
    for path in list_sql_files(folder):
        text = read_sql_file(path).replace("\r\n", "\n").replace("\r", "\n")
        if not (names := _find_names(path, text)):
            raise FileError(path, 1, f"no query: expected a line {EXPECTED_NAME}, or no file")
        ends = [*(name.start() for name in names[1:]), len(text)]
        for name, end in zip(names, ends, strict=True):
            query = _load_query(path, name, end)
            if known := queries.get(query.name):
                raise query.make_error(f"{query.name} is already in {known.location}")
            queries[query.name] = replace(query, expected=expected.get(query.name))
    _compare(folder, queries, expected)
    return queries


def list_sql_files(folder: Path) -> list[Path]:
    """List the files of SQL in the folder, by name; hidden ones are editors' locks."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise OperatorError(f"{folder}: cannot be read: {error.strerror}") from error
    return [path for path in paths if path.suffix == ".sql" and not path.name.startswith(".")]


def read_sql_file(path: Path) -> str:
    """Return the text of the file; line ends and all else stay as they are."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise FileError(path, 1, f"cannot be read: {error.strerror}") from error
    try:
        text = decode(raw)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FileError(path, line, "not UTF-8: save the file as UTF-8") from error
    except ValueError as error:
        raise FileError(path, 1, f"not UTF-8: {error}") from error
    if "\0" in text:
        raise FileError(path, _get_line(text, text.index("\0")), "a NUL character: remove it")
    return text


def _find_names(path: Path, text: str) -> list[re.Match[str]]:
    """Return the lines that name the queries."""
    names = []
    for token in TOKEN.finditer(text):
        line = _get_line(text, token.start())
        if token["open"] or (token["literal"] and ANY_NAME.search(token[0])):
            # A literal with a name in it is a quote that is not closed before the next query.
            raise FileError(path, line, "unterminated quote or comment")
        if name := NAME_LINE.match(text, token.start()):
            names.append(name)
        elif token["blank"] and _is_like_a_name(token[0]):
            raise FileError(path, line, f"expected a line {EXPECTED_NAME}")
    if (first := _skip_blank(text)) < (names[0].start() if names else len(text)):
        raise FileError(path, _get_line(text, first), MISSING_NAME)
    return names


def _read_settings(path: Path, text: str, start: int, end: int) -> Iterator[tuple[str, str]]:
    """Yield the settings of a query, from the comments between its name and its SQL."""
    for comment in TOKEN.finditer(text, start, end):
        problem = ""
        if match := SETTING.fullmatch(comment[0]):
            name, value = match[1], match[2] or match[3] or ""
            if name in FIXED_SETTINGS or name.startswith("catalogue."):
                problem = f"{name} cannot be set here: the service relies on it"
            elif name == TIMEOUT_SETTING and parse_seconds(value) is None:
                problem = "expected a time like 500ms, 5s or 1min"
            yield name, value
        elif ANY_SETTING.match(comment[0]):
            problem = EXPECTED_SETTING
        if problem:
            raise FileError(path, _get_line(text, comment.start()), problem)


def _load_query(path: Path, name: re.Match[str], end: int) -> Query:
    """Load the query whose text is between its name and `end`."""
    text = name.string[:end]
    start = _skip_blank(text, name.end())
    settings = dict(_read_settings(path, text, name.end(), start))
    for token in TOKEN.finditer(text, start):
        if ANY_SETTING.match(token[0]):
            raise FileError(path, _get_line(text, token.start()), EXPECTED_SETTING)
        if token["end"] and (more := _skip_blank(text, token.end())) < end:
            if NO_QUERY.match(text, start):
                raise FileError(path, _get_line(text, start), ONE_STATEMENT)
            what = f"{MISSING_NAME}: a semicolon ends {name[1]}"
            raise FileError(path, _get_line(text, more), what)
    line = _get_line(text, name.start())
    comment = f"/* {name[1]} {locate(path, line)} */"
    adapter = AiopgAdapter(comment)
    try:
        loaded = aiosql.from_str(
            f"{name[0]}\n{adapter.hide(text[start:])}", lambda: adapter, attribute=None
        )
    except (SQLLoadException, SQLParseException) as error:
        raise FileError(path, line, str(error).partition(" at ")[0]) from error
    function = getattr(loaded, name[1])
    return Query(
        name=name[1],
        path=path,
        line=line,
        comment=comment,
        settings=settings,
        sql_line=_get_line(text, start),
        sql=function.sql,
        parameters=(*function.parameters,),
        function=function,
    )


def _compare(folder: Path, queries: Mapping[str, Query], expected: Mapping[str, Expected]) -> None:
    for name, wanted in expected.items():
        parameters = [*wanted.samples[0]]
        spec = f"{name}({', '.join(parameters)})"
        if not (found := queries.get(name)):
            raise OperatorError(f"{folder}: no query `-- name: {spec}`, which the service needs")
        if {*found.parameters} != {*parameters}:
            raise found.make_error(f"expected {spec}, found ({', '.join(found.parameters)})")
        if not wanted.writes and not found.is_read_only:
            what = "expected a line `-- set: transaction_read_only = on` below its name"
            raise found.make_error(f"{name} must only read: {what}")
        if found.timeout == 0 and not wanted.by_command:
            raise found.make_error(f"{name} must have a time limit: requests wait for it")


def _skip_blank(text: str, start: int = 0) -> int:
    """Return where the next SQL begins, after blanks and comments."""
    blank = BLANK_SQL.match(text, start)
    return blank.end() if blank else start


def _is_like_a_name(comment: str) -> bool:
    match = LIKE_A_NAME.match(comment)
    word = (match[1] or match[2]).replace(" ", "").lower() if match else ""
    return bool(get_close_matches(word, ["name"], cutoff=0.75))


def _get_line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
