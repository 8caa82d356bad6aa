"""The code of gunicorn's workers; gunicorn.conf.py checks the service and starts them."""

import asyncio
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from service.app import RELOAD_QUERIES, create_app
from service.config import Config
from service.web.runner import Runner


class Worker(Runner):
    """Serves on sockets that the worker gets from its master."""

    def __init__(self, app: web.Application, *sockets: Sequence[socket.socket]) -> None:
        super().__init__(app)
        self._sockets = sockets

    async def setup(self) -> None:
        """Start the application, and accept connections."""
        await super().setup()
        await self.listen(*self._sockets)


async def make_worker(
    config: Config,
    operations_sockets: Sequence[socket.socket],
    metrics_folder: Path | None,
    sockets: Sequence[socket.socket],
) -> Worker:
    """Make a worker. SIGHUP reloads its queries."""

    def reload() -> None:
        app[RELOAD_QUERIES]()

    # Set before the files are read, so that no change is missed; runs when `app` exists.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    # The master has refused mistakes. Later, a mistake must not end worker and master.
    app = create_app(config, refuse_mistakes=False, metrics_folder=metrics_folder)
    return Worker(app, sockets, operations_sockets)
