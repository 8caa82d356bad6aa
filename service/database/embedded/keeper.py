"""The keeper of a server: starts it, waits until its last user has left, and stops it.

It is a process of its own, detached from the users:

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

from service.database.embedded.place import DATABASE_NAME, POLL_S, READY, START_TIMEOUT_S, Server
from service.errors import OperatorError

STOP_TIMEOUT_S = 10  # then the server is stopped less gently
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
INITDB_OPTIONS = (
    f"-U {DATABASE_NAME} -A trust -E UTF8 --locale-provider=builtin --builtin-locale=C.UTF-8"
    " --no-instructions"
).split()
# Shared memory in files of the cluster, as POSIX shared memory would outlive a kill -9.
UNSAFE_INITDB_OPTIONS = ("--no-sync", "-c", "dynamic_shared_memory_type=mmap")
SETTINGS = ("listen_addresses=", "max_connections=200")
UNSAFE_SETTINGS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


def main() -> None:
    """Keep one server, detached from the process that started this one."""
    if os.fork():
        os._exit(0)  # the starting process has no child to reap
    folder, programs, keeper, *flags = sys.argv[1:]
    server = Server(Path(folder), durable="durable" in flags, throwaway="throwaway" in flags)
    try:
        _keep(server, Path(programs))
    except (OSError, OperatorError, psycopg2.Error) as error:
        # Reported here, as a full disk leaves no room for a log.
        free = shutil.disk_usage(server.home).free // 2**20
        _report(f"{error} ({free} MB are free in {server.home})".encode())
    finally:
        _remove_files(server)
        # Before the exit closes `lock`: a user that gets that lock must find no keeper.
        os.close(int(keeper))


def _keep(server: Server, programs: Path) -> None:
    """Serve until the last user has left, the server exits, or a signal arrives."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    users = os.open(server.home / "lock", os.O_RDWR | os.O_NOFOLLOW)  # closed at exit
    os.environ["LC_ALL"] = _utf8_locale()
    alive = _stop_orphan(server, programs)
    if not server.data.exists():
        _make_cluster(server, programs)
    process = _start(server, programs, alive)
    try:
        _await_ready(server, process)
        _make_database(server)
        _report(READY)
        _stop_when(process.wait)
        _stop_when(lambda: fcntl.flock(users, fcntl.LOCK_EX))
        signal.sigwait(STOP_SIGNALS)
    finally:
        _stop(process)


def _report(text: bytes) -> None:
    """Report to the process that waits for this output to be closed; it may have been killed."""
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), text)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, sys.stdout.fileno())
    os.dup2(null, sys.stderr.fileno())


def _stop_when(wait: Callable[[], object]) -> None:
    """Stop the keeper when `wait` returns."""

    def stop() -> None:
        wait()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()


def _stop_orphan(server: Server, programs: Path) -> int:
    """Stop the server of a killed keeper; return the lock that the next server holds while it runs.

    Without the lock, the pid file might name an innocent process by now.
    """
    alive = os.open(server.home / "server", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        for mode in ("fast", "immediate"):
            stop = ("stop", "-D", server.data, "-m", mode, "-t", str(STOP_TIMEOUT_S))
            if server.run([programs / "pg_ctl", *stop], subprocess.DEVNULL).wait() == 0:
                break
        fcntl.flock(alive, fcntl.LOCK_EX)  # until its last process has ended
    (server.data / "postmaster.pid").unlink(missing_ok=True)
    return alive


def _utf8_locale() -> str:
    """Return a UTF-8 locale, whatever the environment says.

    Text search asks the C library what a letter is; in the locale "C", a dash or a curly quote is.
    """
    for name in ("C.UTF-8", "en_US.UTF-8"):  # the second one: older macOS
        with suppress(locale.Error):
            locale.setlocale(locale.LC_CTYPE, name)
            return name
    return "C"


def _make_cluster(server: Server, programs: Path) -> None:
    """Make the cluster in another folder and rename it; a killed initdb leaves no half cluster."""
    for leftover in server.home.glob("new-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    new = server.home / f"new-{os.getpid()}"
    options = (*INITDB_OPTIONS, *(() if server.durable else UNSAFE_INITDB_OPTIONS))
    initdb = server.run([programs / "initdb", "-D", new, *options], subprocess.PIPE)
    output, _ = initdb.communicate()
    if initdb.returncode != 0:
        raise OperatorError(output.decode(errors="replace").rstrip())
    new.rename(server.data)
    _sync(server.home)


def _sync(folder: Path) -> None:
    """Make a rename durable, before files are synced in the renamed folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _start(server: Server, programs: Path, alive: int) -> subprocess.Popen[bytes]:
    server.make_private(server.sockets)
    settings = (*SETTINGS, *(() if server.durable else UNSAFE_SETTINGS))
    options = [word for setting in settings for word in ("-c", setting)]
    place = ("-D", server.data, "-k", server.sockets, "-p", "5432")
    log = os.open(server.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        return server.run([programs / "postgres", *place, *options], log, keep_open=(alive,))
    finally:
        os.close(log)


def _await_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return server.connect("postgres").close()
        except psycopg2.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise OperatorError(server.log.read_text("utf-8", "replace").rstrip()) from error
        time.sleep(POLL_S)


def _make_database(server: Server) -> None:
    with closing(server.connect("postgres")) as connection, connection.cursor() as cursor:
        cursor.execute("select from pg_database where datname = %s", (DATABASE_NAME,))
        if not cursor.rowcount:
            cursor.execute(f"create database {DATABASE_NAME}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the server: disconnect its clients; if that hangs, skip the checkpoint; then kill it."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
            return


def _remove_files(server: Server) -> None:
    """Remove the files of a throwaway server; renamed first, so that new users do not see them."""
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
