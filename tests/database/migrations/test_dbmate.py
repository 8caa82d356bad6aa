"""Tests dbmate and `migrate` in turns on one database, with the project's migrations.

Skipped without the program: `npm install dbmate`, and put it on PATH or name it in DBMATE.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from service.database.migrations import files as migration_files
from service.database.migrations import runner as migrations

OWN = Path(__file__).parents[3] / "migrations"
VERSIONS = migration_files.list_versions(OWN)
NEWEST = migration_files.read(OWN)[-1].path.name
NOTHING_TO_DO = f"nothing to do: the newest migration is {VERSIONS[-1]}"

Dbmate = Callable[[str], str]


@pytest.fixture
def dbmate(empty_database: str) -> Dbmate:
    """Run a command of dbmate on the test's database and return what it prints."""
    program = shutil.which(os.environ.get("DBMATE", "dbmate"))
    if program is None:
        pytest.skip("dbmate is neither on PATH nor named by DBMATE (npm install dbmate)")

    def run(command: str) -> str:
        options = ["--no-dump-schema", "--migrations-dir", str(OWN), "--url", empty_database]
        done = subprocess.run(
            [program, *options, command], check=True, capture_output=True, text=True, timeout=60
        )
        return done.stdout

    return run


def test_both_take_turns(empty_database: str, dbmate: Dbmate) -> None:
    """Each knows what the other one has applied, and continues after what it has taken back."""

    def migrate() -> list[str]:
        lines: list[str] = []
        migrations.upgrade(empty_database, OWN, lines.append)
        return lines

    dbmate("up")
    assert migrate() == [NOTHING_TO_DO]
    status = dbmate("status")
    nothing = dbmate("up")
    migrations.downgrade(empty_database, OWN, lambda _: None)
    again = dbmate("up")
    found = migrations.status(empty_database, OWN, pytest.fail)

    assert f"Applied: {len(VERSIONS)}\nPending: 0\n" in status
    assert "Applied" not in nothing
    assert f"Applied: {NEWEST}" in again
    assert migrate() == [NOTHING_TO_DO]
    assert all(entry.applied for entry in found)
    assert getattr(found[-1].applied, "applied_at", None)  # the default of the ledger's column
    dbmate("rollback")
    assert migrate() == [f"applied {NEWEST}"]
