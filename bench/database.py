"""Creates the benchmark's database and restores its content between measurements."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from bench.lists import PATHS
from bench.machine import find_postmaster
from drills.lab import migrate
from service.database import embedded

# Some genres and words are frequent, others rare. The seed gives the same movies each time.
FILL = """
select setseed(0.5);
insert into movies (title, year, runtime, genres)
select
  'Movie ' || n || ' word' || (random() * random() * 400)::integer
    || ' word' || 400 + (random() * 5000)::integer,
  1950 + n % 70, 60 + n % 120,
  array['genre' || (random() * random() * 30)::integer, 'comedy' || n % 7]
from generate_series(1, {movies}) as n
order by n
"""
# The peer has these for its lists, as the service has its own. Writes would have to maintain them.
CREATE_INDEXES = """
create index if not exists peer_genres on movies using gin (genres);
create index if not exists peer_title on movies using gin (to_tsvector('simple', title))
"""
DROP_INDEXES = "drop index if exists peer_genres, peer_title"
STATEMENTS_END_TIMEOUT_S = 30  # after the load generator has stopped
COUNT_RUNNING_STATEMENTS = """
select count(*)
from pg_stat_activity
where datname = current_database() and backend_type = 'client backend'
  and pid <> pg_backend_pid() and state <> 'idle'
"""


class Database:
    """One database with `movies` movies, whose ids are 1 to `movies`."""

    def __init__(self, url: str, session: psycopg2.extensions.connection, movies: int) -> None:
        self.url = url
        self.movies = movies
        self._session = session
        session.autocommit = True
        self.version = str(self._fetch_value("show server_version"))
        self.durability = {
            name: str(self._fetch_value(f"show {name}"))
            for name in ("fsync", "synchronous_commit", "full_page_writes")
        }
        self.postmaster = find_postmaster(int(self._fetch_value("select pg_backend_pid()")))
        # Autovacuum would slow down some measurements; `reset` vacuums between them.
        self._execute("alter table movies set (autovacuum_enabled = false)")
        self._execute(FILL.format(movies=movies))  # n is also the id: the table is new
        self._execute("vacuum (freeze, analyze) movies")
        self._execute("checkpoint")

    def prepare(self, workload: str) -> None:
        """Create or drop the peer's indexes."""
        self._execute(CREATE_INDEXES if workload in PATHS else DROP_INDEXES)
        self._execute("vacuum analyze movies")

    def count_added(self) -> int:
        """Wait until no statement runs; return the number of movies added since `reset`."""
        deadline = time.monotonic() + STATEMENTS_END_TIMEOUT_S
        while self._fetch_value(COUNT_RUNNING_STATEMENTS):
            if time.monotonic() > deadline:
                raise RuntimeError("statements still run although the load has ended")
            time.sleep(0.1)
        return int(self._fetch_value("select count(*) from movies")) - self.movies

    def reset(self) -> None:
        """Delete the added movies, so that every measurement starts with the same table."""
        self._execute("delete from movies where id > %s", self.movies)
        self._execute("vacuum movies")
        self._execute("checkpoint")  # dirty pages are written now, not during a measurement

    def _fetch_value(self, query: str) -> Any:
        with self._session.cursor() as cursor:
            cursor.execute(query)
            row = cursor.fetchone()
        return row[0] if row else None

    def _execute(self, statement: str, *parameters: Any) -> None:
        with self._session.cursor() as cursor:
            cursor.execute(statement, parameters or None)


@contextmanager
def create_database(movies: int) -> Iterator[Database]:
    """Create a database of so many movies on an embedded PostgreSQL, and remove it at the end."""
    # /tmp may be in memory, where nothing is durable; /var/tmp is on disk.
    with (
        tempfile.TemporaryDirectory(prefix="movie-catalogue-bench-", dir="/var/tmp") as folder,
        embedded.running(Path(folder)) as url,
    ):
        migrate(url)
        with closing(psycopg2.connect(url)) as session:
            yield Database(url, session, movies)
