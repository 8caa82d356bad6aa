"""Measures every target with every workload, in turns. `python -m bench.run --help`."""

import signal
import sys
from contextlib import ExitStack
from typing import Any

import click

from bench.database import Database, create_database
from bench.lists import PATHS
from bench.load import CREATES, LINES, MIX, WORKLOADS, get_wrk_version, run_wrk
from bench.machine import describe_machine, limit_cores, list_versions, read_cpu_seconds
from bench.results import Measurement, Results
from bench.targets import TARGETS, Running, Target, start_target

CONNECTIONS = (1, 8, 64, 256)
WARM_UP_S = 1  # before each measurement


def measure(
    running: Running, database: Database, workload: str, connections: int, seconds: int
) -> Measurement:
    """Measure one target with one workload, once."""
    script, content = (LINES, PATHS[workload]) if workload in PATHS else (workload, database.movies)
    run_wrk(running.url, script, connections, WARM_UP_S, content)
    before = database.count_added()
    service_cpu, database_cpu = map(read_cpu_seconds, (running.pid, database.postmaster))
    load = run_wrk(running.url, script, connections, seconds, content)
    service_cpu = read_cpu_seconds(running.pid) - service_cpu
    database_cpu = read_cpu_seconds(database.postmaster) - database_cpu
    lost = 0
    if workload in {CREATES, MIX}:
        confirmed = load.count_confirmed(workload, connections)
        lost = max(0, confirmed - (database.count_added() - before))
        database.reset()
    return Measurement(
        rate=load.requests / load.seconds,
        p50=load.p50,
        p99=load.p99,
        service_cpu=service_cpu / max(1, load.requests) * 1e6,
        database_cpu=database_cpu / max(1, load.requests) * 1e6,
        errors=load.failed + lost,
    )


def measure_all(  # noqa: PLR0913, PLR0917 - the options
    database: Database,
    targets: list[Target],
    workloads: tuple[str, ...],
    connections: tuple[int, ...],
    rounds: int,
    seconds: int,
) -> Results:
    """Measure all cells in turns, and print the progress."""
    results = Results()
    with ExitStack() as stack:
        running = [stack.enter_context(start_target(target, database.url)) for target in targets]
        for number in range(rounds):
            first = number % len(running)  # each round starts with another target
            for workload in workloads:
                database.prepare(workload)
                for count in connections:
                    for each in (*running[first:], *running[:first]):
                        if workload not in each.target.workloads:
                            continue
                        one = measure(each, database, workload, count, seconds)
                        results.cells[workload, count, each.target.name].append(one)
                        click.echo(
                            f"round {number + 1}/{rounds} {workload:<8} {count:>3} connections"
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
@click.option(
    "--workload", "workloads", multiple=True, type=click.Choice(WORKLOADS), default=WORKLOADS
)
@click.option("--movies", default=100_000, show_default=True, type=click.IntRange(1))
@click.option("--quick", is_flag=True, help="Measure one round of one second, as a check.")
def main(names: tuple[str, ...], movies: int, *, quick: bool, **options: Any) -> None:
    """Measure the service, and bare aiohttp beside it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: stop the targets
    get_wrk_version()
    if quick:
        options.update(rounds=1, seconds=1)
    targets = [target for target in TARGETS if not names or target.name in names]
    limit_cores()
    machine = describe_machine()
    with create_database(movies) as database:
        about = {**machine, **list_versions(database.version), **database.durability, **options}
        results = measure_all(database, targets, **options)
    click.echo("\n".join(results.format_table()))
    click.echo("\nMedians of the rounds. x: ratio to this service. us: CPU time of a request.")
    click.echo(", ".join(f"{name} {value}" for name, value in about.items()))
    errors = sum(one.errors for rounds in results.cells.values() for one in rounds)
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main(prog_name="python -m bench.run")
