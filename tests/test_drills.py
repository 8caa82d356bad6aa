"""`make drills` takes minutes and is no part of the tests; it must fit code and handbook."""

from pathlib import Path

import pytest

from drills import run
from drills.backups import EXAMPLE_TIME, VERIFY, Handbook
from drills.disabling import PROTECTIONS, copy_without
from drills.lab import DRILLS, ROOT


@pytest.mark.parametrize("name", PROTECTIONS)
def test_each_protection_can_be_removed_and_has_a_drill(name: str, tmp_path: Path) -> None:
    """`make drills ARGS="--disable NAME"` works."""
    protection = copy_without(name, ROOT, tmp_path / "copy")

    assert protection.drill in DRILLS
    assert run.choose(protection.drill)


def test_the_commands_for_backups_are_found() -> None:
    """The drills run all blocks of commands of that section in docs/operators/backup.md."""
    handbook = Handbook()

    assert VERIFY in handbook.back_up
    assert EXAMPLE_TIME in handbook.set_time
