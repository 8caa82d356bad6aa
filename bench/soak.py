"""Sends millions of requests to one process, whose memory must not grow.

Nine tenths are reads, the others creates. The growth counts from the first tenth of the requests,
when pools and caches are full. `python -m bench.soak --help`.
"""

import signal
import sys
from dataclasses import dataclass

import click

from bench import cpu, load
from bench.database import CannotMeasure, Database, create_database
from bench.targets import SINGLE_PROCESS, Running, start_target

MB_BYTES = 2**20
CONNECTIONS = 64
SAMPLE_INTERVAL_S = 5


@dataclass(frozen=True)
class Sample:
    """The memory of the process after `requests` requests."""

    requests: int
    resident_bytes: int


def soak(service: Running, database: Database, requests: int) -> tuple[list[Sample], int]:
    """Send `requests` requests; return the samples and the number of failed requests."""
    samples: list[Sample] = []
    responses = failed = creates_sent = 0
    click.echo(f"{'requests':>12} {'requests/s':>11} {'memory MB':>10}")
    while responses < requests:
        result = load.run_wrk(service.url, "mix", CONNECTIONS, SAMPLE_INTERVAL_S, database.movies)
        responses, failed = responses + result.requests, failed + result.failed
        creates_sent += result.creates_sent
        samples.append(Sample(responses, cpu.read_resident_bytes(service.pid)))
        click.echo(
            f"{responses:>12,} {result.requests / result.seconds:>11,.0f}"
            f" {samples[-1].resident_bytes / MB_BYTES:>10.1f}"
        )
        if not result.requests:
            raise CannotMeasure("the service did not respond")
    # As in `measure._count_confirmed`, for each run of wrk.
    confirmed = creates_sent - len(samples) * (CONNECTIONS + 1) - failed
    lost = max(0, confirmed - database.count_added())
    return samples, failed + lost


def calculate_growth(samples: list[Sample], requests: int) -> int:
    """Return the bytes that memory grew by after the first tenth of the requests."""
    warm = next(sample for sample in samples if sample.requests >= requests / 10)
    return samples[-1].resident_bytes - warm.resident_bytes


@click.command()
@click.option("--requests", default=2_000_000, show_default=True, type=click.IntRange(1))
@click.option("--limit", default=5.0, show_default=True, help="Fail at this growth in MB.")
@click.option("--movies", default=100_000, show_default=True, type=click.IntRange(1))
@click.option("--database", "server", help="URL of a PostgreSQL server to create a database on.")
def main(requests: int, limit: float, movies: int, server: str | None) -> None:
    """Fail if the service's memory grows, or if a request fails."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: stop the service
    if not load.get_wrk_version():
        click.echo(load.WRK_MISSING, err=True)
        sys.exit(2)
    if not cpu.PROC.joinpath("self", "statm").exists():
        click.echo("bench.soak reads memory from /proc, which is missing here", err=True)
        sys.exit(2)
    try:
        with (
            create_database(server, movies) as database,
            start_target(SINGLE_PROCESS, database.url) as service,
        ):
            samples, failed = soak(service, database, requests)
    except CannotMeasure as error:
        raise click.ClickException(str(error)) from error
    growth_mb = calculate_growth(samples, requests) / MB_BYTES
    click.echo(f"growth after the first tenth: {growth_mb:.1f} MB (limit: {limit:g} MB)")
    click.echo(f"failed or lost requests: {failed}")
    sys.exit(1 if growth_mb >= limit or failed else 0)


if __name__ == "__main__":
    main(prog_name="python -m bench.soak")
