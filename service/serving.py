"""Serves the API: in one process (`python -m service serve`), or in the workers of gunicorn."""

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from service.app import RELOAD_QUERIES, create_app
from service.config import Config
from service.database.urls import hide_password
from service.telemetry.logs import get_lines
from service.web.runner import Runner, bind, warn_if_anyone_can_write


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
            app[RELOAD_QUERIES]()

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
    _print(f"listening on {base}")
    _print(f"database: {hide_password(config.database.url)}")
    _print(f"reference: {base}/v1/docs")
    _print(f"try: curl -i -d '{movie}' {base}/v1/movies")


def _print(line: str) -> None:
    """Print a line to stderr, which may be a pipe that nobody reads."""
    get_lines("stderr").enqueue(f"{line}\n".encode())


@dataclass
class Master:
    """What a worker gets from its master, by the fork."""

    config: Config
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
        app[RELOAD_QUERIES]()

    # Set before the files are read, so that no change is missed; runs when `app` exists.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    # The master has refused mistakes. Later, a mistake must not end worker and master.
    master = Worker.master
    app = create_app(master.config, refuse_mistakes=False, metrics_folder=master.metrics_folder)
    return Worker(app)
