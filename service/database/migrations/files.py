"""migrations/*.sql: names and format of the files, without a database.

The format is dbmate's (https://github.com/amacneil/dbmate#creating-migrations): both tools run the
same files. A process that only serves needs `list_versions`, but neither alembic nor SQLAlchemy.
"""

import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, NoReturn

from service.database.sql_files import locate, read_sql_file
from service.errors import OperatorError

Report = Callable[[str], None]  # takes one line for the operator

TIMESTAMP = "%Y%m%d%H%M%S"
FILE_NAME = re.compile(r"([0-9]{14})_[a-z0-9]+(?:_[a-z0-9]+)*\.sql")
NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
MARKER = re.compile(r"--\s*migrate:(up|down)((?:\s+\S+)*)\s*")
# Looser on purpose: PostgreSQL takes a misspelt or indented marker for a comment, and would run
# the down section as a part of the up section.
LIKE_A_MARKER = re.compile(r"\s*--\s*migrate\s*:", re.IGNORECASE)
COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
TRANSACTION = {(): True, ("transaction:true",): True, ("transaction:false",): False}
TEMPLATE = """\
-- What this changes, and why.
--
-- Each section runs in one transaction. What PostgreSQL refuses in one (create index concurrently)
-- is the only statement of its file, and transaction:false follows the marker.

-- migrate:up


-- migrate:down

"""


class Section(NamedTuple):
    """The SQL below a marker; `line` is its first line in the file, counted from 1."""

    sql: str
    line: int
    is_transactional: bool

    @property
    def is_empty(self) -> bool:
        """Whether the section has no statement: the driver refuses to send an empty one."""
        return not COMMENT.sub("", self.sql).strip("; \t\r\n\f\v")


class Migration(NamedTuple):
    """One file; `version` is its 14 digits, `name` the words after them.

    `checksum` is the SHA-256 of its text in hex, the same for any line ends.
    """

    version: str
    name: str
    path: Path
    checksum: str
    up: Section
    down: Section | None


def read(folder: Path) -> list[Migration]:
    """Read all migrations in their order; raise `OperatorError` for the first fault."""
    return [_parse_file(path) for path in _list_files(folder)]


def list_versions(folder: Path) -> list[str]:
    """Return the versions of all migrations in their order, from the names alone."""
    return [path.name[:14] for path in _list_files(folder)]


def create(folder: Path, name: str) -> Path:
    """Write an empty migration, newer than all others; `name` is like add_index_on_titles."""
    if not NAME.fullmatch(name):
        raise OperatorError(
            f"{name!r} is not a name of a migration: expected lower-case words joined by _, "
            "like add_index_on_titles"
        )
    moment = datetime.now(UTC)
    if existing := list_versions(folder):
        newest = datetime.strptime(existing[-1], TIMESTAMP).replace(tzinfo=UTC)
        moment = max(moment, newest + timedelta(seconds=1))
    path = folder / f"{moment.strftime(TIMESTAMP)}_{name}.sql"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except OSError as error:
        raise OperatorError(f"{locate(path)}: cannot be written: {error.strerror}") from error
    return path


def _list_files(folder: Path) -> list[Path]:
    try:
        paths = sorted(
            path
            for path in folder.iterdir()
            # Hidden files are those of editors: for Emacs, .#<name>.sql is a lock.
            if path.name.endswith(".sql") and not path.name.startswith(".")
        )
    except OSError as error:
        raise OperatorError(f"{folder}: cannot be read: {error.strerror}") from error
    for path in paths:
        if not _is_well_named(path.name):
            form = "<14 digits: UTC timestamp>_<lower-case words joined by _>.sql"
            _refuse(path, 1, f"expected the name {form}")
    for earlier, path in pairwise(paths):
        if earlier.name[:14] == path.name[:14]:
            _refuse(path, 1, f"{earlier.name} has the same timestamp: change one of them")
    return paths


def _is_well_named(name: str) -> bool:
    match = FILE_NAME.fullmatch(name)
    try:
        return bool(match and datetime.strptime(match[1], TIMESTAMP).replace(tzinfo=UTC))
    except ValueError:
        return False


def _parse_file(path: Path) -> Migration:
    text = read_sql_file(path, _refuse)
    lines = text.split("\n")
    markers: dict[str, tuple[int, bool]] = {}  # by direction: the line, and whether a transaction
    for number, line in enumerate(lines, 1):
        if LIKE_A_MARKER.match(line):
            direction, transaction = _parse_marker(path, number, line)
            if direction in markers:
                _refuse(path, number, f'a second "-- migrate:{direction}": expected one per file')
            if direction == "down" and not markers:
                _refuse(path, number, 'expected "-- migrate:up" before "-- migrate:down"')
            markers[direction] = (number, transaction)
        elif not markers and line.strip() and not line.lstrip().startswith("--"):
            _refuse(path, number, 'only -- comments are allowed before "-- migrate:up"')
    if not markers:
        _refuse(path, 1, 'expected a line "-- migrate:up" before the SQL')
    ends = [number - 1 for number, _ in [*markers.values()][1:]] + [len(lines)]
    up, *down = (
        _cut_section(lines, *marker, end)
        for marker, end in zip(markers.values(), ends, strict=True)
    )
    checksum = hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()
    return Migration(path.name[:14], path.stem[15:], path, checksum, up, down[0] if down else None)


def _parse_marker(path: Path, number: int, line: str) -> tuple[str, bool]:
    match = MARKER.fullmatch(line)
    if match is None:
        _refuse(
            path, number, 'expected "-- migrate:up" or "-- migrate:down" at the start of a line'
        )
    options = tuple(match[2].split())
    if options not in TRANSACTION:
        _refuse(path, number, f'unknown option "{match[2].strip()}": expected transaction:false')
    return match[1], TRANSACTION[options]


def _cut_section(lines: list[str], start: int, transaction: bool, end: int) -> Section:  # noqa: FBT001 - of a tuple
    while start < end and not lines[start].strip():
        start += 1
    return Section("\n".join(lines[start:end]).rstrip(), start + 1, transaction)


def _refuse(path: Path, line: int, expected: str) -> NoReturn:
    raise OperatorError(f"{locate(path, line)}: {expected}")
