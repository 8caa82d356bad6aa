"""Makes the context of each request: its id, its trace, its client, and its response's headers.

Some of these headers are for CORS, so that pages of other origins can use the API
(https://fetch.spec.whatwg.org/#http-cors-protocol). There are no cookies, so
`Access-Control-Allow-Credentials` is never sent, and `*` is no risk.
"""

import itertools
import re
import secrets
from collections.abc import Collection
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network

from aiohttp import web
from multidict import CIMultiDictProxy, istr

from service.config import Server as Settings
from service.context import RequestContext
from service.errors import OriginNotAllowed

CONTEXT = web.RequestKey("context", RequestContext)
TRACEPARENT = istr("traceparent")
REQUEST_ID = istr("X-Request-Id")
WELL_FORMED_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
# version-trace_id-parent_id-flags (https://www.w3.org/TR/trace-context/). Later versions may have
# more fields, but no version is ff.
WELL_FORMED_TRACE = re.compile(
    r"(?!ff)(?!00.{53}.)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)

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
UNIX = "unix"  # the peer on a unix socket, and its name in `trusted_proxies`, as in nginx
X_FORWARDED_FOR = istr("X-Forwarded-For")
MAX_HOPS = 32  # the last addresses of the header; the others are ignored
MAX_HOP_LENGTH = 64  # characters; an IPv6 address with a port has up to 53
KNOWN_ADDRESSES = 4096  # in the cache


class Contexts:
    """Makes the contexts of a server's requests."""

    def __init__(self, settings: Settings) -> None:
        self._constant = dict(CONSTANT_HEADERS)
        if settings.hsts:  # RFC 6797
            self._constant["Strict-Transport-Security"] = f"max-age={settings.hsts}"
        self._origins = settings.cors_origins
        trusted = settings.trusted_proxies
        self._clients = ClientAddresses(trusted) if trusted else None
        self._process_id = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def make(self, request: web.BaseRequest) -> RequestContext:
        """Make the context of a request, also for invalid HTTP."""
        headers = request.headers
        peer = (request.remote or UNIX).removeprefix("::ffff:")  # IPv4 on a socket of IPv6
        sent = headers.get(REQUEST_ID)
        if sent is not None and WELL_FORMED_ID.fullmatch(sent):
            request_id = sent
        else:
            request_id = f"{self._process_id}-{next(self._numbers):x}"
        context = RequestContext(
            request_id,
            request.method,
            self._clients.find(peer, headers) if self._clients else peer,
            {**self._constant, "X-Request-Id": request_id},
        )
        if self._origins:
            context.headers |= choose_cors_headers(request.method, headers, self._origins)
        if TRACEPARENT in headers:
            lines = headers.getall(TRACEPARENT)
            if len(lines) == 1 and (match := WELL_FORMED_TRACE.fullmatch(lines[0])):
                context.trace_id = match[1]
        return context


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


class ClientAddresses:
    """Finds the address of each request's client.

    That is the peer of the connection. If the peer is one of the `trusted` proxies (addresses,
    networks or `unix`), it is the last address of `X-Forwarded-For` that is not trusted itself.
    Addresses before that one may be forged.
    """

    def __init__(self, trusted: Collection[str]) -> None:
        self._trusts_unix = UNIX in trusted
        self._networks = [ip_network(each) for each in trusted if each != UNIX]
        self._look_up = lru_cache(KNOWN_ADDRESSES)(self._parse_and_judge)

    def find(self, peer: str, headers: CIMultiDictProxy[str]) -> str:
        """Return the client's address: that of the peer, or the one that a trusted peer reports.

        If an element of the header has no address (`unknown`, a name, garbage), the client is the
        one that sent it: the trusted proxy after it.
        """
        is_trusted = self._trusts_unix if peer == UNIX else self._look_up(peer.partition("%")[0])[1]
        if not is_trusted or X_FORWARDED_FOR not in headers:
            return peer
        hops = ",".join(headers.getall(X_FORWARDED_FOR)).rsplit(",", MAX_HOPS)
        client = peer
        for hop in reversed(hops):
            address, is_proxy = self._look_up(hop.strip(' \t"')[:MAX_HOP_LENGTH])
            client = address or client
            if not is_proxy:
                break
        return client

    def _parse_and_judge(self, text: str) -> tuple[str | None, bool]:
        """Return the address in its usual form (None: not an address) and whether it is trusted."""
        if text.startswith("["):  # brackets and a port: RFC 7239, 6
            text = text[1:].partition("]")[0]
        elif text.count(":") == 1:
            text = text.partition(":")[0]
        try:
            found = ip_address(text)
        except ValueError:
            return None, False
        if isinstance(found, IPv6Address) and found.scope_id:
            return None, False
        address = (isinstance(found, IPv6Address) and found.ipv4_mapped) or found
        return str(address), any(address in network for network in self._networks)
