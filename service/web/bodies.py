"""Reads the body of a request as one strict JSON object, whatever its Content-Type."""

import asyncio
import re
import zlib

from aiohttp import HttpVersion11, hdrs, web

from service.errors import BodyTimedOut, Malformed, Refusal, Unavailable, quote
from service.web.strict_json import MAX_BYTES, parse_object

# The values of Content-Encoding and zlib's `wbits` for each. aiohttp would decompress every body
# without a limit: 200 KB that decompress to 200 MB stop all requests for half a second.
WBITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
# curl sends every body with the first type, so the type alone says nothing.
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
FORM_START = re.compile(rb'\s*(--|[^\s"{}]+=)')
A_FORM = "the body is a form ({}); expected one JSON object (application/json)"
UNREADABLE = "the body is not what its Content-Encoding or Transfer-Encoding says"
TOO_LARGE = f"the body must be at most {MAX_BYTES} bytes"
# A body is decompressed to at most MAX_RATIO times its size, or to FREE_BYTES, more than any movie
# has. JSON shrinks to a tenth, or a hundredth if a text is repeated; 1 MB of zeros shrinks to 1 KB.
MAX_RATIO = 100
FREE_BYTES = 65_536
TOO_COMPRESSED = (
    f"the body is compressed to less than a {MAX_RATIO}th; expected less compression, or none"
)
# The limit of all bodies together that have more than FREE_BYTES and are still arriving. Without
# it, the clients of 4,000 connections could make a process hold 4 GB.
MAX_LARGE_BYTES = 64 * 1024 * 1024


class ClientGone(Exception):
    """The client closed its connection before its body was read."""


class BodyReader:
    """Reads request bodies, each within `timeout` seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._large_bytes = 0  # of the large bodies that are arriving

    async def read_object(self, request: web.Request) -> dict[str, object]:
        """Return the JSON object in the body.

        Raises `Malformed`, `BodyTimedOut`, `ClientGone`, or `Unavailable` beyond `MAX_LARGE_BYTES`.
        """
        content = request.content
        try:
            if content.is_eof() and content.total_bytes <= FREE_BYTES:
                sent = content.read_nowait()  # it arrived with the head, as most bodies do
            else:
                async with asyncio.timeout(self._timeout):
                    sent = await self._read(request)
        except web.RequestPayloadError as error:
            raise Malformed(UNREADABLE) from error
        except TimeoutError as error:
            raise BodyTimedOut from error
        except ConnectionError as error:
            raise ClientGone from error
        coding = request.headers.get("Content-Encoding")
        body = _decompress(sent, coding.strip().lower()) if coding else sent
        try:
            return parse_object(body)
        except Malformed as error:
            if request.content_type in FORMS and FORM_START.match(body):
                raise Malformed(A_FORM.format(request.content_type)) from error
            raise

    async def _read(self, request: web.Request) -> bytes:
        if request.transport is None:  # aiohttp's reader would raise a RuntimeError, here a 500
            raise ClientGone
        if (request.content_length or 0) > MAX_BYTES:
            raise Malformed(TOO_LARGE)
        if hdrs.EXPECT in request.headers and request.version >= HttpVersion11:  # RFC 9110, 10.1.1
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = bytearray()
        counted = 0
        try:
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise Malformed(TOO_LARGE)
                if len(body) > FREE_BYTES:
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
    most = min(MAX_BYTES, max(FREE_BYTES, MAX_RATIO * len(body)))
    try:
        decompressed = decompressor.decompress(body, most + 1)
    except zlib.error as error:
        raise Malformed(UNREADABLE) from error
    if len(decompressed) > most:
        raise Malformed(TOO_LARGE if most == MAX_BYTES else TOO_COMPRESSED)
    if not decompressor.eof or decompressor.unused_data:  # cut short, or followed by more
        raise Malformed(UNREADABLE)
    return decompressed
