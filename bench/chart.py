"""The chart of a run, drawn from its JSON: `python -m bench.chart [JSON [SVG]]`."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from bench.targets import SERVICE, TARGETS

CONNECTIONS = 64
PANELS = {
    "reads": "Reads by random id",
    "creates": "Creates, each durable when it is answered",
}

# Pixels.
WIDTH = 860
MARGIN = 24
NAMES = 220  # for the names, left of the bars
FIGURES = 170  # for the figures, right of them
BARS = WIDTH - 2 * MARGIN - NAMES - FIGURES
ROW, BAR = 30, 18

# Dark or light as the reader's system is, on a ground of its own: a page may be the other way.
STYLE = """
  svg { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif }
  .ground { fill: #ffffff; stroke: #d8dee4 } text { fill: #1f2328 } .faint { fill: #59636e }
  .bar { fill: #a9b4c0 } .own { fill: #7aa7e8 } .service { fill: #1f6feb }
  .range { stroke: #1f2328; stroke-width: 1.2; opacity: .55 }
  .title { font-size: 17px; font-weight: 600 } .panel, .strong { font-weight: 600 }
  .small { font-size: 11.5px }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117; stroke: #30363d } text { fill: #e6edf3 } .faint { fill: #9198a1 }
    .bar { fill: #4b5563 } .own { fill: #3b5f94 } .service { fill: #4493f8 }
    .range { stroke: #e6edf3 }
  }
"""


@dataclass(frozen=True)
class Bar:
    """One target in one panel; in requests/s."""

    target: str
    title: str
    median: float
    least: float
    most: float
    ratio: float | None


def bars(run: dict[str, Any], workload: str) -> list[Bar]:
    """The targets that were measured under this workload, in the order of the table."""
    cells = {
        cell["target"]: cell["summary"]["rate"]
        for cell in run["cells"]
        if (cell["workload"], cell["connections"]) == (workload, CONNECTIONS)
    }
    found = ((target, cells.get(target.name)) for target in TARGETS)
    return [
        Bar(target.name, target.title, rate["median"], rate["min"], rate["max"], rate["ratio"])
        for target, rate in found
        if rate
    ]


def draw(source: Path, picture: Path) -> None:
    """Draw the run in `source`, a run's JSON, as an SVG."""
    run = json.loads(source.read_text())
    panels = {title: bars(run, workload) for workload, title in PANELS.items()}
    widest = max((bar.most for found in panels.values() for bar in found), default=1)
    lines: list[str] = []
    top = 82
    for title, found in panels.items():
        if found:
            lines.append(_text(MARGIN, top, title, "panel"))
            for number, bar in enumerate(found):
                lines += _bar(bar, top + 16 + number * ROW, widest)
            top += 16 + len(found) * ROW + 32
    for number, line in enumerate(_caption(run)):
        lines.append(_text(MARGIN, top + number * 17, line, "small faint"))
    height = top + len(_caption(run)) * 17 + 4
    picture.write_text(_svg(height, lines))


def _svg(height: int, lines: list[str]) -> str:
    title = f"Requests per second at {CONNECTIONS} connections"
    under = "Median of the rounds, a thin line from the least to the most; x: times this service"
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    inside = f'width="{WIDTH - 1}" height="{height - 1}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">',
            f"<style>{STYLE}</style>",
            f'<rect class="ground" x=".5" y=".5" {inside} rx="8"/>',
            _text(MARGIN, 34, title, "title"),
            _text(MARGIN, 54, under, "small faint"),
            *lines,
            "</svg>\n",
        ]
    )


def _bar(bar: Bar, y: int, widest: float) -> Iterator[str]:
    left = MARGIN + NAMES
    middle, baseline = y + BAR / 2, y + BAR / 2 + 4.5
    kind = "service" if bar.target == SERVICE else "bar"
    if bar.target == "service-2":
        kind = "own"
    yield _text(left - 10, baseline, bar.title, "strong" if kind == "service" else "", end=True)
    width = bar.median / widest * BARS
    yield f'<rect class="{kind}" x="{left}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>'
    least, most = (left + value / widest * BARS for value in (bar.least, bar.most))
    yield f'<path class="range" d="M{least:.1f} {middle}H{most:.1f}"/>'
    figure = f"{bar.median:,.0f}" + (f"  ({bar.ratio:.2f} x)" if bar.ratio else "")
    yield _text(
        round(max(left + width, most)) + 8, baseline, figure, "strong" * (kind == "service")
    )


def _caption(run: dict[str, Any]) -> list[str]:
    machine, versions, settings = run["machine"], run["versions"], run["settings"]
    packages = ("Python", "PostgreSQL", "aiohttp", "fastapi", "uvicorn", "uvloop", "asyncpg")
    rounds = f"{settings['rounds']} round{'s' if settings['rounds'] > 1 else ''}"
    durable = ", ".join(f"{name} {value}" for name, value in settings["database"].items())
    cores = f"{machine['cores']} cores for service, database and load generator together"
    size = f"{settings['movies']:,} movies"
    return [
        f"{machine['cpu']}, {cores}, {machine['memory_gb']} GB, {machine['os']}.",
        f"{rounds} of {settings['seconds']} s, {size}; {durable}. {run['started'][:10]}.",
        f"{', '.join(f'{name} {versions[name]}' for name in packages)}, {versions['wrk']}.",
    ]


def _text(x: float, y: float, text: str, kind: str, *, end: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ""
    return f'<text class="{kind}" x="{x}" y="{y}"{anchor}>{escape(text)}</text>'


if __name__ == "__main__":
    folder = Path(__file__).parent
    given = [Path(argument) for argument in sys.argv[1:]]
    draw(*(given + [folder / "results" / "latest.json", folder / "chart.svg"][len(given) :]))
