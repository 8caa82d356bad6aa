"""`make drills` takes minutes and is no part of the tests; its replacements must fit the code."""

from pathlib import Path

import pytest

from drills import run
from drills.disabling import PROTECTIONS, copy_without
from drills.lab import DRILLS, ROOT


@pytest.mark.parametrize("name", PROTECTIONS)
def test_each_protection_can_be_removed_and_has_a_drill(name: str, tmp_path: Path) -> None:
    """`make drills ARGS="--disable NAME"` works."""
    protection = copy_without(name, ROOT, tmp_path / "copy")

    assert protection.drill in DRILLS
    assert run.choose(protection.drill)
