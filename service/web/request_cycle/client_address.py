"""The client's address, also behind trusted proxies."""

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from aiohttp import web
from multidict import istr

UNIX = "unix"  # the peer on a unix socket, and its name in `trusted_proxies`, as in nginx
CLIENT = web.RequestKey("client", str)
MAX_HOPS = 32  # the last addresses of the header; the others are ignored
MAX_HOP_LENGTH = 64  # characters; an IPv6 address with a port has up to 53
KNOWN_ADDRESSES = 4096  # the latest

_X_FORWARDED_FOR = istr("X-Forwarded-For")
_FORWARDED = istr("Forwarded")
# Separators within a quoted string are a part of it: a proxy may quote the client's Host header. A
# string without an end takes all the rest, and no step is tried again: that keeps the time linear.
_QUOTED = r'"(?:[^"\\]|\\.?)*+(?:"|$)'
_ELEMENTS = re.compile(rf'(?:[^",]|{_QUOTED})+')
_PAIRS = re.compile(rf'(?:[^";]|{_QUOTED})+')


class ClientAddresses:
    """Finds the address of each request's client.

    That is the peer of the connection. If the peer is one of the `trusted` proxies (addresses,
    networks or `unix`), it is the last address of `X-Forwarded-For` that is not trusted itself, or
    of `Forwarded` if there is no `X-Forwarded-For`. Whatever is before that address may be forged.
    """

    def __init__(self, trusted: Collection[str]) -> None:
        self._trusts_nothing = not trusted
        self._trusts_unix = UNIX in trusted
        self._networks = [ip_network(each) for each in trusted if each != UNIX]
        self._look_up = lru_cache(KNOWN_ADDRESSES)(self._parse_and_judge)

    def find(self, request: web.BaseRequest) -> str:
        """Return the client's address; `unix` for a peer on a unix socket.

        If an element of the header has no address (`unknown`, a name, garbage), the client is the
        one that sent it: the trusted proxy after it.
        """
        peer = (request.remote or UNIX).removeprefix("::ffff:")  # an IPv4 client of an IPv6 socket
        if self._trusts_nothing:
            return peer
        is_trusted = self._trusts_unix if peer == UNIX else self._look_up(peer.partition("%")[0])[1]
        client = peer
        for hop in _list_hops(request) if is_trusted else ():
            address, is_trusted = self._look_up(hop[: MAX_HOP_LENGTH + 1])
            client = address or client
            if not is_trusted:
                break
        return client

    def _parse_and_judge(self, text: str) -> tuple[str | None, bool]:
        """Return an address in its usual form, None if it is none, and whether it is trusted."""
        address = _parse(text)
        is_trusted = address is not None and any(address in network for network in self._networks)
        return str(address) if address else None, is_trusted


def _list_hops(request: web.BaseRequest) -> Sequence[str]:
    """Return the addresses that proxies have reported, the last one first."""
    headers = request.headers  # an empty `dict` if the request is not valid HTTP
    hops: list[str] = []
    if _X_FORWARDED_FOR in headers:
        hops = ",".join(headers.getall(_X_FORWARDED_FOR)).rsplit(",", MAX_HOPS)
    elif _FORWARDED in headers:
        elements = _ELEMENTS.findall(",".join(headers.getall(_FORWARDED)))
        hops = [_find_for(element) for element in elements[-MAX_HOPS:]]
    return hops[: -MAX_HOPS - 1 : -1]


def _find_for(element: str) -> str:
    """Return the value of `for` in an element of `Forwarded` (RFC 7239, 4)."""
    pairs = (pair.strip().partition("=") for pair in _PAIRS.findall(element))
    return next((value for name, _, value in pairs if name.lower() == "for"), "")


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    """Read an address, also with a port, in brackets or in quotes (RFC 7239, 6)."""
    if len(text) > MAX_HOP_LENGTH:
        return None
    text = text.strip(' \t"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        return None if address.scope_id else address.ipv4_mapped or address
    return address
