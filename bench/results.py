"""Collects the measurements of a run, and formats their table.

Other programs on the machine can distort a measurement. So targets take turns, a ratio compares
measurements of the same round, and the median of all rounds counts.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from bench.targets import SERVICE, TARGETS

METRICS = ("rate", "p50", "p99", "service_cpu", "database_cpu")
HEADER = (
    f"{'':<28} {'requests/s':>10} {'(min - max)':>17} {'ratio':>6} {'p50 ms':>8} {'p99 ms':>8}"
    f" {'service us':>10} {'database us':>11} {'errors':>6}"
)


@dataclass(frozen=True)
class Measurement:
    """One target with one workload, once. Times: ms; CPU times: microseconds per request."""

    rate: float  # responses per second
    p50: float
    p99: float
    service_cpu: float
    database_cpu: float
    errors: int  # failed requests, and confirmed creates whose row is missing


Cell = tuple[str, int, str]  # workload, connections, target


class Results:
    """All measurements of a run: those of a cell, one for each round."""

    def __init__(self) -> None:
        self.cells: dict[Cell, list[Measurement]] = defaultdict(list)

    def summarize(self, cell: Cell) -> dict[str, float]:
        """Return the median of each metric; of the rate also minimum, maximum and ratio."""
        rounds = self.cells[cell]
        base = self.cells.get((*cell[:2], SERVICE), rounds)
        rates = [one.rate for one in rounds]
        return {
            **{metric: median(getattr(one, metric) for one in rounds) for metric in METRICS},
            "min": min(rates),
            "max": max(rates),
            "ratio": median(rate / one.rate for rate, one in zip(rates, base, strict=True)),
            "errors": sum(one.errors for one in rounds),
        }

    def list_cells(self) -> Iterator[dict[str, Any]]:
        """Yield the cells for a file of JSON."""
        for cell, rounds in self.cells.items():
            workload, connections, target = cell
            yield {
                "target": target,
                "workload": workload,
                "connections": connections,
                "summary": self.summarize(cell),
                "rounds": [asdict(one) for one in rounds],
            }

    def format_table(self) -> Iterator[str]:
        """Yield a block per workload and number of connections, with a line per target."""
        for workload, connections in dict.fromkeys(cell[:2] for cell in self.cells):
            yield f"\n{workload}, {connections} connection{'s' if connections > 1 else ''}"
            yield HEADER
            for target in TARGETS:
                cell = (workload, connections, target.name)
                if cell in self.cells:
                    yield _format_line(target.title, self.summarize(cell))
        yield "\nFigures: medians of the rounds. ratio: to this service's requests/s."
        yield "service us, database us: CPU time per request, in microseconds."


def _format_line(title: str, summary: dict[str, float]) -> str:
    spread = f"({summary['min']:,.0f} - {summary['max']:,.0f})"
    return (
        f"{title:<28} {summary['rate']:>10,.0f} {spread:>17} {summary['ratio']:>6.2f}"
        f" {summary['p50']:>8.2f} {summary['p99']:>8.2f} {summary['service_cpu']:>10.0f}"
        f" {summary['database_cpu']:>11.0f} {summary['errors']:>6.0f}"
    )
