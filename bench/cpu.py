"""Reads CPU time and memory from /proc; without /proc, CPU times are None."""

import os
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

# Fields of /proc/<pid>/stat after the name, which may contain spaces (proc_pid_stat(5)).
PARENT_FIELD = 1
TIME_FIELDS = slice(11, 15)  # utime, stime, cutime, cstime


def read_tree_seconds(root: int) -> float | None:
    """Return the CPU seconds of `root` and its descendants, including those that have ended.

    The times of an ended process are in its parent's cutime and cstime. PostgreSQL's backends are
    children of the postmaster, so even short-lived backends are counted.
    """
    if not (PROC / "self" / "stat").exists():
        return None
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(FileNotFoundError, ProcessLookupError):  # the process has just ended
            pid = int(folder.name)
            fields = _read_stat(pid)
            children.setdefault(int(fields[PARENT_FIELD]), []).append(pid)
            ticks[pid] = sum(map(int, fields[TIME_FIELDS]))
    tree = [root]
    for pid in tree:  # the loop appends to `tree`
        tree.extend(children.get(pid, ()))
    return sum(ticks.get(pid, 0) for pid in tree) / TICKS_PER_S


def read_machine_seconds() -> float | None:
    """Return the CPU seconds of all programs since the machine started (proc_stat(5))."""
    if not (PROC / "stat").exists():
        return None
    user, nice, system, _, _, irq, softirq, steal = map(
        int, (PROC / "stat").read_text().split(maxsplit=9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def read_parent(pid: int) -> int:
    """Return the id of the process that started `pid`."""
    return int(_read_stat(pid)[PARENT_FIELD])


def read_resident_bytes(pid: int) -> int:
    """Return the resident memory of `pid` (VmRSS)."""
    pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _read_stat(pid: int) -> list[str]:
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
