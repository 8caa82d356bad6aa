"""Movies in JSON: one per line (NDJSON), or one array; each is parsed like a request body."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

import ijson  # type: ignore[import-untyped]

from service.catalogue.strict_json import MAX_BYTES, parse_object
from service.errors import Malformed
from service.transfer.rows import (
    TOO_LONG,
    BrokenFile,
    FileRow,
    read_lines,
    reject_long_line,
    to_text,
)

READ_BYTES = 1 << 18
PIECE = re.compile(rb"[^}]*+\}|[^}]++")  # a movie can only end where a piece ends
# Per movie. yajl parses a string again with each piece of it: without a limit, 1 MB of } takes
# 200 s.
MAX_PIECES = 5000
EXPECTED = "expected a JSON array of movies"
SEPARATORS = b"[,] \t\r\n"
DEPTH_CHANGES = {"start_map": 1, "start_array": 1, "end_map": -1, "end_array": -1}
# The events outside of movies, each with the depth after it.
TOP_LEVEL_EVENTS = {("start_array", 1), ("end_map", 1), ("end_array", 0)}


def read_ndjson(stream: BinaryIO) -> Iterator[FileRow]:
    """Yield one row per line; blank lines are skipped."""
    for line in read_lines(stream):
        if line.is_too_long:
            yield reject_long_line(line)
        elif not line.data.isspace():
            yield _parse_row(line.number, line.data.rstrip(b"\r\n"))


def read_array(stream: BinaryIO) -> Iterator[FileRow]:
    """Yield the rows of one array; raises `BrokenFile` at a syntax error."""
    movie_ends = _MovieEnds()
    text = bytearray()  # since the last movie
    pieces = 0  # of `text`
    line = 1  # where `text` starts
    for piece in _read_pieces(stream):
        text += piece
        pieces += 1
        try:
            is_complete = movie_ends.feed(piece)
        except (ijson.JSONError, ValueError) as error:
            reason = re.split(r"\n|\\n", str(error))[0].removeprefix("b'")
            raise BrokenFile(_line_of_movie(text, line), f"{EXPECTED}: {reason}") from error
        if len(text) > MAX_BYTES or pieces > MAX_PIECES:
            what = f"{TOO_LONG} and {MAX_PIECES} braces; is a quote or bracket left open?"
            raise BrokenFile(_line_of_movie(text, line), what)
        if is_complete:
            line = _line_of_movie(text, line)
            movie = bytes(text.lstrip(SEPARATORS))
            yield _parse_row(line, movie)
            line += movie.count(b"\n")
            text.clear()
            pieces = 0


class _MovieEnds:
    r"""Finds with ijson where each movie of an array ends; `parse_object` then parses the movie.

    ijson's fast parser (yajl) is not strict: it turns a lone `\ud800` into "?" and accepts
    duplicate keys. Without `use_float`, an integer of more than 4,300 digits crashes the process;
    with it, a number that does not fit into 64 bits is an error.
    """

    def __init__(self) -> None:
        self._events = ijson.sendable_list()
        self._parser = ijson.basic_parse_coro(self._events, use_float=True)
        self._depth = 0

    def feed(self, piece: bytes) -> bool:
        """Return whether a movie ends with this piece (b"": the file ends).

        Raises `ValueError` or `ijson.JSONError`.
        """
        is_complete = False
        with suppress(StopIteration):  # the end of the array
            self._parser.send(piece)
        for event, _ in self._events:
            self._depth += DEPTH_CHANGES.get(event, 0)
            is_complete = (event, self._depth) == ("end_map", 1)
            if self._depth <= 1 and (event, self._depth) not in TOP_LEVEL_EVENTS:
                raise ValueError("it must contain objects only")
        self._events.clear()
        return is_complete


def _read_pieces(stream: BinaryIO) -> Iterator[bytes]:
    while block := stream.read(READ_BYTES):
        yield from PIECE.findall(block)
    yield b""  # the end, for ijson


def _line_of_movie(text: bytearray, line: int) -> int:
    """Return the line where the next movie starts; `line`: where `text` starts."""
    return line + text.count(b"\n", 0, len(text) - len(text.lstrip(SEPARATORS)))


def _parse_row(number: int, data: bytes) -> FileRow:
    try:
        movie = parse_object(data, "the row")
    except Malformed as error:
        return FileRow(number, to_text(data), error, len(data))
    return FileRow(number, movie, movie, len(data))
