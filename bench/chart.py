"""Draws the chart of a run from its JSON: `python -m bench.chart [JSON [SVG]]`."""

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
    "creates": "Creates, each durable before its response",
}

WIDTH_PIXELS = 860
MARGIN_PIXELS = 24
NAME_PIXELS = 220  # left of the bar
FIGURE_PIXELS = 170  # right of the bar
MAX_BAR_PIXELS = WIDTH_PIXELS - 2 * MARGIN_PIXELS - NAME_PIXELS - FIGURE_PIXELS
ROW_PIXELS, BAR_PIXELS = 30, 18

# The chart follows the dark or light mode. The page may not, so the chart has a background.
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
    """One target in one panel, in requests/s."""

    target: str
    title: str
    median: float
    minimum: float
    maximum: float
    ratio: float | None


def list_bars(run: dict[str, Any], workload: str) -> list[Bar]:
    """List the targets that were measured with this workload, in the order of the table."""
    rates = {
        cell["target"]: cell["summary"]["rate"]
        for cell in run["cells"]
        if (cell["workload"], cell["connections"]) == (workload, CONNECTIONS)
    }
    return [
        Bar(target.name, target.title, rate["median"], rate["min"], rate["max"], rate["ratio"])
        for target in TARGETS
        if (rate := rates.get(target.name))
    ]


def draw_chart(run_file: Path, chart_file: Path) -> None:
    """Draw a run, from its JSON, as SVG."""
    run = json.loads(run_file.read_text())
    panels = {title: list_bars(run, workload) for workload, title in PANELS.items()}
    max_rate = max((bar.maximum for bars in panels.values() for bar in bars), default=1)
    lines: list[str] = []
    top = 82
    for title, bars in panels.items():
        if bars:
            lines.append(_draw_text(MARGIN_PIXELS, top, title, "panel"))
            for number, bar in enumerate(bars):
                lines += _draw_bar(bar, top + 16 + number * ROW_PIXELS, max_rate)
            top += 16 + len(bars) * ROW_PIXELS + 32
    caption = _write_caption(run)
    for number, line in enumerate(caption):
        lines.append(_draw_text(MARGIN_PIXELS, top + number * 17, line, "small faint"))
    chart_file.write_text(_draw_frame(top + len(caption) * 17 + 4, lines))


def _draw_frame(height: int, lines: list[str]) -> str:
    title = f"Requests per second at {CONNECTIONS} connections"
    legend = "Bar: median of the rounds; thin line: minimum to maximum; x: ratio to this service"
    size = f'width="{WIDTH_PIXELS}" height="{height}" viewBox="0 0 {WIDTH_PIXELS} {height}"'
    inside = f'width="{WIDTH_PIXELS - 1}" height="{height - 1}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">',
            f"<style>{STYLE}</style>",
            f'<rect class="ground" x=".5" y=".5" {inside} rx="8"/>',
            _draw_text(MARGIN_PIXELS, 34, title, "title"),
            _draw_text(MARGIN_PIXELS, 54, legend, "small faint"),
            *lines,
            "</svg>\n",
        ]
    )


def _draw_bar(bar: Bar, y: int, max_rate: float) -> Iterator[str]:
    left = MARGIN_PIXELS + NAME_PIXELS
    middle = y + BAR_PIXELS / 2
    baseline = middle + 4.5
    kind = "service" if bar.target == SERVICE else "bar"
    if bar.target == "service-2":
        kind = "own"
    weight = "strong" if kind == "service" else ""
    yield _draw_text(left - 10, baseline, bar.title, weight, align_right=True)
    width, start, end = (
        rate / max_rate * MAX_BAR_PIXELS for rate in (bar.median, bar.minimum, bar.maximum)
    )
    size = f'width="{width:.1f}" height="{BAR_PIXELS}"'
    yield f'<rect class="{kind}" x="{left}" y="{y}" {size} rx="2"/>'
    yield f'<path class="range" d="M{left + start:.1f} {middle}H{left + end:.1f}"/>'
    figure = f"{bar.median:,.0f}" + (f"  ({bar.ratio:.2f} x)" if bar.ratio else "")
    yield _draw_text(round(left + max(width, end)) + 8, baseline, figure, weight)


def _write_caption(run: dict[str, Any]) -> list[str]:
    machine, versions, settings = run["machine"], run["versions"], run["settings"]
    packages = ("Python", "PostgreSQL", "aiohttp", "fastapi", "uvicorn", "uvloop", "asyncpg")
    rounds = f"{settings['rounds']} round{'s' if settings['rounds'] > 1 else ''}"
    durability = ", ".join(f"{name} {value}" for name, value in settings["database"].items())
    cores = f"{machine['cores']} cores for service, database and load generator together"
    size = f"{settings['movies']:,} movies"
    return [
        f"{machine['cpu']}, {cores}, {machine['memory_gb']} GB, {machine['os']}.",
        f"{rounds} of {settings['seconds']} s, {size}; {durability}. {run['started'][:10]}.",
        f"{', '.join(f'{name} {versions[name]}' for name in packages)}, {versions['wrk']}.",
    ]


def _draw_text(x: float, y: float, text: str, kind: str, *, align_right: bool = False) -> str:
    anchor = ' text-anchor="end"' if align_right else ""
    return f'<text class="{kind}" x="{x}" y="{y}"{anchor}>{escape(text)}</text>'


if __name__ == "__main__":
    folder = Path(__file__).parent
    files = [Path(argument) for argument in sys.argv[1:]]
    draw_chart(*(files + [folder / "results" / "latest.json", folder / "chart.svg"][len(files) :]))
