"""Helpers of several tests."""

import asyncio
import inspect
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg2
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient

from service.__main__ import main
from service.clients.clients import hash_token, make_token
from service.movies.movie import FORM
from service.telemetry.metrics import Metric, Metrics

Environment = dict[str, str]
Execute = Callable[..., list[tuple[Any, ...]]]
Logs = list[Any]  # what is logged
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

CHECKOUT = Path(__file__).parent.parent
SERVICE = [sys.executable, "-m", "service"]

WAIT_S = 90.0  # waits take milliseconds, but seconds on a loaded machine
POLL_S = 0.01
# A server may hang because of a test; this interrupts also `drop database`.
SESSION_OPTIONS = "-c statement_timeout=100s"
RUN_FOLDER = "TEST_RUN_FOLDER"  # a variable: the folder of all servers of this run
FAST = "-c fsync=off -c synchronous_commit=off -c full_page_writes=off"  # options of a server
SERVER_BYTES = 512 * 1024 * 1024  # a server's folder may need so much


class Definition(NamedTuple):
    """What operators know of a metric."""

    name: str
    kind: str  # counter, gauge or histogram
    labels: tuple[str, ...]


def list_metrics() -> list[Definition]:
    """Return the name, type and labels of every metric."""
    found: list[Definition] = []

    class Recorder(Metrics):
        def add(
            self,
            kind: type[Metric],
            name: str,
            text: str,
            labels: tuple[str, ...] = (),
            **options: Any,
        ) -> Metric:
            found.append(Definition(f"catalogue_{name}", kind.__name__.lower(), labels))
            return super().add(kind, name, text, labels, **options)

    Recorder(is_enabled=False)
    return found


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true; it may be a coroutine function."""
    async with asyncio.timeout(WAIT_S):
        while True:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            await asyncio.sleep(POLL_S)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true, without an event loop."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(POLL_S)


class StoppedClock:
    """Stands for the module `time` of code under test; only the test moves it."""

    def __init__(self, now: float) -> None:
        self.now = now

    def time(self) -> float:
        """Return the time, as `time.time` does."""
        return self.now


def get_app(client: TestClient[Any, Any]) -> web.Application:
    """Return the application of a client's service."""
    app: web.Application = client.server.app  # type: ignore[attr-defined] # conftest's Service
    return app


async def approve(_: object) -> None:
    """Accept every database, instead of verifying the first connection."""


def read_token_function() -> str:
    """Return the shell function of the guides that makes curl send a token."""
    text = (Path(__file__).parent.parent / "docs/clients/guides.md").read_text()
    (function,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return str(function)


def movie_tag(version: int = 1, movie_id: int = 1) -> str:
    """Return the entity tag of a version of a movie."""
    return f'"{movie_id}-{version}{FORM}"'


def add_movies(execute: Execute, *titles: str, year: int = 2000) -> None:
    """Insert movies with these titles, of one minute and the genre x."""
    sql = "insert into movies (title, year, runtime, genres) select unnest(%s), %s, 1, '{x}'"
    execute(sql, list(titles), year)


def add_trigger(execute: Execute, body: str, when: str = "before insert") -> None:
    """Run PL/pgSQL for each movie that is written so."""
    execute(
        f"create function act() returns trigger language plpgsql as $$ begin {body} end $$;"
        f"create trigger act {when} on movies for each row execute function act()"
    )


async def copy_stream(client: TestClient[Any, Any]) -> tuple[dict[int, int], str]:
    """Return the versions of all movies by id, and the cursor of changes, from a stream.

    Raises `aiohttp.ClientError`, as the other functions do.
    """
    accept = {"Accept": "application/x-ndjson"}
    response = await client.get("/v1/movies", headers=accept, raise_for_status=True)
    movies = [json.loads(line) for line in (await response.text()).splitlines()]
    return {movie["id"]: movie["version"] for movie in movies}, response.headers["Changes-Cursor"]


async def copy_pages(client: TestClient[Any, Any]) -> tuple[dict[int, int], str]:
    """Return the same, page by page."""
    response = await client.get("/v1/movies?sort=id&page_size=20", raise_for_status=True)
    page, changes = await response.json(), response.headers["Changes-Cursor"]
    movies = page["movies"]
    while cursor := page["metadata"]["next_cursor"]:
        parameters = {"sort": "id", "page_size": "20", "cursor": cursor}
        response = await client.get("/v1/movies", params=parameters, raise_for_status=True)
        page = await response.json()
        movies += page["movies"]
    return {movie["id"]: movie["version"] for movie in movies}, changes


async def follow(
    client: TestClient[Any, Any], movies: dict[int, int], cursor: str
) -> tuple[int, str]:
    """Apply the next changes to a copy; return their number, and the cursor after them."""
    response = await client.get("/v1/changes", params={"after": cursor}, raise_for_status=True)
    page = await response.json()
    for change in page["changes"]:
        movies.pop(change["id"], None)
        if movie := change.get("movie"):
            movies[movie["id"]] = movie["version"]
    return len(page["changes"]), str(page["metadata"]["next_cursor"])


def set_for_database(execute: Execute, setting: str) -> None:
    """Change a default of the test's database for new connections."""
    ((name,),) = execute("select current_database()")
    execute(f"begin read write; alter database {name} set {setting}; commit")


@contextmanager
def hold(url: str, sql: str) -> Iterator[Any]:
    """Keep a transaction of another session open in which `sql` has run; yield its connection.

    It waits at most 10 s for a lock: meanwhile the event loop stands still, and a service in this
    process cannot end its transaction.
    """
    with closing(psycopg2.connect(url, options="-c lock_timeout=10s")) as other:
        other.cursor().execute(sql)
        yield other


def count_deadlocks(execute: Execute) -> int:
    """Return the number of deadlocks; end all sessions first, because only then they report."""
    execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    ((deadlocks,),) = execute(
        "select deadlocks from pg_stat_database where datname = current_database()"
    )
    return int(deadlocks)


def with_user(url: str, user: str) -> str:
    """Replace the user of a database's URL."""
    return re.sub("//[^@]*@", f"//{user}@", url)


def make_folder() -> Path:
    """Make a new folder that the server's account can reach, in memory if there is room."""
    memory = Path("/dev/shm")  # noqa: S108 - mkdtemp makes it private
    has_room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= SERVER_BYTES
    parent = os.environ.get(RUN_FOLDER, memory if has_room else None)
    return Path(tempfile.mkdtemp(prefix="movie-catalogue-", dir=parent))


def stop_servers(folder: Path) -> None:
    """Stop the PostgreSQL servers below a folder that ended processes have left; remove it."""
    for file in folder.glob("**/postmaster.pid"):
        with suppress(ProcessLookupError):
            os.kill(int(file.read_text().split()[0]), signal.SIGQUIT)  # kills its backends, too
        with suppress(AssertionError):
            wait_until(lambda: not file.exists())  # noqa: B023
    shutil.rmtree(folder, ignore_errors=True)


def add_client(
    execute: Execute, *scopes: str, expires: str = "infinity", revoked: str | None = None
) -> str:
    """Insert a client with these scopes, and return its token; times as PostgreSQL reads them."""
    ((client_id,),) = execute(
        "insert into clients (name, token_hash, scopes, expires_at, revoked_at)"
        " values (gen_random_uuid(), repeat('0', 64), %s, %s, %s) returning id",
        list(scopes),
        expires,
        revoked,
    )
    token = make_token(client_id)
    execute("update clients set token_hash = %s where id = %s", hash_token(token), client_id)
    return token


def bearer(token: str) -> dict[str, str]:
    """Return the header that sends a token."""
    return {"Authorization": f"Bearer {token}"}


def run_here(environment: Environment, *words: str) -> tuple[int, str, str]:
    """Run a command as `processes.run` does, but in this process, which is faster by 0.5 s.

    Not after a request to a service of the test: its log line may come late, into this stdout.
    """
    with (
        tempfile.TemporaryFile("w+") as out,  # tokens are written to its number
        redirect_stdout(out),
        redirect_stderr(io.StringIO()) as err,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in environment.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main.main(words, prog_name="service")
        out.seek(0)
        status = ended.value.code
        assert isinstance(status, int)
        return status, out.read(), err.getvalue()


@contextmanager
def started(environment: Environment, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command with pipes for stdin, stdout and stderr."""
    with subprocess.Popen(
        [*SERVICE, *words],
        cwd=CHECKOUT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
