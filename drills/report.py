"""Reports a run: lines on stdout, and docs/drills.md."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

from drills.lab import Drill
from drills.service import ROOT

DOCUMENT = ROOT / "docs" / "drills.md"
PACKAGES = ("aiohttp", "aiopg", "psycopg2-binary", "gunicorn")
PASS, FAIL, NOT_RUN = "pass", "FAIL", "not run"
TEXT = """# Drills

`make drills` runs the service with real processes, breaks what it depends on, and lets some
clients behave badly. Clients record each write that the service has acknowledged; at the end, an
audit compares them with the database. This is the last run.

{about}

| drill | what was done | what is expected | seen | result |
| --- | --- | --- | --- | --- |
{rows}

Reads and writes are counted by HTTP status; "at most" is the slowest one. "Audit" compares each
acknowledged create, change and deletion with the database: nothing missing, altered or twice.
"""


@dataclass(frozen=True)
class Row:
    """The outcome of one drill."""

    drill: Drill
    verdict: str
    figures: Sequence[str]
    failures: Sequence[str]
    seconds: float


def format_row(row: Row) -> str:
    """Return a line for a drill, and its failures below it."""
    line = f"{row.drill.name:<20} {row.verdict:<8} {row.seconds:>4.0f} s  {'; '.join(row.figures)}"
    return "\n".join([line, *(f"{'':<20} !        {failure}" for failure in row.failures)])


def write_document(rows: Sequence[Row], versions: Mapping[str, str]) -> None:
    """Write docs/drills.md."""
    passed = sum(row.verdict == PASS for row in rows)
    minutes = sum(row.seconds for row in rows) / 60
    about = (
        f"{datetime.now(UTC):%Y-%m-%d}, {len(os.sched_getaffinity(0))} cores for everything,"
        f" {minutes:.0f} minutes: {passed} of {len(rows)} drills passed.\n"
        f"{', '.join(f'{name} {number}' for name, number in versions.items())}."
    )
    lines = []
    for row in rows:
        seen = "; ".join(row.figures)
        cells = (row.drill.name, row.drill.done, row.drill.expected, seen, row.verdict)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    DOCUMENT.write_text(TEXT.format(about=about, rows="\n".join(lines)))


def list_versions(postgres: str) -> dict[str, str]:
    """Return the versions of all programs of the run."""
    packages = {name: version(name) for name in PACKAGES}
    return {"Python": platform.python_version(), "PostgreSQL": postgres, **packages}
