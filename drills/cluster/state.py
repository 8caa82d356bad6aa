"""Where the parts of ops/cluster/ listen, and how they are."""

import csv
import io
import json
import urllib.request
from contextlib import suppress
from dataclasses import dataclass

import psycopg2

from drills.postgres import execute

DATABASE = "catalogue"
ETCD_PORTS = (15401, 15402)
SERVICES = {"service1": 15431, "service2": 15432}
API_PORT, PRIMARY_PORT, STATISTICS_PORT = 15440, 15441, 15442  # of HAProxy
API = f"http://127.0.0.1:{API_PORT}"
STATISTICS = f"http://127.0.0.1:{STATISTICS_PORT}/"
IS_SERVER = "2"  # the type of a row of HAProxy's statistics


@dataclass(frozen=True)
class Member:
    """A PostgreSQL and the Patroni that starts and watches it."""

    name: str
    port: int  # of PostgreSQL
    rest_port: int  # of Patroni

    def ask(self, path: str) -> str | None:
        """Return the body of Patroni's 200; None for all else."""
        return fetch(f"http://127.0.0.1:{self.rest_port}{path}")


MEMBERS = tuple(Member(f"node{number}", 15410 + number, 15420 + number) for number in (1, 2, 3))
# Below 32768: the kernel gives the ports from there on to clients.
PORTS = (
    *ETCD_PORTS,
    *(port for member in MEMBERS for port in (member.port, member.rest_port)),
    *SERVICES.values(),
    *(API_PORT, PRIMARY_PORT, STATISTICS_PORT),
)


def make_url(user: str, port: int, database: str = DATABASE) -> str:
    """Return the URL of a database of this machine."""
    return f"postgresql://{user}@127.0.0.1:{port}/{database}"


def fetch(url: str) -> str | None:
    """Return the body of a 200; None for all else."""
    with suppress(OSError), urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - http
        return str(response.read(), "utf-8") if response.status == 200 else None
    return None


def is_etcd_healthy() -> bool:
    """Whether etcd serves."""
    return fetch(f"http://127.0.0.1:{ETCD_PORTS[0]}/health") is not None


def find_leader() -> Member | None:
    """Return the member that holds the leader's key."""
    return next((member for member in MEMBERS if member.ask("/primary") is not None), None)


def find_synchronous_standby() -> Member | None:
    """Return the standby that commits wait for, as the leader sees it."""
    body = (leader := find_leader()) and leader.ask("/cluster")
    members = json.loads(body)["members"] if body else []
    names = [each["name"] for each in members if each["role"] == "sync_standby"]
    return next((member for member in MEMBERS if member.name in names), None)


def are_members_healthy() -> bool:
    """Whether two standbys, one of them synchronous, stream from the leader on its timeline."""
    leader = find_leader()
    body = leader and leader.ask("/cluster")
    if not leader or not body:
        return False
    members = json.loads(body)["members"]
    return (
        sorted(each["role"] for each in members) == ["leader", "replica", "sync_standby"]
        and all(each["state"] in ("running", "streaming") for each in members)
        and len({each.get("timeline") for each in members}) == 1
        and count_standbys(leader) == 2
    )


def count_standbys(leader: Member) -> int:
    """Return how many standbys stream from the leader."""
    sql = "select count(*) from pg_stat_replication where state = 'streaming'"
    with suppress(psycopg2.Error):
        return int(execute(make_url("postgres", leader.port, "postgres"), sql)[0][0])
    return 0


def has_one_primary() -> bool:
    """Whether HAProxy has checked all members: until then, it takes each one for the leader."""
    page = fetch(f"{STATISTICS};csv") or ""
    rows = csv.DictReader(io.StringIO(page.removeprefix("# ")))
    states = [
        row["status"] for row in rows if (row["pxname"], row["type"]) == ("primary", IS_SERVER)
    ]
    return sorted(states) == ["DOWN", "DOWN", "UP"]
