"""PostgreSQL servers on loopback, of the embedded binaries, which may be killed."""

import os
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2

from drills.processes import Process, Processes, find_free_port, kill
from service.database.embedded import INITDB_OPTIONS, find_account, find_programs

START_TIMEOUT_S = 60.0
USER = "catalogue"
# Shared memory in files of the server's folder, as POSIX shared memory would outlive a kill -9.
UNSAFE_INITDB_OPTIONS = "--no-sync -c dynamic_shared_memory_type=mmap"
# No drill cuts the power, so nothing is synced to disk.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "150",
    "fsync": "off",
    "full_page_writes": "off",
    "wal_sender_timeout": "60s",
    "log_min_messages": "warning",
}


def connect(url: str) -> psycopg2.extensions.connection:
    """Connect in autocommit mode."""
    connection = psycopg2.connect(url, connect_timeout=5)
    connection.autocommit = True
    return connection


def execute(url: str, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Run one statement in autocommit mode, and return its rows if it has some."""
    with closing(connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(sql, parameters or None)
        return cursor.fetchall() if cursor.description else []


class Postgres:
    """One server; `folder` is its data."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self.port = find_free_port()
        self._processes = processes
        self.folder = folder
        self.account = find_account()
        self.programs = find_programs()
        self._process: Process | None = None

    def make_private(self, folder: Path) -> None:
        """Make a folder of the account that runs the server."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if self.account:
            os.chown(folder, self.account.pw_uid, self.account.pw_gid)

    def create(self) -> None:
        """Make an empty server and start it."""
        self.make_private(self.folder)
        options = f"{INITDB_OPTIONS} {UNSAFE_INITDB_OPTIONS}"
        self._run("initdb", "-D", self.folder, *options.split())
        self.start()

    def start(self) -> None:
        """Start, and wait until the server accepts connections."""
        settings = {**SETTINGS, "port": str(self.port)}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command: list[str | Path] = [self.programs / "postgres", "-D", self.folder, *options]
        with self.folder.with_suffix(".log").open("ab") as log:
            self._process = self._processes.start(command, output=log, account=self.account)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return connect(self.url("postgres")).close()
            except psycopg2.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill all its processes (SIGKILL)."""
        if self._process:
            kill(self._process)

    def remove(self) -> None:
        """Delete the data of a server that has ended; an empty folder stays."""
        shutil.rmtree(self.folder)
        self.make_private(self.folder)

    def url(self, database: str, user: str = USER) -> str:
        """Return the URL of a database."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def execute(self, database: str, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement in a database of this server."""
        return execute(self.url(database), sql, *parameters)

    def _run(self, program: str, *arguments: str | Path) -> None:
        log = self.folder.with_suffix(f".{program}.log")
        with log.open("wb") as output:
            command: list[str | Path] = [self.programs / program, *arguments]
            process = self._processes.start(command, output=output, account=self.account)
            if process.wait() != 0:
                raise RuntimeError(f"{program} failed: {log.read_text(errors='replace')}")
