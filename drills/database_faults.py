"""PostgreSQL ends sessions, or a standby takes the place of a primary that is lost."""

import asyncio
import signal
from contextlib import closing
from math import inf

import psycopg2

from drills.lab import LISTS, Checks, Lab, drill
from drills.load import CREATED, OK, Load, Sent, list_problems, wait_until
from drills.postgres import Postgres
from drills.processes import find_free_port
from drills.proxies import start_haproxy

DATABASE = "catalogue"
MOVIES = 1000
AWAY_S = 30.0
RECOVERED_S = 10.0  # after new connections succeed
HAPROXY_TCP = """
defaults
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h
listen postgresql
    bind 127.0.0.1:{port}
    server primary 127.0.0.1:{server_port}
"""


async def make_pair(lab: Lab) -> tuple[Postgres, Postgres]:
    """Make a primary with some movies, and its synchronous standby."""
    primary = await asyncio.to_thread(lab.make_server, "primary", DATABASE, MOVIES)
    standby = await asyncio.to_thread(primary.clone, lab.new_folder("standby"))
    set_synchronous_standbys(primary, "*")
    await wait_for_standby(primary)
    return primary, standby


def set_synchronous_standbys(primary: Postgres, names: str) -> None:
    """Change which standbys commits wait for; "": none."""
    primary.execute("postgres", f"alter system set synchronous_standby_names = '{names}'")
    primary.execute("postgres", "select pg_reload_conf()")


async def wait_for_standby(primary: Postgres) -> None:
    """Wait until a standby takes part in commits."""
    sql = "select 1 from pg_stat_replication where sync_state = 'sync'"
    if await wait_until(lambda: primary.execute("postgres", sql), 60) == inf:
        raise RuntimeError("the standby does not stream")


def find_writes(load: Load, since: float) -> list[Sent]:
    """Return the writes that were acknowledged since that time."""
    return [sent for sent in load.select("write", since=since) if sent.status in (OK, CREATED)]


def wait_for_writable_session(url: str) -> None:
    """Connect as psql does until a session can write."""
    while True:
        try:
            with closing(psycopg2.connect(url, connect_timeout=2)) as session:
                session.cursor().execute("create temporary table writable ()")
                return
        except psycopg2.Error:
            pass


@drill(
    "A TCP proxy (HAProxy) before the primary, which is frozen (SIGSTOP) for 30 s under load; then"
    " the standby is promoted, and new connections go there. Connections to the primary stay open.",
    "10 s after a new connection can write, all reads, lists and writes succeed. No acknowledged"
    " write is lost.",
)
async def frozen_primary(lab: Lab, checks: Checks) -> None:
    """The kernel of a frozen server acknowledges packets, so its connections never break."""
    primary, standby = await make_pair(lab)
    port = find_free_port()
    configuration = lab.new_folder("haproxy").with_suffix(".cfg")

    def lead_to(server: Postgres) -> None:
        configuration.write_text(HAPROXY_TCP.format(port=port, server_port=server.port))

    lead_to(primary)
    proxy = start_haproxy(lab, configuration)
    url = f"postgresql://catalogue@127.0.0.1:{port}/{DATABASE}"
    service = await lab.serve(url)
    loop = asyncio.get_running_loop()
    async with Load(service.url, readers=8, movies=MOVIES, lists=LISTS).running() as load:
        primary.freeze()
        before = len(load.known)
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(standby.promote)
        # The new process of HAProxy listens; the old one keeps its connections.
        lead_to(standby)
        proxy.send_signal(signal.SIGUSR2)
        await asyncio.to_thread(wait_for_writable_session, url)
        reachable = loop.time()
        await asyncio.sleep(RECOVERED_S + 5)
    first = min((sent.at for sent in find_writes(load, reachable)), default=inf) - reachable
    failed = [sent.at for sent in list_problems(load.sent)]
    last = max(failed, default=reachable) - reachable
    checks.note(f"first write {first:.1f} s after a new connection, last failure {last:.1f} s")
    for kind in ("read", "list", "write"):
        late = load.select(kind, since=reachable + RECOVERED_S)
        checks.require_statuses(f"{kind}s 10 s after it", late)
    slowest = max(sent.seconds for sent in load.sent)
    checks.require(slowest <= 11, f"the slowest request took {slowest:.1f} s")
    checks.note(f"{before:,} creates before, {len(load.known) - before:,} after it")
    checks.audit(load, standby, DATABASE)
    await service.stop()
    primary.kill()
    standby.kill()
