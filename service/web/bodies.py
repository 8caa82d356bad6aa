"""Reads the body of a request as one strict JSON object, whatever its Content-Type.

It refuses what RFC 8259 lets each parser decide: duplicate keys, NaN, huge numbers, a byte order
mark. It also refuses so many values that parsing them would block all other requests.
"""

import asyncio
import json
import re
import zlib
from collections import Counter
from typing import Any

from aiohttp import HttpVersion11, hdrs, web

from service.errors import BodyTimedOut, Malformed, Refusal, Unavailable, quote
from service.web.context import ClientGone

MAX_BODY_BYTES = 1_048_576  # of a request body or an imported row
SMALL_BYTES = 65_536  # of a body that is read at once
# Of all larger bodies that are arriving: the clients of 4,000 connections could send 4 GB.
MAX_LARGE_BYTES = 64 * 1024 * 1024
# Limits of the values in a body: 1 MB of `{},` takes 150 ms to parse, these take 5 ms. A movie has
# 6 colons and brackets and 7 commas, and its title and genres may contain up to 1,000 more.
MAX_COLONS_AND_BRACKETS = 2000
MAX_COMMAS = 20_000
# The values of Content-Encoding and zlib's `wbits` for each. aiohttp would decompress every body
# without a limit: 200 KB that decompress to 200 MB stop all requests for half a second.
WBITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
# curl sends every body with the first type, so the type alone says nothing.
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
FORM_START = re.compile(rb'\s*(--|[^\s"{}]+=)')
A_FORM = "the body is a form ({}); expected one JSON object (application/json)"
UNREADABLE_BODY = "the body is not what its Content-Encoding or Transfer-Encoding says"
TOO_LARGE = f"the body must be at most {MAX_BODY_BYTES} bytes"


class BodyReader:
    """Reads request bodies, each within `timeout` seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._large_bytes = 0  # of the larger bodies that are arriving

    async def read_object(
        self, request: web.Request, *, may_be_empty: bool = False
    ) -> dict[str, object]:
        """Return the JSON object; `Malformed`, `BodyTimedOut`, `ClientGone` or `Unavailable`."""
        content = request.content
        try:
            if content.is_eof() and content.total_bytes <= SMALL_BYTES:
                sent = content.read_nowait()  # it arrived with the head, as most bodies do
            else:
                async with asyncio.timeout(self._timeout):
                    sent = await self._read(request)
        except web.RequestPayloadError as error:
            raise Malformed(UNREADABLE_BODY) from error
        except TimeoutError as error:
            raise BodyTimedOut from error
        except ConnectionError as error:
            raise ClientGone from error
        if may_be_empty and not sent:
            return {}
        coding = request.headers.get("Content-Encoding")
        body = _decompress(sent, coding.strip().lower()) if coding else sent
        try:
            return parse_object(body)
        except Malformed as error:
            if request.content_type in FORMS and FORM_START.match(body[:1000]):
                raise Malformed(A_FORM.format(request.content_type)) from error
            raise

    async def _read(self, request: web.Request) -> bytes:
        if request.transport is None:  # aiohttp's reader would raise a RuntimeError, here a 500
            raise ClientGone
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise Malformed(TOO_LARGE)
        if hdrs.EXPECT in request.headers and request.version >= HttpVersion11:  # RFC 9110, 10.1.1
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body, counted = bytearray(), 0
        try:
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise Malformed(TOO_LARGE)
                if len(body) > SMALL_BYTES:
                    self._large_bytes += len(body) - counted
                    counted = len(body)
                    if self._large_bytes > MAX_LARGE_BYTES:
                        raise Unavailable("too many large bodies", Refusal.QUEUE_FULL)
        finally:
            self._large_bytes -= counted
        return bytes(body)


def _decompress(body: bytes, coding: str) -> bytes:
    """Decode a Content-Encoding (RFC 9110, 8.4), up to the limit and no further."""
    if coding == "identity":
        return body
    if coding not in WBITS:
        known = ", ".join(WBITS)
        raise Malformed(f"the Content-Encoding {quote(coding)} is unknown; expected one of {known}")
    decompressor = zlib.decompressobj(WBITS[coding])
    try:
        decompressed = decompressor.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error as error:
        raise Malformed(UNREADABLE_BODY) from error
    if len(decompressed) > MAX_BODY_BYTES:
        raise Malformed(TOO_LARGE)
    if not decompressor.eof or decompressor.unused_data:  # cut short, or followed by more
        raise Malformed(UNREADABLE_BODY)
    return decompressed


def parse_object(data: bytes, called: str = "the body") -> dict[str, object]:
    """Parse one JSON object; raises `Malformed`, which says what is wrong and where."""
    if not data.strip():
        raise Malformed(f"{called} is empty; expected one JSON object")
    if data.startswith(b"\xef\xbb\xbf"):
        raise Malformed(f"{called} starts with a byte order mark; expected UTF-8 without one")
    try:
        text = data.decode("utf-8")
        if len(data) > MAX_COLONS_AND_BRACKETS:
            _refuse_crowd(data, called)
        value = _decode(text)
    except UnicodeDecodeError as error:
        raise Malformed(f"{called} is not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        what = "expected nothing more" if error.msg == "Extra data" else error.msg.lower()
        raise Malformed(
            f"{called} is not one JSON object: {what}, at character {error.pos + 1}"
        ) from error
    except RecursionError as error:
        raise Malformed(f"{called} is nested too deep") from error
    except ValueError as error:
        raise Malformed(f"{called} has a number that is too big") from error
    if not isinstance(value, dict):
        raise Malformed(f"{called} must be one JSON object")
    return value


def _refuse_crowd(data: bytes, called: str) -> None:
    """Refuse too many values before they are parsed."""
    colons_and_brackets = sum(map(data.count, (b":", b"{", b"[")))
    if colons_and_brackets > MAX_COLONS_AND_BRACKETS or data.count(b",") > MAX_COMMAS:
        raise Malformed(
            f"{called} is nested too deep or has too many values: expected at most"
            f" {MAX_COLONS_AND_BRACKETS} colons and brackets and {MAX_COMMAS} commas"
        )


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise Malformed(f"the field {quote(name)} is repeated")
    return members


def _refuse_constant(name: str) -> object:
    raise Malformed(f"{name} is not a JSON number")


_decode = json.JSONDecoder(
    object_pairs_hook=_refuse_duplicates,
    parse_int=lambda digits: int("too many" if digits[100:] else digits),  # quadratic time
    parse_constant=_refuse_constant,
).decode
