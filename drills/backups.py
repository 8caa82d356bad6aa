"""Backups and restores, with the commands of docs/operators/backup.md, unchanged."""

import asyncio
import os
import re
from math import inf
from pathlib import Path
from textwrap import dedent

from drills.client import Connection
from drills.lab import Checks, Lab, drill
from drills.load import Load, wait_for_status, wait_until
from drills.postgres import Postgres
from drills.processes import Process, Processes, stop
from drills.service import ROOT

DATABASE = "catalogue"
RESTORED = "catalogue_restored"
MOVIES = 1000
EXAMPLE_TIME = "2026-11-22 18:00:00+00"
# The one of the embedded binaries crashes, even with --version.
VERIFY = 'pg_verifybackup --quiet "$BACKUP/base"\n'
IS_RECOVERED = "select 1 where not pg_is_in_recovery()"


class Handbook:
    """The commands of "Backup and restore", in the order of the text."""

    def __init__(self) -> None:
        text = (ROOT / "docs" / "operators" / "backup.md").read_text()
        section = text.split("\n## Backup and restore\n")[1].split("\n## ")[0]
        blocks = re.findall(r"^ *```(?:sh|sql)\n(.*?)^ *```", section, re.DOTALL | re.MULTILINE)
        (
            self.dump,
            self.restore_dump,
            self.make_slot,
            self.receive,
            self.make_synchronous,
            self.back_up,
            self.restore,
            self.set_time,
            self.skip_what_was_lost,
        ) = map(dedent, blocks)


class Shell:
    """Runs commands as a DBA of this server would, as the server's account."""

    def __init__(self, server: Postgres, backup: Path, processes: Processes) -> None:
        self._processes = processes
        self._server = server
        self._log = backup.with_suffix(".log")
        self.backup = backup
        for folder in (backup, backup / "wal", backup / "ops"):
            server.make_private(folder)
        (backup / "ops" / "roles.sql").write_bytes((ROOT / "ops" / "roles.sql").read_bytes())
        self._environment = {
            "PATH": f"{server.programs}{os.pathsep}{os.defpath}",
            "LC_ALL": "C.UTF-8",
            "PGHOST": "127.0.0.1",
            "PGPORT": str(server.port),
            "PGUSER": "catalogue",
            "PGDATA": str(server.folder),
            "BACKUP": str(backup),
            "BACKUP_URL": server.url("postgres", "catalogue_backup"),
        }

    def start(self, script: str) -> Process:
        """Start a script of the shell, which ends at the first failure."""
        with self._log.open("ab") as log:
            return self._processes.start(
                ["sh", "-e", "-c", script],
                output=log,
                folder=self.backup,
                environment=self._environment,
                account=self._server.account,
            )

    async def run(self, script: str) -> None:
        """Run a script of the shell to its end."""
        if await asyncio.to_thread(self.start(script).wait) != 0:
            log = self._log.read_text(errors="replace")
            raise RuntimeError(f"{script}failed: {log[-1000:]}")

    async def run_sql(self, sql: str, database: str = "postgres") -> None:
        """Run statements in psql."""
        path = self.backup / "statements.sql"
        path.write_text(sql)
        await self.run(f"psql -q -v ON_ERROR_STOP=1 -d {database} -f {path}\n")


async def make_server(lab: Lab) -> tuple[Postgres, Shell]:
    """Start a server with a database of `MOVIES` movies."""
    server = await asyncio.to_thread(lab.make_server, "backed-up", DATABASE, MOVIES)
    return server, Shell(server, lab.new_folder("backup"), lab.processes)


async def wait_for_receiver(server: Postgres) -> None:
    """Wait until commits wait for the program that receives the WAL."""
    sql = "select 1 from pg_stat_replication where sync_state = 'sync'"
    if await wait_until(lambda: server.execute("postgres", sql), 60) == inf:
        raise RuntimeError("the WAL is not received")


async def start_restored(server: Postgres) -> None:
    """Start the server, and wait until it has recovered."""
    await asyncio.to_thread(server.start)
    if await wait_until(lambda: server.execute("postgres", IS_RECOVERED), 60) == inf:
        raise RuntimeError("the server does not end its recovery")


@drill
async def dump(lab: Lab, checks: Checks) -> None:
    """Dump the database under load, and restore it into a new one.

    No write that was acknowledged before the dump is lost. Requests succeed during the dump and,
    with the application role, in the new database.
    """
    handbook = Handbook()
    server, shell = await make_server(lab)
    service = await lab.serve(server.url(DATABASE))
    async with Load(service.url).running() as before:
        await before.wait_for_success(500)
    async with Load(service.url).running() as meanwhile:
        await shell.run(handbook.dump)
    checks.require_statuses("during the dump", meanwhile.sent)
    await service.stop()
    await shell.run(handbook.restore_dump)
    checks.audit(before, server, RESTORED)
    service = await lab.serve(server.url(RESTORED, "catalogue_app"))
    async with Load(service.url).running() as after:
        await after.wait_for_success(500)
    checks.require_statuses("restored", after.sent)
    await service.stop()
    server.kill()


@drill
async def point_in_time(lab: Lab, checks: Checks) -> None:
    """Back up a server under load, lose it, and restore it to the end and to an earlier moment.

    To the end: no acknowledged write is lost, and the running service recovers. To the moment: no
    earlier write is lost, no later one is there, and no id or tag of later ones comes again.
    """
    handbook = Handbook()
    server, shell = await make_server(lab)
    await shell.run_sql(handbook.make_slot)
    receiver = shell.start(f"exec {handbook.receive}")
    await shell.run_sql(handbook.make_synchronous)
    await wait_for_receiver(server)
    service = await lab.serve(server.url(DATABASE))
    async with Load(service.url).running() as before:
        await shell.run(handbook.back_up.replace(VERIFY, ""))
        await before.wait_for_success(500)
    ((moment,),) = server.execute("postgres", "select now()::text")
    tag = await change_first_movie(service.url, "lost")
    async with Load(service.url).running() as later:
        await later.wait_for_success(500)
        server.kill()
    server.remove()
    stop(receiver)
    checks.note(f"{len(before.known):,} creates before the moment, {len(later.known):,} after it")

    await shell.run(handbook.restore)
    await start_restored(server)
    checks.audit(before, server, DATABASE)
    checks.audit(later, server, DATABASE)
    ready = await wait_for_status(service.url, "/v1/healthcheck/ready", 200, 15)
    checks.require(ready <= 5, f"the service is ready after {ready:.1f} s")
    await service.stop()
    server.kill()
    server.remove()

    await shell.run(handbook.restore)
    await shell.run(handbook.set_time.replace(EXAMPLE_TIME, moment))
    await start_restored(server)
    checks.audit(before, server, DATABASE)
    names = "select count(*) from movies where title like %s"
    ((left,),) = server.execute(DATABASE, names, f"{later.prefix}%")
    checks.require(left == 0, f"{left} later movies")
    await shell.run_sql(handbook.skip_what_was_lost, DATABASE)
    service = await lab.serve(server.url(DATABASE))
    await check_what_clients_hold(service.url, checks, tag, max(later.known))
    await service.stop()
    server.kill()


async def change_first_movie(url: str, title: str) -> str:
    """Change movie 1 and return its tag."""
    async with Connection(url) as connection:
        changed = await connection.request("PATCH", "/v1/movies/1", {"title": title})
    return changed.headers["ETag"]


async def check_what_clients_hold(url: str, checks: Checks, tag: str, highest: int) -> None:
    """Send the tag of a lost change of movie 1; `highest` is the highest id of lost movies."""
    await change_first_movie(url, "another change")
    patch = {"title": "overwritten"}
    body = {"title": "new", "year": 2000, "runtime": "90 mins", "genres": ["war"]}
    async with Connection(url) as connection:
        read = await connection.request("GET", "/v1/movies/1", None, {"If-None-Match": tag})
        changed = await connection.request("PATCH", "/v1/movies/1", patch, {"If-Match": tag})
        created = (await connection.request("POST", "/v1/movies", body)).json()["movie"]
    checks.require(read.status == 200, f"If-None-Match with a lost tag: {read.status}")
    checks.require(changed.status == 412, f"If-Match: {changed.status}")
    checks.require(created["id"] > highest, f"new id {created['id']:,}, highest lost {highest:,}")
