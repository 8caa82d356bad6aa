"""The rows of a file, numbered by the line on which each starts; none is longer than a body."""

from collections.abc import Iterator
from itertools import count
from typing import Any, BinaryIO, NamedTuple

from service.catalogue.strict_json import MAX_BYTES
from service.errors import CatalogueError, Malformed

SHOWN = 1000  # characters of a row that is too long
TOO_LONG = f"the row must be at most {MAX_BYTES} bytes"


class Row(NamedTuple):
    """A row as it was found, and the movie in the API's form, or why it is none.

    `movie` is None for a row that is left out: it does not match `--where`.
    """

    line: int
    given: Any
    movie: dict[str, Any] | CatalogueError | None
    size: int  # bytes in the file


class Broken(Exception):
    """From this line on the file cannot be read at all."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


class Line(NamedTuple):
    """A line with its end; of one that is too long, only how it starts."""

    number: int
    data: bytes
    too_long: bool = False


def lines(stream: BinaryIO) -> Iterator[Line]:
    """Cut a file into lines."""
    for number in count(1):
        data = stream.readline(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            rest = data
            while rest and not rest.endswith(b"\n"):
                rest = stream.readline(MAX_BYTES)
            yield Line(number, data[:SHOWN], too_long=True)
        elif data:
            yield Line(number, data)
        else:
            return


def too_long(line: Line) -> Row:
    """Refuse a line for its length."""
    return Row(line.number, shown(line.data) + "…", Malformed(TOO_LONG), len(line.data))


def shown(data: bytes) -> str:
    """Bytes as text, with what is not UTF-8 as escapes."""
    return data.decode("utf-8", "backslashreplace").strip()
