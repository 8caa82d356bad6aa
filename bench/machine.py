"""Describes the machine and the versions of a run; reads CPU time and memory from /proc."""

import os
import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from bench.load import get_wrk_version

PROC = Path("/proc")
PACKAGES = ("aiohttp", "aiopg", "psycopg2-binary", "gunicorn")
MAX_CORES = 2

# Fields of /proc/<pid>/stat after the name, which may contain spaces (proc_pid_stat(5)).
PARENT_FIELD = 1
TIME_FIELDS = slice(11, 15)  # utime, stime, cutime, cstime


def limit_cores() -> None:
    """Run this process, and the processes that it starts later, on `MAX_CORES` cores.

    One process of the service uses one core, but PostgreSQL uses all cores. So ratios depend on the
    number of cores.
    """
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:MAX_CORES])


def describe_machine() -> dict[str, str | int | float]:
    """Return CPU, used cores, memory, operating system and load average."""
    cpu_info = (PROC / "cpuinfo").read_text().partition("model name")[2].partition("\n")[0]
    return {
        "cpu": cpu_info.lstrip("\t: ") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "os": platform.freedesktop_os_release()["PRETTY_NAME"],
        "load_average": round(os.getloadavg()[0], 2),
    }


def list_versions(postgresql: str) -> dict[str, str]:
    """Return the versions of all programs and packages."""
    versions = {"Python": platform.python_version(), "PostgreSQL": postgresql}
    return {**versions, "wrk": get_wrk_version(), **{name: version(name) for name in PACKAGES}}


def read_cpu_seconds(root: int) -> float:
    """Return the CPU seconds of `root` and its descendants, including those that have ended.

    The times of an ended process are in its parent's cutime and cstime. PostgreSQL's backends are
    children of the postmaster, so even short-lived backends are counted.
    """
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for folder in PROC.glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the process has just ended
            pid = int(folder.name)
            fields = _read_stat(pid)
            children.setdefault(int(fields[PARENT_FIELD]), []).append(pid)
            ticks[pid] = sum(map(int, fields[TIME_FIELDS]))
    tree = [root]
    for pid in tree:  # the loop appends to `tree`
        tree.extend(children.get(pid, ()))
    return sum(ticks.get(pid, 0) for pid in tree) / os.sysconf("SC_CLK_TCK")


def find_postmaster(backend: int) -> int:
    """Return the id of the process that started a backend."""
    return int(_read_stat(backend)[PARENT_FIELD])


def _read_stat(pid: int) -> list[str]:
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
