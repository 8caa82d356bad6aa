"""The rows of a file, numbered by the line where each starts; at most as long as a request body."""

from collections.abc import Iterator
from itertools import count
from typing import Any, BinaryIO, NamedTuple

from service.catalogue.strict_json import MAX_BYTES
from service.errors import CatalogueError, Malformed

MAX_SHOWN_BYTES = 1000  # of a row that is too long
TOO_LONG = f"the row must be at most {MAX_BYTES} bytes"


class FileRow(NamedTuple):
    """A row of the file, and its movie in the API's form, or the error of the row.

    `movie` is None for a row that is left out: it does not match `--where`.
    """

    line: int
    given: Any
    movie: dict[str, Any] | CatalogueError | None
    size: int  # bytes in the file


class BrokenFile(Exception):
    """The file cannot be read from this line on."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


class Line(NamedTuple):
    """A line with its line end; a line that is too long is cut."""

    number: int
    data: bytes
    is_too_long: bool = False


def read_lines(stream: BinaryIO) -> Iterator[Line]:
    """Split a file into lines."""
    for number in count(1):
        data = stream.readline(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            rest = data
            while rest and not rest.endswith(b"\n"):
                rest = stream.readline(MAX_BYTES)
            yield Line(number, data[:MAX_SHOWN_BYTES], is_too_long=True)
        elif data:
            yield Line(number, data)
        else:
            return


def reject_long_line(line: Line) -> FileRow:
    """Return the row of a line that is too long."""
    return FileRow(line.number, to_text(line.data) + "…", Malformed(TOO_LONG), len(line.data))


def to_text(data: bytes) -> str:
    """Decode UTF-8; other bytes become escapes."""
    return data.decode("utf-8", "backslashreplace").strip()
