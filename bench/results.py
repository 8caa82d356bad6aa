"""Collects the measurements of a run, and formats them as tables.

Other programs on the machine can distort a measurement. So targets take turns, a ratio compares
measurements of the same round, and the median of all rounds counts.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from bench.targets import SERVICE, TARGETS

METRICS = ("rate", "p50", "p99", "service_cpu", "database_cpu")
HEADER = """
| {workload}, {connections} connections | requests/s | lowest to highest | x | p50, p99 (ms) \
| service, database (us) | errors |
| --- | --- | --- | --- | --- | --- | --- |"""


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
    """All measurements of a run; a cell has one for each round."""

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

    def format_table(self) -> Iterator[str]:
        """Yield a table of Markdown per workload and connections, with a line per target."""
        for workload, connections in dict.fromkeys(cell[:2] for cell in self.cells):
            yield HEADER.format(workload=workload, connections=connections)
            for target in TARGETS:
                cell = (workload, connections, target.name)
                if cell in self.cells:
                    yield _format_line(target.title, self.summarize(cell))


def _format_line(title: str, summary: dict[str, float]) -> str:
    return (
        f"| {title} | {summary['rate']:,.0f} | {summary['min']:,.0f} to {summary['max']:,.0f}"
        f" | {summary['ratio']:.2f} | {summary['p50']:.2f}, {summary['p99']:.2f}"
        f" | {summary['service_cpu']:.0f}, {summary['database_cpu']:.0f}"
        f" | {summary['errors']:.0f} |"
    )
