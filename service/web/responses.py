"""Builds the responses: JSON bodies, and 304 for clients that have the body already."""

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import hdrs, web

from service.catalogue.movie import Movie, movie_json
from service.context import POSITION
from service.web.conditions import content_headers, is_not_modified, not_modified_headers
from service.web.request_cycle.compression import LargeResponse
from service.web.request_cycle.contexts import CONTEXT
from service.web.request_cycle.direct_response import DirectResponse

JSON_OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z
JSON_TYPE = {"Content-Type": "application/json"}


def encode_json(payload: Mapping[str, Any]) -> bytes:
    """Encode with two spaces of indentation and a final newline; datetimes as RFC 3339."""
    return orjson.dumps(payload, option=JSON_OPTIONS)


def json_response(
    payload: Mapping[str, Any], headers: Mapping[str, str] = JSON_TYPE, status: int = 200
) -> DirectResponse:
    """Return a response with `payload` as JSON; `headers` have its Content-Type."""
    return DirectResponse(encode_json(payload), headers, status)


def movie_response(movie: Movie, headers: Mapping[str, str], status: int = 200) -> DirectResponse:
    """Return a response with `{"movie": {...}}`."""
    body = orjson.dumps({"movie": movie_json(movie)}, option=JSON_OPTIONS)
    return DirectResponse(body, {**JSON_TYPE, **headers}, status)


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


def allow_caching(request: web.Request, response: LargeResponse, seconds: int) -> None:
    """Let caches use the response for so many seconds, and as long again while they ask (RFC 5861).

    The response to a token or a position is only for its client's own cache (RFC 9111, 5.2.2.7),
    and `Vary` keeps stored responses from other tokens and positions (4.1).
    """
    is_own = hdrs.AUTHORIZATION in request.headers or POSITION in request.headers
    lifetime = f"max-age={seconds}, stale-while-revalidate={seconds}"
    response.headers["Cache-Control"] = f"{'private' if is_own else 'public'}, {lifetime}"
    own = (response.vary, hdrs.AUTHORIZATION, POSITION, request[CONTEXT].headers.get("Vary"))
    # One line: nginx before 1.23 reads only the last one.
    response.vary = ", ".join([*response.headers.popall("Vary", ()), *filter(None, own)])
