"""Measures GET /v1/movies on a large catalogue: `make bench-listing`, `python -m bench.listing`.

One connection requests every combination of filters, sort order and place, with values from the
movies. Each request is sent twice and the second one is timed, so the cache is warm.
"""

import http.client
import itertools
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

import click
import psycopg2

from bench.database import run_service, start_postgresql
from bench.machine import describe_machine
from bench.targets import SINGLE_PROCESS, start_target
from drills.service import ROOT
from service.database.paging import SortKey
from service.movies.movie import COLUMNS, Movie
from service.movies.parameters import PARAMETERS, SORTS, Filter
from service.web import cursors

SERVER_OPTIONS = "-c shared_buffers=1GB"  # a quarter of a small server's memory
FILTERS = ("title", "genres", "year", "runtime")
PLACES = ("first", "cursor", "deepest page")
SLOW_MS = 120
CURSORS_BACKWARDS = 0.3  # of all requests with a cursor
ANY_GENRES = 0.25  # of all genre filters are genres_any
# Of all title filters; one with a typo finds nothing, and gets suggestions.
TITLES_WITH_PREFIX, TITLES_WITH_TYPO, TITLES_WITH_TWO_WORDS = 0.2, 0.2, 0.3

RANGES = {"year": (1950, 2025, 25), "runtime": (60, 150, 40)}  # first start, last start, max length


class Client:
    """One connection to the service."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc)

    def get_page(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Request a page."""
        self._connection.request("GET", f"/v1/movies?{urlencode(parameters)}")
        response = self._connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            raise click.ClickException(f"{parameters}: {response.status} {body.decode()}")
        return dict(json.loads(body))

    def measure(self, parameters: dict[str, Any]) -> float:
        """Return the milliseconds of the second of two equal requests."""
        self.get_page(parameters)
        started_at = time.perf_counter()
        self.get_page(parameters)
        return (time.perf_counter() - started_at) * 1e3


class RandomRequests:
    """Draws filters and places from a sample of the movies; the same seed gives the same ones."""

    def __init__(self, sample: list[Movie], seed: int, client: Client) -> None:
        self._sample = sample
        self._get_page = client.get_page
        self._random = random.Random(seed)  # noqa: S311 nothing secret

    def draw_parameters(self, names: tuple[str, ...], sort: str, place: str) -> dict[str, Any]:
        """Draw the query parameters of one request."""
        filters = {name: self._draw(name) for name in names}
        if "genres" in filters and self._random.random() < ANY_GENRES:
            filters["genres_any"] = filters.pop("genres")
        parameters: dict[str, Any] = {**filters, "sort": sort}
        if place == "deepest page":
            first = self._get_page(parameters | {"page": 1})
            parameters["page"] = first["metadata"]["last_page"]
        if place == "cursor":
            movie = self._random.choice(self._sample)
            key = SortKey(getattr(movie, sort.removeprefix("-")), movie.id)
            filter_ = Filter(**{n: PARAMETERS[n].deserialize(text) for n, text in filters.items()})
            backwards = self._random.random() < CURSORS_BACKWARDS
            first = self._get_page(parameters)["metadata"]
            if first["next_cursor"]:  # otherwise there is only one page
                # As in the service, the cursor has the total of the first page.
                parameters["cursor"] = cursors.encode(
                    key, first["total_records"], f"{sort} {filter_}", backwards=backwards
                )
        return parameters

    def _draw(self, name: str) -> str:
        if name == "title":
            return self._draw_title()
        if name == "genres":
            genres = self._random.choice(self._sample).genres
            count = self._random.randint(1, min(2, len(genres)))
            return ",".join(self._random.sample(genres, count))
        return self._draw_range(name)

    def _draw_title(self) -> str:
        draw = self._random
        # Only letters and digits: in a title like M*A*S*H, M* would be a prefix of one letter.
        words = re.findall(r"[^\W_]+", draw.choice(self._sample).title) or ["the"]
        word = str(draw.choice(words))
        kind = draw.random()
        # A prefix has at least two letters, or it is refused.
        if kind < TITLES_WITH_PREFIX and word[:2].isalpha() and len(word) > 1:
            return word[: draw.randint(2, 4)] + "*"
        if kind < TITLES_WITH_PREFIX + TITLES_WITH_TYPO:
            at = draw.randrange(len(word))
            return f"{word[:at]}{draw.choice('eiot')}{word[at + 1 :]}"
        count = 2 if kind > 1 - TITLES_WITH_TWO_WORDS else 1
        return " ".join(draw.sample(words, min(len(words), count)))

    def _draw_range(self, column: str) -> str:
        first, last, max_length = RANGES[column]
        low = self._random.randint(first, last)
        high = low + self._random.randint(1, max_length)
        return self._random.choice(
            [f"{low}", f"{low}..", f"..{low}", f"{low}..{high}", f"{low},{high}"]
        )


def measure_all(
    client: Client, random_requests: RandomRequests, requests: int
) -> dict[tuple[str, ...], list[Any]]:
    """Return milliseconds, place and parameters of each request, by combination of filters."""
    combinations = [
        names for n in range(len(FILTERS) + 1) for names in itertools.combinations(FILTERS, n)
    ]
    times: dict[tuple[str, ...], list[Any]] = {names: [] for names in combinations}
    cells = list(itertools.product(combinations, SORTS, PLACES))
    with click.progressbar(cells, label="every combination", file=sys.stderr) as bar:
        for names, sort, place in bar:
            for _ in range(requests):
                parameters = random_requests.draw_parameters(names, sort, place)
                times[names].append((client.measure(parameters), place, parameters))
    return times


def format_report(times: dict[tuple[str, ...], list[Any]]) -> Iterator[str]:
    """Yield the lines of the table, and the slowest requests."""
    yield f"{'filters':<32} {'requests':>8} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}"
    for names, requests in times.items():
        yield _format_row(", ".join(names) or "(none)", [time for time, *_ in requests])
    every = [request for requests in times.values() for request in requests]
    for place in PLACES:
        yield _format_row(f"all: {place}", [time for time, at, _ in every if at == place])
    yield _format_row("all", [time for time, *_ in every])
    yield f"over {SLOW_MS} ms: {sum(time > SLOW_MS for time, *_ in every)} of {len(every)}"
    for slowest, _, parameters in sorted(every, key=lambda request: -request[0])[:5]:
        yield f"  {slowest:6.1f} ms  {urlencode(parameters)[:120]}"


def _format_row(name: str, times: list[float]) -> str:
    p50, p99 = statistics.median(times), statistics.quantiles(times, n=100)[98]
    return f"{name:<32} {len(times):>8} {p50:>8.1f} {p99:>8.1f} {max(times):>8.1f}"


@contextmanager
def create_catalogue(movies: int) -> Iterator[str]:
    """Import `movies` movies into an embedded PostgreSQL, which is removed at the end."""
    with start_postgresql(SERVER_OPTIONS) as url:
        with subprocess.Popen(  # noqa: S603 our own
            [sys.executable, "-m", "bench.make_movies", str(movies)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        ) as make_movies:
            run_service(url, "import", "-", "--format", "ndjson", stdin=make_movies.stdout)
        fetch(url, "vacuum analyze movies")
        yield url


def read_sample(url: str) -> list[Movie]:
    """Return about 5,000 movies, with ids at equal distances."""
    [(count,)] = fetch(url, "select count(*) from movies")
    rows = fetch(
        url,
        f"select {', '.join(COLUMNS)} from movies"
        f" where id % {max(1, count // 5_000)} = 0 order by id",
    )
    return [Movie._make(row) for row in rows]


def fetch(url: str, statement: str) -> list[Any]:
    """Run a statement and return its rows, if it has some."""
    with closing(psycopg2.connect(url)) as session, session.cursor() as cursor:
        session.autocommit = True
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


@click.command()
@click.option("--movies", default=2_000_000, show_default=True, type=click.IntRange(1_000))
@click.option("--requests", default=8, show_default=True, help="Per combination.")
@click.option("--seed", default=1, show_default=True)
@click.option("--database", "url", help="URL of a catalogue with movies; it is only read.")
def main(movies: int, requests: int, seed: int, url: str | None) -> None:
    """Measure GET /v1/movies on a large catalogue."""
    with ExitStack() as stack:
        url = url or stack.enter_context(create_catalogue(movies))
        [(count,)] = fetch(url, "select count(*) from movies")
        sample = read_sample(url)
        client = Client(stack.enter_context(start_target(SINGLE_PROCESS, url)).url)
        times = measure_all(client, RandomRequests(sample, seed, client), requests)
    lines = [*format_report(times), f"{count:,} movies; {json.dumps(describe_machine())}"]
    click.echo("\n".join(lines))


if __name__ == "__main__":
    main(prog_name="python -m bench.listing")
