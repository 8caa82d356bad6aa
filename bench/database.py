"""The database under test: durable, filled with movies, and put back between two measurements."""

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
SETTLING = 30  # seconds that statements may go on after the load has ended
BUSY = """
select count(*)
from pg_stat_activity
where datname = current_database() and backend_type = 'client backend'
  and pid <> pg_backend_pid() and state <> 'idle'
"""
RESERVED = 5  # connections for PostgreSQL's superusers and for this module

# `n` is the id too: the table is new. Titles and genres are of ordinary length.
FILL = """
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


class Unfit(Exception):
    """The database cannot be measured with; the message says why."""


class Database:
    """One database with `movies` movies, whose ids are 1 to `movies`."""

    def __init__(self, url: str, movies: int) -> None:
        self.url = url
        self.movies = movies
        self._connection = _connect(url)
        self.version = str(self._ask("show server_version"))
        self.durable = {
            name: self._ask(f"show {name}")
            for name in ("fsync", "synchronous_commit", "full_page_writes")
        }
        self.postmaster = self._postmaster()
        self._fill()

    def close(self) -> None:
        """Leave it."""
        self._connection.close()

    def require(self, connections: int) -> None:
        """Raise `Unfit` where the server does not permit that many connections."""
        permitted = int(self._ask("show max_connections"))
        if connections + RESERVED > permitted:
            raise Unfit(
                f"PostgreSQL permits {permitted} connections and {connections + RESERVED} are"
                " needed: raise max_connections, or choose fewer with --targets"
            )

    def added(self) -> int:
        """How many movies were created since the last `reset`, once nothing is under way."""
        count = -1
        deadline = time.monotonic() + SETTLING
        while True:
            time.sleep(0.1)
            before, count = count, int(self._ask("select count(*) from movies")) - self.movies
            if count == before and not self._ask(BUSY):
                return count
            if time.monotonic() > deadline:
                raise Unfit(f"the database is still busy {SETTLING} s after the load ended")

    def reset(self) -> None:
        """Remove what was created, so that every measurement finds the same table."""
        with self._connection.cursor() as cursor:
            cursor.execute("delete from movies where id > %s", (self.movies,))
            cursor.execute("vacuum movies")
        self._checkpoint()

    def cpu(self) -> float | None:
        """CPU seconds of the server and its backends; None where they are not on this machine."""
        return cpu.seconds(self.postmaster) if self.postmaster else None

    def _fill(self) -> None:
        _migrate(self.url)
        with self._connection.cursor() as cursor:
            # Vacuum runs between the measurements, for all alike, and not within one of them.
            cursor.execute("alter table movies set (autovacuum_enabled = false)")
            cursor.execute(FILL, (self.movies,))
            cursor.execute("vacuum (freeze, analyze) movies")
        self._checkpoint()

    def _checkpoint(self) -> None:
        """Have pages written now, and not within a measurement, where we may say so."""
        with self._connection.cursor() as cursor, suppress(psycopg2.errors.InsufficientPrivilege):
            cursor.execute("checkpoint")

    def _ask(self, query: str) -> str:
        with self._connection.cursor() as cursor:
            cursor.execute(query)
            row = cursor.fetchone()
        return row[0] if row else ""

    def _postmaster(self) -> int | None:
        """The parent of our backend, if that process is really our backend."""
        backend = int(self._ask("select pg_backend_pid()"))
        name = urlsplit(self.url).path.lstrip("/")
        try:
            line = (cpu.PROC / str(backend) / "cmdline").read_text()
        except OSError:
            return None
        return cpu.parent(backend) if line.startswith("postgres") and name in line else None


@contextmanager
def running(server: str | None, movies: int) -> Iterator[Database]:
    """Make a database, on this server or on an embedded one, and drop it at the end."""
    if server:
        with _database(server, movies) as database:
            yield database
        return
    # /var/tmp is on disk, where /tmp may be memory, in which nothing is durable.
    folder = Path(tempfile.mkdtemp(prefix="movie-catalogue-bench-", dir="/var/tmp"))
    with embedded.running(folder, throwaway=True) as url, _database(url, movies) as database:
        yield database


@contextmanager
def _database(server: str, movies: int) -> Iterator[Database]:
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
