"""Compares the service's claims about its speed with the results of a run."""

from dataclasses import dataclass

from bench.results import Results
from bench.targets import READS, SERVICE, WORKLOADS

CONNECTIONS = 64
MANY_CONNECTIONS = 256


@dataclass(frozen=True)
class Criterion:
    """One claim. `figure` is None if its cells were not measured."""

    claim: str
    figure: float | None
    limit: float
    is_minimum: bool = True

    @property
    def holds(self) -> bool | None:
        """Whether the claim holds; None if it was not measured."""
        if self.figure is None:
            return None
        return self.figure >= self.limit if self.is_minimum else self.figure <= self.limit


def evaluate_criteria(results: Results) -> list[Criterion]:
    """Return all criteria; they use medians, and one process of the service unless they say so."""

    def compare_rate(workload: str, peer: str) -> float | None:
        return results.get_ratio("rate", workload, CONNECTIONS, (SERVICE, peer))

    def compare_p50(workload: str) -> float | None:
        return results.get_ratio("p50", workload, 1, (SERVICE, "unshared"))

    reads, creates = (f"{name}/s, {CONNECTIONS} connections" for name in ("reads", "creates"))
    off, peer, lone = "ratio to sharing off", "ratio to FastAPI + asyncpg", "1 connection"
    database_cpu = results.get_ratio("database_cpu", "reads", CONNECTIONS, (SERVICE, "unshared"))
    return [
        Criterion(f"{reads}, {off}", compare_rate("reads", "unshared"), 3.5),
        Criterion(f"{reads}, {peer}", compare_rate("reads", "fastapi"), 4),
        Criterion(f"{reads}, ratio to bare aiohttp", compare_rate("reads", "aiohttp"), 0.55),
        Criterion(f"{creates}, {off}", compare_rate("creates", "unshared"), 4),
        Criterion(f"{creates}, {peer}", compare_rate("creates", "fastapi"), 4),
        Criterion(
            f"database CPU per read, {CONNECTIONS} connections, {off}",
            database_cpu,
            1 / 8,
            is_minimum=False,
        ),
        Criterion(f"p50 of reads, {lone}, {off}", compare_p50("reads"), 1.1, is_minimum=False),
        Criterion(f"p50 of creates, {lone}, {off}", compare_p50("creates"), 1.1, is_minimum=False),
        *(
            Criterion(
                f"{workload}, {MANY_CONNECTIONS} connections: p99 / p50",
                _divide_p99_by_p50(results, workload),
                5,
                is_minimum=False,
            )
            for workload in WORKLOADS
        ),
        Criterion("creates confirmed but missing", _sum(results, "lost"), 0, is_minimum=False),
        Criterion("failed requests", _sum(results, "failed"), 0, is_minimum=False),
    ]


def _divide_p99_by_p50(results: Results, workload: str) -> float | None:
    cell = results.get_cell(SERVICE, workload, MANY_CONNECTIONS)
    p50, p99 = (cell.get_median("p50"), cell.get_median("p99")) if cell else (None, None)
    return p99 / p50 if p50 and p99 else None


def _sum(results: Results, metric: str) -> float | None:
    """Sum all cells and rounds of the service, with one process and with two."""
    cells = [
        cell
        for name in (SERVICE, "service-2")
        for cell in results.get_cells(name)
        if metric != "lost" or cell.workload != READS
    ]
    return float(sum(sum(cell.get_values(metric)) for cell in cells)) if cells else None
