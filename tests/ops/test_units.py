"""The systemd units run the Procfile's commands, and systemd accepts them."""

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
    """Without a warning; the Python of the checkout is replaced by this one."""
    copies = [tmp_path / name for name in UNITS.values()]
    for copy in copies:
        copy.write_text((ROOT / "ops" / copy.name).read_text().replace(PYTHON, sys.executable))

    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *copies],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (verified.stderr, verified.returncode) == ("", 0)


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
