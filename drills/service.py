"""The service under test: `python -m service serve`, or gunicorn as the Procfile runs it."""

import asyncio
import os
import signal
import subprocess
import sys
from math import inf
from pathlib import Path

from drills.load import wait_for_status
from drills.processes import Process, kill

ROOT = Path(__file__).parents[1]
START_TIMEOUT_S = 60.0
# Not inherited, so that the settings are those of config.toml.
PLATFORM_NAMES = {"ENVIRONMENT", "HOST", "PORT", "LOG_LEVEL", "WEB_CONCURRENCY", "DATABASE_URL"}
PREFIXES = ("CATALOGUE_", "GUNICORN_", "PG", "PATRONI_", "ETCD_")


class Service:
    """One running service."""

    def __init__(self, process: Process, port: int, log: Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self.log = log

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

    async def stop(self) -> int:
        """Send SIGTERM and return the exit status; kill the service after 30 s."""
        if self.is_running:
            self.process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.to_thread(self.process.wait, 30.0)
        except subprocess.TimeoutExpired:
            kill(self.process)
            return self.process.wait()


def make_environment() -> dict[str, str]:
    """Return this process's environment without settings; its own Python is the first."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in PLATFORM_NAMES and not name.startswith(PREFIXES)
    }
    programs = Path(sys.executable).parent
    return {**inherited, "PATH": f"{programs}{os.pathsep}{inherited.get('PATH', os.defpath)}"}
