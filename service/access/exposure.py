"""Warns operators whose settings let anyone change movies."""

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

import structlog

from service.config import Access

log = structlog.get_logger()


def warn_if_anyone_can_write(settings: Access, addresses: Iterable[Any]) -> None:
    """Warn once if clients without a token may write, on an address other than loopback.

    `addresses`: of the listening sockets, as `getsockname` returns them; a unix socket has a text.
    """
    if settings.anonymous != "write":
        return
    hosts = [address[0] for address in addresses if isinstance(address, tuple)]
    exposed = [host for host in hosts if not ip_address(host.partition("%")[0]).is_loopback]
    if exposed:
        log.warning(
            "anyone can write",
            reason="[access] anonymous is write, so anyone who reaches"
            f" {' or '.join(dict.fromkeys(exposed))} can create, change and delete movies",
            remedy="set [access] anonymous to read or none, and give clients tokens",
        )
