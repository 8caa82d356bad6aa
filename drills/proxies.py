"""PgBouncer before the database."""

import asyncio
from pathlib import Path

from drills.lab import LISTS, Checks, Lab, drill
from drills.load import NO_RESPONSE, Load
from drills.processes import Process, find_free_port, find_program, stop
from service.database.embedded import find_account

PGBOUNCER_INI = """
[databases]
{database} = host=127.0.0.1 port={postgres_port} user=catalogue
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
"""


def start_pgbouncer(lab: Lab, configuration: Path) -> Process:
    """Start PgBouncer, as the account that runs PostgreSQL if this process is root."""
    command: list[str | Path] = [find_program("pgbouncer"), configuration]
    with configuration.with_suffix(".log").open("ab") as log:
        return lab.processes.start(command, output=log, account=find_account())


@drill
async def pgbouncer(lab: Lab, checks: Checks) -> None:
    """Put PgBouncer in transaction mode before PostgreSQL, and restart it under load.

    All requests succeed before it, and again 3 s after it; no acknowledged write is lost.
    """
    database, port = lab.database(), find_free_port()
    configuration = lab.new_folder("pgbouncer").with_suffix(".ini")
    configuration.write_text(
        PGBOUNCER_INI.format(database=database, postgres_port=lab.postgres.port, port=port)
    )
    proxy = start_pgbouncer(lab, configuration)
    service = await lab.serve(f"postgresql://catalogue@127.0.0.1:{port}/{database}")
    loop = asyncio.get_running_loop()
    async with Load(service.url, lists=LISTS).running() as load:
        await asyncio.sleep(4)
        stopped = loop.time()
        await asyncio.to_thread(stop, proxy)
        await asyncio.sleep(1)
        start_pgbouncer(lab, configuration)
        started = loop.time()
        await asyncio.sleep(6)
    every = ("read", "list", "write")
    checks.require_statuses("before", load.select(*every, until=stopped))
    checks.require_statuses("3 s after the restart", load.select(*every, since=started + 3))
    unanswered = sum(sent.status == NO_RESPONSE for sent in load.sent)
    checks.require(not unanswered, f"{unanswered} requests without a response")
    checks.audit(load, lab.postgres, database)
    await service.stop()
