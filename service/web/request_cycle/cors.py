"""Lets pages of other origins use the API from a browser (CORS).

https://fetch.spec.whatwg.org/#http-cors-protocol. Before most requests a browser sends a preflight,
an OPTIONS request. It shows a page only the response headers that are exposed here. A page
sends a token itself, in `Authorization`; there are no cookies, so
`Access-Control-Allow-Credentials` is never sent, and `*` is no risk.
"""

from collections.abc import Collection

from aiohttp import web
from multidict import CIMultiDict

ANY_ORIGIN = "*"
# Request headers that a page may set, beside those that every page may set.
ALLOWED_HEADERS = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "If-Match",
    "If-Modified-Since",
    "If-None-Match",
    "If-Unmodified-Since",
    "X-Request-Id",
    "traceparent",  # https://www.w3.org/TR/trace-context/
    "tracestate",
)
# Response headers that a page may read, beside Cache-Control, Content-Type, Last-Modified and such.
EXPOSED_HEADERS = (
    "Allow",
    "Content-Location",
    "Deprecation",
    "ETag",
    "Idempotency-Replayed",
    "Link",
    "Location",
    "RateLimit",
    "RateLimit-Policy",
    "Retry-After",
    "Sunset",
    "WWW-Authenticate",
    "X-Request-Id",
)
PREFLIGHT_MAX_AGE_S = 7200  # Chromium keeps a preflight no longer

_PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Headers": ", ".join(ALLOWED_HEADERS),
    "Access-Control-Max-Age": str(PREFLIGHT_MAX_AGE_S),
}
_EXPOSE_HEADERS = {"Access-Control-Expose-Headers": ", ".join(EXPOSED_HEADERS)}


class CORS:
    """Adds the CORS headers for these origins, written as browsers write them; `*`: for all.

    For any other origin they are missing, and its browser hides the response from the page.
    """

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)
        self._any = ANY_ORIGIN in self._origins

    def add(self, request: web.BaseRequest, headers: CIMultiDict[str]) -> None:
        """Add them to the headers of a response; one to OPTIONS already has `Allow`."""
        headers.add("Vary", "Origin")  # also without Origin: a cache may keep that response, too
        origin = request.headers.get("Origin")
        if not origin or not (self._any or origin in self._origins):
            return
        headers["Access-Control-Allow-Origin"] = ANY_ORIGIN if self._any else origin
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            headers.update(_PREFLIGHT_HEADERS)
            if methods := headers.get("Allow"):
                headers["Access-Control-Allow-Methods"] = methods
        else:
            headers.update(_EXPOSE_HEADERS)
