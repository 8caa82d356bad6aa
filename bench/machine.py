"""Describes the machine and the versions of a run."""

import os
import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from bench.load import get_wrk_version

PACKAGES = (
    *("aiohttp", "aiopg", "psycopg2-binary", "gunicorn"),
    *("fastapi", "pydantic", "uvicorn", "uvloop", "httptools", "asyncpg"),
)

MAX_CORES = 2


def limit_cores() -> None:
    """Run this process, and the processes that it starts later, on `MAX_CORES` cores.

    One process of the service uses one core, but PostgreSQL and pgbench use all cores. So ratios
    depend on the number of cores.
    """
    if hasattr(os, "sched_setaffinity"):  # not on macOS
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:MAX_CORES])


def describe_machine() -> dict[str, str | int | float]:
    """Return CPU, used cores, memory, operating system and load average."""
    return {
        "cpu": _read_cpu_model(),
        "cores": _count_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "os": _read_system_name(),
        "kernel": platform.release(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def list_versions(postgresql: str) -> dict[str, str]:
    """Return the versions of all programs and packages."""
    return {
        "Python": platform.python_version(),
        "PostgreSQL": postgresql,
        "wrk": get_wrk_version(),
        **{name: version(name) for name in PACKAGES},
    }


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0


def _read_cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _read_system_name() -> str:
    with suppress(OSError):
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    return f"{platform.system()} {platform.release()}"
