"""The run's table and its criteria, as text."""

from collections.abc import Iterator
from statistics import median

from bench.criteria import Criterion
from bench.results import Cell, Results
from bench.targets import SERVICE, TARGETS

HEAD = (
    f"{'':<28} {'requests/s':>10} {'(least - most)':>17} {'ratio':>6} {'p50 ms':>8} {'p99 ms':>8}"
    f" {'service us':>10} {'database us':>11} {'errors':>6}"
)


def table(results: Results) -> Iterator[str]:
    """One block for each workload and number of connections, one line for each target."""
    titles = {target.name: target.title for target in TARGETS}
    blocks = dict.fromkeys((cell.workload, cell.connections) for cell in results.cells.values())
    for workload, connections in blocks:
        yield ""
        yield f"{workload}, {connections} connection{'s' if connections > 1 else ''}"
        yield HEAD
        base = results.cell(SERVICE, workload, connections)
        for name, title in titles.items():
            if cell := results.cell(name, workload, connections):
                yield _line(title, cell, base)
    yield ""
    yield "All are medians of the rounds. ratio: to this service's requests/s of the same round."
    yield "service us, database us: CPU time of one request, in microseconds."
    if shares := [share for cell in results.cells.values() for share in cell.values("elsewhere")]:
        yield (
            f"Meanwhile other programs took {median(shares):.0%} of the machine's CPU time"
            f" (median; at most {max(shares):.0%})."
        )


def verdicts(claims: list[Criterion]) -> Iterator[str]:
    """One line for each claim."""
    words = {True: "pass", False: "FAIL", None: "not measured"}
    yield "What the service claims (one process, medians of the rounds):"
    for claim in claims:
        figure = "" if claim.figure is None else f"{claim.figure:.2f}"
        bound = f"{'>=' if claim.at_least else '<='} {claim.limit:g}"
        yield f"  {claim.claim:<58} {figure:>7}  {bound:<8} {words[claim.holds]}"


def _line(title: str, cell: Cell, base: Cell | None) -> str:
    rates = cell.values("rate")
    spread = f"({min(rates):,.0f} - {max(rates):,.0f})"
    ratio = cell.ratio(base, "rate") if base else None
    errors = sum(made.failed + made.lost + made.surplus for made in cell.rounds.values())
    return (
        f"{title:<28} {_figure(cell.median('rate')):>10} {spread:>17} {_figure(ratio, 2):>6}"
        f" {_figure(cell.median('p50'), 2):>8} {_figure(cell.median('p99'), 2):>8}"
        f" {_figure(cell.median('service_cpu')):>10} {_figure(cell.median('database_cpu')):>11}"
        f" {errors:>6}"
    )


def _figure(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
