"""Runs the cluster until Ctrl-C: `make cluster`."""

import asyncio
import sys
import time

import click

from drills.cluster.cluster import Cluster, NotStarted, open_cluster
from drills.cluster.state import API, MEMBERS, PRIMARY_PORT, SERVICES, STATISTICS, make_url
from drills.processes import NotRun

RESTART_S = 3.0  # after which a part that has ended is started again, as systemd would do


async def serve(cluster: Cluster) -> None:
    """Start the cluster, say where it is, and keep it running."""
    started = time.monotonic()
    click.echo("starting etcd, three PostgreSQL under Patroni, HAProxy and two services ...")
    await cluster.start()
    click.echo(f"ready after {time.monotonic() - started:.0f} s\n")
    rows = {
        "both services": f"{API}/v1/movies",
        **{name: f"http://127.0.0.1:{port}/v1/movies" for name, port in SERVICES.items()},
        "the leader": f"psql {make_url('postgres', PRIMARY_PORT)}",
        **{each.name: f"psql {make_url('postgres', each.port)}" for each in MEMBERS},
        "Patroni": "patronictl -c ops/cluster/patroni.yml list",
        "HAProxy": STATISTICS,
        "logs and data": str(cluster.folder),
    }
    for name, value in rows.items():
        click.echo(f"  {name:<14} {value}")
    click.echo("\nCtrl-C stops everything and deletes the data.")
    while True:
        await asyncio.sleep(RESTART_S)
        for name in await cluster.start_again():
            click.echo(f"{name} had ended, and was started again")


@click.command()
def main() -> None:
    """Run the cluster of ops/cluster/ until Ctrl-C."""
    try:
        with open_cluster() as cluster:
            try:
                asyncio.run(serve(cluster))
            finally:
                click.echo("stopping ...")
    except KeyboardInterrupt:
        click.echo("stopped; nothing is left")
    except (NotRun, NotStarted) as error:
        click.echo(f"the cluster does not run: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main(prog_name="python -m drills.cluster.run")
