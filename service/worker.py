"""What gunicorn's workers run; gunicorn.conf.py has checked the service, and starts them."""

import asyncio
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from service.app import RELOAD_QUERIES, create_app
from service.config import Config
from service.web.request_cycle.runner import Runner


class Worker(Runner):
    """Serves on sockets that the worker has from its master."""

    def __init__(
        self,
        config: Config,
        operations_sockets: Sequence[socket.socket],
        metrics_folder: Path | None,
        sockets: Sequence[socket.socket],
    ) -> None:
        # The master has refused mistakes. A worker that replaces another one must not stop it.
        super().__init__(create_app(config, refuse_mistakes=False, metrics_folder=metrics_folder))
        self._sockets = sockets
        self._operations_sockets = operations_sockets

    async def setup(self) -> None:
        """Start the application, and accept connections."""
        await super().setup()
        await self.listen(self._sockets, self._operations_sockets)


async def make_worker(
    config: Config,
    operations_sockets: Sequence[socket.socket],
    metrics_folder: Path | None,
    sockets: Sequence[socket.socket],
) -> Worker:
    """Make a worker. SIGHUP reloads its queries."""
    worker: Worker

    def reload() -> None:
        worker.app[RELOAD_QUERIES]()

    # Before the files are read, to miss no change; the loop calls it when there is an app.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    worker = Worker(config, operations_sockets, metrics_folder, sockets)
    return worker
