"""The settings of `gunicorn service.app:gunicorn`, which reads this file by itself.

The address and the number of workers come from config.toml and the environment.
"""

import os
import signal
from math import ceil
from pathlib import Path

from aiohttp import GunicornWebWorker
from gunicorn.arbiter import Arbiter

from service.config import load
from service.errors import OperatorError

try:
    _server = load(Path(os.environ.get("CATALOGUE_CONFIG", "config.toml")), os.environ).server
except OperatorError as error:
    raise SystemExit(f"Error: {error}") from error

_host = f"[{_server.host}]" if ":" in _server.host else _server.host
bind = f"{_host}:{_server.port}"
workers = _server.workers
backlog = _server.backlog
worker_class = "aiohttp.GunicornWebWorker"
# Seconds a worker has to stop: its own drain_delay and shutdown_timeout, and a margin.
graceful_timeout = ceil(_server.drain_delay + _server.shutdown_timeout) + 5
# A worker whose event loop is blocked for this many seconds is killed, with all its connections.
timeout = 60
# gunicorn logs to stderr; the service writes the access log.
errorlog = "-"
accesslog = None
# gunicorn would create a control socket in the home folder.
control_socket_disable = True


def post_fork(server: Arbiter, worker: GunicornWebWorker) -> None:
    """Tell a worker whether it replaces one that has ended."""
    from service.app import Worker  # noqa: PLC0415 - in the worker, not in the master

    Worker.replaces_another = worker.age > server.cfg.workers


def when_ready(server: Arbiter) -> None:
    """Make the master pass SIGHUP to its workers, which reload queries/*.sql and go on serving.

    gunicorn's default is to replace all workers, which is a deployment's task.
    """
    server.handle_hup = lambda: server.kill_workers(signal.SIGHUP)
