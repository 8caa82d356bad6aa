"""Measures GET /v1/movies on a large catalogue: `make bench-listing`, `python -m bench.listing`.

One connection requests every combination of filters, sort order and place, with values from the
movies. Each request is sent twice and the second one is timed, so the cache is warm. The textbook
query, with `count(*) over ()` and OFFSET, is measured for comparison.
"""

import http.client
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import click
import psycopg2

from bench.database import ROOT
from bench.machine import describe_machine
from bench.targets import SINGLE_PROCESS, start_target
from service.catalogue.paging import SORTS, Filter, Range, SortKey
from service.database import embedded
from service.web.movies import cursors

SERVER_OPTIONS = "-c shared_buffers=1GB"  # a quarter of a small server's memory
FILTERS = ("title", "genres", "year", "runtime")
PLACES = ("first", "cursor", "deepest page")
SLOW_MS = 120
CURSORS_BACKWARDS = 0.3  # of all requests with a cursor
TITLES_WITH_PREFIX, TITLES_WITH_TWO_WORDS = 0.25, 0.3  # of all title filters

TEXTBOOK_QUERY = """
select count(*) over (), id, title, year, runtime, genres, version, created_at, updated_at
from movies
where (to_tsvector('simple', title) @@ plainto_tsquery('simple', '') or '' = '')
  and (genres @> '{}' or '{}' = '{}')
order by id
limit 20 offset %s
"""
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
        return measure_milliseconds(lambda: self.get_page(parameters))

    def get_metadata(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Request a page and return its metadata."""
        return dict(self.get_page(parameters)["metadata"])


def measure_milliseconds(function: Callable[[], Any]) -> float:
    """Call the function and return its duration."""
    started_at = time.perf_counter()
    function()
    return (time.perf_counter() - started_at) * 1e3


class RandomRequests:
    """Draws filters and places from a sample of the movies; the same seed gives the same ones."""

    def __init__(self, sample: list[tuple[Any, ...]], seed: int, client: Client) -> None:
        self._sample = sample
        self._get_metadata = client.get_metadata
        self._random = random.Random(seed)  # noqa: S311 nothing secret

    def draw_parameters(self, names: tuple[str, ...], sort: str, place: str) -> dict[str, Any]:
        """Draw the query parameters of one request."""
        filters = {name: getattr(self, f"_draw_{name}")() for name in names}
        parameters: dict[str, Any] = {**filters, "sort": sort}
        if place == "deepest page":
            parameters["page"] = self._get_metadata(parameters | {"page": 1})["last_page"]
        if place == "cursor":
            values = self._random.choice(self._sample)
            movie = dict(zip(("id", "title", "year", "runtime"), values, strict=False))
            key = SortKey(movie[sort.removeprefix("-")], movie["id"])
            filter_ = Filter(
                title=filters.get("title"),
                genres=tuple(filters["genres"].split(",")) if "genres" in filters else None,
                year=_parse_range(filters.get("year")),
                runtime=_parse_range(filters.get("runtime")),
            )
            backwards = self._random.random() < CURSORS_BACKWARDS
            first = self._get_metadata(parameters)
            if first["next_cursor"]:  # otherwise there is only one page
                # As in the service, the cursor has the total of the first page.
                parameters["cursor"] = cursors.encode(
                    key, first["total_records"], filter_, sort, backwards=backwards
                )
        return parameters

    def _draw_title(self) -> str:
        draw = self._random
        words = draw.choice(self._sample)[1].split()
        kind = draw.random()
        if kind < TITLES_WITH_PREFIX:
            return str(draw.choice(words)[: draw.randint(2, 4)] + "*")
        count = 2 if kind > 1 - TITLES_WITH_TWO_WORDS else 1
        return " ".join(draw.sample(words, min(len(words), count)))

    def _draw_genres(self) -> str:
        genres = self._random.choice(self._sample)[4]
        return ",".join(self._random.sample(genres, self._random.randint(1, min(2, len(genres)))))

    def _draw_year(self) -> str:
        return self._draw_range("year")

    def _draw_runtime(self) -> str:
        return self._draw_range("runtime")

    def _draw_range(self, column: str) -> str:
        first, last, max_length = RANGES[column]
        low = self._random.randint(first, last)
        high = low + self._random.randint(1, max_length)
        return self._random.choice([f"{low}", f"{low}..", f"..{low}", f"{low}..{high}"])


def _parse_range(text: str | None) -> Range:
    if text is None:
        return Range()
    low, dots, high = text.partition("..")
    return Range(*(int(end) if end else None for end in (low, high if dots else low)))


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


def compare_deep_page(client: Client, database: Any, movies: int) -> Iterator[str]:
    """Compare the 10,000th page, by cursor, with the first page, in each order."""
    skip = min(200_000, movies // 2)
    yield f"first page, and page {skip // 20:,} by cursor (medians of 30):"
    for sort in SORTS:
        field, direction = sort.removeprefix("-"), "desc" if sort.startswith("-") else "asc"
        [(value, number)] = fetch(
            database,
            f"select {field}, id from movies order by {field} {direction}, id {direction}"
            f" offset {skip - 1} limit 1",
        )
        total = client.get_metadata({"sort": sort})["total_records"]
        key = SortKey(value, number)
        cursor = cursors.encode(key, total, Filter(), sort, backwards=False)
        deep_page = {"sort": sort, "cursor": cursor}
        pairs = [(client.measure({"sort": sort}), client.measure(deep_page)) for _ in range(30)]
        first, deep = (statistics.median(column) for column in zip(*pairs, strict=True))
        yield f"  {sort:<10} {first:6.2f} ms {deep:6.2f} ms  x {deep / first:.2f}"


def compare_textbook_query(client: Client, database: Any) -> Iterator[str]:
    """Compare the first page without filters with the textbook query."""
    service_times, textbook_times = [], []
    for _ in range(10):
        service_times.append(client.measure({}))
        textbook_times.append(measure_milliseconds(lambda: fetch(database, TEXTBOOK_QUERY, 0)))
    service, textbook = statistics.median(service_times), statistics.median(textbook_times)
    yield (
        f"first page, no filter: {service:.2f} ms;"
        f" count(*) over () with OFFSET: {textbook:.0f} ms; x {textbook / service:.0f}"
    )


def fetch(database: Any, query: str, *parameters: Any) -> list[Any]:
    """Run a query and return its rows."""
    with database.cursor() as cursor:
        cursor.execute(query, parameters or None)
        return list(cursor.fetchall())


@contextmanager
def create_catalogue(movies: int) -> Iterator[str]:
    """Import `movies` movies into an embedded PostgreSQL, which is removed at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="movie-catalogue-listing-", dir="/var/tmp") as folder,
        embedded.running(Path(folder), SERVER_OPTIONS) as url,
    ):
        _run_service(url, "migrate")
        with subprocess.Popen(  # noqa: S603 our own
            [sys.executable, "-m", "bench.make_movies", str(movies)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        ) as make_movies:
            _run_service(url, "import", "-", "--format", "ndjson", stdin=make_movies.stdout)
        with closing(psycopg2.connect(url)) as connection:
            connection.autocommit = True
            connection.cursor().execute("vacuum analyze movies")
        yield url


def _run_service(url: str, *command: str, stdin: Any = None) -> None:
    environment = {"DATABASE_URL": url, "PATH": ""}
    arguments = [sys.executable, "-m", "service", *command]
    subprocess.run(arguments, cwd=ROOT, env=environment, stdin=stdin, check=True)  # noqa: S603 our own


@click.command()
@click.option("--movies", default=2_000_000, show_default=True, type=click.IntRange(1_000))
@click.option("--requests", default=8, show_default=True, help="Per combination.")
@click.option("--seed", default=1, show_default=True)
@click.option("--database", "url", help="URL of a catalogue with movies; it is only read.")
def main(movies: int, requests: int, seed: int, url: str | None) -> None:
    """Measure GET /v1/movies on a large catalogue."""
    with ExitStack() as stack:
        if not url:
            url = stack.enter_context(create_catalogue(movies))
        database = stack.enter_context(closing(psycopg2.connect(url)))
        database.autocommit = True
        [(count,)] = fetch(database, "select count(*) from movies")
        sample = fetch(
            database,
            "select id, title, year, runtime, genres from movies"
            f" where id % {max(1, count // 5_000)} = 0 order by id",
        )
        client = Client(stack.enter_context(start_target(SINGLE_PROCESS, url)).url)
        lines = [
            *format_report(measure_all(client, RandomRequests(sample, seed, client), requests)),
            "",
            *compare_deep_page(client, database, count),
            "",
            *compare_textbook_query(client, database),
            "",
            f"{count:,} movies; {json.dumps(describe_machine())}",
        ]
    click.echo("\n".join(lines))


if __name__ == "__main__":
    main(prog_name="python -m bench.listing")
