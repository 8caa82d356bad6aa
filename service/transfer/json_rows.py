"""Movies in JSON: one per line (NDJSON), or one array; each is parsed like a request body."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

import ijson  # type: ignore[import-untyped]

from service.catalogue.strict_json import MAX_BYTES, parse_object
from service.errors import Malformed
from service.transfer import rows
from service.transfer.rows import TOO_LONG, BrokenFile, FileRow

READ_BYTES = 1 << 18
PIECE = re.compile(rb"[^}]*+\}|[^}]++")  # a movie can only end where a piece ends
# Per movie. yajl parses a string again with each piece of it: without a limit, 1 MB of } takes
# 200 s.
MAX_PIECES = 5000
EXPECTED_ARRAY = "expected a JSON array of movies"
SEPARATORS = b"[,] \t\r\n"
DEPTH_CHANGES = {"start_map": 1, "start_array": 1, "end_map": -1, "end_array": -1}
END_OF_MOVIE = ("end_map", 1)
# The events outside of movies, each with the depth after it.
TOP_LEVEL_EVENTS = {("start_array", 1), END_OF_MOVIE, ("end_array", 0)}


def read_ndjson(stream: BinaryIO) -> Iterator[FileRow]:
    """Yield one row per line; blank lines are skipped."""
    for line in rows.read_lines(stream):
        if line.is_too_long:
            yield rows.reject_long_line(line)
        elif not line.data.isspace():
            yield _parse_row(line.number, line.data.rstrip(b"\r\n"))


def read_array(stream: BinaryIO) -> Iterator[FileRow]:
    r"""Yield the rows of one array; raises `BrokenFile` at a syntax error.

    ijson finds where each movie ends, and `parse_object` parses the movie: ijson's fast parser
    (yajl) is not strict, as it turns a lone `\ud800` into "?" and accepts duplicate keys. Without
    `use_float`, an integer of more than 4,300 digits crashes the process; with it, a number that
    does not fit into 64 bits is an error.
    """
    events = ijson.sendable_list()
    parser = ijson.basic_parse_coro(events, use_float=True)
    depth = 0
    text = bytearray()  # since the last movie
    pieces = 0  # of `text`
    line = 1  # where `text` starts
    for piece in _read_pieces(stream):
        text += piece
        pieces += 1
        try:
            with suppress(StopIteration):  # the end of the array
                parser.send(piece)
        except (ijson.JSONError, ValueError) as error:
            reason = re.split(r"\n|\\n", str(error))[0].removeprefix("b'")
            raise BrokenFile(_line_of_movie(text, line), f"{EXPECTED_ARRAY}: {reason}") from error
        is_complete = False
        for event, _ in events:
            depth += DEPTH_CHANGES.get(event, 0)
            is_complete = (event, depth) == END_OF_MOVIE
            if depth <= 1 and (event, depth) not in TOP_LEVEL_EVENTS:
                problem = f"{EXPECTED_ARRAY}: it must contain objects only"
                raise BrokenFile(_line_of_movie(text, line), problem)
        events.clear()
        if len(text) > MAX_BYTES or pieces > MAX_PIECES:
            problem = f"{TOO_LONG} and {MAX_PIECES} braces; is a closing quote or bracket missing?"
            raise BrokenFile(_line_of_movie(text, line), problem)
        if is_complete:
            line = _line_of_movie(text, line)
            movie = bytes(text.lstrip(SEPARATORS))
            yield _parse_row(line, movie)
            line += movie.count(b"\n")
            text.clear()
            pieces = 0


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
        return FileRow(number, rows.to_text(data), error, len(data))
    return FileRow(number, movie, movie, len(data))
