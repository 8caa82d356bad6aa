"""Causes each alert of ops/alerts.yml: `python -m drills.alerts --help`.

A fault is caused beside a load, the alert must fire, and the commands of its section in
docs/operators/alerts.md must show something. The fault is ended as the section says, and the alert
must end.
"""

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, field
from math import inf
from typing import Any

import click

from drills.database_faults import READS
from drills.handbook import run_commands
from drills.lab import MOVIES, ROOT, Lab, open_lab
from drills.load import Load, wait_until
from drills.processes import find_free_port
from drills.prometheus import MINUTE_S, Prometheus, find_prometheus, start_prometheus
from drills.service import Service, make_environment

TIMEOUT_S = 150.0  # the service counts the idempotency keys once a minute
SHOWN_CHARACTERS = 200  # of the last line of a command's output
HANDBOOK = ROOT / "docs" / "operators" / "alerts.md"


@dataclass
class Site:
    """What a fault may break."""

    lab: Lab
    database: str
    service: Service
    output: int | None  # the reading end of the service's stdout, if it is a pipe

    def execute(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run SQL in the service's database."""
        return self.lab.postgres.execute(self.database, sql, *parameters)


Steps = Callable[[Site], AsyncIterator[None]]
Cause = Callable[[Site], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """What makes some alerts fire, while `cause` is entered, and how the service is started."""

    alerts: tuple[str, ...]
    done: str
    cause: Cause
    workers: int = 2
    settings: Mapping[str, object] = field(default_factory=dict)
    wrapper: tuple[str, ...] = ()
    is_output_piped: bool = False


FAULTS: list[Fault] = []


def fault(*alerts: str, **options: Any) -> Callable[[Steps], Cause]:
    """Register a generator that ends the fault after its `yield`; its docstring says what it is."""

    def register(steps: Steps) -> Cause:
        cause = asynccontextmanager(steps)
        FAULTS.append(Fault(alerts, str(steps.__doc__), cause, **options))
        return cause

    return register


@fault("CatalogueDown")
async def stop_all_processes(site: Site) -> AsyncIterator[None]:
    """SIGSTOP to all processes of the service."""
    os.killpg(site.service.pid, signal.SIGSTOP)
    yield
    os.killpg(site.service.pid, signal.SIGCONT)


@fault("CatalogueNoDatabase", "CatalogueErrors")
async def stop_postgres(site: Site) -> AsyncIterator[None]:
    """PostgreSQL is stopped."""
    site.lab.postgres.stop()
    yield
    site.lab.postgres.start()


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


@fault("CatalogueConnectionsStuck")
async def lose_standby(site: Site) -> AsyncIterator[None]:
    """Commits wait for a synchronous standby that does not exist."""
    site.lab.postgres.execute("postgres", "alter system set synchronous_standby_names = 'away'")
    site.lab.postgres.execute("postgres", "select pg_reload_conf()")
    yield
    site.lab.postgres.execute("postgres", "alter system set synchronous_standby_names = ''")
    site.lab.postgres.execute("postgres", "select pg_reload_conf()")


@fault("CatalogueOpenFiles", workers=1, wrapper=("prlimit", "--nofile=3600"))
async def many_connections(site: Site) -> AsyncIterator[None]:
    """A process may open 3,600 files, and 3,200 idle clients are connected."""
    crowd = [_open_socket(site.service) for _ in range(3200)]
    yield
    for each in crowd:
        each.close()


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


@fault("CatalogueLogLinesDropped", is_output_piped=True)
async def unread_log(site: Site) -> AsyncIterator[None]:
    """Nobody reads the service's stdout."""
    output = site.output
    assert output is not None  # noqa: S101 - `is_output_piped`
    asyncio.get_running_loop().remove_reader(output)
    yield
    keep_reading(output)


@fault("CatalogueIdempotencyKeys")
async def keep_expired_keys(site: Site) -> AsyncIterator[None]:
    """60,000 expired keys that a trigger keeps; an alert for 10 million is set to 50,000."""
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


def _open_socket(service: Service) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", service.port))
    return client


def keep_reading(output: int) -> None:
    """Read and forget what the service writes to a pipe."""
    asyncio.get_running_loop().add_reader(output, lambda: os.read(output, 65536))


@asynccontextmanager
async def running(lab: Lab, program: str, each: Fault) -> AsyncIterator[tuple[Site, Prometheus]]:
    """Run a service, a load and Prometheus."""
    database, port = lab.database(), find_free_port()
    reading, writing = os.pipe() if each.is_output_piped else (None, None)
    if reading is not None:
        keep_reading(reading)
    service = await lab.serve(
        lab.postgres.url(database),
        workers=each.workers,
        settings={"operations_port": port, **each.settings},
        wrapper=each.wrapper,
        output=writing,
    )
    load = Load(service.url, MOVIES, readers=8, writers=4, pause_s=0.01, paths=READS)
    prometheus = await start_prometheus(
        lab.processes, program, lab.tree / "ops", lab.new_folder("prometheus"), port
    )
    try:
        async with load.running():
            await asyncio.sleep(2 * MINUTE_S)
            yield Site(lab, database, service, reading), prometheus
    finally:
        prometheus.stop()
        await service.stop()
        if reading is not None and writing is not None:
            asyncio.get_running_loop().remove_reader(reading)
            os.close(reading)
            os.close(writing)


async def run_fault(lab: Lab, program: str, each: Fault) -> bool:
    """Cause a fault; return whether its alerts, and none before it, fired and ended."""
    async with running(lab, program, each) as (site, prometheus):
        early = prometheus.list_firing()
        async with each.cause(site):
            fired = await wait_for_all(prometheus, each.alerts, TIMEOUT_S)
            descriptions = prometheus.list_firing()
            shown = await asyncio.to_thread(follow_sections, site, each.alerts)
        ended = await wait_for_all(prometheus, each.alerts, TIMEOUT_S, is_firing=False)
    for alert in each.alerts:
        click.echo(f"{alert:<28} {fired[alert]:>4.0f} s {ended[alert]:>4.0f} s  {each.done}")
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
    return not early and has_shown_all and inf not in {*fired.values(), *ended.values()}


def follow_sections(site: Site, alerts: tuple[str, ...]) -> list[tuple[str, str]]:
    """Run the commands of the alerts' sections; return each with its output."""
    names = {
        "HOST": "127.0.0.1",
        "PORT": site.service.port,
        "LOG": site.service.log,
        "MASTER": site.service.pid,
        "PID": site.service.workers[0],
    }
    environment = make_environment()
    environment["DATABASE_URL"] = site.lab.postgres.url(site.database)
    environment["PATH"] += f"{os.pathsep}{site.lab.postgres.programs}"  # psql
    return [
        shown for alert in alerts for shown in run_commands(HANDBOOK, alert, names, environment)
    ]


async def wait_for_all(
    prometheus: Prometheus, alerts: tuple[str, ...], timeout_s: float, *, is_firing: bool = True
) -> dict[str, float]:
    """Wait until all alerts fire, or do no more; return the seconds of each, or infinity."""
    waits = (prometheus.wait_for(alert, timeout_s, is_firing=is_firing) for alert in alerts)
    return dict(zip(alerts, await asyncio.gather(*waits), strict=True))


async def run_dashboard(lab: Lab, program: str) -> bool:
    """Evaluate every query of the dashboard; return whether each had a result.

    PostgreSQL is away for a moment before, and a worker is started again, so that there are errors
    and starts to show.
    """
    dashboard = json.loads((lab.tree / "ops" / "dashboard.json").read_text())
    queries = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
    ]
    queries += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    for variable in dashboard["templating"]["list"]:
        queries += re.findall(r"^label_values\((.*), \w+\)$", variable["definition"])
    async with running(lab, program, Fault((), "", stop_postgres)) as (site, prometheus):
        async with stop_postgres(site):
            await asyncio.sleep(2)
        await asyncio.sleep(2 * MINUTE_S)
        os.kill(site.service.workers[0], signal.SIGTERM)
        await asyncio.sleep(MINUTE_S)
        variables = {"$__rate_interval": f"{10 * MINUTE_S}s", "$instance": ".*"}
        empty = [query for query in queries if not prometheus.query(replace(query, variables))]
    click.echo(f"dashboard: {len(queries)} queries, {len(empty)} without a result")
    for query in empty:
        click.echo(f"    {query}")
    return not empty


def replace(text: str, variables: Mapping[str, str]) -> str:
    """Replace Grafana's variables in a query."""
    for name, value in variables.items():
        text = text.replace(name, value)
    return text


@click.command()
@click.option("--only", default="", help="Names of alerts, or dashboard, separated by commas.")
def main(only: str) -> None:
    """Cause each alert of ops/alerts.yml; exit status 1 if one does not fire or does not end."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    program = find_prometheus()
    if not program:
        raise click.ClickException("prometheus is missing (apt-get install prometheus)")
    names = set(filter(None, only.split(",")))
    chosen = [each for each in FAULTS if not names or names & set(each.alerts)]
    click.echo(f"{'alert':<28} {'fired':>6} {'ended':>6}  fault ({MINUTE_S} s for each minute)")
    with open_lab(ROOT) as lab:
        results = [asyncio.run(run_fault(lab, program, each)) for each in chosen]
        if not names or "dashboard" in names:
            results.append(asyncio.run(run_dashboard(lab, program)))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main(prog_name="python -m drills.alerts")
