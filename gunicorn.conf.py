"""The settings of gunicorn, which reads this file by itself; `python -m service web` starts it.

The address and the number of workers come from config.toml and the environment.
"""

import asyncio
import atexit
import os
import shutil
import signal
import socket
import tempfile
from contextlib import suppress
from functools import partial
from math import ceil
from pathlib import Path

from aiohttp import GunicornWebWorker
from gunicorn import glogging
from gunicorn.arbiter import Arbiter
from gunicorn.config import Config as GunicornConfig

from service.config import load, require_database_url
from service.errors import OperatorError
from service.telemetry import logs

try:
    _config = load(Path(os.environ.get("CATALOGUE_CONFIG") or "config.toml"), os.environ)
    logs.configure(_config.log)
    require_database_url(_config)
except OperatorError as error:
    logs.log_start_failure(error)
    raise SystemExit(1) from error


class Logger(glogging.Logger):  # type: ignore[misc] # gunicorn has no types
    """Makes gunicorn log as the service does."""

    def setup(self, cfg: GunicornConfig) -> None:
        """Pass the lines to the handler of all libraries, from `[log] level` on."""
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


def on_starting(server: Arbiter) -> None:
    """Refuse a port that is taken: gunicorn would try for 5 s, and name no remedy."""
    if server.master_pid or "LISTEN_FDS" in os.environ:
        return  # the master before (SIGUSR2), or systemd, hands over sockets that listen
    for host, port in (each for each in server.address if isinstance(each, tuple)):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.create_server((host, port), family=family).close()
        except OSError as error:
            what = f"cannot listen on {host}:{port}: {error.strerror}"
            logs.log_start_failure(OperatorError(f"{what}; HOST and PORT set the address"))
            raise SystemExit(1) from error


def when_ready(server: Arbiter) -> None:
    """Refuse mistakes before any worker starts, and make what the workers share.

    That is also all that they need of the checkout, which may be of another release when one of
    them is replaced: gunicorn ends all of them if a new one cannot start.
    SIGHUP reloads queries/*.sql in the workers; gunicorn's default is to replace them.
    """
    folder = _make_metrics_folder() if _config.operations.are_metrics_on else None

    from service import serving  # noqa: PLC0415 - after the folder was made
    from service.app import check_start  # noqa: PLC0415 - as above

    operations_sockets = []
    try:
        files = asyncio.run(check_start(_config))
        if _config.operations.port:
            operations_sockets = serving.bind(_config.operations, "[operations] host and port")
    except OperatorError as error:
        logs.log_start_failure(error)
        raise SystemExit(1) from error
    addresses = [each.sock.getsockname() for each in server.LISTENERS]
    serving.warn_if_anyone_can_write(_config.access, addresses)
    serving.Worker.master = serving.Master(_config, files, operations_sockets, folder)

    def reload() -> None:
        with suppress(Exception):  # the workers log it
            asyncio.run(files.replace())
        server.kill_workers(signal.SIGHUP)

    server.handle_hup = reload


def _make_metrics_folder() -> Path:
    """Make the folder in which the workers count, until the master ends.

    https://prometheus.github.io/client_python/multiprocess/: its variable must be set before
    prometheus_client is imported. In memory where possible: writing to a file on a disk may wait.
    """
    make = partial(tempfile.mkdtemp, prefix="movie-catalogue-metrics-")
    try:
        folder = make(dir="/dev/shm")  # noqa: S108 - private
    except OSError:  # it is missing, not writable, or full
        folder = make()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    return Path(folder)


def post_fork(_: Arbiter, worker: GunicornWebWorker) -> None:
    """Give the sockets to our runner: aiohttp's worker would listen with a backlog of 128."""
    from service import serving  # noqa: PLC0415 - as above

    atexit.unregister(shutil.rmtree)
    serving.Worker.master.sockets, worker.sockets = [each.sock for each in worker.sockets], []


def child_exit(_: Arbiter, worker: GunicornWebWorker) -> None:
    """Forget the gauges of a worker that has ended; its counters remain, without free space."""
    if folder := os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        from prometheus_client.multiprocess import mark_process_dead  # noqa: PLC0415 - as above

        mark_process_dead(worker.pid)
        for path in Path(folder).glob(f"*_{worker.pid}.db"):
            # The last value may end in zeros, and these are read as a hole.
            os.truncate(path, len(path.read_bytes().rstrip(b"\0")) + 4096)
