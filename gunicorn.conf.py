"""The settings of `gunicorn service.app:gunicorn`, which reads this file by itself.

The address and the number of workers come from config.toml and the environment.
"""

import os
import signal
import time
from math import ceil
from pathlib import Path

import structlog
from aiohttp import GunicornWebWorker
from gunicorn import glogging
from gunicorn.arbiter import Arbiter
from gunicorn.config import Config as GunicornConfig
from gunicorn.sock import BaseSocket

from service import logs, metrics_files
from service.access.exposure import warn_if_anyone_can_write
from service.config import load, require_database_url
from service.errors import OperatorError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
RESTART_PAUSE_S = 1.0  # after a worker that could not start

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
_addresses = [_server, *([_config.operations] if _config.operations.port else [])]
bind = [
    f"[{each.host}]:{each.port}" if ":" in each.host else f"{each.host}:{each.port}"
    for each in _addresses
]
workers = _server.workers
backlog = _server.backlog
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


def on_exit(server: Arbiter) -> None:
    """Remove the folder."""
    if server.metrics_folder:
        metrics_files.remove_folder(server.metrics_folder)


def pre_fork(server: Arbiter, worker: GunicornWebWorker) -> None:
    """Choose the worker's slot in the folder."""
    worker.slot = metrics_files.choose_slot(each.slot for each in server.WORKERS.values())


def child_exit(server: Arbiter, worker: GunicornWebWorker) -> None:
    """Forget the gauges of a worker that has ended."""
    if server.metrics_folder:
        metrics_files.free_slot(server.metrics_folder, worker.slot)


def post_fork(server: Arbiter, worker: GunicornWebWorker) -> None:
    """Give a worker the settings of its master, and our runner its sockets.

    Only the first workers may stop the master. aiohttp's worker would listen again, with a backlog
    of 128.
    """
    # Until it handles signals itself, a worker has its master's handlers, which would do nothing.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    replaces_another = worker.age > server.cfg.workers
    if replaces_another:
        # With these two statuses, gunicorn would stop the other workers as well.
        server.WORKER_BOOT_ERROR = server.APP_LOAD_ERROR = 1

    from service.app import Worker  # noqa: PLC0415 - in the worker, not in the master

    Worker.config = _config
    Worker.replaces_another = replaces_another
    Worker.sockets = tuple(each for each in worker.sockets if not _is_for_operators(each))
    Worker.operations_sockets = tuple(filter(_is_for_operators, worker.sockets))
    worker.sockets = []
    if server.metrics_folder:
        metrics_files.use_slot(server.metrics_folder, worker.slot)
        Worker.metrics_folder = server.metrics_folder


def _is_for_operators(listener: BaseSocket) -> bool:
    """Whether it has the operations port: gunicorn's --bind replaces and adds sockets."""
    address = listener.getsockname()  # a text on a unix socket
    return isinstance(address, tuple) and address[1] == _config.operations.port


def worker_exit(_: Arbiter, worker: GunicornWebWorker) -> None:
    """Wait before the next one is started if this one could not start."""
    if not worker.booted:
        time.sleep(RESTART_PAUSE_S)


def when_ready(server: Arbiter) -> None:
    """Change what gunicorn's master does on SIGHUP, and when it cannot start a worker.

    SIGHUP goes to the workers, which reload queries/*.sql: gunicorn's default is to replace them,
    which is a deployment's task. A failed fork is tried again: it would stop the whole service.
    """
    _make_metrics_folder(server)
    warn_if_anyone_can_write(_config.access, [server.LISTENERS[0].sock.getsockname()])
    server.handle_hup = lambda: server.kill_workers(signal.SIGHUP)
    spawn_worker = server.spawn_worker

    def spawn_worker_if_possible() -> None:
        # A signal for the worker waits until `post_fork`; one for the master, until it has forked.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            spawn_worker()
        except OSError as error:  # out of processes, memory or file descriptors
            structlog.get_logger().error("worker not started", reason=str(error))
            time.sleep(RESTART_PAUSE_S)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    server.spawn_worker = spawn_worker_if_possible


def _make_metrics_folder(server: Arbiter) -> None:
    """Make the folder in which the workers count; not before the port is known to be free."""
    server.metrics_folder = None
    if _config.operations.are_metrics_on:
        try:
            server.metrics_folder = metrics_files.make_folder(workers)
        except OperatorError as error:
            logs.log_start_failure(error)
            raise SystemExit(1) from error
