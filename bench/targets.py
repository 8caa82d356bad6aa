"""Starts the targets on loopback: the service, and bare aiohttp."""

import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.load import READS, WORKLOADS
from drills.processes import find_free_port
from drills.service import ROOT, make_environment

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
SERVICE = "service"


@dataclass(frozen=True)
class Target:
    """One HTTP server to measure."""

    name: str
    title: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    workloads: tuple[str, ...] = WORKLOADS


WEB = ("service", "web")
TARGETS = (
    Target(SERVICE, "this service", WEB),
    Target("service-2", "this service, 2 processes", WEB, {"WEB_CONCURRENCY": "2"}),
    Target("aiohttp", "bare aiohttp, constant body", ("bench.peer_aiohttp",), workloads=(READS,)),
)


@dataclass(frozen=True)
class Running:
    """A started target."""

    target: Target
    url: str
    pid: int


@contextmanager
def start_target(target: Target, database_url: str) -> Iterator[Running]:
    """Start a target, wait until it responds, and stop it at the end."""
    port = find_free_port()
    own = {"DATABASE_URL": database_url, "HOST": "127.0.0.1", "PORT": str(port)}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603 one of the programs above
            [sys.executable, "-m", *target.command],
            cwd=ROOT,
            env={**make_environment(), **own, **target.environment},
            stdout=subprocess.DEVNULL,  # the service's access log
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches only the benchmark, which stops its targets
        )
        try:
            url = f"http://127.0.0.1:{port}"
            if not wait_for_response(process, f"{url}/v1/movies/1"):
                log.seek(0)
                output = log.read().decode(errors="replace").strip()
                raise RuntimeError(f"{target.title} did not start: {output}")
            yield Running(target, url, process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for_response(process: subprocess.Popen[bytes], url: str) -> bool:
    """Wait until the URL responds; return False if the process ends or the timeout passes first."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 http, on loopback
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    return False
