"""PgBouncer before the database, HAProxy before the service."""

import asyncio
import os
import shutil
from pathlib import Path

from drills.lab import Checks, Lab, NotRun, drill
from drills.load import Load, list_problems, summarize, wait_for_status
from drills.processes import Process, find_free_port, stop
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

HAPROXY_CFG = """
global
    maxconn 1000
defaults
    mode http
    timeout connect 2s
    timeout client 30s
    timeout server 30s
    option redispatch
frontend api
    bind 127.0.0.1:{port}
    default_backend instances
backend instances
    balance roundrobin
    option httpchk GET /v1/healthcheck/ready
    default-server check inter 300ms fall 1 rise 1
    server a 127.0.0.1:{port_a}
    server b 127.0.0.1:{port_b}
"""


def find_program(name: str) -> str:
    """Return the path of a program; raises `NotRun` if it is not installed."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin"
    program = shutil.which(name, path=path)
    if not program:
        raise NotRun(f"{name} is not installed (apt-get install {name})")
    return program


def start_proxy(lab: Lab, name: str, configuration: Path) -> Process:
    """Start a proxy, as the account that runs PostgreSQL if this process is root."""
    options = ["-f"] if name == "haproxy" else []
    with configuration.with_suffix(".log").open("ab") as log:
        return lab.processes.start(
            [find_program(name), *options, configuration], output=log, account=find_account()
        )


def start_pgbouncer(lab: Lab, database: str) -> tuple[Process, Path, str]:
    """Start PgBouncer in transaction mode; return it, its configuration, and the database's URL."""
    find_program("pgbouncer")
    port = find_free_port()
    configuration = lab.new_folder("pgbouncer").with_suffix(".ini")
    configuration.write_text(
        PGBOUNCER_INI.format(database=database, postgres_port=lab.postgres.port, port=port)
    )
    proxy = start_proxy(lab, "pgbouncer", configuration)
    return proxy, configuration, f"postgresql://catalogue@127.0.0.1:{port}/{database}"


@drill(
    "PgBouncer in transaction mode between the service and PostgreSQL. Reads and writes for 4 s;"
    " then PgBouncer is stopped, is away for 1 s, and starts again.",
    "All succeed before; reads and writes succeed again within 3 s; no acknowledged write is lost.",
)
async def pgbouncer(lab: Lab, checks: Checks) -> None:
    """PgBouncer, and its restart."""
    find_program("pgbouncer")
    database = lab.database()
    proxy, configuration, url = start_pgbouncer(lab, database)
    service = await lab.serve(url)
    loop = asyncio.get_running_loop()
    paths = ("/v1/movies?title=great&sort=-year", "/v1/genres")
    async with Load(service.url, 1000, paths=paths).running() as load:
        await asyncio.sleep(4)
        stopped = loop.time()
        await asyncio.to_thread(stop, proxy)
        await asyncio.sleep(1)
        start_proxy(lab, "pgbouncer", configuration)
        started = loop.time()
        await asyncio.sleep(6)
    before = [*load.select("read", 0, stopped), *load.select("write", 0, stopped)]
    checks.require(not list_problems(before, (200, 201)), f"before: {summarize(before)}")
    after = [*load.select("read", started + 3), *load.select("write", started + 3)]
    is_right = after and not list_problems(after, (200, 201))
    checks.require(is_right, f"3 s after the restart: {summarize(after)}")
    unanswered = [sent for sent in load.sent if not sent.status]
    checks.require(not unanswered, f"{len(unanswered)} requests without a response")
    checks.audit(load, lab.postgres, database)
    await service.stop()


@drill(
    "HAProxy before two instances with drain_delay 2 s; each instance is replaced three times under"
    " load.",
    "No request is lost, and none fails.",
)
async def rolling_restart(lab: Lab, checks: Checks) -> None:
    """HAProxy with a rolling restart."""
    find_program("haproxy")
    database = lab.database()
    settings = {"server_drain_delay": 2}
    url = lab.postgres.url(database)
    ports = [find_free_port(), find_free_port()]
    instances = [await lab.serve(url, workers=1, settings=settings, port=port) for port in ports]
    port = find_free_port()
    configuration = lab.new_folder("haproxy").with_suffix(".cfg")
    configuration.write_text(HAPROXY_CFG.format(port=port, port_a=ports[0], port_b=ports[1]))
    start_proxy(lab, "haproxy", configuration)
    front = f"http://127.0.0.1:{port}"
    await wait_for_status(front, "/v1/healthcheck/ready", 200, 10)
    statuses = set()
    async with Load(front, 1000).running() as load:
        for turn in range(6):
            statuses.add(await instances[turn % 2].stop())
            instances[turn % 2] = await lab.serve(
                url, workers=1, settings=settings, port=ports[turn % 2]
            )
            await asyncio.sleep(1)  # until HAProxy has seen it
    failed = list_problems(load.sent, (200, 201))
    checks.require(not failed, f"requests: {summarize(load.sent)}")
    for problem in sorted({sent.problem or str(sent.status) for sent in failed})[:3]:
        checks.note(problem)
    checks.require(statuses == {0}, f"exit statuses {sorted(statuses)}")
    checks.audit(load, lab.postgres, database)
    for instance in instances:
        await instance.stop()
