"""Rows that were not imported, for a file: one JSON object a line."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from service.errors import Invalid, OperatorError
from service.transfer.files import Target
from service.transfer.rows import Row


class Rejects:
    """A file that there is only where a row was rejected; what an earlier import left goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._target: Target | None = None

    def add(self, reject: bytes) -> None:
        """Add a line; `OperatorError` where that fails."""
        if not self._target:
            self._target = Target(self.path)
        self.count += 1
        self._target.write(reject)

    def finish(self) -> None:
        """Have all of it on disk."""
        if self._target:
            self._target.finish()

    def appear(self) -> None:
        """Put the file in its place."""
        if self._target:
            self._target.appear()
        elif self.path.is_file() and not self.path.is_symlink():
            try:
                self.path.unlink()
            except OSError as error:
                raise OperatorError(f"{self.path}: cannot be removed: {error.strerror}") from error

    def discard(self) -> None:
        """Leave nothing of it."""
        if self._target:
            self._target.discard()


def reasons(error: Exception) -> list[str]:
    """What is wrong with a row, as a client of the API would read it."""
    if isinstance(error, Invalid):
        return [f"{failure.field}: {failure.detail}" for failure in error.failures]
    return [str(error)]


def written(row: Row, why: Sequence[str]) -> bytes:
    """Write down a rejected row."""
    reject: dict[str, Any] = {"line": row.line, "reasons": why, "row": row.given}
    with suppress(TypeError):
        return orjson.dumps(reject, option=orjson.OPT_APPEND_NEWLINE)
    # A huge integer, a lone surrogate; or it is nested deeper than can be written.
    with suppress(RecursionError):
        return json.dumps(reject).encode() + b"\n"
    return orjson.dumps(reject | {"row": None}, option=orjson.OPT_APPEND_NEWLINE)
