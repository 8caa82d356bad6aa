"""migrations/*.sql: names and format of the files, without a database.

The format is dbmate's (https://github.com/amacneil/dbmate#creating-migrations): both tools run the
same files. A process that only serves needs `list_versions`, but neither alembic nor SQLAlchemy.
"""

import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from service.database.query_files import read_sql_file
from service.errors import FileError, OperatorError

Report = Callable[[str], None]  # takes one line for the operator

FILE_NAME = re.compile(r"[0-9]{14}_[a-z0-9]+(?:_[a-z0-9]+)*\.sql")
MARKER = re.compile(r"--\s*migrate:(up|down)(?:\s+transaction:(true|false))?\s*")
# Looser on purpose: PostgreSQL takes a misspelt or indented marker for a comment, and would run
# the down section as a part of the up section.
LIKE_A_MARKER = re.compile(r"^([ \t]*--[ \t]*migrate[ \t]*:.*)$", re.IGNORECASE | re.MULTILINE)
MARKERS_FORM = (
    'expected "-- migrate:up", then at most one "-- migrate:down", each at the start of a line, '
    "with no other option than transaction:false"
)
LIKE_REPLACES = re.compile(r"^\s*--\s*replaces?\s*:", re.IGNORECASE | re.MULTILINE)
COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
REPLACES = re.compile(r"--[ \t]*replaces:[ \t]*([0-9]{14})\.\.([0-9]{14})\b([^\r\n]*)")


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
    """One file; `before` is the version of the file before it."""

    version: str  # 14 digits
    before: str | None
    name: str  # the words after the digits
    path: Path
    checksum: str  # SHA-256 of the text in hex, the same for any line ends
    up: Section
    down: Section | None
    replaces: tuple[str, str, str] | None  # versions of former files, from .. to; their release

    def has_replaced(self, version: str) -> bool:
        """Whether the file replaces the one with this version."""
        return bool(self.replaces and self.replaces[0] <= version <= self.replaces[1])


def read(folder: Path) -> list[Migration]:
    """Read all migrations in their order; raise `OperatorError` for the first fault."""
    paths = _list_files(folder)
    before = [None, *(path.name[:14] for path in paths)]
    return [_parse_file(*pair) for pair in zip(paths, before, strict=False)]


def list_versions(folder: Path) -> list[str]:
    """Return the versions of all migrations in their order, from the names alone."""
    return [path.name[:14] for path in _list_files(folder)]


def create(folder: Path, name: str) -> Path:
    """Write an empty migration, newer than all others; `name` is like add_index_on_titles."""
    now = f"{datetime.now(UTC):%Y%m%d%H%M%S}"
    following = [str(int(version) + 1) for version in list_versions(folder)]
    file_name = f"{max([now, *following])}_{name}.sql"
    if not FILE_NAME.fullmatch(file_name):
        raise OperatorError(
            f"{name!r}: expected lower-case words joined by _, like add_genre_index"
        )
    path = folder / file_name
    path.write_text(
        "-- What this changes, and why.\n\n-- migrate:up\n\n\n-- migrate:down\n\n", "utf-8"
    )
    return path


def _list_files(folder: Path) -> list[Path]:
    try:
        paths = sorted(
            path
            for path in folder.iterdir()
            # Editors make hidden files: .#<name>.sql is a lock of Emacs.
            if path.name.endswith(".sql") and not path.name.startswith(".")
        )
    except OSError as error:
        raise OperatorError(f"{folder}: cannot be read: {error.strerror}") from error
    for path in paths:
        if not FILE_NAME.fullmatch(path.name):
            form = "<14 digits: UTC timestamp>_<lower-case words joined by _>.sql"
            raise FileError(path, 1, f"expected the name {form}")
    for earlier, path in pairwise(paths):
        if earlier.name[:14] == path.name[:14]:
            raise FileError(path, 1, f"{earlier.name} has the same timestamp: change one of them")
    return paths


def _parse_file(path: Path, before: str | None) -> Migration:
    text = read_sql_file(path)
    comments, *marked = LIKE_A_MARKER.split(text)
    for number, line in enumerate(comments.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("--"):
            raise FileError(path, number, 'only -- comments are allowed before "-- migrate:up"')
    replaces = REPLACES.match(comments)
    if LIKE_REPLACES.search(comments) and not (replaces and replaces[1] <= replaces[2]):
        raise FileError(path, 1, 'expected "-- replaces: <first>..<last version>" in line 1')
    sections: list[Section] = []
    number = comments.count("\n") + 1
    for found, sql in zip(marked[::2], marked[1::2], strict=True):
        marker = MARKER.fullmatch(found)
        if not marker or marker[1] != ("up", "down", None)[len(sections)]:
            raise FileError(path, number, MARKERS_FORM)
        start = number + sql[: len(sql) - len(sql.lstrip())].count("\n")
        sections.append(Section(sql.strip(), start, marker[2] != "false"))
        number += sql.count("\n")
    if not sections:
        raise FileError(path, 1, MARKERS_FORM)
    down = sections[1] if sections[1:] else None
    checksum = hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()
    version, name = path.name[:14], path.stem[15:]
    former = (replaces[1], replaces[2], replaces[3].strip()) if replaces else None
    return Migration(version, before, name, path, checksum, sections[0], down, former)
