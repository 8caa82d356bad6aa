"""How gunicorn serves: `gunicorn service.app:gunicorn` reads this file by itself.

Where, and with how many workers, comes from config.toml and the environment, like all settings.
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
# A worker's time to finish, which begins with its own drain_delay and shutdown_timeout.
graceful_timeout = ceil(_server.drain_delay + _server.shutdown_timeout) + 5
# A worker whose event loop stands still for this long is killed, with all its connections.
timeout = 60
# gunicorn's own lines; the access lines are the service's.
errorlog = "-"
accesslog = None
# It would be a socket in the home folder.
control_socket_disable = True


def post_fork(server: Arbiter, worker: GunicornWebWorker) -> None:
    """Tell a worker whether it replaces one that has ended."""
    from service.app import Worker  # noqa: PLC0415 - in the worker, not in the master

    Worker.replaces_another = worker.age > server.cfg.workers


def when_ready(server: Arbiter) -> None:
    """Have the master pass SIGHUP on: workers reload queries/*.sql and go on serving.

    By itself it would replace all workers; deploy to do that.
    """
    server.handle_hup = lambda: server.kill_workers(signal.SIGHUP)
