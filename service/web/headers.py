"""The headers of every response; with CORS, so that pages of other origins can use the API.

https://fetch.spec.whatwg.org/#http-cors-protocol. There are no cookies, so
`Access-Control-Allow-Credentials` is never sent, and `*` is no risk.
"""

import re

from aiohttp import web
from multidict import CIMultiDictProxy, istr

from service.config import Server as Settings
from service.database import MAX_BIGINT
from service.errors import MalformedHeader, OriginNotAllowed, WrongKey, quote

POSITION = istr("Catalogue-Position")  # a transaction that its sender has seen
ANY_ORIGIN = "*"
POSITIONS = re.compile("[0-9]{1,19}(?:[ \t]*,[ \t]*[0-9]{1,19})*")
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
PREFLIGHT_MAX_AGE_S = 7200  # Chromium keeps a preflight no longer
CONSTANT_HEADERS = {
    "Server": "movie-catalogue",  # aiohttp's own default names versions
    # If a browser opens a response as a page: run nothing, load nothing, and allow no frame.
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    # Unless the handler says otherwise. A cache may keep a 404 (RFC 9111, 4.2.2), although the
    # movie may exist a moment later.
    "Cache-Control": "no-store",
}


class CommonHeaders:
    """The headers of all responses (`constant`), and CORS headers for pages of `origins`."""

    def __init__(self, settings: Settings) -> None:
        self.constant = dict(CONSTANT_HEADERS)
        if settings.hsts:  # RFC 6797
            self.constant["Strict-Transport-Security"] = f"max-age={settings.hsts}"
        self.origins = frozenset(settings.cors_origins)

    def choose_cors(self, method: str, sent: CIMultiDictProxy[str]) -> dict[str, str]:
        """Return the headers of CORS; without them, a browser hides the response from the page."""
        headers = {"Vary": "Origin"}  # also without Origin: a cache may keep that response, too
        origin = sent.get("Origin")
        allowed = ANY_ORIGIN if ANY_ORIGIN in self.origins else origin
        if not origin or allowed not in self.origins:
            return headers
        headers["Access-Control-Allow-Origin"] = allowed
        if method == "OPTIONS" and "Access-Control-Request-Method" in sent:
            headers["Access-Control-Allow-Headers"] = ALLOWED_HEADERS
            headers["Access-Control-Max-Age"] = str(PREFLIGHT_MAX_AGE_S)
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


def parse_position(sent: CIMultiDictProxy[str]) -> int:
    """Return the highest transaction that the client has seen; raises `MalformedHeader`."""
    text = ",".join(sent.getall(POSITION))
    if POSITIONS.fullmatch(text) and (highest := max(map(int, text.split(",")))) <= MAX_BIGINT:
        return highest
    what = f"{POSITION} must be a number from an earlier response, or several, separated by commas"
    raise MalformedHeader(f"{what}; found {quote(text)}")


# The draft defines a string in double quotes (RFC 9651, 3.3.3); most clients send it without: `"a"`
# and `a` are the same key.
# https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/
HEADER_NAME = "Idempotency-Key"
# In quotes, where `\` precedes a quote or another `\`; or bare, without a quote at its start.
KEY_PATTERN = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\]){1,255})"|([!#-~](?:[ -~]{0,253}[!-~])?)')


def parse_key(request: web.Request) -> str | None:
    """Return the key without its quotes, None if it was not sent; `WrongKey`."""
    lines = request.headers.getall(HEADER_NAME, None)
    if lines is None:
        return None
    match = KEY_PATTERN.fullmatch(lines[0]) if len(lines) == 1 else None
    if not match:
        raise WrongKey
    quoted, bare = match.groups()
    return re.sub(r"\\(.)", r"\1", quoted) if quoted else bare
