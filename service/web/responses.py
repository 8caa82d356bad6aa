"""Envelopes and the JSON encoder."""

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from service.movies import Movie
from service.web.compression import LargeResponse

PRETTY = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z


def json_response(
    payload: Mapping[str, Any],
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    content_type: str = "application/json",
    kind: type[web.Response] = web.Response,
) -> web.Response:
    """Answer with `payload`, pretty-printed; datetimes as RFC 3339."""
    body = orjson.dumps(payload, option=PRETTY)
    return kind(body=body, status=status, headers=headers, content_type=content_type)


def large_response(
    payload: Mapping[str, Any], *, headers: Mapping[str, str] | None = None
) -> web.Response:
    """As `json_response`, for what is worth compressing and no `If-Match` is held against."""
    return json_response(payload, headers=headers, kind=LargeResponse)


def movie_response(
    movie: Movie, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Answer with `{"movie": {...}}`."""
    return json_response({"movie": movie_json(movie)}, status=status, headers=headers)


def movie_json(movie: Movie) -> dict[str, Any]:
    """The movie as clients see it: runtime as `<number> mins`, times in UTC."""
    return {
        "id": movie.id,
        "title": movie.title,
        "year": movie.year,
        "runtime": f"{movie.runtime} mins",
        "genres": movie.genres,
        "version": movie.version,
        "created_at": movie.created_at,
        "updated_at": movie.updated_at,
    }
