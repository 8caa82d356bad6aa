"""CORS: pages of other origins may use the API (https://fetch.spec.whatwg.org/#http-cors-protocol).

There are no cookies, so `Access-Control-Allow-Credentials` is never sent, and `*` is no risk.
"""

from multidict import CIMultiDictProxy, istr

from service.errors import OriginNotAllowed

ANY_ORIGIN = "*"
SEC_FETCH_SITE = istr("Sec-Fetch-Site")
# Request headers that a page may set; browsers allow some others without asking.
ALLOWED_HEADERS = (
    "Authorization, Catalogue-Position, Content-Type, Idempotency-Key, If-Match, If-Modified-Since,"
    " If-None-Match, If-Unmodified-Since, Prefer, X-Request-Id, traceparent, tracestate"
)
# Response headers that a page may read, beside Cache-Control, Content-Type, Last-Modified and such.
EXPOSED_HEADERS = (
    "Allow, Catalogue-Position, Changes-Cursor, Content-Location, Deprecation, ETag,"
    " Idempotency-Replayed, Link, Location, Preference-Applied, RateLimit, RateLimit-Policy,"
    " Retry-After, Sunset, Total-Records, Upgrade, WWW-Authenticate, X-Request-Id"
)
PREFLIGHT_MAX_AGE_S = "7200"  # Chromium keeps a preflight no longer


def choose_cors_headers(
    method: str, sent: CIMultiDictProxy[str], origins: tuple[str, ...]
) -> dict[str, str]:
    """Return the headers of CORS; without them, a browser hides the response from the page."""
    headers = {"Vary": "Origin"}  # also without Origin: a cache may keep that response, too
    origin = sent.get("Origin")
    allowed = ANY_ORIGIN if ANY_ORIGIN in origins else origin
    if not origin or allowed not in origins:
        return headers
    headers["Access-Control-Allow-Origin"] = allowed
    if method == "OPTIONS" and "Access-Control-Request-Method" in sent:
        headers["Access-Control-Allow-Headers"] = ALLOWED_HEADERS
        headers["Access-Control-Max-Age"] = PREFLIGHT_MAX_AGE_S
    else:
        headers["Access-Control-Expose-Headers"] = EXPOSED_HEADERS
    return headers


def require_allowed_origin(sent: CIMultiDictProxy[str], origins: tuple[str, ...]) -> None:
    """Raise `OriginNotAllowed` if a browser sends this for a page of an origin not in `origins`.

    `text/plain` has no preflight. https://www.w3.org/TR/fetch-metadata/#sec-fetch-site-header
    """
    is_own = sent[SEC_FETCH_SITE] in ("same-origin", "none")
    if not is_own and ANY_ORIGIN not in origins and sent.get("Origin") not in origins:
        raise OriginNotAllowed
