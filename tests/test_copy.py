"""Runs the program `clients/movies.py`, which keeps a copy of the catalogue, through kills."""

import json
import random
import re
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psycopg2
from conftest import ROOT
from processes import free_port, get
from servers import kill_postgres
from support import SERVICE, Environment, wait_until

from service.database import embedded
from service.database.migrations import runner as migrations

PROGRAM = str(ROOT / "clients/movies.py")
WRITERS = 3
COMMITS = 40  # between two faults
INSERT = "insert into movies (title, year, runtime, genres) select 'x', 2000, n, '{x}' from "
STATEMENTS = [
    f"{INSERT} generate_series(1, 1 + (random() * 3)::integer) as n",
    "update movies set runtime = runtime + 1 where id % 7 = (random() * 7)::integer % 7",
    "update movies set year = 2000 where id % 5 = 1",  # often without effect
    "delete from movies where id % 11 = (random() * 11)::integer % 11",
]


class Writers:
    """Threads that write in transactions, and connect again if PostgreSQL is killed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.commits = 0
        self.must_stop = threading.Event()
        self.threads = [
            threading.Thread(target=self.work, args=(n, random.random()))  # noqa: S311 - no secret
            for n in range(WRITERS)
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write."""
        for thread in self.threads:
            thread.start()
        yield
        self.must_stop.set()
        for thread in self.threads:
            thread.join()

    def work(self, number: int, seed: float) -> None:
        """Run transactions; the first thread's are long, and hold no lock that others wait for."""
        choose = random.Random(seed)  # noqa: S311 - no secret
        statements = STATEMENTS[:1] if number == 0 else STATEMENTS
        while not self.must_stop.is_set():
            with suppress(psycopg2.Error), closing(psycopg2.connect(self.url)) as connection:
                cursor = connection.cursor()
                while not self.must_stop.is_set():
                    for _ in range(choose.randint(1, 3)):
                        cursor.execute(choose.choice(statements))
                    if number == 0:
                        end = self.commits + COMMITS // 2
                        wait_until(lambda: self.commits >= end or self.must_stop.is_set())  # noqa: B023
                    choose.choice([connection.commit, connection.commit, connection.rollback])()
                    self.commits += 1


class Program:
    """A process that is started again after it was killed."""

    def __init__(self, command: list[str], folder: Path, environment: Environment) -> None:
        self.run = partial(
            subprocess.Popen, command, cwd=folder, env=environment, stdout=subprocess.DEVNULL
        )
        self.process = self.run()

    def kill(self) -> None:
        """Kill it with -9, and start it again."""
        self.stop()
        self.process = self.run()

    def stop(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()


def is_running(url: str) -> bool:
    """Whether PostgreSQL accepts connections."""
    try:
        psycopg2.connect(url).close()
    except psycopg2.OperationalError:
        return False
    return True


def read_copy(folder: Path) -> list[object]:
    """Return the movies of the copy, by id."""
    with closing(sqlite3.connect(folder / "copy.db")) as copy:
        rows = copy.execute("select movie from movies order by id").fetchall()
    return [json.loads(movie) for (movie,) in rows]


def read_catalogue(base: str) -> list[object]:
    """Return all movies, by id."""
    accept = {"Accept": "application/x-ndjson"}
    request = urllib.request.Request(f"{base}/v1/movies?sort=id", headers=accept)  # noqa: S310 - ours
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - ours
        movies = [json.loads(line) for line in response.read().splitlines()]
        assert len(movies) == int(response.headers["Total-Records"])
        return movies


class CutOff(BaseHTTPRequestHandler):
    """Sends a list that lacks its last movie, and ends as if it were whole."""

    def do_GET(self) -> None:
        """200, and one of two movies."""
        self.send_response(200)
        self.send_header("Total-Records", "2")
        self.send_header("Changes-Cursor", "x")
        self.end_headers()
        self.wfile.write(b'{"id": 1}\n')


def test_a_copy_is_not_made_of_a_list_that_lacks_movies(
    tmp_path: Path, environment: Environment
) -> None:
    """The program counts them: not every proxy tells its client that a list broke off."""
    with HTTPServer(("127.0.0.1", 0), CutOff) as server, ExitStack() as stack:
        threading.Thread(target=server.serve_forever).start()
        stack.callback(server.shutdown)
        copied = environment | {"API": f"http://127.0.0.1:{server.server_port}"}
        command = [sys.executable, "-u", PROGRAM]
        copy = stack.enter_context(
            subprocess.Popen(command, cwd=tmp_path, env=copied, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(copy.kill)

        said = copy.stdout.readline()  # type: ignore[union-attr] # it is a pipe

    assert said == "the list broke off after 1 movies\n"
    assert read_copy(tmp_path) == []


class Refusing(BaseHTTPRequestHandler):
    """Is away for two requests, and then takes the token no more."""

    statuses = iter((503, 503, 401))

    def do_GET(self) -> None:
        """An empty response."""
        self.send_response(next(self.statuses))
        self.end_headers()


def test_a_copy_waits_for_the_service_and_ends_if_it_is_refused(
    tmp_path: Path, environment: Environment
) -> None:
    """However long the service is away: here, the client repeats no request by itself."""
    source = re.sub("(?m)^PAUSES_S = .*", "PAUSES_S = ()", Path(PROGRAM).read_text())
    with HTTPServer(("127.0.0.1", 0), Refusing) as server, ExitStack() as stack:
        threading.Thread(target=server.serve_forever).start()
        stack.callback(server.shutdown)
        copied = environment | {"API": f"http://127.0.0.1:{server.server_port}"}
        command = [sys.executable, "-u", "-c", source]
        ended = subprocess.run(
            command,
            check=False,
            cwd=tmp_path,
            env=copied,
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert re.findall("^[0-9]+", ended.stdout, re.MULTILINE) == ["503", "503"]
    assert "Problem: 401" in ended.stderr
    assert ended.returncode == 1


def test_a_copy_is_exact_after_kills(
    folder: Path, tmp_path: Path, environment: Environment
) -> None:
    """Of the service, of PostgreSQL and of the program, while transactions stay open for long."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        url = stack.enter_context(embedded.running(folder))
        migrations.upgrade(url, ROOT / "migrations", lambda _: None)
        served = environment | {"DATABASE_URL": url, "PORT": str(port), "LOG_LEVEL": "error"}
        service = Program([*SERVICE, "serve"], ROOT, served)
        stack.callback(service.stop)
        copied = environment | {"API": base}
        copy = Program([sys.executable, PROGRAM], tmp_path, copied)
        stack.callback(copy.stop)

        def kill_database() -> None:
            kill_postgres(url)
            wait_until(lambda: not is_running(url))
            stack.enter_context(embedded.running(folder))

        faults = [service.kill, copy.kill, kill_database]
        random.shuffle(faults)
        writers = Writers(url)
        with writers.running():
            for fault in faults:
                target = writers.commits + COMMITS
                wait_until(lambda: writers.commits >= target)  # noqa: B023
                fault()
        wait_until(lambda: get(f"{base}/v1/healthcheck/ready") == 200)

        expected = read_catalogue(base)
        wait_until(lambda: read_copy(tmp_path) == expected)

    assert len(expected) > 0
