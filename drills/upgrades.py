"""Releases that share a database."""

import asyncio
import os
import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from drills import schema_file
from drills.client import Connection
from drills.lab import FILL, Checks, Lab, drill, migrate
from drills.load import CREATED, Load
from drills.processes import NotRun
from drills.service import ROOT, Service

MOVIE = {"title": "Twice", "year": 2000, "runtime": "90 mins", "genres": ["war"]}
KEYS = 50


@drill
async def upgraded_release(lab: Lab, checks: Checks) -> None:
    """Migrate a database of the release before under its load, and go on with this release.

    All requests succeed, and the schema is that of schema.sql.
    """
    checkout = lab.new_folder("release-before")
    _check_out(os.environ.get("RELEASE_BEFORE", ""), checkout)
    database = "release_before"
    lab.postgres.execute("postgres", f"create database {database}")
    url = lab.postgres.url(database)
    migrate(url, checkout)
    lab.postgres.execute(database, FILL.format(first=1, last=100_000))
    service = await lab.serve(url, workers=2, folder=checkout)
    load = Load(service.url, lists=("/v1/movies?title=great&sort=-year", "/v1/genres"))
    async with load.running():
        await load.wait_for_success(300)
        await asyncio.to_thread(migrate, url)
        await load.wait_for_success(300)
        repeats = await _create_twice(service)
    checks.require(repeats == KEYS, f"{repeats} of {KEYS} repeats with a key got the first movie")
    checks.require_statuses("the release before, while and after", load.sent)
    checks.audit(load, lab.postgres, database)
    checks.require(await service.stop() == 0, "exit status 0")
    service = await lab.serve(url)
    repeats = await _create_twice(service)
    checks.require(repeats == KEYS, f"{repeats} of {KEYS} repeats got the movie of that release")
    checks.require(await service.stop() == 0, "exit status 0 of this release")
    is_same = schema_file.dump(url) == schema_file.FILE.read_text("utf-8")
    checks.require(is_same, "the schema is that of schema.sql")


async def _create_twice(service: Service) -> int:
    """Send creates with a key, each twice; return how many repeats got the first one's movie."""
    same = 0
    async with Connection(service.url) as connection:
        for number in range(KEYS):
            headers = {"Idempotency-Key": f"drill-{number}"}
            first = await connection.request("POST", "/v1/movies", MOVIE, headers)
            again = await connection.request("POST", "/v1/movies", MOVIE, headers)
            same += first.status == again.status == CREATED and first.json() == again.json()
    return same


def _check_out(commit: str, folder: Path) -> None:
    git = shutil.which("git") or "git"
    archive = subprocess.run([git, "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise NotRun(f"RELEASE_BEFORE={commit}: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
