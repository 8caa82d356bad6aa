"""Runs the program `clients/movies.py`, which keeps a copy of the catalogue, through kills."""

import json
import random
import re
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack, closing
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from conftest import ROOT
from processes import free_port, get
from support import SERVICE, Environment, Execute, wait_until

PROGRAM = str(ROOT / "clients/movies.py")
WRITES = 40  # between two faults
INSERT = "insert into movies (title, year, runtime, genres) select 'x', 2000, n, '{x}' from "
STATEMENTS = [
    f"{INSERT} generate_series(1, 1 + (random() * 3)::integer) as n",
    "update movies set runtime = runtime + 1 where id % 7 = (random() * 7)::integer % 7",
    "update movies set year = 2000 where id % 5 = 1",  # often without effect
    "delete from movies where id % 11 = (random() * 11)::integer % 11",
]


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
    tmp_path: Path, environment: Environment, execute: Execute
) -> None:
    """Of the service and of the program, while movies are changed."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        served = environment | {"PORT": str(port), "LOG_LEVEL": "error"}
        service = Program([*SERVICE, "serve"], ROOT, served)
        stack.callback(service.stop)
        copy = Program([sys.executable, PROGRAM], tmp_path, environment | {"API": base})
        stack.callback(copy.stop)
        for fault in random.sample([service.kill, copy.kill, copy.kill], k=3):
            wait_until(lambda: get(f"{base}/v1/healthcheck/ready") == 200)
            for _ in range(WRITES):
                execute(random.choice(STATEMENTS))  # noqa: S311 - no secret
                time.sleep(random.random() * 0.1)  # noqa: S311 - no secret
            fault()
        wait_until(lambda: get(f"{base}/v1/healthcheck/ready") == 200)

        expected = read_catalogue(base)
        wait_until(lambda: read_copy(tmp_path) == expected)

    assert len(expected) > 0
