"""Sends millions of requests to one process, whose memory must not grow.

Nine tenths are reads, the others creates. The growth counts from the first tenth of the requests,
when pools and caches are full. `python -m bench.soak --help`.
"""

import signal
import sys

import click

from bench.database import create_database
from bench.load import MIX, get_wrk_version, run_wrk
from bench.targets import SINGLE_PROCESS, start_target
from drills.processes import read_memory_mb

CONNECTIONS = 64
SAMPLE_INTERVAL_S = 5


@click.command()
@click.option("--requests", default=2_000_000, show_default=True, type=click.IntRange(1))
@click.option("--limit", default=5.0, show_default=True, help="Fail at this growth in MB.")
@click.option("--movies", default=100_000, show_default=True, type=click.IntRange(1))
def main(requests: int, limit: float, movies: int) -> None:
    """Fail if the service's memory grows, or if a request fails."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: stop the service
    get_wrk_version()
    responses = failed = confirmed = 0
    warm_mb = None
    click.echo(f"{'requests':>12} {'requests/s':>11} {'memory MB':>10}")
    with (
        create_database(movies) as database,
        start_target(SINGLE_PROCESS, database.url) as service,
    ):
        while responses < requests:
            load = run_wrk(service.url, MIX, CONNECTIONS, SAMPLE_INTERVAL_S, movies)
            responses += load.requests
            failed += load.failed
            confirmed += load.count_confirmed(MIX, CONNECTIONS)
            memory_mb = read_memory_mb(service.pid)
            if warm_mb is None and responses >= requests / 10:
                warm_mb = memory_mb
            rate = load.requests / load.seconds
            click.echo(f"{responses:>12,} {rate:>11,.0f} {memory_mb:>10.1f}")
        lost = max(0, confirmed - database.count_added())
    growth_mb = memory_mb - (warm_mb or memory_mb)
    click.echo(f"growth after the first tenth: {growth_mb:.1f} MB (limit: {limit:g} MB)")
    click.echo(f"failed or lost requests: {failed + lost}")
    sys.exit(1 if growth_mb >= limit or failed or lost else 0)


if __name__ == "__main__":
    main(prog_name="python -m bench.soak")
