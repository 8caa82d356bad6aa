"""Builds the responses: JSON bodies, and 304 for clients that have the body already."""

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from service.catalogue.movie import Movie, movie_json
from service.web.conditions import content_headers, is_not_modified, not_modified_headers
from service.web.request_cycle.compression import LargeResponse
from service.web.request_cycle.direct_response import DirectResponse


def encode_json(payload: Mapping[str, Any]) -> bytes:
    """Encode with two spaces of indentation and a final newline; datetimes as RFC 3339."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z
    return orjson.dumps(payload, option=options)


def json_response(
    payload: Mapping[str, Any],
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    content_type: str = "application/json",
) -> web.Response:
    """Return a response with `payload` as JSON."""
    body = encode_json(payload)
    return DirectResponse(body=body, status=status, headers=headers, content_type=content_type)


def movie_response(movie: Movie, *, status: int = 200, headers: Mapping[str, str]) -> web.Response:
    """Return a response with `{"movie": {...}}`."""
    return json_response({"movie": movie_json(movie)}, status=status, headers=headers)


def cacheable_response(
    request: web.Request,
    body: bytes,
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> LargeResponse:
    """Return 200 with the body and an entity tag of it, or 304 if the client has it already."""
    tagged = {**(headers or {}), **content_headers(body)}
    if is_not_modified(request, tagged):
        return LargeResponse(status=304, headers=not_modified_headers(tagged))
    return LargeResponse(body=body, headers={**tagged, "Content-Type": content_type})
