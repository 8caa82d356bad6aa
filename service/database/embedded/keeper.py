"""The keeper of a server: starts it, waits until its last user has gone, and stops it.

A process of its own, which belongs to none of the users:

    python -m service.database.embedded.keeper
        <folder> <PostgreSQL's programs> <descriptor of the keeper's lock> [durable] [throwaway]

Its output is READY, or what went wrong.
"""

import fcntl
import locale
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import psycopg2

from service.database.embedded.orphan import stop_orphan
from service.database.embedded.place import NAME, PATIENCE, PAUSE, READY, STOPPING, Server
from service.errors import OperatorError

ENDING = {signal.SIGTERM, signal.SIGINT}
CLUSTER = (
    f"-U {NAME} -A trust -E UTF8 --locale-provider=builtin --builtin-locale=C.UTF-8"
    " --no-instructions"
).split()
# Shared memory among its files goes with them, where POSIX's would outlive a kill -9.
UNSAFE_CLUSTER = ("--no-sync", "-c", "dynamic_shared_memory_type=mmap")
SETTINGS = ("listen_addresses=", "max_connections=200")
UNSAFE_SETTINGS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


def main() -> None:
    """Keep one server, detached from who started this."""
    if os.fork():
        os._exit(0)  # who started it has no child left to reap
    folder, programs, keeper, *flags = sys.argv[1:]
    server = Server(Path(folder), durable="durable" in flags, throwaway="throwaway" in flags)
    try:
        _keep(server, Path(programs))
    except (OSError, OperatorError, psycopg2.Error) as error:
        # Said here because a full disk has no room for a log that says it.
        free = shutil.disk_usage(server.home).free // 2**20
        _report(f"{error} ({free} MB are free in {server.home})".encode())
    finally:
        _clear(server)
        os.close(int(keeper))  # before `lock`, by exiting: who gets that must find no keeper


def _keep(server: Server, programs: Path) -> None:
    """Serve until the last user is gone, the server ends by itself, or a signal says so."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    users = os.open(server.home / "lock", os.O_RDWR | os.O_NOFOLLOW)  # closed by exiting
    os.environ["LC_ALL"] = _utf8_locale()
    stop_orphan(server)
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


def _report(text: bytes) -> None:
    """Answer who started this and waits until the output is closed; it may have been killed."""
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), text)
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


def _make_cluster(server: Server, programs: Path) -> None:
    """Make it elsewhere and rename it, so that a killed initdb never leaves half a cluster."""
    for remains in server.home.glob("new-*"):
        shutil.rmtree(remains, ignore_errors=True)
    new = server.home / f"new-{os.getpid()}"
    options = (*CLUSTER, *(() if server.durable else UNSAFE_CLUSTER))
    initdb = server.run([programs / "initdb", "-D", new, *options], subprocess.PIPE)
    said, _ = initdb.communicate()
    if initdb.returncode != 0:
        raise OperatorError(said.decode(errors="replace").rstrip())
    new.rename(server.data)
    _sync(server.home)


def _sync(folder: Path) -> None:
    """Make a rename last: files synced later could otherwise outlive the name of their folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _launched(server: Server, programs: Path) -> subprocess.Popen[bytes]:
    server.make_private(server.sockets)
    settings = (*SETTINGS, *(() if server.durable else UNSAFE_SETTINGS))
    options = [word for setting in settings for word in ("-c", setting)]
    # `orphan.serves` knows it by what stands up to the -k.
    place = ("-D", server.data, "-k", server.sockets, "-p", "5432")
    log = os.open(server.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        return server.run([programs / "postgres", *place, *options], log)
    finally:
        os.close(log)


def _await_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return server.connect("postgres").close()
        except psycopg2.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise OperatorError(server.log.read_text("utf-8", "replace").rstrip()) from error
        time.sleep(PAUSE)


def _make_database(server: Server) -> None:
    with closing(server.connect("postgres")) as connection, connection.cursor() as cursor:
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


def _clear(server: Server) -> None:
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
