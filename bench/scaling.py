"""Measures CPU time, WAL and sizes for the model in docs/scaling.md: `make scaling`.

Only the CPU time of the service, PostgreSQL and its standby counts, so other programs on the
machine matter little. Each round sends the same lists, because their costs differ. The mix is not
used for the model: its CPU time is compared with what the model predicts.
"""

import http.client
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from statistics import median
from urllib.parse import urlencode, urlsplit

import click
import psycopg2

from bench.listing import Client, RandomRequests, create_catalogue, fetch, read_sample
from bench.load import LINES, run_wrk
from bench.machine import describe_machine, find_postmaster, read_cpu_seconds
from bench.make_movies import make_movies
from bench.targets import TARGETS, Target, start_target
from service.movies.filters import SORTS

READ, FIRST, CURSOR, TITLE, FILTERS, CREATE = KINDS = (
    "read by id",
    "first page",
    "page by cursor",
    "title search",
    "genre and years",
    "create",
)
# How many of each kind the mix has.
SHARES = {READ: 20, FIRST: 1, CURSOR: 2, TITLE: 1, FILTERS: 1, CREATE: 1}
MIX = "mix"
ALONE, FEW, MANY = 1, 4, 64  # connections
CELLS = [
    (READ, ALONE),
    (READ, MANY),
    *((kind, FEW) for kind in (FIRST, CURSOR, TITLE, FILTERS)),
    (CREATE, ALONE),
    (CREATE, MANY),
    (MIX, FEW),
]
LISTS = {FIRST: 400, CURSOR: 400, TITLE: 60, FILTERS: 60}  # are sent in a round
MIXES = 60  # how often a round of the mix has all of SHARES
READS_AND_CREATES = 50_000  # different ones
SIZES = """
select c.relname, pg_relation_size(c.oid)
from pg_class as c
join pg_namespace as n on n.oid = c.relnamespace and n.nspname = current_schema()
where c.relkind in ('r', 'i') and c.relname ~ '^(movies|search_words|movie_changes)'
union all select 'database', pg_database_size(current_database())
order by 2 desc
"""
WAL_POSITION = "select (pg_current_wal_insert_lsn() - '0/0')::bigint"
REPLAYED = "select (pg_last_wal_replay_lsn() - '0/0')::bigint"
HEADER = """
| request | connections | service (us) | PostgreSQL (us) | standby (us) | WAL (bytes) \
| response (bytes) | failed (%) |
| --- | --- | --- | --- | --- | --- | --- | --- |"""


@dataclass(frozen=True)
class Costs:
    """The costs of one request: CPU times in microseconds, and bytes; and how many failed, in %."""

    service: float
    database: float
    standby: float
    wal: float
    response: float
    failed: float


class Servers:
    """The service, PostgreSQL and its standby, whose resources are measured."""

    def __init__(self, url: str, pid: int, database: str, standby: str | None) -> None:
        self._url, self._database, self._standby = url, database, standby
        urls = [database, *([standby] if standby else [])]
        self._roots = [pid, *map(_find_root, urls)]

    def measure(self, lines: Sequence[str], connections: int, seconds: int) -> Costs:
        """Send requests; return the costs of one of them.

        With many different lines, send them in random order for some seconds, otherwise each once.
        """
        before, wal = self._read_cpu(), self._read_wal_position()
        if len(lines) == READS_AND_CREATES:
            load = run_wrk(self._url, LINES, connections, seconds, lines)
            requests, failed, response_bytes = load.requests, load.failed, load.bytes
        else:
            with ThreadPoolExecutor(connections) as threads:
                parts = [lines[number::connections] for number in range(connections)]
                each = list(threads.map(self._send, parts))
            requests = len(lines)
            failed, response_bytes = (sum(values) for values in zip(*each, strict=True))
        wal = self._read_wal_position() - wal
        after = self._read_cpu()
        service, database, *standby = (
            (end - start) / requests * 1e6 for start, end in zip(before, after, strict=True)
        )
        others = [number / requests for number in (wal, response_bytes, failed * 100)]
        return Costs(service, database, sum(standby), *others)

    def _send(self, lines: Sequence[str]) -> tuple[int, int]:
        """Send requests over one connection; return how many failed, and the bytes of bodies."""
        failed = response_bytes = 0
        with closing(http.client.HTTPConnection(urlsplit(self._url).netloc)) as connection:
            for line in lines:
                if line.startswith("{"):
                    connection.request("POST", "/v1/movies", line)
                else:
                    connection.request("GET", line)
                response = connection.getresponse()
                response_bytes += len(response.read())
                failed += response.status >= http.client.BAD_REQUEST
        return failed, response_bytes

    def _read_wal_position(self) -> int:
        return int(fetch(self._database, WAL_POSITION)[0][0])

    def _read_cpu(self) -> list[float]:
        if self._standby:
            position = self._read_wal_position()
            while fetch(self._standby, REPLAYED)[0][0] < position:
                time.sleep(0.05)
        return [read_cpu_seconds(root) for root in self._roots]


def _find_root(url: str) -> int:
    with closing(psycopg2.connect(url)) as session:
        return find_postmaster(session.get_backend_pid())


def draw_requests(database: str, url: str, seed: int) -> dict[str, list[str]]:
    """Return the requests of each kind and of the mix: paths, or movies to create as JSON."""
    draw = random.Random(seed)  # noqa: S311 - nothing secret
    draw_parameters = RandomRequests(read_sample(database), seed, Client(url)).draw_parameters
    [(highest,)] = fetch(database, "select max(id) from movies")
    lines = {
        READ: [f"/v1/movies/{draw.randint(1, highest)}" for _ in range(READS_AND_CREATES)],
        FIRST: ["/v1/movies"] * LISTS[FIRST],
    }
    orders = [sort for sort in SORTS if "relevance" not in sort]
    for kind, names, sorts, place in (
        (CURSOR, (), orders, "cursor"),
        (TITLE, ("title",), ["relevance"], "first"),
        (FILTERS, ("genres", "year"), orders, "first"),
    ):
        lines[kind] = [
            f"/v1/movies?{urlencode(draw_parameters(names, draw.choice(sorts), place))}"
            for _ in range(LISTS[kind])
        ]
    movies = b"".join(make_movies(READS_AND_CREATES, seed + 1))
    lines[CREATE] = movies.decode().splitlines()
    lines[MIX] = [line for kind in KINDS for line in lines[kind][: SHARES[kind] * MIXES]]
    draw.shuffle(lines[MIX])
    return lines


def format_row(kind: str, connections: int, rounds: list[Costs]) -> str:
    """Return a row of the table: medians, and lowest to highest."""
    columns = ([getattr(each, field.name) for each in rounds] for field in fields(Costs))
    cells = (
        f"{median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})" for values in columns
    )
    return f"| {kind} | {connections} | {' | '.join(cells)} |"


def format_check(costs: dict[tuple[str, int], list[Costs]]) -> Iterator[str]:
    """Yield the CPU time of a request of the mix: as predicted from its parts, and as measured."""
    parts = {kind: costs[kind, ALONE if kind in (READ, CREATE) else FEW] for kind in KINDS}
    for name in ("service", "database"):
        medians = {kind: median(getattr(each, name) for each in parts[kind]) for kind in KINDS}
        predicted = sum(SHARES[kind] * medians[kind] for kind in KINDS) / sum(SHARES.values())
        measured = median(getattr(each, name) for each in costs[MIX, FEW])
        yield (
            f"mix, {name}: predicted {predicted:,.0f} us, measured {measured:,.0f} us,"
            f" error {predicted / measured - 1:+.0%}"
        )


@click.command()
@click.option("--movies", default=2_000_000, show_default=True, type=click.IntRange(1_000))
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--database", help="URL of a catalogue on this machine; movies are created in it.")
@click.option("--standby", help="URL of its standby on this machine, to measure its CPU time.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice([*KINDS, MIX]))
@click.option("--set", "settings", multiple=True, help="A setting, such as CATALOGUE_X_Y=1.")
def main(  # noqa: PLR0913, PLR0917 - the options
    movies: int,
    rounds: int,
    seconds: int,
    database: str | None,
    standby: str | None,
    kinds: tuple[str, ...],
    settings: tuple[str, ...],
) -> None:
    """Measure CPU time, WAL and sizes."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: stop the servers
    costs: dict[tuple[str, int], list[Costs]] = defaultdict(list)
    with ExitStack() as stack:
        database = database or stack.enter_context(create_catalogue(movies))
        for relation, size in fetch(database, SIZES):
            click.echo(f"{relation}: {size / 1e6:,.1f} MB")
        environment = dict(setting.split("=", 1) for setting in settings)
        target = Target("service", "this service", TARGETS[0].command, environment)
        running = stack.enter_context(start_target(target, database))
        requests = draw_requests(database, running.url, seed=1)
        servers = Servers(running.url, running.pid, database, standby)
        fetch(database, "checkpoint")
        cells = [cell for cell in CELLS if not kinds or cell[0] in kinds]
        for number in range(rounds + 1):
            for kind, connections in cells:
                one = servers.measure(requests[kind], connections, seconds)
                if number:  # the first round warms up
                    costs[kind, connections].append(one)
            click.echo(f"round {number} of {rounds}", err=True)
    click.echo(HEADER)
    for cell in cells:
        click.echo(format_row(*cell, costs[cell]))
    if not kinds:
        click.echo("\n".join(format_check(costs)))
    click.echo(f"{rounds} rounds; {describe_machine()}")


if __name__ == "__main__":
    main(prog_name="python -m bench.scaling")
