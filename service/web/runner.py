"""Starts and stops the server: `python -m service serve` and gunicorn's workers run a `Runner`."""

import asyncio
import resource
import socket
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Any

import structlog
from aiohttp import web

from service.config import Access, Config, Operations
from service.config import Server as Settings
from service.errors import OperatorError
from service.web.middleware import CYCLE
from service.web.server import Connection, ConnectionLimit, ResponseReport

log = structlog.get_logger()

ACCEPTED_AT_ONCE = 32
BACKLOG = 2048  # connections that may wait to be accepted; further clients retry after 1 s
RESERVED_FILES = 128  # besides connections: log, event loop, listening sockets, DNS lookups
UNREAD_MAX_MS = 30_000  # for a client to read what was sent
LINGERING_S = 2.0  # for the rest of a body that was refused
# At a stop, connections have so long for one more response, which says that the connection ends.
LAST_RESPONSE_S = 1.0
DRAIN_CHECK_S = 0.02
OPERATIONS_APP = web.AppKey("operations", web.Application)


class Runner(web.AppRunner):
    """Runs an application and, if there is an operations port, the application of that port."""

    def __init__(self, app: web.Application) -> None:
        self._settings = app[CYCLE].settings
        self._options: dict[str, Any] = {
            "auto_decompress": False,  # `bodies.py` decompresses, up to a limit
            "keepalive_timeout": self._settings.keepalive_timeout,
            "lingering_time": LINGERING_S,
            "access_log_class": ResponseReport,
        }
        # aiohttp's own wait is short, because `cleanup` has waited for the requests before.
        super().__init__(app, shutdown_timeout=1, **self._options)
        self.servers: list[asyncio.Server] = []
        self._operations: Runner | None = None

    async def listen(
        self, sockets: Iterable[socket.socket], for_operators: Iterable[socket.socket] = ()
    ) -> None:
        """Accept connections on these sockets."""
        if for_operators:
            self._operations = Runner(self.app[OPERATIONS_APP])
            await self._operations.setup()
            await self._operations.listen(for_operators)
        assert self.server, "set up before"  # noqa: S101 - for mypy
        limit = ConnectionLimit(self._settings.max_connections)
        make_connection = partial(Connection, self.server, self.app[CYCLE], limit, **self._options)
        for each in sockets:
            if each.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
                # Connections inherit it: the kernel ends one whose client does not read.
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MAX_MS)
            # asyncio uses `backlog` also as the number of connections that it accepts at once, and
            # each opens a file before it is counted. So it is small first, and then raised.
            loop = asyncio.get_running_loop()
            self.servers.append(
                await loop.create_server(make_connection, sock=each, backlog=ACCEPTED_AT_ONCE)
            )
            each.listen(BACKLOG)

    async def cleanup(self) -> None:
        """Report "not ready", accept no more connections, wait for requests in flight, stop."""
        loop, cycle = asyncio.get_running_loop(), self.app[CYCLE]
        must_drain = self.servers and not cycle.is_draining
        if must_drain:
            cycle.is_draining = True
            await asyncio.sleep(self._settings.drain_delay)
        for each in self.servers:
            each.close()
        if must_drain and self.server:  # aiohttp's own wait would not receive bodies
            started, passed = loop.time(), 0.0
            while passed < self._settings.shutdown_timeout:
                await asyncio.sleep(DRAIN_CHECK_S)  # asyncio may still be accepting connections
                passed = loop.time() - started
                is_waited_for = self.server.connections and passed < LAST_RESPONSE_S
                if not (is_waited_for or cycle.in_flight):
                    break
        await super().cleanup()
        if self._operations:
            await self._operations.cleanup()


def choose_max_connections(config: Config) -> int:
    """Return the most connections of a process: the setting, or what its files allow.

    The process may open as many files as its hard limit says (`ulimit -Hn`). Raises `OperatorError`
    if no connection is left.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS refuses to set no limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return config.server.max_connections
    needed = RESERVED_FILES + config.database.max_open
    if files <= needed:
        raise OperatorError(f"expected more than {needed} open files, found {files} (ulimit -n)")
    return min(config.server.max_connections, files - needed)


def bind(address: Settings | Operations, setting: str) -> list[socket.socket]:
    """Return a socket for each address of the host.

    Raises `OperatorError`, which names the setting that changes the address.
    """
    host, port = address.host, address.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses = dict.fromkeys((family, address) for family, *_, address in found)
        return [socket.create_server(each[:2], family=family) for family, each in addresses]
    except OSError as error:
        raise OperatorError(
            f"cannot listen on {host}:{port}: {error.strerror}; {setting} set the address"
        ) from error


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
