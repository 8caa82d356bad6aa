"""The headers that every answer carries, made once a process."""

import time
from datetime import UTC, datetime
from functools import lru_cache

from aiohttp import web
from multidict import CIMultiDict, istr

from service.config import Server as Settings
from service.web.conditions import http_date
from service.web.request_cycle.cors import CORS
from service.web.request_cycle.movie_response import MovieResponse

REQUEST_ID = istr("X-Request-Id")
CONSTANT = {
    "Server": "movie-catalogue",  # or aiohttp tells versions
    # Whoever opens an answer as a page gets text: nothing in it runs, loads or is framed.
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    # Errors above all: a 404 may be kept by rule (RFC 9111, 4.2.2), although the movie may be there
    # in a moment. What may be kept says so itself.
    "Cache-Control": "no-store",
}


class CommonHeaders:
    """Adds them, by the settings of section [server]."""

    def __init__(self, settings: Settings) -> None:
        self._constant = CIMultiDict(CONSTANT)
        if settings.hsts:  # RFC 6797
            self._constant["Strict-Transport-Security"] = f"max-age={settings.hsts}"
        self._cors = CORS(settings.cors_origins) if settings.cors_origins else None
        # A movie's answer says itself how it may be kept.
        self._lines = "".join(
            [f"{k}: {v}\r\n" for k, v in self._constant.items() if k != "Cache-Control"]
        )

    def add(self, request: web.BaseRequest, response: web.StreamResponse, request_id: str) -> None:
        """Add what the answer does not say itself."""
        if (
            type(response) is MovieResponse
            and not self._cors
            and response.leave_at_once(request, self._as_lines(request_id))
        ):
            return
        headers = response.headers
        headers[REQUEST_ID] = request_id
        headers.merge(self._constant)
        if self._cors:
            self._cors.add(request, headers)

    def _as_lines(self, request_id: str) -> str:
        return f"{self._lines}Date: {_date(int(time.time()))}\r\n{REQUEST_ID}: {request_id}\r\n"


@lru_cache(maxsize=1)
def _date(seconds: int) -> str:
    return http_date(datetime.fromtimestamp(seconds, UTC))
