"""Tests which listening addresses count as loopback."""

import pytest
from support import Logs

from service.config import Access
from service.serving import warn_if_anyone_can_write

LOOPBACK = [("127.8.8.8", 80), ("::1", 80, 0, 0), "/run/api.sock", b"\0api"]
NETWORKS = [("0.0.0.0", 80), ("10.0.0.7", 80), ("::", 80, 0, 0), ("fe80::1%lo", 80, 0, 1)]  # noqa: S104


@pytest.mark.parametrize("address", [*LOOPBACK, *NETWORKS])
def test_only_networks_are_warned_of(logs: Logs, address: object) -> None:
    """Also if the service listens on loopback, too."""
    warn_if_anyone_can_write(Access(anonymous="write"), [("127.0.0.1", 80), address])

    assert [line["event"] for line in logs] == ["anyone can write"] * (address in NETWORKS)


def test_nobody_is_warned_if_writes_need_a_token(logs: Logs) -> None:
    """Whatever the service listens on."""
    warn_if_anyone_can_write(Access(anonymous="read"), NETWORKS)

    assert logs == []
