"""The headers that every answer carries, made once a process."""

from aiohttp import web
from multidict import CIMultiDict, istr

from service.config import Server as Settings
from service.web.cors import CORS

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

    def add(self, request: web.BaseRequest, response: web.StreamResponse, request_id: str) -> None:
        """Add what the answer does not say itself: 0.1 us more than two headers alone."""
        headers = response.headers
        headers[REQUEST_ID] = request_id
        headers.merge(self._constant)
        if self._cors:
            self._cors.add(request, headers)
