"""The addresses of clients, also of those behind proxies."""

from collections.abc import Collection
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network

from multidict import CIMultiDictProxy, istr

UNIX = "unix"  # the peer on a unix socket, and its name in `trusted_proxies`, as in nginx
X_FORWARDED_FOR = istr("X-Forwarded-For")
MAX_HOPS = 32  # the last addresses of the header; the others are ignored
MAX_HOP_LENGTH = 64  # characters; an IPv6 address with a port has up to 53
KNOWN_ADDRESSES = 4096  # in the cache


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
