"""Causes the faults one after the other, under load: `make cluster-drill`."""

import asyncio
import sys
import time
from dataclasses import dataclass
from itertools import pairwise

import click

from drills.cluster.cluster import Cluster, NotStarted, open_cluster
from drills.cluster.faults import FAULTS, LOAD_S, wait_for
from drills.cluster.positions import NOT_FOUND, PositionedLoad
from drills.cluster.state import API, DATABASE, are_members_healthy
from drills.lab import FILL, only
from drills.load import CREATED, OK, list_problems, summarize
from drills.processes import NotRun

MOVIES = 1000
WRITES_BACK_S = 30.0
HEALTHY_S = 120.0


@dataclass(frozen=True)
class Row:
    """What the clients saw of a fault."""

    fault: str
    without_write_s: float
    without_read_s: float
    acknowledged: int
    positioned: int
    lost: list[str]
    stale: list[str]
    others: list[str]  # other expectations that were not met

    @property
    def failures(self) -> list[str]:
        """What makes the drill fail."""
        found = [*self.lost, *self.stale, *self.others]
        if self.without_write_s > WRITES_BACK_S:
            found.append(f"no write for {self.without_write_s:.1f} s")
        if not self.positioned:
            found.append("no read with a position")
        return found


HEADER = (
    f"{'fault':<18} {'result':<6} {'no write':>9} {'no read':>9} {'acknowledged':>12} {'lost':>5}"
    f" {'positioned':>10} {'stale':>5}"
)


def format_row(row: Row) -> str:
    """Return a line, and the first failures below it."""
    line = (
        f"{row.fault:<18} {'FAIL' if row.failures else 'PASS':<6} {row.without_write_s:>7.1f} s"
        f" {row.without_read_s:>7.1f} s {row.acknowledged:>12,} {len(row.lost):>5}"
        f" {row.positioned:>10,} {len(row.stale):>5}"
    )
    return "\n".join([line, *(f"    ! {failure}" for failure in row.failures[:5])])


def find_longest_gap(moments: list[float]) -> float:
    """Return the longest time between two of these moments."""
    return max((after - before for before, after in pairwise(sorted(moments))), default=0.0)


def measure_gap(load: PositionedLoad, kind: str, began: float, ended: float) -> float:
    """Return the longest time in which no request of this kind succeeded."""
    succeeded = [sent.at for sent in load.select(kind) if sent.status in (OK, CREATED)]
    return find_longest_gap([began, *succeeded, ended])


async def run_fault(cluster: Cluster, name: str, loads: list[PositionedLoad]) -> Row:
    """Cause a fault under load, and audit this load and all earlier ones."""
    others = []
    loop = asyncio.get_running_loop()
    load = PositionedLoad(API, readers=6, writers=6, pause_s=0.02, movies=MOVIES)
    loads.append(load)
    async with load.running():
        began = loop.time()
        await asyncio.sleep(LOAD_S)
        try:
            await FAULTS[name](cluster)
            await wait_for(are_members_healthy, HEALTHY_S, "three healthy members")
        except Exception as error:  # noqa: BLE001 - the row shows it
            others.append(repr(error))
        await asyncio.sleep(LOAD_S)
        ended = loop.time()
    if name == "rolling-restart" and list_problems(load.sent, OK, CREATED, NOT_FOUND):
        others.append(f"requests failed: {summarize(load.sent)}")
    return Row(
        name,
        measure_gap(load, "write", began, ended),
        measure_gap(load, "read", began, ended),
        sum(sent.status in (OK, CREATED) for sent in load.select("write")),
        load.positioned,
        [problem for each in loads for problem in each.audit(cluster, DATABASE)],
        load.stale,
        others,
    )


async def run(cluster: Cluster, names: list[str]) -> list[Row]:
    """Start the cluster and cause the faults; stop at the first one that it does not survive."""
    click.echo("starting the cluster ...", err=True)
    await cluster.start()
    cluster.execute(DATABASE, FILL.format(first=1, last=MOVIES))
    click.echo(HEADER)
    rows: list[Row] = []
    loads: list[PositionedLoad] = []
    for name in names:
        rows.append(await run_fault(cluster, name, loads))
        click.echo(format_row(rows[-1]))
        if rows[-1].others:
            for part in cluster.parts.values():
                click.echo(part.read_end(), err=True)
            break
    return rows


@click.command()
@only(FAULTS)
def main(names: list[str]) -> None:
    """Break the cluster in nine ways, under load; exit status 1 if a write is lost, for example."""
    started = time.monotonic()
    try:
        with open_cluster() as cluster:
            rows = asyncio.run(run(cluster, names))
    except (NotRun, NotStarted) as error:
        click.echo(f"the cluster does not run: {error}", err=True)
        sys.exit(1)
    passed = sum(not row.failures for row in rows)
    click.echo(
        f"{passed} of {len(names)} passed in {(time.monotonic() - started) / 60:.1f} minutes"
    )
    sys.exit(0 if passed == len(names) else 1)


if __name__ == "__main__":
    main(prog_name="python -m drills.cluster.drill")
