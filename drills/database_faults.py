"""PostgreSQL ends sessions, or a standby takes the place of a primary that is lost."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from math import inf

import psycopg2

from drills.lab import LISTS, Checks, Lab, drill
from drills.load import CREATED, OK, Load, Sent, list_problems, wait_until
from drills.postgres import Postgres
from drills.processes import find_free_port
from drills.proxies import start_haproxy

DATABASE = "catalogue"
MOVIES = 1000
TERMINATE = """
select pg_terminate_backend(pid)
from pg_stat_activity
where datname = %s and application_name like 'movie-catalogue%%'
"""
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


async def fail_over(  # noqa: PLR0913 - the three drills differ in these
    lab: Lab,
    checks: Checks,
    standby: Postgres,
    url: str,
    *,
    lose: Callable[[], object],
    away_s: float,
    follow: Callable[[], object] = lambda: None,
) -> None:
    """Lose the primary of `url` under load; after `away_s` promote the standby, and `follow` it."""
    service = await lab.serve(url)
    loop = asyncio.get_running_loop()
    async with Load(service.url, readers=8, movies=MOVIES, lists=LISTS).running() as load:
        lose()
        before = len(load.known)
        await asyncio.sleep(away_s)
        await asyncio.to_thread(standby.promote)
        follow()
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
    "A primary with a synchronous standby, both in the URL. kill -9 the primary under load, promote"
    " the standby after 2 s.",
    "10 s after a new connection can write, all reads, lists and writes succeed. No acknowledged"
    " write is lost.",
)
async def failover(lab: Lab, checks: Checks) -> None:
    """The machine of the primary crashes."""
    primary, standby = await make_pair(lab)
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    url = f"postgresql://catalogue@{hosts}/{DATABASE}?target_session_attrs=read-write"
    await fail_over(lab, checks, standby, url, lose=primary.kill, away_s=2)
    standby.kill()


@drill(
    "A TCP proxy (HAProxy) before the primary, which is frozen (SIGSTOP) for 30 s under load; then"
    " the standby is promoted, and new connections go there. Connections to the primary stay open.",
    "As failover.",
)
async def frozen_primary(lab: Lab, checks: Checks) -> None:
    """The kernel of a frozen server acknowledges packets, so its connections never break."""
    primary, standby = await make_pair(lab)
    port = find_free_port()
    configuration = lab.new_folder("haproxy").with_suffix(".cfg")

    def configure(server: Postgres) -> None:
        configuration.write_text(HAPROXY_TCP.format(port=port, server_port=server.port))

    configure(primary)
    proxy = start_haproxy(lab, configuration)

    def follow() -> None:
        # The new process of HAProxy listens; the old one keeps its connections.
        configure(standby)
        proxy.send_signal(signal.SIGUSR2)

    url = f"postgresql://catalogue@127.0.0.1:{port}/{DATABASE}"
    await fail_over(lab, checks, standby, url, lose=primary.freeze, away_s=30, follow=follow)
    primary.kill()
    standby.kill()


class LossyProxy:
    """A TCP proxy that can lose all packets of its connections, without ending them."""

    def __init__(self, port: int) -> None:
        self.port = find_free_port()
        self.target: int | None = port  # None: packets of new connections are lost, too
        self._stuck = asyncio.Event()  # never set

    async def start(self) -> asyncio.Server:
        """Listen."""
        return await asyncio.start_server(self._connect, "127.0.0.1", self.port)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):  # asyncio would report it at the end of the drill
            if self.target is None:
                await self._stuck.wait()
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
            await asyncio.gather(
                self._forward(reader, server_writer, self.target),
                self._forward(server_reader, writer, self.target),
            )

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int | None
    ) -> None:
        """Forward until the end; once the proxy has another target, forward nothing any more."""
        while data := await reader.read(65_536):
            if self.target != target:
                await self._stuck.wait()
            writer.write(data)
        if self.target == target:
            writer.close()


@drill(
    "A TCP proxy before the primary. All packets are lost silently for 30 s under load; then the"
    " standby is promoted, and new connections go there. The old ones never end.",
    "As failover.",
)
async def lost_packets(lab: Lab, checks: Checks) -> None:
    """A firewall or a network loses the connections."""
    primary, standby = await make_pair(lab)
    proxy = LossyProxy(primary.port)
    listener = await proxy.start()
    url = f"postgresql://catalogue@127.0.0.1:{proxy.port}/{DATABASE}"
    lose = partial(setattr, proxy, "target", None)
    follow = partial(setattr, proxy, "target", standby.port)
    await fail_over(lab, checks, standby, url, lose=lose, away_s=30, follow=follow)
    listener.close()
    primary.kill()
    standby.kill()


def terminate_backends(lab: Lab, database: str) -> int:
    """End the service's sessions; return their number."""
    return len(lab.postgres.execute("postgres", TERMINATE, database))


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
