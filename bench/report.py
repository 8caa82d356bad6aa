"""Formats the table and the criteria of a run."""

from collections.abc import Iterator
from statistics import median

from bench.criteria import Criterion
from bench.results import Cell, Results
from bench.targets import SERVICE, TARGETS

HEADER = (
    f"{'':<28} {'requests/s':>10} {'(min - max)':>17} {'ratio':>6} {'p50 ms':>8} {'p99 ms':>8}"
    f" {'service us':>10} {'database us':>11} {'errors':>6}"
)


def format_table(results: Results) -> Iterator[str]:
    """Yield a block per workload and number of connections, with a line per target."""
    titles = {target.name: target.title for target in TARGETS}
    blocks = dict.fromkeys((cell.workload, cell.connections) for cell in results.cells.values())
    for workload, connections in blocks:
        yield ""
        yield f"{workload}, {connections} connection{'s' if connections > 1 else ''}"
        yield HEADER
        base = results.get_cell(SERVICE, workload, connections)
        for name, title in titles.items():
            if cell := results.get_cell(name, workload, connections):
                yield _format_line(title, cell, base)
    yield ""
    yield "Figures: medians of the rounds. ratio: to this service's requests/s in the same round."
    yield "service us, database us: CPU time per request, in microseconds."
    cells = results.cells.values()
    if shares := [share for cell in cells for share in cell.get_values("other_programs")]:
        yield (
            f"Other programs took {median(shares):.0%} of the machine's CPU time"
            f" (median; maximum {max(shares):.0%})."
        )


def format_criteria(criteria: list[Criterion]) -> Iterator[str]:
    """Yield a line per criterion."""
    words = {True: "pass", False: "FAIL", None: "not measured"}
    yield "Claims about the service (one process, medians of the rounds):"
    for criterion in criteria:
        figure = "" if criterion.figure is None else f"{criterion.figure:.2f}"
        bound = f"{'>=' if criterion.is_minimum else '<='} {criterion.limit:g}"
        yield f"  {criterion.claim:<60} {figure:>7}  {bound:<8} {words[criterion.holds]}"


def _format_line(title: str, cell: Cell, base: Cell | None) -> str:
    rates = cell.get_values("rate")
    spread = f"({min(rates):,.0f} - {max(rates):,.0f})"
    ratio = cell.get_ratio(base, "rate") if base else None
    errors = sum(one.failed + one.lost + one.surplus for one in cell.rounds.values())
    p50, p99, service, database = map(
        cell.get_median, ("p50", "p99", "service_cpu", "database_cpu")
    )
    return (
        f"{title:<28} {_format_number(cell.get_median('rate')):>10} {spread:>17}"
        f" {_format_number(ratio, 2):>6} {_format_number(p50, 2):>8} {_format_number(p99, 2):>8}"
        f" {_format_number(service):>10} {_format_number(database):>11} {errors:>6}"
    )


def _format_number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
