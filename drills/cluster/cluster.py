"""The processes of the cluster: etcd, three members, HAProxy and two services of this checkout."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from drills.cluster.state import (
    MEMBERS,
    PORTS,
    PRIMARY_PORT,
    SERVICES,
    Member,
    are_members_healthy,
    has_one_primary,
    is_etcd_healthy,
    make_url,
)
from drills.lab import Lab
from drills.postgres import execute
from drills.processes import PROC, NotRun, Process, Processes, find_program, freeze, stop
from drills.service import ROOT, Service, make_environment
from service.database.embedded import find_account

CONFIGURATION = ROOT / "ops" / "cluster"
PROGRAMS = {"etcd": "etcd-server", "patroni": "patroni", "haproxy": "haproxy"}  # Debian's packages
POSTGRESQL = Path("/usr/lib/postgresql")  # Debian's folder of all versions
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 10.0
LOG_LINES = 40  # that are shown of a part that does not start


class NotStarted(Exception):
    """A part of the cluster has not started; the message says which one, with its log."""


@dataclass(frozen=True)
class Part:
    """etcd, HAProxy, or the Patroni of a member."""

    name: str
    process: Process
    log: Path

    def read_end(self) -> str:
        """Return the last lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join([f"--- {self.log.name}", *lines])


class Cluster:
    """The processes; `folder` has the data and the logs."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder = folder
        self.parts: dict[str, Part] = {}
        self.services: dict[str, Service] = {}
        self._processes = processes
        self._lab = Lab(folder, processes)
        self._programs, self._postgresql = find_programs(), find_postgresql()
        # Root runs all but the services as `postgres`, which may not be able to read the checkout.
        self._account = find_account()
        if self._account:
            os.chown(folder, self._account.pw_uid, self._account.pw_gid)
        self._configuration = folder / "configuration"
        shutil.copytree(CONFIGURATION, self._configuration)

    async def start(self) -> None:
        """Start everything, and wait until it works; raises `NotStarted`."""
        self.start_part("etcd")
        await self._wait_until(is_etcd_healthy, "etcd")
        members = [member.name for member in MEMBERS]
        for name in members:
            self.start_part(name)
        await self._wait_until(are_members_healthy, *members)
        self.start_part("haproxy")
        await self._wait_until(has_one_primary, "haproxy")
        await asyncio.to_thread(self._make_database)
        for name in SERVICES:
            await self.serve(name)

    def start_part(self, name: str) -> None:
        """Start etcd, HAProxy or the Patroni of a member, and do not wait for it."""
        environment = {**make_environment(), "HOME": str(self.folder)}
        command: list[str | Path]
        if name == "etcd":
            command = [self._programs["etcd"], "--config-file", self._configuration / "etcd.yml"]
        elif name == "haproxy":
            command = [self._programs["haproxy"], "-db", "-f", self._configuration / "haproxy.cfg"]
        else:
            command = [self._programs["patroni"], self._configuration / "patroni.yml"]
            environment |= self._make_patroni_environment(name)
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            process = self._processes.start(
                command,
                output=output,
                folder=self.folder,
                environment=environment,
                account=self._account,
            )
        self.parts[name] = Part(name, process, log)

    def _make_patroni_environment(self, name: str) -> dict[str, str]:
        """Return what ops/cluster/patroni.yml leaves to each member."""
        member = next(each for each in MEMBERS if each.name == name)
        patroni, postgres = (f"127.0.0.1:{port}" for port in (member.rest_port, member.port))
        return {
            "PATRONI_NAME": name,
            "PATRONI_RESTAPI_LISTEN": patroni,
            "PATRONI_RESTAPI_CONNECT_ADDRESS": patroni,
            "PATRONI_POSTGRESQL_LISTEN": postgres,
            "PATRONI_POSTGRESQL_CONNECT_ADDRESS": postgres,
            "PATRONI_POSTGRESQL_DATA_DIR": str(self.folder / name),
            "PATRONI_POSTGRESQL_BIN_DIR": str(self._postgresql),
            "PATRONI_POSTGRESQL_PGPASS": str(self.folder / f"{name}.pgpass"),
        }

    async def serve(self, name: str) -> None:
        """Start a service, and wait until it is ready; raises `NotStarted`."""
        settings = {
            "database_replica_urls": ",".join(
                make_url("catalogue_app", member.port) for member in MEMBERS
            ),
            "server_drain_delay": 2,  # HAProxy notices within 0.5 s that it is not ready
            "server_trusted_proxies": "127.0.0.1",
        }
        url, port = make_url("catalogue_app", PRIMARY_PORT), SERVICES[name]
        try:
            service = await self._lab.serve(url, workers=1, settings=settings, port=port)
        except RuntimeError as error:
            raise NotStarted(f"{name}: {error}") from error
        self.services[name] = service

    async def start_again(self) -> list[str]:
        """Start all parts and services that have ended; return their names."""
        parts = [name for name, part in self.parts.items() if part.process.poll() is not None]
        services = [name for name, service in self.services.items() if not service.is_running]
        for name in parts:
            self.start_part(name)
        for name in services:
            await self.serve(name)
        return [*parts, *services]

    async def _wait_until(self, condition: Callable[[], bool], *names: str) -> None:
        """Wait until these parts fulfil the condition together."""
        parts = [self.parts[name] for name in names]
        deadline = time.monotonic() + START_TIMEOUT_S
        while not await asyncio.to_thread(condition):
            ended = [part for part in parts if part.process.poll() is not None]
            if ended or time.monotonic() > deadline:
                what = "has ended" if ended else f"is not ready after {START_TIMEOUT_S:.0f} s"
                reasons = [f"{part.name} {what}\n{part.read_end()}" for part in ended or parts]
                raise NotStarted("\n".join(reasons))
            await asyncio.sleep(0.1)

    def _make_database(self) -> None:
        """Make the database and its roles, and run the migrations, all through HAProxy."""
        psql = [f"{self._postgresql}/psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d"]
        create = "create database catalogue"
        run([*psql, make_url("postgres", PRIMARY_PORT, "postgres"), "-c", create])
        roles = str(ROOT / "ops" / "roles.sql")
        run([*psql, make_url("postgres", PRIMARY_PORT), "-f", roles])
        owner = make_url("catalogue_owner", PRIMARY_PORT)
        run([sys.executable, "-m", "service", "migrate"], DATABASE_URL=owner)

    def execute(self, database: str, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement on the leader, through HAProxy."""
        return execute(make_url("postgres", PRIMARY_PORT, database), sql, *parameters)

    def freeze(self, member: Member, *, patroni: bool, postgresql: bool) -> list[int]:
        """Stop processes of a member (SIGSTOP), and return them."""
        roots = [self.parts[member.name].process.pid] if patroni else []
        if postgresql and (postmaster := self._find_postmaster(member)):
            roots.append(postmaster)
        return [pid for root in roots for pid in (root, *freeze(root))]

    def freeze_part(self, name: str) -> list[int]:
        """Stop the processes of a part (SIGSTOP), and return them."""
        root = self.parts[name].process.pid
        return [root, *freeze(root)]

    def _find_postmaster(self, member: Member) -> int | None:
        """Return the first process of the member's PostgreSQL."""
        with suppress(FileNotFoundError, IndexError):
            pid = int((self.folder / member.name / "postmaster.pid").read_text().split()[0])
            return pid if pid in self._list_postgresql() else None
        return None

    def _list_postgresql(self) -> list[int]:
        """Return PostgreSQL's processes, which Patroni starts apart from itself.

        They work in the folder; the shell of somebody who reads the logs there may do so, too.
        """
        found = []
        for process in PROC.glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or belongs to somebody else
                is_ours = (process / "cwd").readlink().is_relative_to(self.folder)
                if is_ours and (process / "exe").readlink().parent == self._postgresql:
                    found.append(int(process.name))
        return found

    def stop(self) -> None:
        """Stop everything, and wait for it; no data is saved, as it is deleted."""
        for service in self.services.values():
            service.process.terminate()
        # Patroni first: it would start its PostgreSQL again.
        for name in self.parts.keys() & {member.name for member in MEMBERS}:
            stop(self.parts[name].process, signal.SIGKILL)
        send(signal.SIGCONT, self._list_postgresql())  # a frozen process would not see the next one
        send(signal.SIGQUIT, filter(None, map(self._find_postmaster, MEMBERS)))  # "immediate"
        self._processes.stop_all()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while left := self._list_postgresql():
            send(signal.SIGKILL if time.monotonic() > deadline else signal.SIGTERM, left)
            time.sleep(0.1)


@contextmanager
def open_cluster() -> Iterator[Cluster]:
    """Yield a cluster that is not started; at the end, nothing is left of it.

    Ctrl-C, SIGTERM and the end of the terminal raise KeyboardInterrupt, once: nothing interrupts
    the stop. Raises `NotRun` if a program is missing or a port is taken.
    """
    find_programs()
    find_postgresql()
    if taken := list_taken_ports():
        ports = ", ".join(map(str, taken))
        raise NotRun(f"taken ports of 127.0.0.1: {ports} (`ss -ltnp` shows by which programs)")
    for number in SIGNALS:
        signal.signal(number, interrupt_once)
    # /var/tmp is on disk; /tmp may be memory. The folder is private (0700).
    with tempfile.TemporaryDirectory(prefix="movie-catalogue-cluster-", dir="/var/tmp") as name:
        cluster = Cluster(Path(name), Processes())
        try:
            yield cluster
        finally:
            ignore_signals()
            cluster.stop()


def interrupt_once(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, and ignore further signals."""
    ignore_signals()
    signal.default_int_handler(number, frame)


def ignore_signals() -> None:
    """Ignore what would stop the cluster."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def find_programs() -> dict[str, str]:
    """Return the paths of the programs; raises `NotRun` with all that are missing."""
    paths, missing = {}, []
    for name, package in PROGRAMS.items():
        try:
            paths[name] = find_program(name, package)
        except NotRun as error:
            missing.append(str(error))
    if missing:
        raise NotRun("; ".join(missing))
    return paths


def find_postgresql() -> Path:
    """Return the folder of the programs of the newest PostgreSQL; raises `NotRun`."""
    versions = [path.parent for path in POSTGRESQL.glob("[0-9]*/bin/postgres")]
    if not versions:
        raise NotRun("PostgreSQL is not installed (apt-get install postgresql)")
    return max(versions, key=lambda path: int(path.parent.name)).resolve()


def list_taken_ports() -> list[int]:
    """Return the ports of the cluster on which something listens."""
    taken = []
    for port in PORTS:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            taken.append(port)
    return taken


def send(number: int, pids: Iterable[int]) -> None:
    """Send a signal to processes, of which some may have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def run(command: list[str], **environment: str) -> None:
    """Run a program to its end; raises `NotStarted` with its output if it fails."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**make_environment(), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NotStarted(f"{' '.join(command)}: {done.stdout}")
