"""The soak: millions of requests to one process, whose memory must not grow.

A mix of reads and creates. Memory is compared after the first tenth, when pools and caches are
full, and at the end; in between it is sampled. `python -m bench.soak --help`.
"""

import signal
import sys
from dataclasses import dataclass

import click

from bench import cpu, load
from bench.database import Database, Unfit, running
from bench.targets import SOAKED, Running, started

MEGABYTE = 2**20
CONNECTIONS = 64
SLICE = 5  # seconds of load between two samples


@dataclass(frozen=True)
class Sample:
    """How much memory the process held after that many requests."""

    requests: int
    resident: int  # bytes


def soak(service: Running, database: Database, requests: int) -> tuple[list[Sample], int]:
    """Load the service until it has answered `requests`; the samples, and how many failed."""
    samples: list[Sample] = []
    answered = failed = sent = 0
    click.echo(f"{'requests':>12} {'requests/s':>11} {'memory MB':>10}")
    while answered < requests:
        seen = load.wrk(service.url, "mix", CONNECTIONS, SLICE, database.movies)
        answered, failed = answered + seen.requests, failed + seen.failed
        sent += seen.creates_sent
        samples.append(Sample(answered, cpu.resident(service.pid)))
        click.echo(
            f"{answered:>12,} {seen.requests / seen.seconds:>11,.0f}"
            f" {samples[-1].resident / MEGABYTE:>10.1f}"
        )
        if not seen.requests:
            raise Unfit("no request was answered")
    # Of each slice, what was under way when it ended may not have been answered.
    least = sent - len(samples) * (CONNECTIONS + 1) - failed
    lost = max(0, least - database.added())
    return samples, failed + lost


def growth(samples: list[Sample], requests: int) -> int:
    """Bytes more at the end than after the first tenth."""
    warm = next(sample for sample in samples if sample.requests >= requests / 10)
    return samples[-1].resident - warm.resident


@click.command()
@click.option("--requests", default=2_000_000, show_default=True, type=click.IntRange(1))
@click.option("--limit", default=5.0, show_default=True, help="Growth in MB that fails.")
@click.option("--movies", default=100_000, show_default=True, type=click.IntRange(1))
@click.option("--database", "server", help="URL of a PostgreSQL to make a database on.")
def main(requests: int, limit: float, movies: int, server: str | None) -> None:
    """Fail where the service's memory grows, or a request fails."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: stop what was started
    if not load.wrk_version():
        click.echo(load.MISSING, err=True)
        sys.exit(2)
    if not cpu.PROC.joinpath("self", "statm").exists():
        click.echo("the soak reads memory from /proc, which this system has not", err=True)
        sys.exit(2)
    try:
        with running(server, movies) as database, started(SOAKED, database.url) as service:
            samples, failed = soak(service, database, requests)
    except Unfit as error:
        raise click.ClickException(str(error)) from error
    grown = growth(samples, requests) / MEGABYTE
    click.echo(f"growth after the first tenth: {grown:.1f} MB (less than {limit:g} is asked for)")
    click.echo(f"failed or lost requests: {failed}")
    sys.exit(1 if grown >= limit or failed else 0)


if __name__ == "__main__":
    main(prog_name="python -m bench.soak")
