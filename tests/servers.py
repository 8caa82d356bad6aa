"""PostgreSQL servers of a test's own: a primary, its streaming standbys, and PgBouncer."""

import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2
from conftest import ROOT
from processes import free_port
from psycopg2.extensions import parse_dsn
from support import wait_until

from service.database import embedded
from service.database.migrations import runner as migrations

Row = tuple[Any, ...]

# Commits are still written before they are acknowledged: a standby gets only what was written.
# Without `wal_retrieve_retry_interval`, it waits up to 5 s before it asks its primary again.
OPTIONS = (
    "-c fsync=off -c full_page_writes=off -c wal_retrieve_retry_interval=100ms"
    " -c log_statement=all -c log_line_prefix=%d:"
)


def run(url: str, *statements: str) -> list[Row]:
    """Run statements one by one, as a DBA would; return the rows of the last one."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for sql in statements:
            cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []


def fetch(url: str, sql: str) -> Any:
    """Return the one value that a query returns."""
    ((value,),) = run(url, sql)
    return value


def kill_postgres(url: str) -> None:
    """Kill, with -9, every process of a PostgreSQL server."""
    folder = Path(fetch(url, "select current_setting('data_directory')"))
    backends = run(url, "select pid from pg_stat_activity")
    postmaster = int((folder / "postmaster.pid").read_text().split()[0])
    for pid in [postmaster, *(pid for (pid,) in backends)]:
        with suppress(ProcessLookupError):  # some have just ended
            os.kill(pid, signal.SIGKILL)


@contextmanager
def standby(primary: str, folder: Path, options: str = "") -> Iterator[str]:
    """Copy the primary, run the copy as its standby, and yield the URL."""
    home = embedded.make_folder(folder)
    copy = ("-d", primary, "-R", "--no-sync", "-c", "fast")
    embedded.run_program(home, "pg_basebackup", "-D", home / "data", *copy)
    with embedded.running(folder, options) as url:
        yield url


def pause(url: str) -> None:
    """Stop the replay of a standby; it goes on receiving."""
    run(url, "select pg_wal_replay_pause()")
    wait_until(lambda: fetch(url, "select pg_get_wal_replay_pause_state() = 'paused'"))


def resume(url: str) -> None:
    """Let the replay of a standby go on."""
    run(url, "select pg_wal_replay_resume()")


def catch_up(primary: str, standby: str) -> None:
    """Wait until a standby has replayed all that its primary has committed."""
    end = fetch(primary, "select pg_current_wal_flush_lsn()")
    wait_until(lambda: fetch(standby, f"select pg_last_wal_replay_lsn() >= '{end}'"))


def count_lines(url: str, begin: str) -> int:
    """Count the lines about this database in the log of the server that begin so."""
    target = parse_dsn(url)
    return (
        Path(target["host"], "postgres.log")
        .read_bytes()
        .count(f"{target['dbname']}:{begin}".encode())
    )


def count_runs(url: str, name: str) -> int:
    """Count the runs of a named query in this database."""
    return count_lines(url, f"LOG:  statement: /* {name} ")


class Cluster:
    """A primary with a migrated database, and two standbys."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        folder.chmod(0o755)  # open to the servers' account
        self._folder = folder
        self._stack = stack
        self._numbers = itertools.count()
        self._primary = self.start("primary")
        migrations.upgrade(self._primary, ROOT / "migrations", lambda _: None)
        names = ("first", "second")
        self._standbys = [
            stack.enter_context(standby(self._primary, folder / name, OPTIONS)) for name in names
        ]

    def start(self, name: str) -> str:
        """Start a server, also again after it was killed; return its URL."""
        return self._stack.enter_context(embedded.running(self._folder / name, OPTIONS))

    @contextmanager
    def database(self) -> Iterator[tuple[str, str, str]]:
        """Copy the database; yield the URLs of the copy on the primary and on both standbys."""
        name = f"test_{next(self._numbers)}"
        maintenance, *_ = urls = [
            urlsplit(url)._replace(path="/postgres").geturl()
            for url in (self._primary, *self._standbys)
        ]
        run(maintenance, f"create database {name} template catalogue")
        for url in urls[1:]:
            catch_up(maintenance, url)
        first, second, third = [urlsplit(url)._replace(path=f"/{name}").geturl() for url in urls]
        yield first, second, third
        with suppress(psycopg2.OperationalError):  # the test has killed or promoted a server
            for url in urls[1:]:
                resume(url)
            run(maintenance, f"drop database {name} with (force)")


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Run a primary and two standbys in this folder."""
    with ExitStack() as stack:
        yield Cluster(folder, stack)


PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
PGBOUNCER_INI = """
[databases]
catalogue = host={host} port=5432 user=catalogue
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
server_login_retry = 1
query_wait_timeout = 1
{setting}
"""


@contextmanager
def pgbouncer(url: str, folder: Path, setting: str = "") -> Iterator[str]:
    """Run PgBouncer before a server; yield the URL that leads through it."""
    assert PGBOUNCER
    port = free_port()
    (folder / "pgbouncer.ini").write_text(
        PGBOUNCER_INI.format(host=parse_dsn(url)["host"], port=port, setting=setting)
    )
    account = embedded.find_account()  # it does not run as root
    with subprocess.Popen(
        [PGBOUNCER, "-q", folder / "pgbouncer.ini"],
        user=account.pw_uid if account else None,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield f"postgresql://catalogue@127.0.0.1:{port}/catalogue"
        finally:
            process.kill()
