"""A PostgreSQL of one's own, for when no database is configured.

Each process that uses it holds a shared lock (flock) on a file of the server's folder. The kernel
lets go of it however the process ends, so a detached keeper, which started the server, only has to
wait for the exclusive lock: then nobody is left, and it stops the server. `atexit` and signal
handlers would miss a kill -9. The folder holds:

    lock          locked, shared, by each user; exclusively by a keeper that found nobody left
    keeper        locked by whoever starts the server, then by its keeper: there is only one
    data          the cluster
    postgres.log  what the server said since its last start

Here are the users; `keeper` is the keeper, and both know from `place` where things are.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg2

from service.database.embedded.place import PATIENCE, PAUSE, READY, Server, programs_for
from service.errors import OperatorError

ROOM = 512 * 1024 * 1024  # bytes a throwaway server may need


@contextmanager
def running(folder: Path, *, durable: bool = True, throwaway: bool = False) -> Iterator[str]:
    """Yield the URL of a database served from `folder`, which all its users share.

    Whoever comes first decides: `durable=False` trades safety for speed, `throwaway=True` has
    the folder deleted once the server has stopped. `OperatorError` where it cannot be had.
    """
    server = Server(folder.resolve(), durable=durable, throwaway=throwaway)
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


def _joined(server: Server) -> ExitStack:
    """Join the server, starting it if need be; what comes back holds it until it is closed."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with ExitStack() as locks:
            try:
                _join(server, locks)
                return locks.pop_all()
            except (FileNotFoundError, psycopg2.OperationalError) as error:
                # The server is on its way in or out, or its folder went: look again.
                if time.monotonic() > deadline:
                    raise OperatorError(f"the embedded database is stuck: {error}") from error
        time.sleep(PAUSE)


def _join(server: Server, locks: ExitStack) -> None:
    """Add the user's lock to `locks`; it is had only while no keeper is stopping the server."""
    server.make_private(server.home)
    locks.enter_context(_locked(server.home / "lock", fcntl.LOCK_SH))
    keeper = _locked(server.home / "keeper", fcntl.LOCK_EX | fcntl.LOCK_NB)
    with suppress(BlockingIOError), keeper as descriptor:  # blocking: there is a keeper
        _start(server, descriptor)
    server.connect().close()


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


def _start(server: Server, keeper: int) -> None:
    """Start the keeper and hand it its lock, so that there is no moment without."""
    flags = [name for name in ("durable", "throwaway") if getattr(server, name)]
    command = [sys.executable, "-m", f"{__name__}.keeper"]
    report = subprocess.run(  # noqa: S603 ourselves
        [*command, server.folder, programs_for(server), str(keeper), *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=Path(__file__).parents[3],  # `service` can be imported from there
        pass_fds=(keeper,),
        start_new_session=True,  # Ctrl-C is for the user, not for the keeper
        check=False,
    ).stdout
    if not report.endswith(READY):
        lines = report.decode(errors="replace").splitlines()
        said = "; ".join(lines[-5:]) or "its keeper was killed"
        raise OperatorError(f"the embedded database did not start: {said}")
