"""Starts the processes that operators start, and asks them over HTTP."""

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError

from conftest import ROOT
from support import WAIT_S, Environment, wait_until

BIN = Path(sys.executable).parent
SERVE = [sys.executable, "-m", "service", "serve"]
GUNICORN = [str(BIN / "gunicorn"), "service.serving:make_worker"]
WEB = [sys.executable, "-m", "service", "web"]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def get(url: str) -> int:
    """Return the status of a GET; 0 if the connection is refused."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 - ours
            return int(response.status)
    except HTTPError as error:
        with error:
            return error.code
    except (URLError, TimeoutError):
        return 0


def find_processes(base: str) -> set[str]:
    """Return the part of the request id that each process that serves requests has."""

    def find(_: int) -> str:
        with urllib.request.urlopen(f"{base}/v1/healthcheck/ready", timeout=5) as response:  # noqa: S310 - ours
            return str(response.headers["X-Request-Id"]).partition("-")[0]

    with ThreadPoolExecutor(8) as threads:
        return set(threads.map(find, range(16)))


@contextmanager
def serving(
    command: list[str], environment: Environment, folder: Path = ROOT, **changes: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start the service of a checkout, wait until it is ready; yield its address and process."""
    port = free_port()
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**environment, "PORT": str(port), **changes},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a process group of its own
    ) as process:
        try:
            base = f"http://127.0.0.1:{port}"
            wait_until(
                lambda: process.poll() is not None or get(f"{base}/v1/healthcheck/ready") == 200
            )
            assert process.poll() is None, process.communicate()
            yield base, process
        finally:
            process.kill()
            process.stdout.close()  # type: ignore[union-attr] # it is a pipe
            process.stderr.close()  # type: ignore[union-attr]


def run(command: list[str], environment: Environment, **changes: str) -> tuple[int, str, str]:
    """Run a command to its end: exit status, stdout, stderr."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**environment, **changes},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def find_workers(process: subprocess.Popen[str]) -> list[int]:
    """Return the pids of gunicorn's workers."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [*map(int, children.read_text().split())]
