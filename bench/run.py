"""Measures every target with every workload, in turns. `python -m bench.run --help`."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from bench import chart, load, targets
from bench.criteria import evaluate_criteria
from bench.database import CannotMeasure, Database, create_database
from bench.machine import describe_machine, limit_cores, list_versions
from bench.measure import WARM_UP_S, measure
from bench.report import format_criteria, format_table
from bench.results import Measurement, Results, save
from bench.targets import SERVICE, TARGETS, Target, start_target

RESULTS_FOLDER = Path(__file__).parent / "results"
CHART_FILE = Path(__file__).with_name("chart.svg")
DEFAULT_TARGETS = tuple(target.name for target in TARGETS if not target.is_optional)
CONNECTIONS = (1, 8, 64, 256)


@dataclass(frozen=True)
class Plan:
    """The targets, workloads and connections to measure, and how often and long (seconds)."""

    targets: tuple[Target, ...]
    workloads: tuple[str, ...]
    connections: tuple[int, ...]
    rounds: int
    seconds: int

    def list_cells(self, number: int) -> Iterator[tuple[Target, str, int]]:
        """Yield the cells of a round; each round starts with another target."""
        first = number % len(self.targets)
        turns = self.targets[first:] + self.targets[:first]
        for workload in self.workloads:
            for connections in self.connections:
                for target in turns:
                    if target.supports(workload, connections):
                        yield target, workload, connections

    def count_cells(self) -> int:
        """Return the number of cells of all rounds."""
        return self.rounds * len(list(self.list_cells(0)))

    def is_complete(self) -> bool:
        """Whether the plan has all default targets, workloads and connections."""
        return (
            set(DEFAULT_TARGETS) <= {target.name for target in self.targets}
            and set(targets.WORKLOADS) <= set(self.workloads)
            and set(CONNECTIONS) <= set(self.connections)
        )


def run(plan: Plan, database: Database) -> Results:
    """Measure all cells of the plan and print the progress."""
    results = Results()
    database.require_connections(sum(target.connections for target in plan.targets))
    with ExitStack() as stack:
        running = {
            target.name: stack.enter_context(start_target(target, database.url))
            for target in plan.targets
        }
        started_at, done, total = time.monotonic(), 0, plan.count_cells()
        for number in range(plan.rounds):
            for target, workload, connections in plan.list_cells(number):
                one = measure(running[target.name], database, workload, connections, plan.seconds)
                results.add(target.name, workload, connections, number + 1, one)
                done += 1
                left = (time.monotonic() - started_at) / done * (total - done)
                click.echo(
                    f"[{done:>3}/{total}] round {number + 1} {workload:<7} {connections:>3}"
                    f" connections  {target.title:<28} {one.rate:>7,.0f}/s"
                    f"  p50 {one.p50:.2f} ms  {_format_errors(one)} {left / 60:.0f} min left"
                )
    return results


def _format_errors(measurement: Measurement) -> str:
    errors = {**measurement.errors, "lost": measurement.lost, "surplus": measurement.surplus}
    return "".join(f" {count} {kind}!" for kind, count in errors.items() if count)


def _make_list_parser(kind: type, allowed: tuple[Any, ...] | None = None) -> Any:
    """Return a click callback that parses and checks values separated by commas."""

    def parse(_: click.Context, __: click.Parameter, value: str) -> tuple[Any, ...]:
        try:
            values = tuple(kind(word.strip()) for word in value.split(","))
        except ValueError as error:
            raise click.BadParameter(f"{value!r} is not a list like 1,8,64") from error
        for one in values:
            if allowed and one not in allowed:
                raise click.BadParameter(f"{one!r} is not one of {', '.join(allowed)}")
            if kind is int and one < 1:
                raise click.BadParameter(f"{one} is less than 1")
        return values

    return parse


TARGET_NAMES = tuple(target.name for target in TARGETS)


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=3, show_default=True, type=click.IntRange(1))
@click.option(
    "--connections",
    default=",".join(map(str, CONNECTIONS)),
    show_default=True,
    callback=_make_list_parser(int),
)
@click.option(
    "--workloads",
    default=",".join(targets.WORKLOADS),
    show_default=True,
    callback=_make_list_parser(str, targets.WORKLOADS),
)
@click.option(
    "--targets",
    "names",
    default=",".join(DEFAULT_TARGETS),
    show_default=True,
    callback=_make_list_parser(str, TARGET_NAMES),
    help=f"Choose from {', '.join(TARGET_NAMES)}.",
)
@click.option("--movies", default=100_000, show_default=True, type=click.IntRange(1))
@click.option("--database", "server", help="URL of a PostgreSQL server to create a database on.")
@click.option("--quick", is_flag=True, help="Measure one round of one second, as a check.")
def main(server: str | None, movies: int, *, quick: bool, **options: Any) -> None:
    """Measure the service and its peers."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: stop the targets
    if not load.get_wrk_version():
        click.echo(load.WRK_MISSING, err=True)
        sys.exit(2)
    if quick:
        options.update(rounds=1, seconds=1)
    names = options.pop("names")
    plan = Plan(targets=tuple(t for t in TARGETS if t.name in names), **options)
    about: dict[str, Any] = {"started": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
    limit_cores()
    about["machine"] = describe_machine()
    try:
        with create_database(server, movies) as database:
            about["versions"] = list_versions(database.version)
            about["settings"] = {
                **options,
                "movies": movies,
                "warm_up": WARM_UP_S,
                "database": database.durability,
            }
            results = run(plan, database)
    except CannotMeasure as error:
        raise click.ClickException(str(error)) from error
    about["load_average_after"] = describe_machine()["load_average"]
    _write_results(results, about, "quick" if quick else "latest" if plan.is_complete() else "part")


def _write_results(results: Results, about: dict[str, Any], name: str) -> None:
    criteria = evaluate_criteria(results)
    about["criteria"] = [
        {"claim": c.claim, "figure": c.figure, "limit": c.limit, "holds": c.holds} for c in criteria
    ]
    path = RESULTS_FOLDER / f"{name}.json"
    save(path, results, SERVICE, about)
    chart_file = CHART_FILE if name == "latest" else path.with_suffix(".svg")
    chart.draw_chart(path, chart_file)
    for line in (*format_table(results), "", *format_criteria(criteria), "", path, chart_file):
        click.echo(line)


if __name__ == "__main__":
    main(prog_name="python -m bench.run")
