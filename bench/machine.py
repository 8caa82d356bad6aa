"""What a run was made on, and with."""

import os
import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from bench.load import wrk_version

PACKAGES = (
    *("aiohttp", "aiopg", "psycopg2-binary", "gunicorn"),
    *("fastapi", "pydantic", "uvicorn", "uvloop", "httptools", "asyncpg"),
)

CORES = 2


def keep_to_cores() -> None:
    """Have this process, and all that it starts from now on, run on `CORES` of the machine's cores.

    One process serves with one core, however many there are, while its database and what it is
    compared with take what they get: where there are more, other ratios come out.
    """
    if hasattr(os, "sched_setaffinity"):  # not on macOS
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


def machine() -> dict[str, str | int | float]:
    """The machine, as far as it says."""
    return {
        "cpu": _cpu(),
        "cores": _cores(),  # in use
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "os": _system(),
        "kernel": platform.release(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def versions(postgresql: str) -> dict[str, str]:
    """The versions of all that takes part."""
    return {
        "Python": platform.python_version(),
        "PostgreSQL": postgresql,
        "wrk": wrk_version(),
        **{name: version(name) for name in PACKAGES},
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _system() -> str:
    with suppress(OSError):
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    return f"{platform.system()} {platform.release()}"
