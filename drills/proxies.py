"""PgBouncer before the database, HAProxy before the service."""

import asyncio
from math import inf
from pathlib import Path

from drills.lab import LISTS, Checks, Lab, drill
from drills.load import NO_RESPONSE, Load, wait_for_status, wait_until
from drills.processes import Process, find_free_port, find_program, stop
from drills.service import Service
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
HAPROXY_HTTP = """
defaults
    mode http
    timeout connect 2s
    timeout client 30s
    timeout server 30s
    timeout check 2s
    option redispatch
listen api
    bind 127.0.0.1:{port}
    balance roundrobin
    option httpchk GET /v1/healthcheck/ready
    default-server check inter 300ms fall 1 rise 1
    server a 127.0.0.1:{port_a}
    server b 127.0.0.1:{port_b}
"""


def start_haproxy(lab: Lab, configuration: Path) -> Process:
    """Start HAProxy, which reads its configuration again on SIGUSR2."""
    return start_proxy(lab, [find_program("haproxy"), "-W", "-f"], configuration)


def start_proxy(lab: Lab, command: list[str], configuration: Path) -> Process:
    """Start a proxy, as the account that runs PostgreSQL if this process is root."""
    with configuration.with_suffix(".log").open("ab") as log:
        return lab.processes.start([*command, configuration], output=log, account=find_account())


@drill(
    "PgBouncer in transaction mode between the service and PostgreSQL. Reads and writes for 4 s;"
    " then PgBouncer is stopped, is away for 1 s, and starts again.",
    "All succeed before; reads and writes succeed again within 3 s; no acknowledged write is lost.",
)
async def pgbouncer(lab: Lab, checks: Checks) -> None:
    """PgBouncer, and its restart."""
    command = [find_program("pgbouncer")]
    database, port = lab.database(), find_free_port()
    configuration = lab.new_folder("pgbouncer").with_suffix(".ini")
    configuration.write_text(
        PGBOUNCER_INI.format(database=database, postgres_port=lab.postgres.port, port=port)
    )
    proxy = start_proxy(lab, command, configuration)
    service = await lab.serve(f"postgresql://catalogue@127.0.0.1:{port}/{database}")
    loop = asyncio.get_running_loop()
    async with Load(service.url, lists=LISTS).running() as load:
        await asyncio.sleep(4)
        stopped = loop.time()
        await asyncio.to_thread(stop, proxy)
        await asyncio.sleep(1)
        start_proxy(lab, command, configuration)
        started = loop.time()
        await asyncio.sleep(6)
    every = ("read", "list", "write")
    checks.require_statuses("before", load.select(*every, until=stopped))
    checks.require_statuses("3 s after the restart", load.select(*every, since=started + 3))
    unanswered = sum(sent.status == NO_RESPONSE for sent in load.sent)
    checks.require(not unanswered, f"{unanswered} requests without a response")
    checks.audit(load, lab.postgres, database)
    await service.stop()


@drill(
    "HAProxy before two instances with drain_delay 2 s; each instance is replaced three times under"
    " load.",
    "No request is lost, and none fails.",
)
async def rolling_restart(lab: Lab, checks: Checks) -> None:
    """A deployment without an interruption."""
    settings = {"server_drain_delay": 2}
    database = lab.database()
    url = lab.postgres.url(database)
    port, *ports = (find_free_port() for _ in range(3))
    configuration = lab.new_folder("haproxy").with_suffix(".cfg")
    configuration.write_text(HAPROXY_HTTP.format(port=port, port_a=ports[0], port_b=ports[1]))
    start_haproxy(lab, configuration)
    instances = [await lab.serve(url, workers=1, settings=settings, port=each) for each in ports]
    front = f"http://127.0.0.1:{port}"
    await wait_for_status(front, "/v1/healthcheck/ready", 200, 10)
    statuses = set()
    async with Load(front).running() as load:
        for turn in [0, 1] * 3:
            statuses.add(await instances[turn].stop())
            instances[turn] = await lab.serve(url, workers=1, settings=settings, port=ports[turn])
            await _wait_for_reads(instances[turn])
    checks.require_statuses("requests", load.sent)
    checks.require(statuses == {0}, f"exit statuses {sorted(statuses)}")
    checks.audit(load, lab.postgres, database)
    for instance in instances:
        await instance.stop()


async def _wait_for_reads(instance: Service) -> None:
    """Wait until HAProxy sends requests to it again."""
    if await wait_until(lambda: b'"/v1/movies/{id}"' in instance.log.read_bytes(), 10) == inf:
        raise RuntimeError("HAProxy does not use the new instance")
