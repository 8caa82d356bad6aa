"""The file of rejected rows: one JSON object per line."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from service.errors import CatalogueError, Malformed
from service.movies.rows import FileRow
from service.movies.transfer_files import convert_write_errors, write_file


@contextmanager
def write_rejects(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that adds a line; the file exists only if a line was added.

    The file of an earlier import is replaced or removed. Raises `OperatorError`.
    """
    stream: BinaryIO | None = None
    with ExitStack() as files:

        def add(line: bytes) -> None:
            nonlocal stream
            stream = stream or files.enter_context(write_file(str(path)))
            stream.write(line)

        yield add
    with convert_write_errors(str(path)):
        if not stream and path.is_file():
            path.unlink()


def explain(error: CatalogueError) -> list[str]:
    """Return what is wrong with a row, in the words of the API."""
    if isinstance(error, Malformed) and len(error.failures) == 1:
        return [str(error)]
    return [f"{field}: {detail}" for field, detail in error.failures] or [str(error)]


def to_reject(row: FileRow, reasons: list[str]) -> bytes:
    """Return the line of a rejected row."""
    reject = {"line": row.line, "reasons": reasons, "row": row.given}
    try:
        text = json.dumps(reject, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:  # nested too deep to be written
        text = json.dumps(reject | {"row": None}, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"  # a lone surrogate becomes its escape
