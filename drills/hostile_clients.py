"""Clients that use too many resources; other clients must not notice."""

import asyncio

from drills import crowds
from drills.client import Connection
from drills.lab import FILL, MOVIES, Checks, Lab, drill
from drills.load import OK, Load, find_p95_ms

MANY_MOVIES = 500_000
# Prefixes of words that all movies have: the slowest lists of this catalogue, about 0.25 s each.
COSTLY = (
    "/v1/movies?title=re*+nu*&genres=war&sort=title&page_size=100",
    "/v1/movies?title=re*+nu*+of*+th*&sort=-runtime&page_size=100&page=10",
    "/v1/movies?title=re*+nu*+of*&year=1900..2010&genres=war&sort=year&page_size=100",
    "/v1/movies?title=re*+nu*+th*+gr*&genres=war&sort=-title&page_size=100",
)


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
