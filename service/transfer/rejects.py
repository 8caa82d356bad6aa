"""The file of rejected rows: one JSON object per line."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from service.errors import Invalid, OperatorError
from service.transfer.files import Target
from service.transfer.rows import FileRow


class Rejects:
    """A file that exists only if a row was rejected; the file of an earlier import is removed.

    A link to another file is refused. The usual name is easily guessed: anybody who can write to
    the folder could make an import overwrite that file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._target: Target | None = None

    def add(self, reject: bytes) -> None:
        """Add a line; raises `OperatorError` if it cannot be written."""
        if not self._target:
            self._target = Target(self.path, follows_links=False)
        self.count += 1
        self._target.write(reject)

    def finish(self) -> None:
        """Write everything to disk."""
        if self._target:
            self._target.finish()

    def appear(self) -> None:
        """Give the file its name."""
        if self._target:
            self._target.appear()
        elif self.path.is_file() and not self.path.is_symlink():
            try:
                self.path.unlink()
            except OSError as error:
                raise OperatorError(f"{self.path}: cannot be removed: {error.strerror}") from error

    def discard(self) -> None:
        """Remove what was written."""
        if self._target:
            self._target.discard()


def explain(error: Exception) -> list[str]:
    """Return what is wrong with a row, in the words of the API."""
    if isinstance(error, Invalid):
        return [f"{failure.field}: {failure.detail}" for failure in error.failures]
    return [str(error)]


def to_reject(row: FileRow, reasons: Sequence[str]) -> bytes:
    """Return the line of a rejected row."""
    reject: dict[str, Any] = {"line": row.line, "reasons": reasons, "row": row.given}
    with suppress(TypeError):
        return orjson.dumps(reject, option=orjson.OPT_APPEND_NEWLINE)
    # orjson refuses huge integers and lone surrogates; json refuses deep nesting.
    with suppress(RecursionError):
        return json.dumps(reject).encode() + b"\n"
    return orjson.dumps(reject | {"row": None}, option=orjson.OPT_APPEND_NEWLINE)
