"""Movies in JSON: one a line (NDJSON), or all in one array; each is read like a request's body.

A whole array would not fit into memory. It is cut at its commas, by strings and brackets alone, and
so a movie that is not JSON spoils only itself.
"""

import re
from collections.abc import Iterator
from typing import BinaryIO

from service.errors import Malformed
from service.transfer.rows import Broken, Row, lines, shown, too_long
from service.web.requests import LIMIT
from service.web.strict_json import parse_object

CHUNK = 1 << 18  # bytes
BLANK = b" \t\r\n"  # https://www.rfc-editor.org/rfc/rfc8259#section-2
# A string (group 1: its end), or what opens, closes and separates. No backtracking.
TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[\[\]{},]', re.DOTALL)


def ndjson(stream: BinaryIO) -> Iterator[Row]:
    """One movie a line; blank lines are skipped."""
    for line in lines(stream):
        if line.too_long:
            yield too_long(line)
        elif not line.data.isspace():
            yield _row(line.number, line.data)


def array(stream: BinaryIO) -> Iterator[Row]:
    """One array of movies; `Broken` where it is none."""
    for number, data in _elements(stream):
        yield _row(number, data)


def _row(number: int, data: bytes) -> Row:
    try:
        movie = parse_object(data, "the row")
    except Malformed as error:
        return Row(number, shown(data), error)
    return Row(number, movie, movie)


def _elements(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the text of each element with the line on which it starts."""
    buffer = stream.read(CHUNK)
    start = len(buffer) - len(buffer.lstrip(BLANK)) + 1
    number = 1 + buffer.count(b"\n", 0, start)
    if buffer[start - 1 : start] != b"[":
        raise Broken(number, "expected a JSON array of movies, which starts with [")
    only = True
    while True:
        while (end := _end(buffer, start)) is None:
            if len(buffer) - start > LIMIT:
                raise Broken(
                    number,
                    f"expected a movie of at most {LIMIT} bytes; is a quote or bracket left open?",
                )
            more = stream.read(CHUNK)
            if not more:
                raise Broken(number, "the file ends before its array: expected , or ]")
            buffer, start = buffer[start:] + more, 0
        element = buffer[start:end]
        text = element.lstrip(BLANK)
        number += element.count(b"\n", 0, len(element) - len(text))
        last = buffer[end : end + 1] == b"]"
        if text or not (last and only):
            yield number, text
        number += text.count(b"\n")
        only, start = False, end + 1
        if last:
            break
    rest = buffer[start:]
    while rest:
        if rest.strip(BLANK):
            raise Broken(number, "expected nothing after the array")
        number += rest.count(b"\n")
        rest = stream.read(CHUNK)


def _end(buffer: bytes, start: int) -> int | None:
    """Find the comma or bracket behind the element that starts here; None: not in this buffer."""
    depth = 0
    for token in TOKEN.finditer(buffer, start):
        sign = buffer[token.start()]
        if sign in b"{[":
            depth += 1
        elif sign in b",]" and depth == 0:
            return token.start()
        elif sign in b"}]":
            depth = max(0, depth - 1)
        elif sign in b'"' and not token[1]:
            return None
    return None
