"""Causes each alert of ops/alerts.yml: `python -m drills.alerts --help`.

While clients send requests, each fault is caused. Then its alert must fire, and the commands of its
section in docs/operators/alerts.md must print something. The fault is ended as the section says,
and the alert must end.
"""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import click

from drills.handbook import HANDBOOK, run_commands
from drills.lab import LISTS, Lab, only, open_lab
from drills.load import Load, wait_until
from drills.postgres import Postgres
from drills.processes import Process, find_free_port, freeze, kill, stop
from drills.prometheus import MINUTE_S, Prometheus, start_prometheus
from drills.service import Service, make_environment

TIMEOUT_S = 150.0  # the service counts the idempotency keys once a minute
SHOWN_CHARACTERS = 200  # of the last line of a command's output


@dataclass
class Site:
    """The processes and files that a fault may break."""

    lab: Lab
    database: str
    service: Service
    log_reader: Process  # of the service's stdout
    log: Path  # which it writes
    replicas: list[Postgres]

    def execute(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run SQL in the service's database."""
        return self.lab.postgres.execute(self.database, sql, *parameters)


Steps = Callable[[Site], AsyncIterator[None]]
Cause = Callable[[Site], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """A fault that makes alerts fire while `cause` is entered; and how to start the service."""

    alerts: tuple[str, ...]
    done: str
    cause: Cause
    workers: int = 2
    has_replica: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    wrapper: tuple[str, ...] = ()


FAULTS: list[Fault] = []


def fault(*alerts: str, **options: Any) -> Callable[[Steps], Cause]:
    """Register a generator that ends its fault after the `yield`; its docstring names the fault."""

    def register(steps: Steps) -> Cause:
        cause = asynccontextmanager(steps)
        FAULTS.append(Fault(alerts, str(steps.__doc__), cause, **options))
        return cause

    return register


@fault("CatalogueDown")
async def stop_all_processes(site: Site) -> AsyncIterator[None]:
    """SIGSTOP to all processes of the service."""
    stopped = [site.service.pid, *freeze(site.service.pid)]
    yield
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


@fault("CatalogueNoDatabase", "CatalogueErrors")
async def stop_postgres(site: Site) -> AsyncIterator[None]:
    """PostgreSQL is stopped."""
    site.lab.postgres.stop()
    yield
    site.lab.postgres.start()


@fault("CatalogueChangesFail", "CatalogueStatementsLost")
async def make_read_only(site: Site) -> AsyncIterator[None]:
    """PostgreSQL is read-only, as a standby or with a full disk; reads succeed."""
    site.execute("alter system set default_transaction_read_only = on")
    site.execute("select pg_reload_conf()")
    yield
    site.execute("alter system reset default_transaction_read_only")
    site.execute("select pg_reload_conf()")


@fault("CatalogueFaults")
async def rename_column(site: Site) -> AsyncIterator[None]:
    """A column is renamed."""
    site.execute("alter table movies rename column runtime to minutes")
    yield
    site.execute("alter table movies rename column minutes to runtime")


@fault("CatalogueSlowRequests")
async def lock_table(site: Site) -> AsyncIterator[None]:
    """A session locks the table of movies and forgets it; the handbook's SQL finds and ends it."""
    with closing(site.lab.postgres.connect(site.database)) as session:
        session.autocommit = False
        session.cursor().execute("lock table movies")
        yield
        who_blocks, what_it_is = re.findall(
            r"^-- who blocks whom\n(.*?;)$.*?^-- what a blocker is.*?\n(.*?;)$",
            HANDBOOK.read_text(),
            re.DOTALL | re.MULTILINE,
        )[0]
        blockers = {pid for row in site.execute(who_blocks) for pid in row[1]}
        waiting = {row[0] for row in site.execute(who_blocks)}
        for pid in blockers - waiting:
            click.echo(f"  {site.execute(what_it_is.replace('PID', str(pid)))}", err=True)
            site.execute("select pg_terminate_backend(%s)", pid)


@fault("CataloguePoolExhausted", settings={"database_max_open": 2})
async def slow_trigger(site: Site) -> AsyncIterator[None]:
    """max_open is 2, and a trigger makes each write take 1 s."""
    site.execute(
        "create function slow() returns trigger language plpgsql"
        " as $$ begin perform pg_sleep(1); return null; end $$"
    )
    site.execute(
        "create trigger slow after insert or update or delete on movies"
        " for each statement execute function slow()"
    )
    yield
    site.execute("drop trigger slow on movies")


@fault("CatalogueConnectsFail", settings={"database_max_idle": 1})
async def refuse_connects(site: Site) -> AsyncIterator[None]:
    """PostgreSQL refuses new connections; those that are open go on."""
    sql = f"alter database {site.database} allow_connections"
    site.lab.postgres.execute("postgres", f"{sql} = false")
    yield
    site.lab.postgres.execute("postgres", f"{sql} = true")


@fault("CatalogueConnectionsStuck")
async def lose_standby(site: Site) -> AsyncIterator[None]:
    """Commits wait for a synchronous standby that does not exist."""
    site.execute("alter system set synchronous_standby_names = 'away'")
    site.execute("select pg_reload_conf()")
    yield
    site.execute("alter system reset synchronous_standby_names")
    site.execute("select pg_reload_conf()")


@fault("CatalogueOpenFiles", workers=1, wrapper=("prlimit", "--nofile=3600"))
async def many_connections(site: Site) -> AsyncIterator[None]:
    """A process may open 3,600 files, and 3,200 idle clients are connected."""
    crowd = [socket.create_connection(("127.0.0.1", site.service.port)) for _ in range(3200)]
    yield
    for each in crowd:
        each.close()


@fault("CatalogueReplicasLeftOut", "CatalogueReplicaLeftOut", has_replica=True)
async def stop_replica(site: Site) -> AsyncIterator[None]:
    """The only replica is stopped."""
    for each in site.replicas:
        each.stop()
    yield
    for each in site.replicas:
        each.start()


@fault("CatalogueRestarts")
async def kill_workers(site: Site) -> AsyncIterator[None]:
    """A worker is killed (SIGKILL), again and again."""

    async def keep_killing() -> None:
        while True:
            for worker in site.service.workers[:1]:
                os.kill(worker, signal.SIGKILL)
            await asyncio.sleep(3)

    killing = asyncio.create_task(keep_killing())
    yield
    killing.cancel()


@fault("CatalogueLogLinesDropped")
async def unread_log(site: Site) -> AsyncIterator[None]:
    """Nobody reads the service's stdout."""
    site.log_reader.send_signal(signal.SIGSTOP)
    yield
    site.log_reader.send_signal(signal.SIGCONT)


@fault("CatalogueChangesDelayed")
async def open_transaction(site: Site) -> AsyncIterator[None]:
    """A transaction of another database stays open after it has written; limit: 10 s."""
    other = site.lab.postgres.connect("postgres")
    cursor = other.cursor()
    cursor.execute("begin; select pg_current_xact_id()")
    site.execute("update movies set runtime = runtime + 1 where id = 1")
    yield
    other.close()


@fault("CatalogueSchemaIncomplete")
async def disable_trigger(site: Site) -> AsyncIterator[None]:
    """Somebody has disabled a trigger of the feed."""
    site.execute("alter table movies disable trigger movies_record_updated")
    yield
    site.execute("alter table movies enable trigger movies_record_updated")


@fault("CatalogueStatementsFail")
async def drop_creates(site: Site) -> AsyncIterator[None]:
    """A trigger drops each new movie."""
    site.execute(
        "create function drop_it() returns trigger language plpgsql as $$ begin return null; end $$"
    )
    site.execute(
        "create trigger drop_it before insert on movies for each row execute function drop_it()"
    )
    yield
    site.execute("drop trigger drop_it on movies")


@fault("CatalogueIdempotencyKeys")
async def keep_expired_keys(site: Site) -> AsyncIterator[None]:
    """A trigger keeps 60,000 expired keys from being deleted; the alert is set to 50,000 keys."""
    site.execute(
        "create function refuse() returns trigger language plpgsql"
        " as $$ begin raise 'keys are kept'; end $$"
    )
    site.execute(
        "create trigger keep before delete on idempotency_keys"
        " for each statement execute function refuse()"
    )
    site.execute(
        "insert into idempotency_keys (key, fingerprint, expires_at)"
        " select 'key-' || n, '', now() from generate_series(1, 60000) as n"
    )
    yield
    site.execute("drop trigger keep on idempotency_keys")
    # The service deletes them within a minute.
    count = "select 1 from idempotency_keys where expires_at < now() limit 1"
    await wait_until(lambda: not site.execute(count), TIMEOUT_S)
    site.execute("analyze idempotency_keys")


@asynccontextmanager
async def running(lab: Lab, each: Fault) -> AsyncIterator[tuple[Site, Prometheus]]:
    """Run a service, a load and Prometheus."""
    database, port = lab.database(), find_free_port()
    log = lab.new_folder("log")
    with log.open("wb") as file:
        reader = lab.processes.start(["cat"], output=file, input_=subprocess.PIPE)
    replicas = [lab.postgres.clone(lab.new_folder("replica"))] if each.has_replica else []
    urls = ",".join(replica.url(database) for replica in replicas)
    settings = {"operations_port": port, "database_replica_urls": urls, **each.settings}
    service = await lab.serve(
        lab.postgres.url(database),
        workers=each.workers,
        settings=settings,
        wrapper=each.wrapper,
        output=reader.stdin,
    )
    load = Load(service.url, readers=8, pause_s=0.01, lists=LISTS)
    prometheus = await start_prometheus(lab, port)
    try:
        async with load.running():
            await asyncio.sleep(2 * MINUTE_S)
            yield Site(lab, database, service, reader, log, replicas), prometheus
    finally:
        stop(prometheus.process)
        await service.stop()
        kill(reader)
        for replica in replicas:
            replica.stop()


async def run_fault(lab: Lab, each: Fault) -> bool:
    """Cause a fault; return whether its alerts, and none before it, fired and ended."""
    async with running(lab, each) as (site, prometheus):
        early = prometheus.list_firing()
        async with each.cause(site):
            fired = await prometheus.wait_for(each.alerts, TIMEOUT_S)
            descriptions = prometheus.list_firing()
            shown = await asyncio.to_thread(follow_sections, site, each.alerts)
        ended = await prometheus.wait_for(each.alerts, TIMEOUT_S, are_firing=False)
    click.echo(f"{', '.join(each.alerts):<44} {fired:>4.0f} s {ended:>4.0f} s  {each.done}")
    for name, description in descriptions.items():
        click.echo(f"    {name}: {description}", err=True)
    for name in early:
        click.echo(f"    {name} fired before the fault")
    for command, output in shown:
        last = output.rpartition("\n")[2]
        click.echo(f"    $ {command}\n    {last[:SHOWN_CHARACTERS]}", err=True)
        if not output:
            click.echo(f"    shows nothing: {command}")
    has_shown_all = all(output for _, output in shown)
    return not early and has_shown_all and max(fired, ended) < inf


def follow_sections(site: Site, alerts: tuple[str, ...]) -> list[tuple[str, str]]:
    """Run the commands of the alerts' sections; return each with its output."""
    names = {
        "HOST": "127.0.0.1",
        "PORT": site.service.port,
        "LOG": site.log,
        "MASTER": site.service.pid,
        "PID": site.service.workers[0],
    }
    environment = make_environment()
    environment["DATABASE_URL"] = site.lab.postgres.url(site.database)
    environment["PATH"] += f"{os.pathsep}{site.lab.postgres.programs}"  # psql
    return [shown for alert in alerts for shown in run_commands(alert, names, environment)]


@click.command()
@only([alert for each in FAULTS for alert in each.alerts])
def main(names: list[str]) -> None:
    """Cause each alert of ops/alerts.yml; exit status 1 if one does not fire or does not end."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = [each for each in FAULTS if {*names} & {*each.alerts}]
    click.echo(f"{'alerts':<44} {'fired':>6} {'ended':>6}  fault ({MINUTE_S} s for each minute)")
    with open_lab() as lab:
        results = [asyncio.run(run_fault(lab, each)) for each in chosen]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main(prog_name="python -m drills.alerts")
