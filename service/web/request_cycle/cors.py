"""Which pages of other origins may use the API from a browser.

https://fetch.spec.whatwg.org/#http-cors-protocol. A browser asks before most requests (a preflight,
which is an OPTIONS) and shows a page no more of an answer than is exposed here. The service knows
no cookies or passwords, so none are allowed (`Access-Control-Allow-Credentials`).
"""

from collections.abc import Collection

from aiohttp import web
from multidict import CIMultiDict

EVERY_ORIGIN = "*"
# What a page may send; what browsers send by themselves, or let every page send, needs no leave.
ALLOWED = (
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
# What a page may read of an answer, beside Cache-Control, Content-Type, Last-Modified and the like.
EXPOSED = (
    "Allow",
    "Content-Location",
    "Deprecation",
    "ETag",
    "Idempotency-Replayed",
    "Link",
    "Location",
    "Retry-After",
    "Sunset",
    "X-Request-Id",
)
MAX_AGE = 7200  # seconds for which a preflight holds; Chromium takes no more

_PREFLIGHT = {
    "Access-Control-Allow-Headers": ", ".join(ALLOWED),
    "Access-Control-Max-Age": str(MAX_AGE),
}
_EXPOSING = {"Access-Control-Expose-Headers": ", ".join(EXPOSED)}


class CORS:
    """Adds the headers of the protocol for these origins, as browsers write them; `*`: for all.

    Any other origin gets its answer without them, which its browser then keeps from the page.
    """

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)
        self._every = EVERY_ORIGIN in self._origins

    def add(self, request: web.BaseRequest, headers: CIMultiDict[str]) -> None:
        """Add them to the headers of an answer; of OPTIONS, `Allow` has to be among them."""
        headers.add("Vary", "Origin")  # also of what has no Origin: a cache may keep that as well
        origin = request.headers.get("Origin")
        if not origin or not (self._every or origin in self._origins):
            return
        headers["Access-Control-Allow-Origin"] = EVERY_ORIGIN if self._every else origin
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            headers.update(_PREFLIGHT)
            if methods := headers.get("Allow"):
                headers["Access-Control-Allow-Methods"] = methods
        else:
            headers.update(_EXPOSING)
