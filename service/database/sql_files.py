"""Reads the text of a .sql file, and names its lines in messages."""

from pathlib import Path
from typing import NoReturn

from service.errors import OperatorError


def read_sql_file(path: Path) -> str:
    """Return the text of the file; line ends and all else stay as they are."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        refuse(path, 1, f"cannot be read: {error.strerror}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        refuse(path, raw.count(b"\n", 0, error.start) + 1, "not UTF-8: save the file as UTF-8")
    if "\0" in text:
        refuse(path, text.count("\n", 0, text.index("\0")) + 1, "a NUL character: remove it")
    return text


def refuse(path: Path, line: int, problem: str) -> NoReturn:
    """Raise an `OperatorError` that names the file and line."""
    raise OperatorError(f"{locate(path, line)}: {problem}")


def locate(path: Path, line: int = 1) -> str:
    """Name a line of a file in a message: `queries/movies.sql:9`; 1 for the file itself."""
    return f"{path.parent.name}/{path.name}:{line}"
