"""Builds the responses: JSON bodies, and 304 for clients that have the body already."""

from collections.abc import Mapping

import orjson
from aiohttp import hdrs, web

from service.web.compression import Content, LargeResponse
from service.web.conditions import content_headers, is_not_modified, not_modified_headers
from service.web.direct_response import DirectResponse
from service.web.headers import POSITION

JSON_OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z
JSON_HEADERS = {"Content-Type": "application/json"}


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
    """Return the body with a digest of it as entity tag."""
    return Content(body, {**content_headers(body), "Content-Type": media_type, **(headers or {})})


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
    if is_not_modified(request, fields):
        return DirectResponse(b"", not_modified_headers(fields), 304)
    return LargeResponse(content, fields)
