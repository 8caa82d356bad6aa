"""A private PostgreSQL for development, for when no database is configured.

Each process that uses it (a user) holds a shared lock (flock). A detached keeper, which started the
server, stops it when it gets the exclusive lock: after the last user has left, however it ended
(docs/decisions/0005-embedded-postgresql.md). The server's folder holds:

    lock          shared lock: each user; exclusive lock: a keeper after the last user has left
    keeper        locked by the user that starts the server, then by its keeper: there is only one
    server        locked by the server while it runs
    data          the cluster
    postgres.log  the server's log since its last start

This module is the part of the users; `keeper` is the keeper, and `place` is what both need.
"""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg2

from service.database.embedded.place import POLL_S, READY, START_TIMEOUT_S, Server, find_programs
from service.errors import OperatorError


@contextmanager
def running(folder: Path, *, durable: bool = True, throwaway: bool = False) -> Iterator[str]:
    """Yield the URL of a database in `folder`; all its users share one server.

    The first user decides: `durable=False` trades safety for speed, `throwaway=True` deletes the
    folder when the server has stopped. Raises `OperatorError`.
    """
    server = Server(folder.resolve(), durable=durable, throwaway=throwaway)
    try:
        locks = _join_when_possible(server)
    except OSError as error:
        problem = error.strerror or error
        raise OperatorError(
            f"{folder}: cannot be used for the embedded database: {problem}"
        ) from error
    with locks:
        yield server.url()


def _join_when_possible(server: Server) -> ExitStack:
    """Join the server, or start it; the user leaves it by closing the returned locks."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        with ExitStack() as locks:
            try:
                _join(server, locks)
                return locks.pop_all()
            except (FileNotFoundError, psycopg2.OperationalError) as error:
                # The server is starting or stopping, or its folder was removed: try again.
                if time.monotonic() > deadline:
                    raise OperatorError(
                        f"the embedded database is not ready after {START_TIMEOUT_S:g} s: {error}"
                    ) from error
        time.sleep(POLL_S)


def _join(server: Server, locks: ExitStack) -> None:
    """Add the user's lock to `locks`; a keeper that is stopping its server prevents that."""
    server.make_private(server.home)
    locks.enter_context(_lock(server.home / "lock", fcntl.LOCK_SH))
    keeper = _lock(server.home / "keeper", fcntl.LOCK_EX | fcntl.LOCK_NB)
    with suppress(BlockingIOError), keeper as descriptor:  # BlockingIOError: there is a keeper
        _start(server, descriptor)
    server.connect().close()


@contextmanager
def _lock(path: Path, how: int) -> Iterator[int]:
    """Lock a file; raises FileNotFoundError if the file was removed before it was locked.

    Closing the file releases the lock; LOCK_UN would also release the lock of forks.
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
    """Start the keeper and pass it its lock, so that the lock is always held."""
    flags = [name for name in ("durable", "throwaway") if getattr(server, name)]
    command = [sys.executable, "-m", f"{__name__}.keeper"]
    report = subprocess.run(  # noqa: S603 ourselves
        [*command, server.folder, find_programs(server), str(keeper), *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=Path(__file__).parents[3],  # `service` can be imported from there
        pass_fds=(keeper,),
        start_new_session=True,  # Ctrl-C must not stop the keeper
        check=False,
    ).stdout
    if not report.endswith(READY):
        lines = report.decode(errors="replace").splitlines()
        reason = "; ".join(lines[-5:]) or "its keeper was killed"
        raise OperatorError(f"the embedded database did not start: {reason}")
