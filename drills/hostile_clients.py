"""Clients that use too many resources; other clients must not notice."""

import asyncio

from drills import crowds
from drills.client import Connection
from drills.database_faults import terminate_backends
from drills.lab import FILL, MOVIES, Checks, Lab, drill
from drills.load import OK, Load, find_p95_ms, wait_for_status, wait_until
from drills.processes import count_connections, count_files, read_memory_mb
from drills.service import Service
from service.catalogue.rules import MAX_GENRE_BYTES, MAX_TITLE_BYTES

MANY_MOVIES = 500_000
# A control character takes six bytes of JSON; the largest title and genres.
LARGEST = f"""
insert into movies (title, year, runtime, genres)
select repeat(chr(1), {MAX_TITLE_BYTES}), 2000, 90,
  array(select repeat(chr(1), {MAX_GENRE_BYTES - 2}) || genre from generate_series(10, 14) as genre)
from generate_series(1, 200)
"""
LARGEST_PAGE = "/v1/movies?sort=-id&page_size=100"
# Prefixes of words that all movies have: the slowest lists of this catalogue, about 0.25 s each.
COSTLY = (
    "/v1/movies?title=re*+nu*&genres=war&sort=title&page_size=100",
    "/v1/movies?title=re*+nu*+of*+th*&sort=-runtime&page_size=100&page=10",
    "/v1/movies?title=re*+nu*+of*&year=1900..2010&genres=war&sort=year&page_size=100",
    "/v1/movies?title=re*+nu*+th*+gr*&genres=war&sort=-title&page_size=100",
)
UNREAD_TIMEOUT_S = 30.0


def add_largest_movies(lab: Lab, database: str) -> None:
    """Add movies whose JSON is as long as possible; they are the newest ones."""
    lab.postgres.execute(database, LARGEST)
    lab.postgres.execute(database, "analyze movies")


@drill(
    "50 connections each request the largest page 20 times (100 movies, their texts as long as"
    " possible) and read nothing. Others read by id.",
    "The service's memory stays below 300 MB; reads by id take at most 50 ms longer; the"
    " connections are closed within 40 s.",
)
async def unread_pages(lab: Lab, checks: Checks) -> None:
    """Clients do not read: their responses wait in the service's memory."""
    database = lab.database()
    add_largest_movies(lab, database)
    service = await lab.serve(lab.postgres.url(database))
    loop = asyncio.get_running_loop()
    before = most = read_memory_mb(service.pid)
    async with Load(service.url, readers=2, writers=0, pause_s=0.01).running() as load:
        await load.wait_for_success()
        began = loop.time()
        crowd = [crowds.open_socket(service.url, receive_bytes=4096) for _ in range(50)]
        for client in crowd:
            client.send(f"GET {LARGEST_PAGE} HTTP/1.1\r\nHost: a\r\n\r\n".encode() * 20)
        while loop.time() < began + 8:
            most = max(most, read_memory_mb(service.pid))
            await asyncio.sleep(0.05)
    checks.require(most < 300, f"memory {before:.0f} MB before, at most {most:.0f} MB")
    checks.require_statuses("reads", load.sent, OK)
    alone = find_p95_ms(load.select("read", until=began))
    together = find_p95_ms(load.select("read", since=began))
    checks.require(together - alone <= 50, f"p95 {alone:.0f} ms before, {together:.0f} ms then")
    # The connections end, although their clients stay.
    await wait_until(lambda: not count_connections(service.port), UNREAD_TIMEOUT_S + 10)
    left = count_connections(service.port)
    checks.require(not left, f"{left} of 50 left after {loop.time() - began:.0f} s")
    for client in crowd:
        client.close()
    await service.stop()


@drill(
    f"60 clients send the most costly lists of {MANY_MOVIES:,} movies for 12 s, from another"
    " process. Others read by id and write; readiness is checked.",
    "All reads by id are 200, p95 below 100 ms; all writes and readiness checks succeed.",
)
async def costly_lists(lab: Lab, checks: Checks) -> None:
    """Many slow lists: they have their own share of the database connections."""
    database = lab.database()
    lab.postgres.execute(database, FILL.format(first=MOVIES + 1, last=MANY_MOVIES))
    lab.postgres.execute(database, "vacuum analyze movies")
    service = await lab.serve(lab.postgres.url(database))
    load = Load(service.url, readers=4, writers=2, pause_s=0.02, movies=MANY_MOVIES)
    ready = Connection(service.url)
    async with load.running():
        crowd = asyncio.create_task(
            crowds.run_in_process(crowds.request_lists, service.url, 60, 12.0, COSTLY)
        )
        while not crowd.done():
            await load.send(ready, "readiness", "GET", "/v1/healthcheck/ready")
            await asyncio.sleep(0.5)
    ready.close()
    lists = crowd.result()
    checks.require(lists["200"] and set(lists) <= {"200", "503"}, f"lists: {_describe(lists)}")
    reads = load.select("read")
    checks.require_statuses("reads by id", reads, OK)
    checks.require(find_p95_ms(reads) < 100, f"p95 {find_p95_ms(reads):.0f} ms")
    checks.require_statuses("writes", load.select("write"))
    checks.require_statuses("readiness", load.select("readiness"), OK)
    checks.audit(load, lab.postgres, database)
    await service.stop()


def _describe(statuses: dict[str, int]) -> str:
    return ", ".join(f"{count:,} x {status}" for status, count in sorted(statuses.items()))


@drill(
    "1,500 clients send a PATCH of one movie at once, from another process. Others read and write.",
    "All are answered, and no other request gets a 503.",
)
async def one_hot_movie(lab: Lab, checks: Checks) -> None:
    """Many changes of one movie: they take turns."""
    database = lab.database()
    service = await lab.serve(lab.postgres.url(database))
    change = {"runtime": "91 mins"}
    async with Load(service.url, pause_s=0.01).running() as load:
        patches = await crowds.run_in_process(
            crowds.change_at_once, service.url, 1500, "/v1/movies/1", change
        )
        await load.wait_for_success()
    is_right = patches["200"] and set(patches) <= {"200", "503"}
    checks.require(is_right, f"PATCHes: {_describe(patches)}")
    checks.require_statuses("others", load.sent)
    checks.audit(load, lab.postgres, database)
    await service.stop()


async def _check_health(load: Load, service: Service) -> None:
    connection = Connection(service.url)
    await load.send(connection, "health", "GET", "/v1/healthcheck")
    connection.close()


@drill(
    "A process may open 512 files. 20 clients are connected; 700 further ones connect and wait, and"
    " all backends are terminated 20 times.",
    "The 20 clients and health checks are served; the log grows by at most 20 lines; afterwards the"
    " number of open files is as before.",
)
async def many_connections(lab: Lab, checks: Checks) -> None:
    """At the limit, a new connection ends the connection that was idle for longest."""
    database = lab.database()
    service = await lab.serve(
        lab.postgres.url(database),
        wrapper=("prlimit", "--nofile=512"),
        settings={"log_level": "warning"},
    )
    before = count_files(service.pid)
    async with Load(service.url, readers=20, writers=0, pause_s=0.02).running() as load:
        lines = len(service.read_log())
        crowd = []
        for _ in range(20):  # each time the service also needs new files for its database
            batch = [asyncio.open_connection("127.0.0.1", service.port) for _ in range(35)]
            crowd += [writer for _, writer in await asyncio.gather(*batch)]
            terminate_backends(lab, database)
            await _check_health(load, service)
            await asyncio.sleep(0.2)
        for writer in crowd:
            writer.close()
        await load.wait_for_success()
    checks.require_statuses("20 clients", load.select("read"), OK)
    checks.require_statuses("health checks", load.select("health"), OK)
    grown = len(service.read_log()) - lines
    checks.require(grown <= 20, f"{grown} lines logged")
    delay = await wait_for_status(service.url, "/v1/movies/1", OK, 10)
    checks.require(delay < 2, f"new clients served after {delay:.1f} s")
    await wait_until(lambda: count_files(service.pid) <= before + 10, 5)
    after = count_files(service.pid)
    checks.require(after <= before + 10, f"{before} files before, {after} after")  # max_open: 10
    await service.stop()
