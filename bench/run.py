"""The run: every target under every workload, in turns. `python -m bench.run --help`."""

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
from bench.criteria import criteria
from bench.database import Database, Unfit, running
from bench.machine import keep_to_cores, machine, versions
from bench.measure import WARM_UP, measure
from bench.report import table, verdicts
from bench.results import Measurement, Results, save
from bench.targets import SERVICE, TARGETS, Target, started

RESULTS = Path(__file__).parent / "results"
CHART = Path(__file__).with_name("chart.svg")
USUAL = tuple(target.name for target in TARGETS if not target.extra)
CONNECTIONS = (1, 8, 64, 256)


@dataclass(frozen=True)
class Plan:
    """What to measure, how long and how often."""

    targets: tuple[Target, ...]
    workloads: tuple[str, ...]
    connections: tuple[int, ...]
    rounds: int
    seconds: int

    def cells(self, number: int) -> Iterator[tuple[Target, str, int]]:
        """The cells of a round. Targets take turns, and in each round another one is first."""
        first = number % len(self.targets)
        turns = self.targets[first:] + self.targets[:first]
        for workload in self.workloads:
            for connections in self.connections:
                for target in turns:
                    if target.has(workload, connections):
                        yield target, workload, connections

    @property
    def size(self) -> int:
        """How many cells there are in all rounds."""
        return self.rounds * len(list(self.cells(0)))

    def is_whole(self) -> bool:
        """Tell whether nothing of what the README's chart shows is left out."""
        return (
            set(USUAL) <= {target.name for target in self.targets}
            and set(targets.ALL) <= set(self.workloads)
            and set(CONNECTIONS) <= set(self.connections)
        )


def run(plan: Plan, database: Database) -> Results:
    """Carry out the plan, telling how far it is."""
    results = Results()
    database.require(sum(target.connections for target in plan.targets))
    with ExitStack() as stack:
        ready = {
            target.name: stack.enter_context(started(target, database.url))
            for target in plan.targets
        }
        begun, done = time.monotonic(), 0
        for number in range(plan.rounds):
            for target, workload, connections in plan.cells(number):
                made = measure(ready[target.name], database, workload, connections, plan.seconds)
                results.add(target.name, workload, connections, number + 1, made)
                done += 1
                left = (time.monotonic() - begun) / done * (plan.size - done)
                click.echo(
                    f"[{done:>3}/{plan.size}] round {number + 1} {workload:<7} {connections:>3}"
                    f" connections  {target.title:<28} {made.rate:>7,.0f}/s"
                    f"  p50 {made.p50:.2f} ms  {_trouble(made)} {left / 60:.0f} min left"
                )
    return results


def _trouble(made: Measurement) -> str:
    found = {**made.errors, "lost": made.lost, "surplus": made.surplus}
    return "".join(f" {count} {kind}!" for kind, count in found.items() if count)


def _some(kind: type, allowed: tuple[Any, ...] | None = None) -> Any:
    """Check an option of several values with commas between."""

    def parse(_: click.Context, __: click.Parameter, value: str) -> tuple[Any, ...]:
        try:
            values = tuple(kind(word.strip()) for word in value.split(","))
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: numbers with commas between") from error
        for one in values:
            if allowed and one not in allowed:
                raise click.BadParameter(f"{one!r} is none of {', '.join(allowed)}")
            if kind is int and one < 1:
                raise click.BadParameter(f"{one} is less than 1")
        return values

    return parse


NAMES = tuple(target.name for target in TARGETS)


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=3, show_default=True, type=click.IntRange(1))
@click.option(
    "--connections",
    default=",".join(map(str, CONNECTIONS)),
    show_default=True,
    callback=_some(int),
)
@click.option(
    "--workloads",
    default=",".join(targets.ALL),
    show_default=True,
    callback=_some(str, targets.ALL),
)
@click.option(
    "--targets",
    "names",
    default=",".join(USUAL),
    show_default=True,
    callback=_some(str, NAMES),
    help=f"Of these: {', '.join(NAMES)}.",
)
@click.option("--movies", default=100_000, show_default=True, type=click.IntRange(1))
@click.option("--database", "server", help="URL of a PostgreSQL to make a database on.")
@click.option("--quick", is_flag=True, help="One round of one second: does everything work?")
def main(server: str | None, movies: int, *, quick: bool, **options: Any) -> None:
    """Measure the service and what it is compared with."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: stop what was started
    if not load.wrk_version():
        click.echo(load.MISSING, err=True)
        sys.exit(2)
    if quick:
        options.update(rounds=1, seconds=1)
    names = options.pop("names")
    plan = Plan(targets=tuple(t for t in TARGETS if t.name in names), **options)
    about: dict[str, Any] = {"started": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
    keep_to_cores()
    about["machine"] = machine()
    try:
        with running(server, movies) as database:
            about["versions"] = versions(database.version)
            about["settings"] = {
                **options,
                "movies": movies,
                "warm_up": WARM_UP,
                "database": database.durable,
            }
            results = run(plan, database)
    except Unfit as error:
        raise click.ClickException(str(error)) from error
    about["load_average_after"] = machine()["load_average"]
    _finish(results, about, "quick" if quick else "latest" if plan.is_whole() else "part")


def _finish(results: Results, about: dict[str, Any], name: str) -> None:
    claims = criteria(results)
    about["criteria"] = [
        {"claim": c.claim, "figure": c.figure, "limit": c.limit, "holds": c.holds} for c in claims
    ]
    path = RESULTS / f"{name}.json"
    save(path, results, SERVICE, about)
    picture = CHART if name == "latest" else path.with_suffix(".svg")
    chart.draw(path, picture)
    for line in (*table(results), "", *verdicts(claims), "", f"{path}\n{picture}"):
        click.echo(line)


if __name__ == "__main__":
    main(prog_name="python -m bench.run")
