"""The input of a drill (`Lab`), its result (`Checks`), and the choice of drills."""

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from drills.load import Load, Sent, list_problems, summarize
from drills.postgres import Postgres
from drills.processes import Processes, find_free_port
from drills.service import ROOT, Service, make_environment

MOVIES = 10_000  # in the database of a drill
TEMPLATE = "movies"

# Every seventh title contains the same word, so that a list finds some movies and not all.
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


class Checks:
    """The findings of a drill: figures, and the expectations that they did not meet."""

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

    def require_statuses(self, name: str, sent: list[Sent], *allowed: int) -> None:
        """Report these requests; there must be some, and all of them with these statuses."""
        self.require(sent and not list_problems(sent, *allowed), f"{name}: {summarize(sent)}")

    def audit(self, load: Load, server: Postgres, database: str) -> None:
        """Compare what was acknowledged with the database."""
        wrong = load.audit(server, database)
        figure = f"audit of {len(load.known):,} movies: {len(wrong)} wrong"
        self.require(load.known and not wrong, "; ".join([figure, *wrong[:3]]))


DRILLS: dict[str, Run] = {}


def drill(run: Run) -> Run:
    """Register a function as a drill, under its name with hyphens."""
    DRILLS[run.__name__.replace("_", "-")] = run
    return run


def only(known: Collection[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the option `--only`, which chooses some of these names; all by default."""

    def choose(_: object, __: object, names: str) -> list[str]:
        chosen = [name.strip() for name in names.split(",") if name.strip()]
        if unknown := [name for name in chosen if name not in known]:
            raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(known)}")
        return chosen or [*known]

    text = f"Some of: {', '.join(known)}."
    return click.option("--only", "names", default="", callback=choose, help=text)


@dataclass
class Lab:
    """Servers, databases and services, all below `folder`."""

    folder: Path
    processes: Processes
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @cached_property
    def postgres(self) -> Postgres:
        """A server for all drills, which they may stop as long as they start it again."""
        return self.make_server("postgres", TEMPLATE, MOVIES)

    def make_server(self, folder: str, database: str, movies: int) -> Postgres:
        """Start a server with a database of so many movies."""
        server = Postgres(self.processes, self.new_folder(folder))
        server.create()
        server.execute("postgres", f"create database {database}")
        migrate(server.url(database))
        server.execute(database, FILL.format(first=1, last=movies))
        server.execute(database, "vacuum analyze movies")
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

    async def serve(
        self,
        database_url: str,
        *,
        workers: int | None = None,
        settings: Mapping[str, object] | None = None,
        port: int | None = None,
        folder: Path = ROOT,
    ) -> Service:
        """Start the service of `folder` and wait until it is ready; with `workers`, under gunicorn.

        `settings` are like {"database_max_open": 5}.
        """
        port = port or find_free_port()
        environment = {
            **make_environment(),
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "DATABASE_URL": database_url,
            **({"WEB_CONCURRENCY": str(workers)} if workers else {}),
            **{f"CATALOGUE_{name.upper()}": str(value) for name, value in (settings or {}).items()},
        }
        command = [sys.executable, "-m", "service", "web" if workers else "serve"]
        log = self.new_folder("service").with_suffix(".log")
        with log.open("ab") as file:
            process = self.processes.start(
                command,
                output=file,
                folder=folder,
                environment=environment,
            )
        service = Service(process, port, log)
        await service.wait_until_ready()
        return service


def migrate(url: str, folder: Path = ROOT) -> None:
    """Run the migrations of a checkout."""
    subprocess.run(
        [sys.executable, "-m", "service", "migrate"],
        cwd=folder,
        env={**make_environment(), "DATABASE_URL": url},
        capture_output=True,
        check=True,
    )


@contextmanager
def open_lab() -> Iterator[Lab]:
    """Yield a lab; at the end all its processes are stopped and all its files deleted."""
    # /var/tmp is on disk; /tmp may be memory.
    with tempfile.TemporaryDirectory(prefix="movie-catalogue-drills-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)  # for the account that runs PostgreSQL
        processes = Processes()
        try:
            yield Lab(folder, processes)
        finally:
            processes.stop_all()
