"""Envelopes and the JSON encoder."""

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from service.catalogue.movie import Movie, movie_json
from service.web.conditions import content_headers
from service.web.request_cycle.compression import LargeResponse

PRETTY = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z


def json_response(
    payload: Mapping[str, Any],
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    content_type: str = "application/json",
) -> web.Response:
    """Answer with `payload`, pretty-printed; datetimes as RFC 3339."""
    body = orjson.dumps(payload, option=PRETTY)
    return web.Response(body=body, status=status, headers=headers, content_type=content_type)


def movie_response(movie: Movie, *, status: int = 200, headers: Mapping[str, str]) -> web.Response:
    """Answer with `{"movie": {...}}`."""
    return json_response({"movie": movie_json(movie)}, status=status, headers=headers)


def content_response(
    payload: Mapping[str, Any], *, headers: Mapping[str, str] | None = None
) -> LargeResponse:
    """Answer with `payload`, which may be worth compressing, and a tag made of its bytes."""
    body = orjson.dumps(payload, option=PRETTY)
    tagged = {**(headers or {}), **content_headers(body)}
    return LargeResponse(body=body, headers=tagged, content_type="application/json")
