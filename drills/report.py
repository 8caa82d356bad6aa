"""The table on stdout, and docs/drills.md."""

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from drills.lab import Drill

PACKAGES = ("aiohttp", "aiopg", "psycopg2-binary", "gunicorn")
PASS, FAIL, NOT_RUN = "pass", "FAIL", "not run"
HEAD = """# Drills

`make drills` runs the service with real processes, breaks what it depends on, and lets some
clients behave badly. Clients record each write that the service has acknowledged; at the end, an
audit compares them with the database. This is the last run.

"""
TAIL = """
Reads and writes are counted by HTTP status; "at most" is the slowest one. "Audit" compares each
acknowledged create, change and deletion with the database: nothing missing, altered or twice.
"""


WITHOUT = "\n## Without a protection\n"
ABOUT_WITHOUT = """
The drills can fail. `make drills ARGS="--disable all"` removes one protection after the other from
a copy of the service (`drills/disabling.py`) and runs its drill, which must fail. The last run:

"""


@dataclass(frozen=True)
class Row:
    """The outcome of one drill."""

    drill: Drill
    verdict: str
    figures: tuple[str, ...]
    failures: tuple[str, ...]
    seconds: float


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each drill, and its failures below it."""
    for row in rows:
        yield f"{row.drill.name:<24} {row.verdict:<8} {row.seconds:>5.0f} s  {_join(row.figures)}"
        yield from (f"{'':<24} !        {failure}" for failure in row.failures)


def write_document(path: Path, rows: Sequence[Row], versions: dict[str, str]) -> None:
    """Write what this run has seen; the section about missing protections stays."""
    passed = sum(row.verdict == PASS for row in rows)
    minutes = sum(row.seconds for row in rows) / 60
    about = (
        f"{datetime.now(UTC):%Y-%m-%d}, {len(os.sched_getaffinity(0))} cores for everything,"
        f" {minutes:.0f} minutes: {passed} of {len(rows)} drills passed.\n"
        f"{', '.join(f'{name} {number}' for name, number in versions.items())}.\n\n"
    )
    lines = _make_table(
        ("drill", "what was done", "what is expected", "seen", "result"),
        [
            (row.drill.name, row.drill.done, row.drill.expected, _join(row.figures), row.verdict)
            for row in rows
        ],
    )
    section = "".join(path.read_text().partition(WITHOUT)[1:]) if path.exists() else ""
    path.write_text(HEAD + about + lines + TAIL + section)


def write_section(path: Path, rows: Mapping[str, Row]) -> None:
    """Write what the drills have seen without a protection, by its name."""
    lines = _make_table(
        ("without", "drill", "what failed", "result"),
        [(name, row.drill.name, _join(row.failures), row.verdict) for name, row in rows.items()],
    )
    document = path.read_text().partition(WITHOUT)[0] if path.exists() else ""
    path.write_text(document + WITHOUT + ABOUT_WITHOUT + lines)


def _make_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
    return "".join(f"| {line} |\n" for line in cells)


def list_versions(postgres: str) -> dict[str, str]:
    """Return the versions of what takes part."""
    packages = {name: version(name) for name in PACKAGES}
    return {"Python": platform.python_version(), "PostgreSQL": postgres, **packages}


def _join(figures: Sequence[str]) -> str:
    return "; ".join(figures)
