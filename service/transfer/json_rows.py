"""Movies in JSON: one a line (NDJSON), or all in one array; each is read like a request's body."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

import ijson  # type: ignore[import-untyped]

from service.catalogue.strict_json import MAX_BYTES, parse_object
from service.errors import Malformed
from service.transfer.rows import TOO_LONG, Broken, Row, lines, shown, too_long

CHUNK = 1 << 18  # bytes
PIECE = re.compile(rb"[^}]*+\}|[^}]++")  # a movie can only end where a piece ends
# Of one movie. yajl reads a string again with each piece of it: without a limit, 1 MB of } takes
# 200 s.
MAX_PIECES = 5000
EXPECTED = "expected a JSON array of movies"
BETWEEN_MOVIES = b"[,] \t\r\n"
STEPS = {"start_map": 1, "start_array": 1, "end_map": -1, "end_array": -1}
# The events outside of movies, each with the depth behind it.
TOP_LEVEL = {("start_array", 1), ("end_map", 1), ("end_array", 0)}


def ndjson(stream: BinaryIO) -> Iterator[Row]:
    """One movie a line; blank lines are skipped."""
    for line in lines(stream):
        if line.too_long:
            yield too_long(line)
        elif not line.data.isspace():
            yield _row(line.number, line.data.rstrip(b"\r\n"))


def array(stream: BinaryIO) -> Iterator[Row]:
    """One array of movies; `Broken` at the first movie that does not end as it should."""
    boundaries = _Boundaries()
    text = bytearray()  # since the last movie
    pieces = 0  # of `text`
    line = 1  # where `text` starts
    for piece in _pieces(stream):
        text += piece
        pieces += 1
        try:
            is_movie = boundaries.feed(piece)
        except (ijson.JSONError, ValueError) as error:
            reason = re.split(r"\n|\\n", str(error))[0].removeprefix("b'")
            raise Broken(_line_of_movie(text, line), f"{EXPECTED}: {reason}") from error
        if len(text) > MAX_BYTES or pieces > MAX_PIECES:
            what = f"{TOO_LONG} and {MAX_PIECES} braces; is a quote or bracket left open?"
            raise Broken(_line_of_movie(text, line), what)
        if is_movie:
            line = _line_of_movie(text, line)
            movie = bytes(text.lstrip(BETWEEN_MOVIES))
            yield _row(line, movie)
            line += movie.count(b"\n")
            text.clear()
            pieces = 0


class _Boundaries:
    r"""Finds with ijson where the movies of an array end; `parse_object` then reads each.

    For the values of ijson's fast parser (yajl) are not strict: a lone `\ud800` becomes "?", and
    repeated keys are no error. An integer of more than 4,300 digits crashes the process, unless
    `use_float` is set: then a number that does not fit into 64 bits is an error.
    """

    def __init__(self) -> None:
        self._events = ijson.sendable_list()
        self._parser = ijson.basic_parse_coro(self._events, use_float=True)
        self._depth = 0

    def feed(self, piece: bytes) -> bool:
        """Whether a movie ends with this piece (b"": the file ends); `ValueError`, `JSONError`."""
        is_movie = False
        with suppress(StopIteration):  # the end, where it may be
            self._parser.send(piece)
        for event, _ in self._events:
            self._depth += STEPS.get(event, 0)
            is_movie = (event, self._depth) == ("end_map", 1)
            if self._depth <= 1 and (event, self._depth) not in TOP_LEVEL:
                raise ValueError("it must contain objects only")
        self._events.clear()
        return is_movie


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    while block := stream.read(CHUNK):
        yield from PIECE.findall(block)
    yield b""  # the end, for ijson


def _line_of_movie(text: bytearray, line: int) -> int:
    """The line on which the next movie starts; `line`: where `text` starts."""
    return line + text.count(b"\n", 0, len(text) - len(text.lstrip(BETWEEN_MOVIES)))


def _row(number: int, data: bytes) -> Row:
    try:
        movie = parse_object(data, "the row")
    except Malformed as error:
        return Row(number, shown(data), error, len(data))
    return Row(number, movie, movie, len(data))
