"""The service under test: `python -m service serve`, or gunicorn as the Procfile runs it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import IO

from drills.load import wait_for_status
from drills.processes import Process, Processes, find_free_port, list_children

START_TIMEOUT_S = 60.0
# Not inherited, so that everything is as config.toml has it.
PLATFORM_NAMES = {"ENVIRONMENT", "HOST", "PORT", "LOG_LEVEL", "WEB_CONCURRENCY", "DATABASE_URL"}


class Service:
    """One running service."""

    def __init__(self, process: Process, port: int, log: Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self.log = log

    @property
    def pid(self) -> int:
        """The process, or gunicorn's master."""
        return self.process.pid

    @property
    def workers(self) -> list[int]:
        """The processes that serve."""
        return list_children(self.pid)

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def read_log(self) -> list[str]:
        """Return the lines of stdout and stderr."""
        return self.log.read_text(errors="replace").splitlines()

    async def wait_until_ready(self) -> None:
        """Wait until the service reports that it is ready."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIMEOUT_S
        delay = inf
        while self.is_running and delay == inf and loop.time() < deadline:
            delay = await wait_for_status(self.url, "/v1/healthcheck/ready", 200, 0.5)
        if delay == inf:
            raise RuntimeError("\n".join(["the service is not ready:", *self.read_log()[-20:]]))

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status; kill the service after 30 s."""
        if self.is_running:
            self.process.send_signal(number)
        return await self.wait()

    async def wait(self) -> int:
        """Wait until the process has ended; kill it after 30 s."""
        try:
            return await asyncio.to_thread(self.process.wait, 30.0)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            return await asyncio.to_thread(self.process.wait)


def start_service(  # noqa: PLR0913 - what the drills need to differ
    processes: Processes,
    tree: Path,
    log: Path,
    database_url: str,
    *,
    workers: int | None = None,
    settings: Mapping[str, object] | None = None,
    wrapper: Sequence[str] = (),
    output: int | IO[bytes] | None = None,
    port: int | None = None,
) -> Service:
    """Start the service of `tree`; with `workers`, under gunicorn.

    `settings` are like {"database_max_open": 5}. `wrapper`: a program that runs the command.
    `output` replaces the log file for stdout.
    """
    port = port or find_free_port()
    variables = {
        f"CATALOGUE_{name.upper()}": str(value) for name, value in (settings or {}).items()
    }
    environment = {
        **make_environment(),
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "DATABASE_URL": database_url,
        **({"WEB_CONCURRENCY": str(workers)} if workers else {}),
        **variables,
    }
    command = web_command(tree) if workers else [sys.executable, "-m", "service", "serve"]
    with log.open("ab") as file:
        process = processes.start(
            [*wrapper, *command],
            output=file if output is None else output,
            errors=file,
            folder=tree,
            environment=environment,
        )
    return Service(process, port, log)


def make_environment() -> dict[str, str]:
    """Return this process's environment without settings; its own Python is the first."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in PLATFORM_NAMES and not name.startswith(("CATALOGUE_", "GUNICORN_", "PG"))
    }
    programs = Path(sys.executable).parent
    return {**inherited, "PATH": f"{programs}{os.pathsep}{inherited.get('PATH', os.defpath)}"}


def web_command(tree: Path) -> list[str]:
    """Return the command of the Procfile's process `web`."""
    lines = dict(line.split(": ", 1) for line in (tree / "Procfile").read_text().splitlines())
    return ["sh", "-c", lines["web"]]


def run_command(
    tree: Path, database_url: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of the service to its end."""
    return subprocess.run(
        [sys.executable, "-m", "service", *arguments],
        cwd=tree,
        env={**make_environment(), "DATABASE_URL": database_url, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
