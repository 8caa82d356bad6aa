"""Serves the API: in one process (`python -m service serve`), or in the workers of gunicorn."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar

import click
import structlog

from service.app import REGISTRY, create_app
from service.config import Access, Config, Operations, Server
from service.database.urls import hide_password
from service.database.verification import QueryRegistry
from service.errors import OperatorError
from service.web.server import Runner

log = structlog.get_logger()


def run(config: Config) -> None:
    """Serve until SIGINT or SIGTERM; raises `OperatorError` if it cannot start."""
    asyncio.run(_serve(config))
    _print("stopped")


async def _serve(config: Config) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    on_terminal = os.isatty(0)

    def hang_up() -> None:
        """Reload the queries, or stop if the terminal was closed, which also sends SIGHUP."""
        if on_terminal and not os.isatty(0):
            stop.set()
        else:
            app[REGISTRY].reload()

    # Set before the files are read, so that no change is missed; runs when `app` exists.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up)
    app = create_app(config)
    runner = Runner(app)
    await runner.setup()
    try:
        sockets = bind(config.server, "HOST and PORT")
        for_operators = []
        if config.operations.port:
            for_operators = bind(config.operations, "[operations] host and port")
        await runner.listen(sockets, for_operators)
        addresses = [each.getsockname() for each in sockets]
        warn_if_anyone_can_write(config.access, addresses)
        _print_banner(config, addresses[0])
        await stop.wait()
    finally:
        await runner.cleanup()


def _print_banner(config: Config, address: Sequence[Any]) -> None:
    host, port = address[:2]
    base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    movie = '{"title": "Moana", "year": 2016, "runtime": "107 mins", "genres": ["animation"]}'
    _print(
        f"listening on {base}\n"
        f"database: {hide_password(config.database.url)}\n"
        f"reference: {base}/v1/docs\n"
        f"try: curl -i -d '{movie}' {base}/v1/movies"
    )


def _print(text: str) -> None:
    with suppress(OSError):  # nobody reads stderr
        click.echo(text, err=True)


@dataclass
class Master:
    """What a worker gets from its master, by the fork."""

    config: Config
    files: QueryRegistry
    operations_sockets: Sequence[socket.socket]
    metrics_folder: Path | None
    sockets: Sequence[socket.socket] = ()


class Worker(Runner):
    """Serves on the sockets of gunicorn's master."""

    master: ClassVar[Master]  # gunicorn.conf.py sets it

    async def setup(self) -> None:
        """Start the application, and accept connections."""
        await super().setup()
        await self.listen(self.master.sockets, self.master.operations_sockets)


async def make_worker() -> Worker:
    """Make the runner of a worker; gunicorn's argument names this function."""

    def reload() -> None:
        app[REGISTRY].reload()

    # Runs when `app` exists. Until it is set, the signal ends the worker, which is replaced.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    master = Worker.master
    app = create_app(master.config, files=master.files, metrics_folder=master.metrics_folder)
    return Worker(app)


def bind(address: Server | Operations, setting: str) -> list[socket.socket]:
    """Return a socket for each address of the host; `OperatorError` names the setting to change."""
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
