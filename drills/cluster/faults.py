"""What breaks the cluster, and how each fault ends."""

import asyncio
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable

from drills.cluster.cluster import Cluster, send
from drills.cluster.state import SERVICES, Member, find_leader, find_synchronous_standby
from drills.service import ROOT, make_environment

LOAD_S = 5.0  # for which the load goes on: before a fault, with the new leader, and after the end
NEW_LEADER_S = 90.0
ETCD_AWAY_S = 60.0
SWITCHOVER = ["patronictl", "-c", "ops/cluster/patroni.yml", "switchover", "--force"]

Fault = Callable[[Cluster], Awaitable[None]]


async def wait_for(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """Wait in a thread, as Patroni may be frozen; raises `TimeoutError`."""
    deadline = time.monotonic() + timeout_s
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        await asyncio.sleep(0.1)


async def find_the_leader() -> Member:
    """Return the leader of a healthy cluster."""
    leader = await asyncio.to_thread(find_leader)
    if leader is None:
        raise RuntimeError("there is no leader")
    return leader


async def fail_over(from_: Member) -> None:
    """Wait until another member is the leader, and let it work for a while."""
    await wait_for(lambda: find_leader() not in (None, from_), NEW_LEADER_S, "another leader")
    await asyncio.sleep(LOAD_S)


def kill(*, patroni: bool, postgresql: bool) -> Fault:
    """`kill -9` of the leader's Patroni, its PostgreSQL or both, as a crash of its machine."""

    async def cause(cluster: Cluster) -> None:
        leader = await find_the_leader()
        send(signal.SIGKILL, cluster.freeze(leader, patroni=patroni, postgresql=postgresql))
        await fail_over(leader)
        if patroni:  # which starts its PostgreSQL again, as a standby
            cluster.start_part(leader.name)

    return cause


def freeze(*, postgresql: bool) -> Fault:
    """SIGSTOP of the leader's Patroni, maybe with PostgreSQL; they go on when another one leads."""

    async def cause(cluster: Cluster) -> None:
        leader = await find_the_leader()
        frozen = cluster.freeze(leader, patroni=True, postgresql=postgresql)
        await fail_over(leader)
        send(signal.SIGCONT, frozen)

    return cause


async def freeze_standby(cluster: Cluster) -> None:
    """SIGSTOP of the synchronous standby, which goes on when another one is synchronous."""
    standby = await asyncio.to_thread(find_synchronous_standby)
    if standby is None:
        raise RuntimeError("there is no synchronous standby")
    frozen = cluster.freeze(standby, patroni=True, postgresql=True)
    await wait_for(
        lambda: find_synchronous_standby() not in (None, standby), NEW_LEADER_S, "another standby"
    )
    await asyncio.sleep(LOAD_S)
    send(signal.SIGCONT, frozen)


async def freeze_etcd(cluster: Cluster) -> None:
    """SIGSTOP of etcd for a minute, as if its machines were away."""
    frozen = cluster.freeze_part("etcd")
    await asyncio.sleep(ETCD_AWAY_S)
    send(signal.SIGCONT, frozen)


async def switch_over(_: Cluster) -> None:
    """`patronictl switchover`: the leader stops, and the synchronous standby takes its place."""
    leader = await find_the_leader()
    await asyncio.to_thread(
        subprocess.run,
        SWITCHOVER,
        cwd=ROOT,
        env=make_environment(),
        capture_output=True,
        check=True,
    )
    await fail_over(leader)


async def restart_services(cluster: Cluster) -> None:
    """Restart each service, one after the other."""
    for name in SERVICES:
        await cluster.services[name].stop()
        await cluster.serve(name)
        await asyncio.sleep(LOAD_S)


FAULTS: dict[str, Fault] = {
    "kill-postgresql": kill(patroni=False, postgresql=True),
    "kill-patroni": kill(patroni=True, postgresql=False),  # PostgreSQL goes on as a primary
    "kill-both": kill(patroni=True, postgresql=True),
    "freeze-both": freeze(postgresql=True),
    "freeze-patroni": freeze(postgresql=False),
    "freeze-standby": freeze_standby,
    "freeze-etcd": freeze_etcd,
    "switchover": switch_over,
    "rolling-restart": restart_services,
}
