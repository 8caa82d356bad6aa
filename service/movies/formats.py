"""The formats of import and export; reads movies in JSON: one per line (NDJSON), or one array.

Each movie in JSON is parsed like a request body.
"""

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import BinaryIO

from service.errors import Malformed, OperatorError
from service.movies.movie import COLUMNS
from service.movies.rows import TOO_LONG, BrokenFile, FileRow, convert_file_errors, read_lines
from service.movies.table_rows import read_csv, read_imdb
from service.web.bodies import MAX_BODY_BYTES, parse_object

IMPORTED = ("ndjson", "json", "csv", "imdb")
ENDINGS = {".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "json", ".csv": "csv", ".tsv": "imdb"}
READ_BYTES = 1 << 18
JSON_WHITESPACE = re.compile(r"[ \t\r\n]+")
# Finds only the end of a movie; `parse_object` then parses it. So this also accepts what
# `parse_object` refuses: control characters, and integers of any length.
FIND_END = json.JSONDecoder(parse_int=float, strict=False).raw_decode


def detect_format(path: str, given: str | None, known: Collection[str]) -> str:
    """Return the given format, or else the format of the file name's ending."""
    name = path.lower().removesuffix(".gz")
    found = given or next((ENDINGS[end] for end in ENDINGS if name.endswith(end)), None)
    if found is None or found not in known:
        problem = f"{found} is for import only" if found else "its name does not tell the format"
        raise OperatorError(f"{path}: {problem}: add --format with one of {', '.join(known)}")
    return found


def read_rows(
    path: str,
    stream: BinaryIO,
    kind: str,
    columns: Mapping[str, str],
    where: Sequence[tuple[str, str]],
) -> Iterator[FileRow]:
    """Read the rows of a file; raises `OperatorError` with the line that stops the reading.

    `columns` (field -> column) and `where` (column, value) are for CSV.
    """
    if kind != "csv" and (columns or where):
        raise OperatorError("--map and --where are for CSV")
    if unknown := next((field for field in columns if field not in COLUMNS), None):
        raise OperatorError(f"--map {unknown}: a movie has {', '.join(COLUMNS)}")
    rows = READERS[kind](stream) if kind in READERS else read_csv(stream, columns, where)
    return _convert_errors(path, rows)


def _convert_errors(path: str, rows: Iterator[FileRow]) -> Iterator[FileRow]:
    try:
        with convert_file_errors(path, "cannot be read"):
            yield from rows
    except BrokenFile as error:
        line, reason = error.args
        raise OperatorError(f"{path}:{line}: {reason}") from error


def read_ndjson(stream: BinaryIO) -> Iterator[FileRow]:
    """Yield one row per line; blank lines are skipped."""
    for number, line in read_lines(stream):
        if not line.isspace():
            yield _parse_row(number, line.rstrip(b"\r\n"))


def read_array(stream: BinaryIO) -> Iterator[FileRow]:
    """Yield the rows of one array; raises `BrokenFile` at a syntax error."""
    array = _Array(stream)
    array.take("[")
    if array.peek() != "]":
        yield _parse_row(*array.take_object())
    while array.take(",]") == ",":
        yield _parse_row(*array.take_object())
    if array.peek():
        raise array.make_error("expected nothing after its end")


class _Array:
    """Reads a JSON array in blocks; forgets the text of the rows that were returned."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        # Bytes that are not UTF-8 stay as they are, for `parse_object`.
        self._decoder = getincrementaldecoder("utf-8")("surrogateescape")
        self._text = ""
        self._at = 0
        self._line = 1

    def peek(self) -> str:
        """Skip blanks; return the next character, or "" at the end."""
        while True:
            if blanks := JSON_WHITESPACE.match(self._text, self._at):
                self._move(blanks.end() - self._at)
            if self._at < len(self._text) or not self._read():
                return self._text[self._at : self._at + 1]

    def take(self, signs: str) -> str:
        """Return the next character, which must be one of `signs`, and move past it."""
        sign = self.peek()
        if not sign or sign not in signs:
            raise self.make_error(f"expected {' or '.join(signs)}")
        self._move(1)
        return sign

    def take_object(self) -> tuple[int, bytes]:
        """Return line and text of the next object, and move past it."""
        if self.peek() != "{":
            raise self.make_error("it must contain objects only")
        end = 0
        while not end:
            try:
                _, end = FIND_END(self._text, self._at)
            except (json.JSONDecodeError, RecursionError) as error:
                # The end may not have been read yet.
                is_too_long = len(self._text) - self._at > MAX_BODY_BYTES
                if is_too_long or not self._read():
                    reason = getattr(error, "msg", "nested too deep")
                    reason = reason.lower().removesuffix(" starting at")
                    hint = f", or {TOO_LONG}" if is_too_long else ""
                    raise self.make_error(reason + hint) from error
        line = self._line
        text = self._move(end - self._at).encode("utf-8", "surrogateescape")
        if len(text) > MAX_BODY_BYTES:
            raise BrokenFile(line, TOO_LONG)
        return line, text

    def make_error(self, problem: str) -> BrokenFile:
        """Return an error about the array at the current line."""
        return BrokenFile(self._line, f"expected a JSON array of movies: {problem}")

    def _move(self, characters: int) -> str:
        text = self._text[self._at : self._at + characters]
        self._line += text.count("\n")
        self._at += characters
        return text

    def _read(self) -> bool:
        """Read more; return whether there was more."""
        block = self._stream.read(READ_BYTES)
        self._text = self._text[self._at :] + self._decoder.decode(block, final=not block)
        self._at = 0
        return bool(block)


def _parse_row(number: int, data: bytes) -> FileRow:
    try:
        movie = parse_object(data, "the row")
    except Malformed as error:
        return FileRow(number, data.decode("utf-8", "backslashreplace").strip(), error, len(data))
    return FileRow(number, movie, movie, len(data))


READERS = {"ndjson": read_ndjson, "json": read_array, "imdb": read_imdb}
