"""The settings of gunicorn, which reads this file by itself; `python -m service web` starts it.

The address and the number of workers come from config.toml and the environment.
"""

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from functools import partial
from math import ceil
from pathlib import Path

from aiohttp import GunicornWebWorker
from gunicorn import glogging
from gunicorn.arbiter import Arbiter
from gunicorn.config import Config as GunicornConfig

from service import logs
from service.access.exposure import warn_if_anyone_can_write
from service.config import load, require_database_url
from service.errors import OperatorError

try:
    _config = load(Path(os.environ.get("CATALOGUE_CONFIG", "config.toml")), os.environ)
    logs.configure(_config.log)
    require_database_url(_config)
except OperatorError as error:
    logs.log_start_failure(error)
    raise SystemExit(1) from error


class Logger(glogging.Logger):  # type: ignore[misc] # gunicorn has no types
    """Makes gunicorn log as the service does."""

    def setup(self, cfg: GunicornConfig) -> None:
        """Leave the lines to the handler of all libraries, from level info on."""
        self.cfg = cfg
        self.error_log.setLevel(cfg.loglevel.upper())
        self.error_log.propagate = True


_server = _config.server
bind = (
    f"[{_server.host}]:{_server.port}" if ":" in _server.host else f"{_server.host}:{_server.port}"
)
workers = _server.workers
worker_class = "aiohttp.GunicornWebWorker"
# Seconds a worker has to stop: its own drain_delay and shutdown_timeout, and a margin.
graceful_timeout = ceil(_server.drain_delay + _server.shutdown_timeout) + 5
# A worker whose event loop is blocked for this many seconds is killed, with all its connections.
timeout = 60
logger_class = Logger
loglevel = _config.log.level
accesslog = None  # the service writes it
# gunicorn would create a control socket in the home folder.
control_socket_disable = True

_metrics_folder: Path | None = None
_operations_sockets: list[socket.socket] = []


def on_starting(_: Arbiter) -> None:
    """Refuse mistakes, before any worker starts; make the folder in which the workers count.

    https://prometheus.github.io/client_python/multiprocess/: its variable must be set before
    prometheus_client is imported. In memory where possible: writing to a file on a disk may wait.
    """
    global _metrics_folder, _operations_sockets  # noqa: PLW0603 - hooks share nothing else
    if _config.operations.are_metrics_on:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - private
        _metrics_folder = Path(tempfile.mkdtemp(prefix="movie-catalogue-metrics-", dir=memory))
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(_metrics_folder)

    from service.app import check_start  # noqa: PLC0415 - see above
    from service.web.request_cycle.server import bind as make_sockets  # noqa: PLC0415 - see above

    try:
        asyncio.run(check_start(_config))
        if _config.operations.port:
            setting = "[operations] host and port"
            _operations_sockets = make_sockets(_config.operations, setting)
    except OperatorError as error:
        logs.log_start_failure(error)
        _remove_metrics()
        raise SystemExit(1) from error


def when_ready(server: Arbiter) -> None:
    """Let SIGHUP reload queries/*.sql in the workers; gunicorn's default is to replace them."""
    warn_if_anyone_can_write(_config.access, [server.LISTENERS[0].sock.getsockname()])
    signal.signal(signal.SIGHUP, lambda *_: server.kill_workers(signal.SIGHUP))


def post_fork(_: Arbiter, worker: GunicornWebWorker) -> None:
    """Give a worker its settings and sockets.

    aiohttp's worker would listen on the sockets again, with a backlog of 128.
    """
    from service.worker import make_worker  # noqa: PLC0415 - after `on_starting`

    sockets, worker.sockets = [each.sock for each in worker.sockets], []
    worker.app.callable = partial(
        make_worker, _config, sockets, _operations_sockets, _metrics_folder
    )


def child_exit(_: Arbiter, worker: GunicornWebWorker) -> None:
    """Forget the gauges of a worker that has ended; its counters remain."""
    if _metrics_folder:
        from prometheus_client.multiprocess import mark_process_dead  # noqa: PLC0415 - see above

        mark_process_dead(worker.pid)


def on_exit(_: Arbiter) -> None:
    """Remove the folder of the metrics."""
    _remove_metrics()


def _remove_metrics() -> None:
    if _metrics_folder:
        shutil.rmtree(_metrics_folder, ignore_errors=True)
