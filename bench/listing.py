"""How long GET /v1/movies takes on a large catalogue. `make bench-listing`; `--help`.

One connection asks, one request at a time, for every combination of filters, sort order and depth,
with values drawn from the movies themselves. Each request is sent twice and the second one timed:
what is measured is a warm cache. In the same run, the textbook query for a page, which counts with
`count(*) over ()` and skips with OFFSET.
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
from bench.machine import machine
from bench.targets import SOAKED, started
from service.catalogue.paging import SORTS, Filter, Range, SortKey
from service.database import embedded
from service.web.movies import cursors

MEMORY = "1GB"  # shared_buffers, a quarter of a small server's memory
FILTERS = ("title", "genres", "year", "runtime")
PLACES = ("first", "cursor", "deepest page")
LIMIT = 120  # ms

TEXTBOOK = """
select count(*) over (), id, title, year, runtime, genres, version, created_at, updated_at
from movies
where (to_tsvector('simple', title) @@ plainto_tsquery('simple', '') or '' = '')
  and (genres @> '{}' or '{}' = '{}')
order by id
limit 20 offset %s
"""
COLUMNS = {"year": (1950, 2025, 25), "runtime": (60, 150, 40)}  # range of starts, longest span


class Client:
    """One connection to the service."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc)

    def page(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Ask for a page."""
        self._connection.request("GET", f"/v1/movies?{urlencode(parameters)}")
        response = self._connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            raise click.ClickException(f"{parameters}: {response.status} {body.decode()}")
        return dict(json.loads(body))

    def timed(self, parameters: dict[str, Any]) -> float:
        """Milliseconds of a request whose pages are in memory."""
        self.page(parameters)
        return milliseconds(lambda: self.page(parameters))

    def metadata(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """What a page says of itself and of all pages."""
        return dict(self.page(parameters)["metadata"])


def milliseconds(what: Callable[[], Any]) -> float:
    """How long it takes."""
    begun = time.perf_counter()
    what()
    return (time.perf_counter() - begun) * 1e3


class Draw:
    """Filters and places out of a sample of the movies, the same for the same seed.

    A cursor has the total of its first page, as those of the service do; `metadata` is of that.
    """

    def __init__(
        self,
        sample: list[tuple[Any, ...]],
        seed: int,
        metadata: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> None:
        self._sample = sample
        self._metadata = metadata
        self._random = random.Random(seed)  # noqa: S311 nothing secret

    def request(self, names: tuple[str, ...], sort: str, place: str) -> dict[str, Any]:
        """One request's query string, in parts."""
        draw = self._random
        wanted = {name: getattr(self, f"_{name}")() for name in names}
        parameters: dict[str, Any] = {**wanted, "sort": sort}
        if place == "deepest page":
            parameters["page"] = self._metadata(parameters | {"page": 1})["last_page"]
        if place == "cursor":
            movie = dict(
                zip(("id", "title", "year", "runtime"), draw.choice(self._sample), strict=False)
            )
            key = SortKey(movie[sort.removeprefix("-")], movie["id"])
            meant = Filter(
                title=wanted.get("title"),
                genres=tuple(wanted["genres"].split(",")) if "genres" in wanted else None,
                year=_range(wanted.get("year")),
                runtime=_range(wanted.get("runtime")),
            )
            backwards = draw.random() < 0.3  # noqa: PLR2004 some
            first = self._metadata(parameters)
            if first["next_cursor"]:  # else there is but one page
                parameters["cursor"] = cursors.encode(
                    key, first["total_records"], meant, sort, backwards=backwards
                )
        return parameters

    def _title(self) -> str:
        draw = self._random
        words = draw.choice(self._sample)[1].split()
        kind = draw.random()
        if kind < 0.25:  # noqa: PLR2004 a prefix, now and then
            return str(draw.choice(words)[: draw.randint(2, 4)] + "*")
        return " ".join(draw.sample(words, min(len(words), 1 + (kind > 0.7))))  # noqa: PLR2004 two words

    def _genres(self) -> str:
        genres = self._random.choice(self._sample)[4]
        return ",".join(self._random.sample(genres, self._random.randint(1, min(2, len(genres)))))

    def _year(self) -> str:
        return self._span("year")

    def _runtime(self) -> str:
        return self._span("runtime")

    def _span(self, column: str) -> str:
        first, last, longest = COLUMNS[column]
        low = self._random.randint(first, last)
        high = low + self._random.randint(1, longest)
        return self._random.choice([f"{low}", f"{low}..", f"..{low}", f"{low}..{high}"])


def _range(text: str | None) -> Range:
    if text is None:
        return Range()
    low, dots, high = text.partition("..")
    return Range(*(int(end) if end else None for end in (low, high if dots else low)))


def measure_all(client: Client, draw: Draw, requests: int) -> dict[tuple[str, ...], list[Any]]:
    """The times of every combination of filters, with the sort, place and request of each."""
    combinations = [
        names for n in range(len(FILTERS) + 1) for names in itertools.combinations(FILTERS, n)
    ]
    times: dict[tuple[str, ...], list[Any]] = {names: [] for names in combinations}
    cells = list(itertools.product(combinations, SORTS, PLACES))
    with click.progressbar(cells, label="every combination", file=sys.stderr) as bar:
        for names, sort, place in bar:
            for _ in range(requests):
                parameters = draw.request(names, sort, place)
                times[names].append((client.timed(parameters), place, parameters))
    return times


def report(times: dict[tuple[str, ...], list[Any]]) -> Iterator[str]:
    """The table."""
    yield f"{'filters':<32} {'requests':>8} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}"
    for names, made in times.items():
        yield _row(", ".join(names) or "(none)", [time for time, *_ in made])
    everything = [one for made in times.values() for one in made]
    for place in PLACES:
        yield _row(f"all: {place}", [time for time, at, _ in everything if at == place])
    yield _row("all", [time for time, *_ in everything])
    yield f"over {LIMIT} ms: {sum(time > LIMIT for time, *_ in everything)} of {len(everything)}"
    for taken, _, parameters in sorted(everything, key=lambda one: -one[0])[:5]:
        yield f"  {taken:6.1f} ms  {urlencode(parameters)[:120]}"


def _row(name: str, times: list[float]) -> str:
    p50, p99 = statistics.median(times), statistics.quantiles(times, n=100)[98]
    return f"{name:<32} {len(times):>8} {p50:>8.1f} {p99:>8.1f} {max(times):>8.1f}"


def deep(client: Client, database: Any, movies: int) -> Iterator[str]:
    """The 10,000th page by cursor beside the first, in each order."""
    skip = min(200_000, movies // 2)
    yield f"page {skip // 20:,} by cursor, beside the first (medians of 30):"
    for sort in SORTS:
        field, direction = sort.removeprefix("-"), "desc" if sort.startswith("-") else "asc"
        [(value, number)] = ask(
            database,
            f"select {field}, id from movies order by {field} {direction}, id {direction}"
            f" offset {skip - 1} limit 1",
        )
        total = client.metadata({"sort": sort})["total_records"]
        there = {
            "sort": sort,
            "cursor": cursors.encode(
                SortKey(value, number), total, Filter(), sort, backwards=False
            ),
        }
        pairs = [(client.timed({"sort": sort}), client.timed(there)) for _ in range(30)]
        first, far = (statistics.median(column) for column in zip(*pairs, strict=True))
        yield f"  {sort:<10} {first:6.2f} ms {far:6.2f} ms  x {far / first:.2f}"


def beside_textbook(client: Client, database: Any) -> Iterator[str]:
    """The unfiltered first page beside the query of the textbooks."""
    ours, textbook = [], []
    for _ in range(10):
        ours.append(client.timed({}))
        textbook.append(milliseconds(lambda: ask(database, TEXTBOOK, 0)))
    a, b = statistics.median(ours), statistics.median(textbook)
    yield (
        f"first page, no filter: {a:.2f} ms;"
        f" count(*) over () with OFFSET: {b:.0f} ms; x {b / a:.0f}"
    )


def ask(database: Any, query: str, *parameters: Any) -> list[Any]:
    """Run a query."""
    with database.cursor() as cursor:
        cursor.execute(query, parameters or None)
        return list(cursor.fetchall())


@contextmanager
def catalogue(movies: int) -> Iterator[str]:
    """A PostgreSQL with so many movies, thrown away at the end; tells how they got in."""
    folder = Path(tempfile.mkdtemp(prefix="movie-catalogue-listing-", dir="/var/tmp"))
    with embedded.running(folder) as url, closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"alter system set shared_buffers = '{MEMORY}'")
    with embedded.running(folder, throwaway=True) as url:
        _service(url, "migrate")
        with subprocess.Popen(  # noqa: S603 our own
            [sys.executable, "-m", "bench.make_movies", str(movies)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        ) as made:
            _service(url, "import", "-", "--format", "ndjson", stdin=made.stdout)
        with closing(psycopg2.connect(url)) as connection:
            connection.autocommit = True
            connection.cursor().execute("vacuum analyze movies")
        yield url


def _service(url: str, *command: str, stdin: Any = None) -> None:
    environment = {"DATABASE_URL": url, "PATH": ""}
    arguments = [sys.executable, "-m", "service", *command]
    subprocess.run(arguments, cwd=ROOT, env=environment, stdin=stdin, check=True)  # noqa: S603 our own


@click.command()
@click.option("--movies", default=2_000_000, show_default=True, type=click.IntRange(1_000))
@click.option("--requests", default=8, show_default=True, help="Of each combination.")
@click.option("--seed", default=1, show_default=True)
@click.option("--database", "url", help="URL of a migrated catalogue with movies, to be read only.")
def main(movies: int, requests: int, seed: int, url: str | None) -> None:
    """Measure the listing on a large catalogue."""
    with ExitStack() as stack:
        if not url:
            url = stack.enter_context(catalogue(movies))
        database = stack.enter_context(closing(psycopg2.connect(url)))
        database.autocommit = True
        [(count,)] = ask(database, "select count(*) from movies")
        sample = ask(
            database,
            "select id, title, year, runtime, genres from movies"
            f" where id % {max(1, count // 5_000)} = 0 order by id",
        )
        running = stack.enter_context(started(SOAKED, url))
        client = Client(running.url)
        lines = [
            *report(measure_all(client, Draw(sample, seed, client.metadata), requests)),
            "",
            *deep(client, database, count),
            "",
            *beside_textbook(client, database),
            "",
            f"{count:,} movies; {json.dumps(machine())}",
        ]
    click.echo("\n".join(lines))


if __name__ == "__main__":
    main(prog_name="python -m bench.listing")
