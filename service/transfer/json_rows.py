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
# No backtracking: a hostile text takes no longer than another.
# A string (group 1: its end), or what opens, closes and separates.
TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[\[\]{},]', re.DOTALL)
# An object of strings, numbers and flat arrays, as a movie is, at once: a fifth more rows a second.
_STRINGS = rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+")'
FLAT = re.compile(rb"\s*+\{(?:%b|\[%b*+\])*+\}\s*+(?=[,\]])" % (_STRINGS, _STRINGS), re.DOTALL)


def ndjson(stream: BinaryIO) -> Iterator[Row]:
    """One movie a line; blank lines are skipped."""
    for line in lines(stream):
        if line.too_long:
            yield too_long(line)
        elif not line.data.isspace():
            yield _row(line.number, line.data.rstrip(b"\r\n"))


def array(stream: BinaryIO) -> Iterator[Row]:
    """One array of movies; `Broken` where it is none."""
    for number, data in _elements(stream):
        yield _row(number, data)


def _row(number: int, data: bytes) -> Row:
    try:
        movie = parse_object(data, "the row")
    except Malformed as error:
        return Row(number, shown(data), error, len(data))
    return Row(number, movie, movie, len(data))


def _elements(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the text of each element with the line on which it starts."""
    buffer = stream.read(CHUNK)
    number, start = _skip(buffer, 1)
    if buffer[start : start + 1] != b"[":
        raise Broken(number, "expected a JSON array of movies, which starts with [")
    start += 1
    only = True
    while True:
        while (end := _end(buffer, start)) is None:
            buffer, start = buffer[start:], 0
            if len(buffer) > LIMIT:
                raise Broken(
                    _skip(buffer, number)[0],
                    f"expected a movie of at most {LIMIT} bytes; is a quote or bracket left open?",
                )
            more = stream.read(CHUNK)
            if not more:
                raise Broken(
                    _skip(buffer, number)[0], "the file ends before its array: expected , or ]"
                )
            buffer += more
        element = buffer[start:end]
        number, blank = _skip(element, number)
        last = buffer[end : end + 1] == b"]"
        if blank < len(element) or not (last and only):
            yield number, element[blank:]
        number += element.count(b"\n", blank)
        only, start = False, end + 1
        if last:
            break
    rest = buffer[start:]
    while rest:
        number, blank = _skip(rest, number)
        if blank < len(rest):
            raise Broken(number, "expected nothing after the array")
        rest = stream.read(CHUNK)


def _skip(data: bytes, number: int) -> tuple[int, int]:
    """Pass over what is blank: the line there, counted on from `number`, and the index."""
    index = len(data) - len(data.lstrip(BLANK))
    return number + data.count(b"\n", 0, index), index


def _end(buffer: bytes, start: int) -> int | None:
    """Find the comma or bracket behind the element that starts here; None: not in this buffer."""
    if flat := FLAT.match(buffer, start):
        return flat.end()
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
