"""The processes of a run: each is started in a group of its own, and stopped by its id."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

PROC = Path("/proc")
STOP_TIMEOUT_S = 15.0

Process = subprocess.Popen[bytes]


class NotRun(Exception):
    """The drill needs a program that is not installed; the message says which one."""


class Processes:
    """Starts programs, and stops those that still run at the end."""

    def __init__(self) -> None:
        self._started: list[Process] = []

    def start(
        self,
        command: Sequence[str | Path],
        *,
        output: IO[bytes],
        folder: Path = Path("/"),
        environment: Mapping[str, str] | None = None,
        account: pwd.struct_passwd | None = None,
    ) -> Process:
        """Start a program as `account`; Ctrl-C is for the run, which then stops its programs."""
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
            user=account and account.pw_uid,
            group=account and account.pw_gid,
            extra_groups=[] if account else None,
        )
        self._started.append(process)
        return process

    def stop_all(self) -> None:
        """Stop what still runs, the last started first."""
        while self._started:
            stop(self._started.pop())


def stop(process: Process, number: int = signal.SIGTERM) -> int:
    """Stop a process with this signal, or kill it when it takes too long; return its status."""
    if process.poll() is None:
        process.send_signal(number)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            kill(process)
    return process.wait()


def freeze(pid: int) -> list[int]:
    """Stop a process and its children (SIGSTOP); return the children."""
    os.kill(pid, signal.SIGSTOP)  # first, so that it starts no more
    children = list_children(pid)
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGSTOP)
    return children


def kill(process: Process) -> None:
    """Kill a process and its children at once, as a crash of their machine would."""
    if process.poll() is None:
        # Not by their group: PostgreSQL's children have groups of their own.
        for pid in (*freeze(process.pid), process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def find_program(name: str, package: str = "") -> str:
    """Return the path of a program; raises `NotRun` if its package is not installed."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin"
    if program := shutil.which(name, path=path):
        return program
    raise NotRun(f"{name} is not installed (apt-get install {package or name})")


def find_free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def list_children(pid: int) -> list[int]:
    """Return the processes that `pid` has started."""
    text = (PROC / str(pid) / "task" / str(pid) / "children").read_text()
    return [int(word) for word in text.split()]
