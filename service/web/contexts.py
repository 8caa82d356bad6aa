"""Makes the context of each request: its id, its trace, and its client's address."""

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
from service.web.headers import CommonHeaders

CONTEXT = web.RequestKey("context", RequestContext)
TRACEPARENT = istr("traceparent")
REQUEST_ID = istr("X-Request-Id")
WELL_FORMED_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
# version-trace_id-parent_id-flags (https://www.w3.org/TR/trace-context/). Later versions may have
# more fields, but no version is ff.
WELL_FORMED_TRACE = re.compile(
    r"(?!ff)(?!00.{53}.)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)


class Contexts:
    """Makes the contexts of a server's requests."""

    def __init__(self, settings: Settings) -> None:
        self._common = CommonHeaders(settings)
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
            {**self._common.constant, "X-Request-Id": request_id},
        )
        if self._common.origins:
            context.headers |= self._common.choose_cors(request.method, headers)
        if TRACEPARENT in headers:
            context.trace_id = find_trace_id(headers)
        return context


def find_trace_id(headers: CIMultiDictProxy[str]) -> str | None:
    """Return the id of the trace if the request has exactly one valid `traceparent`."""
    lines = headers.getall(TRACEPARENT)
    match = WELL_FORMED_TRACE.fullmatch(lines[0]) if len(lines) == 1 else None
    return match[1] if match else None


UNIX = "unix"  # the peer on a unix socket, and its name in `trusted_proxies`, as in nginx
MAX_HOPS = 32  # the last addresses of the header; the others are ignored
MAX_HOP_LENGTH = 64  # characters; an IPv6 address with a port has up to 53
KNOWN_ADDRESSES = 4096  # in the cache

_X_FORWARDED_FOR = istr("X-Forwarded-For")


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
        if not is_trusted or _X_FORWARDED_FOR not in headers:
            return peer
        hops = ",".join(headers.getall(_X_FORWARDED_FOR)).rsplit(",", MAX_HOPS)
        client = peer
        for hop in reversed(hops):
            address, is_proxy = self._look_up(hop.strip(' \t"')[:MAX_HOP_LENGTH])
            client = address or client
            if not is_proxy:
                break
        return client

    def _parse_and_judge(self, text: str) -> tuple[str | None, bool]:
        """Return the address in its usual form (None: not an address) and whether it is trusted."""
        try:
            found = ip_address(_strip_port(text))
        except ValueError:
            return None, False
        if isinstance(found, IPv6Address) and found.scope_id:
            return None, False
        address = (isinstance(found, IPv6Address) and found.ipv4_mapped) or found
        return str(address), any(address in network for network in self._networks)


def _strip_port(text: str) -> str:
    """Remove a port and brackets (RFC 7239, 6)."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
