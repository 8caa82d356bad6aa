"""PostgreSQL ends sessions, or keeps them waiting."""

import asyncio
from contextlib import closing

from drills.client import Connection
from drills.lab import LISTS, Checks, Lab, drill
from drills.load import Load

BACKENDS = """
from pg_stat_activity
where datname = %s and application_name like 'movie-catalogue%%'
"""


def terminate_backends(lab: Lab, database: str) -> int:
    """End the service's sessions; return their number."""
    sql = f"select pg_terminate_backend(pid) {BACKENDS}"
    return len(lab.postgres.execute("postgres", sql, database))


@drill(
    "Terminate all backends of the service once a second for 20 s, under load.",
    "No read or list fails. No acknowledged write is lost.",
)
async def terminated_backends(lab: Lab, checks: Checks) -> None:
    """A read is sent again on another connection."""
    database = lab.database()
    service = await lab.serve(lab.postgres.url(database))
    ended = 0
    async with Load(service.url, readers=16, lists=LISTS).running() as load:
        for _ in range(20):
            ended += terminate_backends(lab, database)
            await asyncio.sleep(1)
    checks.note(f"{ended} backends terminated")
    checks.require_statuses("reads", load.select("read", "list"))
    checks.require_statuses("writes", load.select("write"), 200, 201, 503)
    checks.audit(load, lab.postgres, database)
    await service.stop()


@drill(
    "Another session locks the table of movies for 8 s, under load.",
    "Every request is answered: 200 or, after the statement timeout, 503. Then all is as before.",
)
async def locked_table(lab: Lab, checks: Checks) -> None:
    """A statement timeout must become a response."""
    database = lab.database()
    service = await lab.serve(lab.postgres.url(database))
    loop = asyncio.get_running_loop()
    async with Load(service.url, lists=LISTS).running() as load:
        with closing(lab.postgres.connect(database)) as session:
            session.autocommit = False
            await asyncio.to_thread(
                session.cursor().execute, "lock table movies in access exclusive mode"
            )
            # Lists share no statement: each learns of the timeout by itself.
            lists = [load.send(Connection(service.url), "list", "GET", path) for path in LISTS]
            await asyncio.gather(*lists, asyncio.sleep(8))
        released = loop.time()
        await asyncio.sleep(3)
    checks.require_statuses("all", load.sent, 200, 201, 503)
    refused = sum(sent.status == 503 for sent in load.sent)
    checks.require(refused, f"{refused} requests answered 503")
    slowest = max(sent.seconds for sent in load.sent)
    checks.require(slowest <= 11, f"at most {slowest:.1f} s")
    checks.require_statuses("1 s after the lock", load.select("read", "write", since=released + 1))
    checks.audit(load, lab.postgres, database)
    await service.stop()
