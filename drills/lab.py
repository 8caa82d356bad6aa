"""What a drill gets (`Lab`), and what it returns (`Checks`)."""

import itertools
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from drills.load import Load
from drills.postgres import Postgres
from drills.processes import Processes
from drills.service import Service, run_command, start_service

ROOT = Path(__file__).parents[1]
MOVIES = 10_000  # in the database of a drill
TEMPLATE = "movies"

# Every seventh movie shares a title's word, so that lists find some and not all.
FILL = """
insert into movies (title, year, runtime, genres)
select 'The Return of Number ' || n || case n % 7 when 0 then ' the Great' else '' end,
  1888 + n % 130, 60 + n % 120,
  case n % 3
    when 0 then array['drama', 'war']
    when 1 then array['comedy', 'romance']
    else array['animation', 'crime']
  end
from generate_series({first}, {last}) as n
order by n
"""


Run = Callable[["Lab", "Checks"], Coroutine[Any, Any, None]]


class NotRun(Exception):
    """The drill needs a program that is not installed; the message says which one."""


class Checks:
    """What a drill has found: figures, and which expectations they did not meet."""

    def __init__(self) -> None:
        self.figures: list[str] = []
        self.failures: list[str] = []

    def note(self, figure: str) -> None:
        """Report a figure without judging it."""
        self.figures.append(figure)

    def require(self, condition: object, figure: str) -> None:
        """Report a figure, which is wrong if the condition is false."""
        self.figures.append(figure)
        if not condition:
            self.failures.append(figure)

    def audit(self, load: Load, server: Postgres, database: str) -> None:
        """Compare what was acknowledged with the database."""
        wrong = load.audit(server, database)
        figure = f"audit of {len(load.known):,} movies: {len(wrong)} wrong"
        self.require(not wrong, "; ".join([figure, *wrong[:3]]))
        self.require(load.known, f"{len(load.known):,} movies acknowledged")


@dataclass(frozen=True)
class Drill:
    """One drill: what is done, and what is expected."""

    name: str
    done: str
    expected: str
    run: Run


DRILLS: dict[str, Drill] = {}


def drill(done: str, expected: str) -> Callable[[Run], Run]:
    """Register a function as a drill, under its name with hyphens."""

    def register(run: Run) -> Run:
        name = run.__name__.replace("_", "-")
        DRILLS[name] = Drill(name, done, expected, run)
        return run

    return register


@dataclass
class Lab:
    """Servers, databases and services, all below `folder`; `tree` is the service's source."""

    tree: Path
    folder: Path
    processes: Processes
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @cached_property
    def postgres(self) -> Postgres:
        """A server for all drills, which they may stop as long as they start it again."""
        server = Postgres(self.processes, self.folder / "postgres")
        server.create()
        server.execute("postgres", f"create database {TEMPLATE}")
        self.migrate(server.url(TEMPLATE))
        server.execute(TEMPLATE, FILL.format(first=1, last=MOVIES))
        server.execute(TEMPLATE, "vacuum analyze movies")
        return server

    def database(self) -> str:
        """Make a database of `MOVIES` movies; return its name."""
        name = f"drill_{next(self._numbers)}"
        self.postgres.execute(
            "postgres", f"create database {name} template {TEMPLATE} strategy file_copy"
        )
        return name

    def new_folder(self, name: str) -> Path:
        """Return a path for a folder that does not exist yet."""
        return self.folder / f"{name}-{next(self._numbers)}"

    def migrate(self, url: str) -> None:
        """Apply all migrations."""
        done = run_command(self.tree, url, "migrate")
        if done.returncode != 0:
            raise RuntimeError(f"migrate failed: {done.stdout}{done.stderr}")

    def start(self, url: str, **options: Any) -> Service:
        """Start the service, and do not wait for it; `options` as of `start_service`."""
        log = self.new_folder("service").with_suffix(".log")
        return start_service(self.processes, self.tree, log, url, **options)

    async def serve(self, url: str, **options: Any) -> Service:
        """Start the service and wait until it is ready."""
        service = self.start(url, **options)
        await service.wait_until_ready()
        return service


@contextmanager
def open_lab(tree: Path) -> Iterator[Lab]:
    """Yield a lab; at the end all its processes are stopped and all its files deleted."""
    # /var/tmp is on disk; /tmp may be memory.
    with tempfile.TemporaryDirectory(prefix="movie-catalogue-drills-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)  # for the account that runs PostgreSQL
        processes = Processes()
        try:
            yield Lab(tree, folder, processes)
        finally:
            processes.stop_all()
