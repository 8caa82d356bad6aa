"""Tests the client's address in the access line, behind proxies that are trusted or not."""

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import ClientSession, UnixConnector
from conftest import Client, Start
from multidict import CIMultiDict
from support import Capture
from wire import exchange

from service.app import create_app
from service.config import Config
from service.web.server import Runner

PEER = "127.0.0.1"
TRUSTED = ("127.0.0.0/8", "10.0.0.0/8", "fd00::/8")


def read_client(capsys: Capture) -> str:
    """Return the address in the newest access line."""
    *_, found = re.findall(r"client=(\S+)", capsys.readouterr().out)
    return str(found).strip("'")


async def find_client(client: Client, capsys: Capture, *headers: tuple[str, str]) -> str:
    """Send a request with these headers, and return the address in its access line."""
    await client.get("/v1", headers=CIMultiDict(headers))
    return read_client(capsys)


@pytest.mark.parametrize("trusted", [(), ("10.0.0.0/8", "unix")])
async def test_the_headers_of_a_stranger_are_ignored(
    start: Start, capsys: Capture, trusted: tuple[str, ...]
) -> None:
    """If the peer is not one of the trusted proxies; by default there are none."""
    client = await start(server__trusted_proxies=trusted)

    assert await find_client(client, capsys, ("X-Forwarded-For", "192.0.2.1")) == PEER


ADDRESSES = {
    "192.0.2.1": "192.0.2.1",
    "6.6.6.6, 192.0.2.1": "192.0.2.1",  # the client itself sent the first one
    "6.6.6.6, 192.0.2.1, 10.0.0.7,\t10.0.0.8": "192.0.2.1",
    "10.0.0.6, 10.0.0.7": "10.0.0.6",  # a client within the trusted network
    "192.0.2.1:4711": "192.0.2.1",
    "2001:DB8::1": "2001:db8::1",
    "[2001:db8::1]:4711, fd00::7": "2001:db8::1",
    "::ffff:192.0.2.1, ::ffff:10.0.0.7": "192.0.2.1",
    "192.0.2.1, unknown, 10.0.0.7": "10.0.0.7",
    ' "192.0.2.1" ': "192.0.2.1",
    **{f"192.0.2.1, {last}": PEER for last in ("unknown", "fe80::1%eth0", "192.0.2.256")},
    **dict.fromkeys(("", ",", "192.0.2.1, 192.0.2.1 10.0.0.7"), PEER),
    f"{'1' * 70}, 192.0.2.1{' ' * 70}x": PEER,
    "6.6.6.6" + ", 10.0.0.7" * 100: "10.0.0.7",  # only the last ones are read
}


async def test_it_is_the_last_untrusted_address(start: Start, capsys: Capture) -> None:
    """Of X-Forwarded-For; what cannot be read counts as the trusted proxy that has sent it.

    Several lines are one list. Forwarded is ignored: most proxies pass on whatever was sent.
    """
    client = await start(server__trusted_proxies=TRUSTED)
    lines = [("X-Forwarded-For", each) for each in ("6.6.6.6", "192.0.2.1", "10.0.0.7")]

    found = {
        sent: await find_client(client, capsys, ("X-Forwarded-For", sent)) for sent in ADDRESSES
    }

    assert found == ADDRESSES
    assert await find_client(client, capsys, *lines) == "192.0.2.1"
    assert await find_client(client, capsys, ("Forwarded", "for=6.6.6.6")) == PEER


@pytest.mark.parametrize(
    ("trusted", "expected"), [((), "unix"), (TRUSTED, "unix"), (("unix",), "192.0.2.1")]
)
async def test_a_peer_on_a_unix_socket_is_trusted_by_name(
    settings: Callable[..., Config],
    tmp_path: Path,
    capsys: Capture,
    trusted: tuple[str, ...],
    expected: str,
) -> None:
    """A peer on a unix socket has no address: settings and log call it `unix`."""
    config = settings(server__trusted_proxies=trusted)
    runner = Runner(create_app(config))
    await runner.setup()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        await runner.listen([listener])
        async with ClientSession(connector=UnixConnector(str(tmp_path / "socket"))) as session:
            await session.get("http://a/v1", headers={"X-Forwarded-For": "192.0.2.1"})
        await runner.cleanup()

    assert read_client(capsys) == expected


async def test_an_ipv4_client_of_an_ipv6_socket_has_its_ipv4_address(
    settings: Callable[..., Config], capsys: Capture
) -> None:
    """The socket calls it ::ffff:127.0.0.1, as those that gunicorn makes for `HOST=::`."""
    runner = Runner(create_app(settings()))
    await runner.setup()
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        await runner.listen([listener])
        async with ClientSession() as session:
            await session.get(f"http://{PEER}:{listener.getsockname()[1]}/v1")
        await runner.cleanup()

    assert read_client(capsys) == PEER


async def test_a_request_that_is_not_http_has_the_peer(start: Start, capsys: Capture) -> None:
    """Its headers are unknown, so X-Forwarded-For is not used, even from a trusted proxy."""
    client = await start(server__trusted_proxies=TRUSTED)

    status, _, _ = await exchange(client, b"NONSENSE\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n")

    assert status == 400
    assert read_client(capsys) == PEER
