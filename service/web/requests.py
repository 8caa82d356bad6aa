"""Reads one strict JSON object; nothing else reads a body.

RFC 8259 leaves to the reader what this one refuses: duplicate keys, NaN, numbers out of range,
a byte order mark. Always UTF-8, whatever the Content-Type says.
"""

import asyncio
import json
from typing import Any

from aiohttp import HttpVersion11, web

from service.errors import Malformed
from service.web.schemas import quoted

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


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the one JSON object that these bytes are; `Malformed` says what is wrong and where."""
    if not body.strip():
        raise Malformed("the body is empty; expected one JSON object")
    if body.startswith(b"\xef\xbb\xbf"):
        raise Malformed("the body starts with a byte order mark; expected UTF-8 without one")
    try:
        value = _decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Malformed(f"the body is not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        what = "expected nothing more" if error.msg == "Extra data" else error.msg.lower()
        raise Malformed(
            f"the body is not one JSON object: {what}, at character {error.pos + 1}"
        ) from error
    except RecursionError as error:
        raise Malformed("the body is nested too deep") from error
    except ValueError as error:  # more digits than Python turns into an integer
        raise Malformed("the body has a number that is too big") from error
    if not isinstance(value, dict):
        raise Malformed("the body must be one JSON object")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise Malformed(f"the field {quoted(repeated)} is repeated")
    return members


def _no_constant(name: str) -> Any:
    raise Malformed(f"the body is not JSON: {name} is not a JSON number")


_decode = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant).decode
