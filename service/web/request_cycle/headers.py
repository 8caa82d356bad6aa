"""The headers of every response."""

from aiohttp import web
from multidict import CIMultiDict

from service.config import Server as Settings
from service.web.request_cycle.cors import CORS
from service.web.request_cycle.request_ids import HEADER, REQUEST_ID

CONSTANT_HEADERS = {
    # A browser that opens a response as a page runs and loads nothing of it, and frames it nowhere.
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    # Unless the handler says otherwise. A cache may keep a 404 (RFC 9111, 4.2.2), although the
    # movie may exist a moment later.
    "Cache-Control": "no-store",
}


class CommonHeaders:
    """Adds the headers, with the settings of section [server]."""

    def __init__(self, settings: Settings) -> None:
        self._constant = CIMultiDict(CONSTANT_HEADERS)
        if settings.hsts:  # RFC 6797
            self._constant["Strict-Transport-Security"] = f"max-age={settings.hsts}"
        self._cors = CORS(settings.cors_origins) if settings.cors_origins else None

    async def on_response_prepare(
        self, request: web.BaseRequest, response: web.StreamResponse
    ) -> None:
        """Add the headers to a response of the application."""
        self.add(request, response)

    def add(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Add the headers that the response does not have."""
        headers = response.headers
        if HEADER in headers:  # the server has added them
            return
        headers["Server"] = "movie-catalogue"  # aiohttp's own default names versions
        headers[HEADER] = request[REQUEST_ID]
        headers.merge(self._constant)
        if self._cors:
            self._cors.add(request, headers)


COMMON_HEADERS = web.AppKey("common_headers", CommonHeaders)
