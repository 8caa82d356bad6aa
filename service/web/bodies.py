"""Reads a body as one strict JSON object, whatever its Content-Type; nothing else reads one."""

import asyncio
import zlib
from typing import Any

from aiohttp import HttpVersion11, web

from service.catalogue.rules import quoted
from service.catalogue.strict_json import MAX_BYTES, parse_object
from service.errors import Malformed

# What a body may be packed in, and zlib's name for it. aiohttp would unpack all there is of any
# body, wanted or not: 200 KB that unpack to 200 MB stop everybody for half a second.
CODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
UNREADABLE = "the body is not what its Content-Encoding or Transfer-Encoding says"
TOO_LARGE = f"the body must be at most {MAX_BYTES} bytes"
REQUEST_ID = web.RequestKey("request_id", str)


class BodyTimedOut(Exception):
    """The body had not arrived in time."""


class ClientGone(Exception):
    """The client closed its connection before its body was read."""


class BodyReader:
    """Reads request bodies, each within `timeout` seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    async def read_object(self, request: web.Request) -> dict[str, Any]:
        """Return the JSON object in the body; `Malformed`, `BodyTimedOut` or `ClientGone`."""
        try:
            if request.content.is_eof() and "Expect" not in request.headers:
                # All of it came with its head, as most bodies do: nothing to wait for.
                body = _received(request)
            else:
                async with asyncio.timeout(self._timeout):
                    body = await _read(request)
        except TimeoutError as error:
            raise BodyTimedOut from error
        except ConnectionError as error:
            raise ClientGone from error
        if coding := request.headers.get("Content-Encoding"):
            body = _unpacked(body, coding.strip().lower())
        return parse_object(body)


async def hold_continue(_: web.Request) -> None:
    """For the routes: `100 Continue` is sent when the body is wanted, not before."""


def _received(request: web.Request) -> bytes:
    try:
        body = request.content.read_nowait()
    except web.RequestPayloadError as error:
        raise Malformed(UNREADABLE) from error
    if len(body) > MAX_BYTES:
        raise Malformed(TOO_LARGE)
    return body


async def _read(request: web.Request) -> bytes:
    if (request.content_length or 0) > MAX_BYTES:
        raise Malformed(TOO_LARGE)
    if "Expect" in request.headers:
        await _continue(request)
    body = bytearray()
    try:
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > MAX_BYTES:
                raise Malformed(TOO_LARGE)
    except web.RequestPayloadError as error:
        raise Malformed(UNREADABLE) from error
    return bytes(body)


def _unpacked(body: bytes, coding: str) -> bytes:
    """Undo a Content-Encoding (RFC 9110, 8.4), up to the limit and no further."""
    if coding == "identity":
        return body
    if coding not in CODINGS:
        known = ", ".join(CODINGS)
        raise Malformed(f"the Content-Encoding {quoted(coding)} is unknown; there are {known}")
    unpacker = zlib.decompressobj(CODINGS[coding])
    try:
        unpacked = unpacker.decompress(body, MAX_BYTES + 1)
    except zlib.error as error:
        raise Malformed(UNREADABLE) from error
    if len(unpacked) > MAX_BYTES:
        raise Malformed(TOO_LARGE)
    if not unpacker.eof or unpacker.unused_data:  # cut short, or more behind it
        raise Malformed(UNREADABLE)
    return unpacked


async def _continue(request: web.Request) -> None:
    # https://www.rfc-editor.org/rfc/rfc9110#section-10.1.1
    if request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer itself has not begun
