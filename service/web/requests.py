"""Reads a body as one strict JSON object, whatever its Content-Type; nothing else reads one."""

import asyncio
from typing import Any

from aiohttp import HttpVersion11, web

from service.errors import Malformed
from service.web.strict_json import parse_object

LIMIT = 1_048_576  # bytes
UNREADABLE = "the body is not what its Content-Encoding or Transfer-Encoding says"
TOO_LARGE = f"the body must be at most {LIMIT} bytes"
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
        return parse_object(body)


async def hold_continue(_: web.Request) -> None:
    """For the routes: `100 Continue` is sent when the body is wanted, not before."""


def _received(request: web.Request) -> bytes:
    try:
        body = request.content.read_nowait()
    except web.RequestPayloadError as error:
        raise Malformed(UNREADABLE) from error
    if len(body) > LIMIT:
        raise Malformed(TOO_LARGE)
    return body


async def _read(request: web.Request) -> bytes:
    if (request.content_length or 0) > LIMIT:
        raise Malformed(TOO_LARGE)
    if expected := request.headers.get("Expect"):
        await _continue(request, expected)
    body = bytearray()
    try:
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > LIMIT:
                raise Malformed(TOO_LARGE)
    except web.RequestPayloadError as error:
        raise Malformed(UNREADABLE) from error
    return bytes(body)


async def _continue(request: web.Request, expected: str) -> None:
    # https://www.rfc-editor.org/rfc/rfc9110#section-10.1.1
    if expected.lower() != "100-continue":
        raise web.HTTPExpectationFailed
    if request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer itself has not begun
