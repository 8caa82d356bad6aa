"""Creates the benchmark's database and restores its content between measurements."""

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg2
import psycopg2.errors

from bench import cpu
from service.database import embedded

ROOT = Path(__file__).parents[1]
STATEMENTS_END_TIMEOUT_S = 30  # after the load generator has stopped
COUNT_RUNNING_STATEMENTS = """
select count(*)
from pg_stat_activity
where datname = current_database() and backend_type = 'client backend'
  and pid <> pg_backend_pid() and state <> 'idle'
"""
RESERVED_CONNECTIONS = 5  # for PostgreSQL's superusers and for this module

# `n` is also the id, because the table is new. Titles and genres have an ordinary length.
INSERT_MOVIES = """
insert into movies (title, year, runtime, genres)
select 'The Return of Number ' || n, 1888 + n %% 130, 60 + n %% 120,
  case n %% 3
    when 0 then array['drama', 'war']
    when 1 then array['comedy', 'romance']
    else array['animation', 'crime']
  end
from generate_series(1, %s) as n
order by n
"""


class CannotMeasure(Exception):
    """The measurement is impossible; the message says why."""


class Database:
    """One database with `movies` movies, whose ids are 1 to `movies`."""

    def __init__(self, url: str, movies: int) -> None:
        self.url = url
        self.movies = movies
        self._connection = _connect(url)
        self.version = str(self._fetch_value("show server_version"))
        self.durability = {
            name: self._fetch_value(f"show {name}")
            for name in ("fsync", "synchronous_commit", "full_page_writes")
        }
        self._postmaster_pid = self._find_postmaster()
        self._create_movies()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def require_connections(self, connections: int) -> None:
        """Raise `CannotMeasure` if the server's max_connections is too low."""
        allowed = int(self._fetch_value("show max_connections"))
        needed = connections + RESERVED_CONNECTIONS
        if needed > allowed:
            raise CannotMeasure(
                f"PostgreSQL allows {allowed} connections, but {needed} are needed:"
                " raise max_connections, or pass fewer --targets"
            )

    def count_added(self) -> int:
        """Wait until no statement runs; return the number of movies added since `reset`."""
        count = -1
        deadline = time.monotonic() + STATEMENTS_END_TIMEOUT_S
        while True:
            time.sleep(0.1)
            before, count = count, int(self._fetch_value("select count(*) from movies"))
            if count == before and not self._fetch_value(COUNT_RUNNING_STATEMENTS):
                return count - self.movies
            if time.monotonic() > deadline:
                raise CannotMeasure("statements still run although the load has ended")

    def reset(self) -> None:
        """Delete the added movies, so that every measurement starts with the same table."""
        with self._connection.cursor() as cursor:
            cursor.execute("delete from movies where id > %s", (self.movies,))
            cursor.execute("vacuum movies")
        self._checkpoint()

    def read_cpu_seconds(self) -> float | None:
        """Return the CPU seconds of the server and its backends; None if it runs elsewhere."""
        return cpu.read_tree_seconds(self._postmaster_pid) if self._postmaster_pid else None

    def _create_movies(self) -> None:
        _migrate(self.url)
        with self._connection.cursor() as cursor:
            # Autovacuum would slow down some measurements; `reset` vacuums between them.
            cursor.execute("alter table movies set (autovacuum_enabled = false)")
            cursor.execute(INSERT_MOVIES, (self.movies,))
            cursor.execute("vacuum (freeze, analyze) movies")
        self._checkpoint()

    def _checkpoint(self) -> None:
        """Write dirty pages now, not during a measurement, if the role may run a checkpoint."""
        with self._connection.cursor() as cursor, suppress(psycopg2.errors.InsufficientPrivilege):
            cursor.execute("checkpoint")

    def _fetch_value(self, query: str) -> str:
        with self._connection.cursor() as cursor:
            cursor.execute(query)
            row = cursor.fetchone()
        return row[0] if row else ""

    def _find_postmaster(self) -> int | None:
        """Return the parent of our backend, or None if the server runs on another machine."""
        backend = int(self._fetch_value("select pg_backend_pid()"))
        name = urlsplit(self.url).path.lstrip("/")
        try:
            line = (cpu.PROC / str(backend) / "cmdline").read_text()
        except OSError:
            return None
        return cpu.read_parent(backend) if line.startswith("postgres") and name in line else None


@contextmanager
def create_database(server: str | None, movies: int) -> Iterator[Database]:
    """Create a database, on this server or on an embedded one, and drop it at the end."""
    if server:
        with _create_on(server, movies) as database:
            yield database
        return
    # /tmp may be in memory, where nothing is durable; /var/tmp is on disk.
    with (
        tempfile.TemporaryDirectory(prefix="movie-catalogue-bench-", dir="/var/tmp") as folder,
        embedded.running(Path(folder)) as url,
        _create_on(url, movies) as database,
    ):
        yield database


@contextmanager
def _create_on(server: str, movies: int) -> Iterator[Database]:
    name = f"catalogue_bench_{secrets.token_hex(4)}"
    with closing(_connect(server)) as connection, connection.cursor() as cursor:
        cursor.execute(f"create database {name}")
        try:
            url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
            # urlunsplit drops the empty host of a Unix socket's URL.
            url = url.replace(":/", "://", 1) if "://" not in url else url
            with closing(Database(url, movies)) as database:
                yield database
        finally:
            cursor.execute(f"drop database {name} with (force)")


def _connect(url: str) -> psycopg2.extensions.connection:
    connection = psycopg2.connect(url)
    connection.autocommit = True
    return connection


def _migrate(url: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "service", "migrate"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url},
        stderr=subprocess.DEVNULL,
        check=True,
    )
