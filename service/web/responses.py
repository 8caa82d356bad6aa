"""Builds the responses: JSON bodies, compressed ones, and 304 for clients that have the body.

Lists and documents are compressed (RFC 9110, 8.4). A single movie is small, and its entity tag
must stay strong, because `If-Match` compares strong tags only (RFC 9110, 13.1.1).
"""

import hashlib
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from http import HTTPStatus
from wsgiref.handlers import format_date_time

import orjson
from aiohttp import ClientConnectionResetError, HttpVersion10, hdrs, web

from service.web.context import CONTEXT
from service.web.headers import POSITION, parse_date, parse_tags, prefers_gzip

JSON_OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z
JSON_HEADERS = {"Content-Type": "application/json"}
KEPT_BY_304 = ("ETag", "Cache-Control", "Content-Security-Policy", "Vary")  # RFC 9110, 15.4.5
MIN_BYTES = 1400  # less fits into one Ethernet packet with its headers, compressed or not
GZIP_WBITS = 16 + zlib.MAX_WBITS  # https://docs.python.org/3/library/zlib.html#zlib.compress
STATUS_LINES = {
    int(status): f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}
_format_date = lru_cache(maxsize=1)(format_date_time)  # of this second


class DirectResponse(web.StreamResponse):
    """A response that is written as one string, past aiohttp's writer; HEAD gets no body.

    docs/decisions/0006-deviations-from-aiohttp.md says what it saves.
    """

    def __init__(self, body: bytes, headers: Mapping[str, str], status: int = 200) -> None:
        super().__init__(status=status)
        self.body = body
        self.own_headers = headers
        self._status_line = STATUS_LINES[status]
        self._has_length = status != HTTPStatus.NOT_MODIFIED  # RFC 9110, 8.6
        self._is_last = False  # of the connection

    async def prepare(self, request: web.BaseRequest) -> None:
        """Send head and body in one write."""
        context, transport = request[CONTEXT], request.transport
        if transport is None:
            raise ClientConnectionResetError("the client has gone")
        fields = {**context.headers, **self.own_headers}
        if "Vary" in self.own_headers and "Vary" in context.headers:
            fields["Vary"] = f"{self.own_headers['Vary']}, {context.headers['Vary']}"
        if self._has_length:
            fields["Content-Length"] = f"{len(self.body)}"
        if self._is_last or not request.keep_alive or request.version == HttpVersion10:
            self._is_last = True
            fields.setdefault("Connection", "close")
        lines = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
        head = f"{self._status_line}{lines}Date: {_format_date(int(time.time()))}\r\n\r\n"
        body = b"" if context.method == hdrs.METH_HEAD else self.body
        message = head.encode("ascii") + body
        transport.write(message)
        context.written += len(message)
        self.body = b""  # aiohttp keeps a response until the connection's next one
        if transport.get_write_buffer_size():
            await request.writer.drain()  # if the client does not read, take no further request

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: all has been sent."""

    @property
    def keep_alive(self) -> bool:
        """Whether the connection stays open after this response."""
        return not self._is_last

    def force_close(self) -> None:
        """Let this be the last response of its connection."""
        self._is_last = True


@dataclass
class Content:
    """A body, and the headers that describe it; requests that share it compress it once."""

    body: bytes
    headers: Mapping[str, str]

    @cached_property
    def gzipped(self) -> bytes:
        """The body, compressed."""
        return zlib.compress(self.body, wbits=GZIP_WBITS)


EMPTY = Content(b"", {})


class LargeResponse(DirectResponse):
    """A response that is compressed if that is worth it and its client prefers it."""

    def __init__(self, content: Content, headers: Mapping[str, str]) -> None:
        super().__init__(content.body, {"Vary": "Accept-Encoding", **content.headers, **headers})
        self._content = content

    async def prepare(self, request: web.BaseRequest) -> None:
        """Compress the body, unless it was, and send it; for HEAD, too, for the headers of GET."""
        accepted = request.headers.getall(hdrs.ACCEPT_ENCODING, ())
        if accepted and len(self.body) >= MIN_BYTES and prefers_gzip(",".join(accepted)):
            self.body = self._content.gzipped
            self.own_headers = {**self.own_headers, "Content-Encoding": "gzip"}
        await super().prepare(request)
        self._content = EMPTY  # as DirectResponse frees its body


def encode_json(payload: Mapping[str, object]) -> bytes:
    """Encode with two spaces of indentation and a final newline; datetimes as RFC 3339."""
    return orjson.dumps(payload, option=JSON_OPTIONS)


def json_response(
    payload: Mapping[str, object], headers: Mapping[str, str] = JSON_HEADERS, status: int = 200
) -> DirectResponse:
    """Return a response with `payload` as JSON; `headers` have its Content-Type."""
    return DirectResponse(orjson.dumps(payload, option=JSON_OPTIONS), headers, status)


def make_content(
    body: bytes, media_type: str = "application/json", headers: Mapping[str, str] | None = None
) -> Content:
    """Return a body with its digest as entity tag; weak, because it may be compressed or not."""
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    fields = {"ETag": f'W/"{digest}"', "Cache-Control": "no-cache", "Content-Type": media_type}
    return Content(body, fields | dict(headers or {}))


def cacheable_response(
    request: web.Request,
    content: Content,
    headers: Mapping[str, str] | None = None,
    cache_seconds: int = 0,
) -> DirectResponse:
    """Return 200 with the content, or 304 if the client has it already.

    Caches may use it for `cache_seconds`, and as long again while they ask (RFC 5861); only the
    client's own cache if it sent a token or a `Catalogue-Position` (RFC 9111, 5.2.2.7 and 4.1).
    """
    fields = {"Vary": "Accept-Encoding", **content.headers, **(headers or {})}
    if cache_seconds:
        is_own = hdrs.AUTHORIZATION in request.headers or POSITION in request.headers
        lifetime = f"max-age={cache_seconds}, stale-while-revalidate={cache_seconds}"
        fields["Cache-Control"] = f"{'private' if is_own else 'public'}, {lifetime}"
        fields["Vary"] += f", {hdrs.AUTHORIZATION}, {POSITION}"
    return make_not_modified(request, fields) or LargeResponse(content, fields)


def make_not_modified(request: web.Request, headers: Mapping[str, str]) -> DirectResponse | None:
    """Return 304 if the client already has the response with these headers (RFC 9110, 13).

    Raises `MalformedHeader` if If-None-Match cannot be read. With it, If-Modified-Since is ignored.
    """
    if hdrs.IF_NONE_MATCH not in request.headers and hdrs.IF_MODIFIED_SINCE not in request.headers:
        return None
    if known := parse_tags(request, hdrs.IF_NONE_MATCH):
        etag = headers["ETag"].removeprefix("W/")[1:-1]
        is_known = known.any or any(tag.opaque == etag for tag in known.tags)  # weakly: 8.8.3.2
    else:
        since = parse_date(request.headers.get(hdrs.IF_MODIFIED_SINCE))
        changed = parse_date(headers.get("Last-Modified"))
        is_known = since is not None and changed is not None and changed <= since
    kept = {name: headers[name] for name in KEPT_BY_304 if name in headers}
    return DirectResponse(b"", kept, 304) if is_known else None
