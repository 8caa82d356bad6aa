"""Measures every target with every workload, in turns. `python -m bench.run --help`."""

import json
import signal
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from bench import chart
from bench.database import Database, create_database
from bench.load import READS, WORKLOADS, get_wrk_version, run_wrk
from bench.machine import (
    describe_machine,
    limit_cores,
    list_versions,
    read_cpu_seconds,
    read_parent,
)
from bench.results import Measurement, Results
from bench.targets import TARGETS, Running, Target, start_target

RESULTS_FOLDER = Path(__file__).parent / "results"
CHART_FILE = Path(__file__).with_name("chart.svg")
CONNECTIONS = (1, 8, 64, 256)
WARM_UP_S = 1  # before each measurement


def measure(
    running: Running, database: Database, workload: str, connections: int, seconds: int
) -> Measurement:
    """Measure one target with one workload, once."""
    run_wrk(running.url, workload, connections, WARM_UP_S, database.movies)
    before = database.count_added()
    postmaster = read_parent(database.get_backend())
    service_cpu, database_cpu = read_cpu_seconds(running.pid), read_cpu_seconds(postmaster)
    load = run_wrk(running.url, workload, connections, seconds, database.movies)
    service_cpu = read_cpu_seconds(running.pid) - service_cpu
    database_cpu = read_cpu_seconds(postmaster) - database_cpu
    lost = 0
    if workload != READS:
        added = database.count_added() - before
        lost = max(0, load.count_confirmed(workload, connections) - added)
        database.reset()
    return Measurement(
        rate=load.requests / load.seconds,
        p50=load.p50,
        p99=load.p99,
        service_cpu=service_cpu / max(1, load.requests) * 1e6,
        database_cpu=database_cpu / max(1, load.requests) * 1e6,
        errors=load.failed + lost,
    )


def measure_all(
    database: Database, targets: list[Target], connections: list[int], rounds: int, seconds: int
) -> Results:
    """Measure all cells in turns, and print the progress."""
    results = Results()
    with ExitStack() as stack:
        running = [stack.enter_context(start_target(target, database.url)) for target in targets]
        for number in range(rounds):
            first = number % len(running)  # each round starts with another target
            for workload in WORKLOADS:
                for count in connections:
                    for each in (*running[first:], *running[:first]):
                        if workload not in each.target.workloads:
                            continue
                        one = measure(each, database, workload, count, seconds)
                        results.cells[workload, count, each.target.name].append(one)
                        click.echo(
                            f"round {number + 1}/{rounds} {workload:<7} {count:>3} connections"
                            f"  {each.target.title:<28} {one.rate:>7,.0f}/s  p50 {one.p50:.2f} ms"
                        )
    return results


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--connections", multiple=True, type=click.IntRange(1), default=CONNECTIONS)
@click.option(
    "--target", "names", multiple=True, type=click.Choice([target.name for target in TARGETS])
)
@click.option("--movies", default=100_000, show_default=True, type=click.IntRange(1))
@click.option("--quick", is_flag=True, help="Measure one round of one second, as a check.")
def main(names: tuple[str, ...], movies: int, *, quick: bool, **options: Any) -> None:
    """Measure the service and its peers."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: stop the targets
    get_wrk_version()
    if quick:
        options.update(rounds=1, seconds=1)
    targets = [target for target in TARGETS if not names or target.name in names]
    is_whole = not names and options["connections"] == CONNECTIONS
    limit_cores()
    about: dict[str, Any] = {"started": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
    about["machine"] = describe_machine()
    with create_database(None, movies) as database:
        about["versions"] = list_versions(database.version)
        about["settings"] = {**options, "movies": movies, "database": database.durability}
        results = measure_all(database, targets, **options)
    about["cells"] = list(results.list_cells())
    name = "quick" if quick else "latest" if is_whole else "part"
    path = RESULTS_FOLDER / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(about, indent=1) + "\n")
    chart_file = CHART_FILE if name == "latest" else path.with_suffix(".svg")
    chart.draw_chart(path, chart_file)
    for line in (*results.format_table(), "", path, chart_file):
        click.echo(line)
    sys.exit(1 if any(cell["summary"]["errors"] for cell in about["cells"]) else 0)


if __name__ == "__main__":
    main(prog_name="python -m bench.run")
