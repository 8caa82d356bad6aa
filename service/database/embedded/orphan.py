"""A server whose keeper was killed: found by its pid file, and stopped.

Nobody would stop it otherwise, and PostgreSQL does not start a second one on the same data.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from service.database.embedded.place import PAUSE, STOPPING, Server

PROCESSES = Path("/proc")


def stop_orphan(server: Server) -> None:
    """Stop the server of a keeper that was killed; its pid may name an innocent by now."""
    file = server.data / "postmaster.pid"
    if not file.exists():
        return
    first, *_ = file.read_text().splitlines() or [""]
    pid = int(first) if first.isdigit() else 0
    for how in (signal.SIGINT, signal.SIGQUIT):
        deadline = time.monotonic() + STOPPING
        if serves(pid, server):
            os.kill(pid, how)
        while serves(pid, server) and time.monotonic() < deadline:
            time.sleep(PAUSE)
    if not serves(pid, server):
        file.unlink(missing_ok=True)


def serves(pid: int, server: Server) -> bool:
    """Tell if this process is a PostgreSQL of this folder, and not merely any PostgreSQL."""
    return f"/postgres -D {server.data} -k " in _command_line(pid)


def _command_line(pid: int) -> str:
    """Ask /proc where there is one, because slim images carry no ps; macOS has ps only."""
    if not (PROCESSES / "self").exists():
        command = ["ps", "-ww", "-o", "args=", "-p", str(pid)]
        return os.fsdecode(subprocess.run(command, capture_output=True, check=False).stdout)  # noqa: S603
    with suppress(FileNotFoundError, ProcessLookupError):
        return os.fsdecode((PROCESSES / str(pid) / "cmdline").read_bytes().replace(b"\0", b" "))
    return ""
