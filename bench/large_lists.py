"""Measures lists of a large catalogue, one after the other: `make bench-lists`.

For each kind of list, its median and 99th percentile over HTTP, and the CPU time of PostgreSQL, in
ms. The database is that of DATABASE_URL, on this machine and with the movies of
`bench.make_movies`; without it, they are imported into an embedded PostgreSQL first. No list is
asked for twice, so none comes from memory.
"""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from statistics import quantiles
from urllib.parse import urlencode, urlsplit

import click
import psycopg2

from bench.machine import find_postmaster, read_cpu_seconds
from bench.make_movies import WORDS
from bench.targets import TARGETS, start_target
from drills.lab import migrate
from drills.service import ROOT, make_environment
from service.database import embedded

MOVIES = 2_000_000
PAGES = 3  # by cursor, after each first page
Query = dict[str, str]
TITLES: list[Query] = [{}, *({"title": word} for word in ("the", "love", "red", "dragon", "dra*"))]
GENRES: list[Query] = [{}, {"genres": "drama"}, {"genres": "anime"}, {"genres_any": "horror,anime"}]
YEARS: list[Query] = [{}, {"year": "1990..1999"}, {"year": "1930..1932"}]
FILTERS = [title | genres | years for title, genres, years in product(TITLES, GENRES, YEARS)]
KINDS: dict[str, list[Query]] = {
    "first pages by filter": [
        wanted | {"sort": sort} for wanted in FILTERS for sort in ("id", "-year", "title")
    ],
    "searches of a common word": [{"title": word} for word in WORDS[5:51]],
    "facets": [wanted | {"facets": "genres,year,runtime"} for wanted in FILTERS],
    "suggestions": [
        {"title": f"{word}qx {WORDS[-place]}"} for place, word in enumerate(WORDS[20:60])
    ],
}


@contextmanager
def open_database() -> Iterator[str]:
    """Yield the URL of the database."""
    if url := os.environ.get("DATABASE_URL"):
        yield url
        return
    with (
        tempfile.TemporaryDirectory(prefix="movie-catalogue-bench-", dir="/var/tmp") as folder,
        embedded.running(Path(folder)) as url,
    ):
        migrate(url)
        run = (
            f"{sys.executable} -m bench.make_movies {MOVIES} | {sys.executable} -m service import "
        )
        environment = {**make_environment(), "DATABASE_URL": url}
        subprocess.run(  # noqa: S602 nothing from outside
            f"{run} --format ndjson -", shell=True, check=True, cwd=ROOT, env=environment
        )
        yield url


def measure(kind: str, times: list[float], cpu_s: float) -> str:
    """Return the row of a kind of list, of which each took so long (s)."""
    percentiles = quantiles(times, n=100, method="inclusive")
    cells = [percentiles[49] * 1e3, percentiles[98] * 1e3, cpu_s / len(times) * 1e3]
    return f"| {kind} | {len(times)} | " + " | ".join(f"{ms:.1f}" for ms in cells) + " |"


def request(connection: http.client.HTTPConnection, target: str) -> tuple[float, str]:
    """Return how long a list took (s), and the target of its next page."""
    started = time.perf_counter()
    connection.request("GET", target)
    response = connection.getresponse()
    body = response.read()
    seconds = time.perf_counter() - started
    if response.status != http.client.OK:
        raise RuntimeError(f"{target}: {response.status} {body[:200]!r}")
    following = json.loads(body)["metadata"].get("next_cursor")
    first, _, _ = target.partition("&cursor=")
    return seconds, f"{first}&cursor={following}" if following else ""


def request_all(
    connection: http.client.HTTPConnection, targets: Iterable[str]
) -> tuple[list[float], list[str]]:
    """Return the time of each list, and the targets of their next pages."""
    found = [request(connection, target) for target in targets]
    return [seconds for seconds, _ in found], [target for _, target in found if target]


@click.command()
def main() -> None:
    """Print a table in Markdown; times in milliseconds."""
    with open_database() as url, closing(psycopg2.connect(url)) as session:
        session.autocommit = True
        with session.cursor() as cursor:  # autovacuum would do so during the measurement
            cursor.execute("vacuum (analyze) movies")
        postmaster = find_postmaster(session.info.backend_pid)
        with start_target(TARGETS[0], url) as running:
            address = urlsplit(running.url)
            connection = http.client.HTTPConnection(str(address.hostname), address.port)
            click.echo("| lists | requests | p50 | p99 | PostgreSQL's CPU |")
            click.echo("| --- | --- | --- | --- | --- |")
            everything, total_cpu_s = list[float](), 0.0
            pages: list[str] = []

            def show(kind: str, targets: Iterable[str]) -> list[str]:
                nonlocal total_cpu_s
                before = read_cpu_seconds(postmaster)
                times, following = request_all(connection, targets)
                cpu_s = read_cpu_seconds(postmaster) - before
                click.echo(measure(kind, times, cpu_s))
                everything.extend(times)
                total_cpu_s += cpu_s
                return following

            for kind, queries in KINDS.items():
                following = show(kind, [f"/v1/movies?{urlencode(each)}" for each in queries])
                pages = pages or following
            for number in range(PAGES):
                pages = show(f"pages by cursor, {number + 2}", pages)
            click.echo(measure("all", everything, total_cpu_s))


if __name__ == "__main__":
    main(prog_name="make bench-lists")
