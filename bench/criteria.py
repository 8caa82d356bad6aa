"""What the service claims about its speed, held against what was measured."""

from dataclasses import dataclass

from bench.results import Results
from bench.targets import ALL, READS, SERVICE

BUSY = 64  # connections
CROWDED = 256


@dataclass(frozen=True)
class Criterion:
    """One claim. `figure` is None where its cells were not measured."""

    claim: str
    figure: float | None
    limit: float
    at_least: bool = True

    @property
    def holds(self) -> bool | None:
        """Whether it does; None where it was not measured."""
        if self.figure is None:
            return None
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit


def criteria(results: Results) -> list[Criterion]:
    """All claims; they are about one process of the service, and about medians."""

    def times(workload: str, peer: str) -> float | None:
        return results.ratio("rate", workload, BUSY, (SERVICE, peer))

    def alone(workload: str) -> float | None:
        return results.ratio("p50", workload, 1, (SERVICE, "unshared"))

    off, peer = "x sharing off", "x FastAPI + asyncpg"
    of_database = results.ratio("database_cpu", "reads", BUSY, (SERVICE, "unshared"))
    return [
        Criterion(f"reads, {BUSY} connections: {off}", times("reads", "unshared"), 3.5),
        Criterion(f"reads, {BUSY} connections: {peer}", times("reads", "fastapi"), 4),
        Criterion(f"reads, {BUSY} connections: x bare aiohttp", times("reads", "aiohttp"), 0.55),
        Criterion(f"creates, {BUSY} connections: {off}", times("creates", "unshared"), 4),
        Criterion(f"creates, {BUSY} connections: {peer}", times("creates", "fastapi"), 4),
        Criterion(
            f"database CPU of a read, {BUSY} connections: {off}",
            of_database,
            1 / 8,
            at_least=False,
        ),
        Criterion(f"p50 of a read, 1 connection: {off}", alone("reads"), 1.1, at_least=False),
        Criterion(f"p50 of a create, 1 connection: {off}", alone("creates"), 1.1, at_least=False),
        *(
            Criterion(
                f"{workload}, {CROWDED} connections: p99 / p50",
                _spread(results, workload),
                5,
                at_least=False,
            )
            for workload in ALL
        ),
        Criterion("creates answered and not there", _total(results, "lost"), 0, at_least=False),
        Criterion("failed requests", _total(results, "failed"), 0, at_least=False),
    ]


def _spread(results: Results, workload: str) -> float | None:
    cell = results.cell(SERVICE, workload, CROWDED)
    p50, p99 = (cell.median("p50"), cell.median("p99")) if cell else (None, None)
    return p99 / p50 if p50 and p99 else None


def _total(results: Results, metric: str) -> float | None:
    """Over all cells and rounds of the service, with one process and with two."""
    cells = [
        cell
        for name in (SERVICE, "service-2")
        for cell in results.of(name)
        if metric != "lost" or cell.workload != READS
    ]
    return float(sum(sum(cell.values(metric)) for cell in cells)) if cells else None
