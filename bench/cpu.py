"""CPU time of a process and all its descendants, from /proc; None on systems without it."""

import os
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
TICK = os.sysconf("SC_CLK_TCK")  # per second

# Fields of /proc/<pid>/stat behind the name, which may hold spaces (proc_pid_stat(5)).
PARENT = 1
TIMES = slice(11, 15)  # utime, stime, cutime, cstime


def seconds(root: int) -> float | None:
    """CPU seconds that `root` and its descendants have used, those that have ended included.

    A process that has ended is in its parent's cutime and cstime. PostgreSQL's backends are
    children of the postmaster, so none of them is missed, however short its life.
    """
    if not (PROC / "self" / "stat").exists():
        return None
    children: dict[int, list[int]] = {}
    times: dict[int, int] = {}
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended in between
            fields = _fields(int(folder.name))
            pid = int(folder.name)
            children.setdefault(int(fields[PARENT]), []).append(pid)
            times[pid] = sum(map(int, fields[TIMES]))
    family = [root]
    for pid in family:  # grows on the way
        family.extend(children.get(pid, ()))
    return sum(times.get(pid, 0) for pid in family) / TICK


def busy() -> float | None:
    """CPU seconds that the machine has used since it started, for whatever (proc_stat(5))."""
    if not (PROC / "stat").exists():
        return None
    user, nice, system, _, _, irq, softirq, steal = map(
        int, (PROC / "stat").read_text().split(maxsplit=9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICK


def parent(pid: int) -> int:
    """The process that started `pid`."""
    return int(_fields(pid)[PARENT])


def resident(pid: int) -> int:
    """Bytes of memory that `pid` holds (VmRSS)."""
    pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _fields(pid: int) -> list[str]:
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
