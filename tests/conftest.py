"""Fixtures: a real PostgreSQL and the real server.

Each worker of pytest-xdist has a throwaway PostgreSQL, and each test a database, copied from a
migrated template (some 10 ms) and dropped in the end: 1000 of them would take 8 GB of memory.

With TEST_DATABASE_URL, the databases are made on that server instead. It
must be on this machine, trust its clients, allow 200 connections, and its user be a superuser:

    TEST_DATABASE_URL=postgresql://postgres@127.0.0.1:5433/postgres make test

A run ends whatever a test does. pytest-timeout interrupts Python, but no call of libpq; a watchdog
ends a process that hangs in one, and pytest-xdist reports the test and starts another process. The
first process of the run stops the servers that such a process has left, and removes their folders.
"""

import asyncio
import faulthandler
import itertools
import os
import random
import secrets
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

import psycopg2
import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import BaseTestServer, TestClient
from aiohttp.typedefs import Handler
from link import Link, opened
from structlog.testing import capture_logs
from support import FAST, RUN_FOLDER, SESSION_OPTIONS, approve, make_folder, stop_servers
from wire import Stream
from yarl import URL

from service import config
from service.app import EXPECTED, POOL, create_app
from service.config import Config
from service.database import embedded, query_files
from service.database.migrations import runner as migrations
from service.database.pool import Pool
from service.database.query import Expected, Query
from service.database.statements import Statements
from service.web.server import Runner

ROOT = Path(__file__).parent.parent
AWAY = "postgresql://nobody@127.0.0.1:9/nothing"  # nobody listens there
HANG_S = 330  # longer than pytest-timeout waits
HANG_AT_END_S = 120  # of a test that has failed, for example as it took too long
WATCHDOG_OUTPUT = pytest.StashKey[int]()
MOANA = {"title": "Moana", "year": 2016, "runtime": "107 mins", "genres": ["animation"]}

Client = TestClient[web.Request, None]
Connect = Callable[..., Awaitable[Stream]]
MakeStatements = Callable[..., Any]  # the statements of a process


class Start(Protocol):
    """Starts a service with these settings; `section__key=value` each.

    It takes the test's database for verified, which saves 90 ms, unless the test has another
    database or other files.
    """

    def __call__(self, **settings: Any) -> Awaitable[Client]:
        """Return its client."""
        ...


def pytest_configure(config: pytest.Config) -> None:
    """Keep stderr for the watchdog; the first process makes the folder for all servers."""
    # What tests start inherits an ignored Ctrl-C, as of a run in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[WATCHDOG_OUTPUT] = os.dup(2)  # while a test runs, 2 is a file
    if RUN_FOLDER not in os.environ:  # workers of pytest-xdist inherit it
        folder = make_folder()
        folder.chmod(0o755)  # open to the servers' account
        os.environ[RUN_FOLDER] = str(folder)
        config.add_cleanup(lambda: stop_servers(folder))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Turn the watchdog off between two tests."""
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End the process if a test hangs: pytest-timeout could not interrupt it."""
    watch(item, HANG_S)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Watch the end, too: pytest has turned off all timeouts of a test that has failed."""
    watch(item, HANG_AT_END_S)


def watch(item: pytest.Item, limit_s: float) -> None:
    """Print all stacks and end the process after this time."""
    faulthandler.dump_traceback_later(limit_s, exit=True, file=item.config.stash[WATCHDOG_OUTPUT])


@pytest.fixture(autouse=True)
def seeded_random() -> None:
    """Let a failed test show its seed; the variable TEST_SEED runs it once more with that."""
    seed = os.environ.get("TEST_SEED") or secrets.token_hex(4)
    random.seed(seed)
    print(f"TEST_SEED={seed}")  # noqa: T201 - pytest shows it for a failed test


@pytest.fixture(autouse=True)
def unconfigured_logs() -> Iterator[None]:
    """Leave the logs as an import does: `capture_logs` configures them."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def made_once() -> Iterator[None]:
    """Load the queries of the checkout once: no test changes these files."""
    load = query_files.load
    queries = load(ROOT / "queries", EXPECTED)

    def load_once(folder: Path, expected: Mapping[str, Expected]) -> dict[str, Query]:
        is_known = folder == ROOT / "queries" and expected is EXPECTED
        return {**queries} if is_known else load(folder, expected)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_files, "load", load_once)
        yield


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """Return the URL of the worker's PostgreSQL, or of the one in TEST_DATABASE_URL."""
    if url := os.environ.get("TEST_DATABASE_URL"):
        given = {"host": "127.0.0.1", "port": "5432"} | psycopg2.extensions.parse_dsn(url)
        address = urlencode({"host": given["host"], "port": given["port"]})
        yield f"postgresql://{given['user']}@/{given['dbname']}?{address}"  # as the embedded one
        return
    folder = make_folder()
    with embedded.running(folder, FAST) as url:
        yield url
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def maintain(server_url: str) -> Callable[[str], None]:
    """Run SQL about databases."""

    def run(sql: str) -> None:
        with closing(psycopg2.connect(server_url, options=SESSION_OPTIONS)) as connection:
            connection.autocommit = True
            connection.cursor().execute(sql)

    return run


@pytest.fixture(scope="session")
def new_database(
    server_url: str, maintain: Callable[[str], None]
) -> Iterator[Callable[[str], str]]:
    """Copy a database for the whole run and return the URL of the copy."""
    numbers = itertools.count()
    own = "TEST_DATABASE_URL" not in os.environ
    strategy = "strategy file_copy" if own else ""  # faster without fsync

    def copy(template: str) -> str:
        name = f"test_{os.getpid()}_{next(numbers)}"
        maintain(f"create database {name} template {template} {strategy}")
        return urlsplit(server_url)._replace(path=f"/{name}").geturl()

    yield copy
    if not own:
        for number in range(next(numbers)):
            maintain(f"drop database if exists test_{os.getpid()}_{number} with (force)")


@pytest.fixture
def brief_database(
    new_database: Callable[[str], str], maintain: Callable[[str], None]
) -> Iterator[Callable[[str], str]]:
    """Copy a database for one test and return the URL of the copy."""
    urls: list[str] = []

    def copy(template: str) -> str:
        urls.append(new_database(template))
        return urls[-1]

    yield copy
    for url in urls:
        with suppress(psycopg2.errors.ObjectInUse):  # because of a prepared transaction
            maintain(f"drop database {urlsplit(url).path[1:]} with (force)")


@pytest.fixture(scope="session")
def template(new_database: Callable[[str], str]) -> str:
    """Return the name of a migrated database without connections."""
    url = new_database("template0")
    migrations.upgrade(url, ROOT / "migrations", lambda _: None)
    return str(psycopg2.extensions.parse_dsn(url)["dbname"])


@pytest.fixture
def empty_database(brief_database: Callable[[str], str]) -> str:
    """The URL of an empty database."""
    return brief_database("template0")


@pytest.fixture
def database(brief_database: Callable[[str], str], template: str) -> str:
    """The URL of a migrated database without movies."""
    return brief_database(template)


@pytest.fixture
def settings(database: str) -> Callable[..., Config]:
    """The settings of config.toml with a database of the test's own; `section__key=value` each.

    A connection may take longer than the usual 2 s: on a loaded machine it does.
    """
    environ = {"DATABASE_URL": database, "CATALOGUE_DATABASE_ACQUIRE_TIMEOUT": "6"}

    def change(**changes: Any) -> Config:
        result = config.load(ROOT / "config.toml", environ)
        for name, value in changes.items():
            section, _, key = name.partition("__")
            if not key:
                result = replace(result, **{section: value})
                continue
            assert key in {field.name for field in fields(getattr(result, section))}
            result = replace(result, **{section: replace(getattr(result, section), **{key: value})})
        return result

    return change


class Service(BaseTestServer):
    """The service as production runs it, on a free port."""

    def __init__(self, settings: Config, *, verify: bool = True) -> None:
        super().__init__()
        self.settings = settings
        self.app = create_app(settings)
        if not verify:
            self.app[POOL]._verify = None  # noqa: SLF001 - production verifies

    async def start_server(self, *_: Any, **__: Any) -> None:
        """Listen as production does; aiohttp's own method would make its own connections."""
        if self.runner:
            return
        self.runner = runner = await self._make_runner()
        await runner.setup()
        listener = socket.create_server((self.host, 0))
        self.port = listener.getsockname()[1]
        self._root = URL(f"http://{self.host}:{self.port}")
        try:
            await runner.listen([listener])
        except BaseException:
            listener.close()
            raise

    async def _make_runner(self, **_: Any) -> Runner:
        return Runner(self.app)


@pytest.fixture
async def opened_here() -> AsyncIterator[AsyncExitStack]:
    """What a test opens; it is closed also if the test fails, or a service does not start."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def run_service(opened_here: AsyncExitStack) -> Callable[[Service], Awaitable[Client]]:
    """Start a service and return a client of it."""

    async def begin(service: Service) -> Client:
        client: Client = TestClient(service)
        opened_here.push_async_callback(client.close)
        await client.start_server()
        return client

    return begin


@pytest.fixture
def connect(opened_here: AsyncExitStack) -> Connect:
    """Open a connection to a service, by its client or URL; `options` say how else to reach it."""

    async def begin(service: Client | URL, **options: Any) -> Stream:
        options = options or {"host": service.host, "port": service.port}
        reader, writer = await asyncio.open_connection(**options)
        opened_here.push_async_callback(end, writer)
        return reader, writer

    async def end(writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()

    return begin


@pytest.fixture
def start(
    run_service: Callable[[Service], Awaitable[Client]], settings: Callable[..., Config]
) -> Start:
    """Start a service with these settings and return a client of it."""

    async def begin(**changes: Any) -> Client:
        is_other = not changes.keys().isdisjoint(("database", "database__url", "root"))
        return await run_service(Service(settings(**changes), verify=is_other))

    return begin


@pytest.fixture
def start_with(
    run_service: Callable[[Service], Awaitable[Client]], settings: Callable[..., Config]
) -> Any:
    """Start a service with one more route, /handler, and return a client of it."""

    async def begin(handler: Handler, **changes: Any) -> Client:
        service = Service(settings(**changes))
        service.app.router.add_get("/handler", handler)
        return await run_service(service)

    return begin


@pytest.fixture
async def client(start: Start) -> Client:
    """A client of a service with the settings of config.toml."""
    return await start()


@pytest.fixture
def execute(database: str) -> Callable[..., list[tuple[Any, ...]]]:
    """Run SQL in the test's database, as a DBA would, and return its rows."""

    def run(sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with closing(psycopg2.connect(database, options=SESSION_OPTIONS)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(sql, parameters or None)
                return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
def environment(database: str) -> dict[str, str]:
    """Return the environment for a process of the service: only variables that Python needs."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    return environment | {"DATABASE_URL": database}


@pytest.fixture
def checkout() -> Iterator[Path]:
    """Copy the files that the service reads to a new folder."""
    folder = make_folder()
    shutil.copy(ROOT / "config.toml", folder)
    for name in ("queries", "migrations"):
        shutil.copytree(ROOT / name, folder / name)
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def make_statements(settings: Callable[..., Config]) -> AsyncIterator[MakeStatements]:
    """Make the statements of a process, of this class and with these queries and settings."""
    pools = []

    def make(
        kind: type[Statements] = Statements,
        queries: Mapping[str, Query] | None = None,
        slow: float = 0,
        **changes: Any,
    ) -> Statements:
        config = settings(**changes)
        pools.append(Pool(config.database, approve))
        queries = queries or query_files.load(config.root / "queries", EXPECTED)
        return kind(pools[-1], queries, config.database.statement_timeout, slow)

    yield make
    for pool in pools:
        await pool.close(timeout=0)


@pytest.fixture
def statements(make_statements: MakeStatements) -> Any:
    """Return the statements of a process."""
    return make_statements()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder for a durable server, or for several."""
    folder = make_folder()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def link(database: str) -> AsyncIterator[Link]:
    """A network to the test's database."""
    async with opened(database) as link:
        yield link


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    """What is logged."""
    with capture_logs() as logs:
        yield logs
