"""The systemd units run the Procfile's commands and ops/backup.sh, and systemd accepts them."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
from configparser import ConfigParser
from math import ceil
from pathlib import Path

import pytest
from conftest import ROOT
from processes import run
from support import WAIT_S, Environment

from service import config

PYTHON = "/opt/movie-catalogue/.venv/bin/python"
UNITS = {"web": "movie-catalogue.service", "release": "movie-catalogue-release.service"}


def read_unit(name: str) -> ConfigParser:
    """Parse a unit; of a repeated key, the last value counts here."""
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # keys keep their case
    unit.read(ROOT / "ops" / name)
    return unit


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """Without a warning; the programs of the checkout are replaced by those that are here."""
    units = [*(ROOT / "ops").glob("*.service"), *(ROOT / "ops").glob("*.timer")]
    for unit in units:
        text = unit.read_text().replace(PYTHON, sys.executable)
        (tmp_path / unit.name).write_text(text.replace("/opt/movie-catalogue/ops", f"{ROOT}/ops"))

    paths = [str(tmp_path / unit.name) for unit in units]
    status, _, err = run(["systemd-analyze", "verify", "--man=no", *paths], {})

    assert (err, status) == ("", 0)


@pytest.mark.parametrize("process", UNITS)
def test_the_units_run_the_commands_of_the_procfile(process: str) -> None:
    """The Procfile's variables are in the unit's environment file."""
    lines = dict(line.split(": ", 1) for line in (ROOT / "Procfile").read_text().splitlines())
    _, _, command = lines[process].rpartition("python ")

    program, *arguments = shlex.split(read_unit(UNITS[process])["Service"]["ExecStart"])

    assert program == PYTHON
    assert arguments == command.split()


def test_systemd_waits_longer_than_gunicorn() -> None:
    """After drain_delay + shutdown_timeout + 5 s, gunicorn kills its workers."""
    settings = config.load(ROOT / "config.toml", {})
    server = settings.server
    unit = read_unit(UNITS["web"])["Service"]

    assert int(unit["TimeoutStopSec"]) > ceil(server.drain_delay + server.shutdown_timeout) + 5
    assert int(unit["LimitNOFILE"]) > server.max_connections + 128 + settings.database.max_open


def name_wal(timeline: int, position: int) -> str:
    """Name a WAL file as PostgreSQL does."""
    return f"{timeline:08X}{position:016X}"


class Backups:
    """A folder of backups, with programs that stand in for those of PostgreSQL."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "backup"
        self._programs = folder / "programs"
        for path in (self.folder / "wal", self._programs):
            path.mkdir(parents=True)
        self.begin_at(name_wal(1, 99))
        self.replace("pg_verifybackup", 'test -f "$2/backup_label"')
        self.replace("pg_archivecleanup", 'echo "$2" > "$1/kept_from"')

    def begin_at(self, wal_file: str) -> None:
        """Let the next backup begin with this WAL file."""
        label = f"START WAL LOCATION: 0/1 (file {wal_file})"
        self.replace("pg_basebackup", f'mkdir "$4"; echo "{label}" > "$4/backup_label"')

    def replace(self, program: str, script: str) -> None:
        """Make a program."""
        path = self._programs / program
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def add_old(self, wal_files: dict[str, str]) -> None:
        """Add backups of earlier nights, each with its first WAL file."""
        for name, wal_file in wal_files.items():
            folder = self.folder / name
            folder.mkdir()
            (folder / "backup_label").write_text(f"START WAL LOCATION: 0/1 (file {wal_file})\n")

    def list_names(self) -> list[str]:
        """Return the names of the backups."""
        names = (path.name for path in self.folder.iterdir())
        return sorted(name for name in names if name not in {"lock", "wal"})

    def read_kept_wal(self) -> str:
        """Return the first WAL file that was kept."""
        return (self.folder / "wal" / "kept_from").read_text().strip()

    def run(self, **settings: str) -> int:
        """Back up, and return the exit status."""
        environment = {
            "PATH": f"{self._programs}:{os.defpath}",
            "BACKUP": str(self.folder),
            "BACKUP_URL": "postgresql://backup@127.0.0.1/postgres",
            "BACKUP_KEEP": "2",
            **settings,
        }
        return subprocess.run([ROOT / "ops" / "backup.sh"], env=environment, check=False).returncode


@pytest.fixture
def backups(tmp_path: Path) -> Backups:
    """A folder without backups."""
    return Backups(tmp_path)


@pytest.mark.parametrize(
    ("old", "kept"),
    [
        ({"base-20260101": 1, "base-20260102": 2, "unverified-base-1": 3}, "base-20260102"),
        # The order is that of the WAL, so the names of a wrong clock go when their turn comes.
        ({"base-20990101": 1, "base-20990102": 2, "base-19700101": 3}, "base-19700101"),
    ],
)
def test_a_verified_backup_replaces_the_oldest_one(
    backups: Backups, old: dict[str, int], kept: str
) -> None:
    """`base` leads to it; the WAL is kept from the oldest backup that stays."""
    backups.add_old({name: name_wal(1, position) for name, position in old.items()})

    status = backups.run()

    link, stays, new = backups.list_names()
    assert (status, link, stays) == (0, "base", kept)
    assert (backups.folder / "base").readlink() == Path(new)
    assert backups.read_kept_wal() == name_wal(1, old[kept])


@pytest.mark.parametrize("keep", ["0", "00", "-1", "+2", "1.5", " 2", "seven", "9" * 30])
def test_a_number_of_backups_that_is_none_is_refused(backups: Backups, keep: str) -> None:
    """It would delete all of them, or none for ever."""
    backups.add_old({"base-20260101": name_wal(1, 1)})

    assert backups.run(BACKUP_KEEP=keep) == 1
    assert backups.list_names() == ["base-20260101"]


@pytest.mark.parametrize("missing", ["BACKUP", "BACKUP_URL"])
def test_a_backup_without_a_place_or_a_source_is_refused(backups: Backups, missing: str) -> None:
    """An empty folder would be `/`, an empty URL a server on this machine."""
    assert backups.run(**{missing: ""}) == 1


def test_a_new_timeline_keeps_the_wal_of_each_backup(backups: Backups) -> None:
    """It is newer, also at an earlier position; pg_archivecleanup compares positions only."""
    first, second, third = "base-20260101", "base-20260102", "base-20260103"
    backups.add_old({first: name_wal(1, 8), second: name_wal(1, 9), third: name_wal(2, 5)})
    backups.begin_at(name_wal(2, 6))

    backups.run(BACKUP_KEEP="3")

    assert backups.list_names()[1:3] == [second, third]
    assert backups.read_kept_wal() == name_wal(2, 5)


def test_a_new_cluster_deletes_no_backup(backups: Backups) -> None:
    """pg_upgrade and initdb begin timelines and positions anew: the newest would go first."""
    former, new, newer = name_wal(2, 8), name_wal(1, 1), name_wal(1, 2)
    backups.add_old({"base-20260101": former, "base-20260102": new, "base-20260103": newer})
    before = backups.list_names()

    assert backups.run() == 1
    assert set(before) < set(backups.list_names())


def test_two_backups_at_once_do_not_delete_each_other(backups: Backups) -> None:
    """The second one is refused, and the first one goes on."""
    script = ROOT / "ops" / "backup.sh"
    backups.replace("pg_verifybackup", f'! "{script}"')

    status = backups.run()

    assert status == 0
    assert len(backups.list_names()) == len(("base", "the backup"))


def test_a_backup_that_is_damaged_deletes_nothing(backups: Backups) -> None:
    """The unit fails, and `base` leads to the last good one."""
    backups.run()
    before = backups.list_names()
    backups.replace("pg_verifybackup", "exit 1")

    status = backups.run()

    assert status == 1
    assert backups.list_names() == before


def test_a_folder_that_was_made_by_hand_is_not_replaced(backups: Backups) -> None:
    """`ln` would put the link into it, and a restore would take the old backup."""
    backups.add_old({"base": ""})

    assert backups.run() == 1
    assert backups.list_names() == ["base"]


def test_gunicorn_reports_to_systemd_that_it_listens(
    environment: Environment, tmp_path: Path
) -> None:
    """Type=notify (https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        with subprocess.Popen(
            [sys.executable, "-m", "service", "web"],
            cwd=ROOT,
            env={**environment, "PORT": "0", "NOTIFY_SOCKET": str(tmp_path / "notify")},
            stdout=subprocess.DEVNULL,
        ) as process:
            try:
                report = manager.recv(1000)
            finally:
                process.terminate()

    assert read_unit(UNITS["web"])["Service"]["Type"] == "notify"
    assert report.startswith(b"READY=1")
    assert process.returncode == 0
