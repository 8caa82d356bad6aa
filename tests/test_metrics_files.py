"""Tests the files in which gunicorn's workers count."""

from pathlib import Path

import pytest

from service import metrics_files
from service.errors import OperatorError
from service.metrics_files import (
    PREFIX,
    SIZES,
    choose_slot,
    free_slot,
    make_folder,
    remove_folder,
)


@pytest.mark.parametrize(("taken", "slot"), [([], 0), ([0], 1), ([0, 2], 1), ([1, 0], 2)])
def test_a_worker_gets_the_first_free_slot(taken: list[int], slot: int) -> None:
    """So a worker that replaces another one continues its files."""
    assert choose_slot(taken) == slot


def test_the_files_take_their_room_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not sparse: a worker must not be killed where a full disk has no room left."""
    monkeypatch.setattr(metrics_files, "MEMORY", tmp_path)

    folder = make_folder(2)

    taken = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
    assert folder.parent == tmp_path
    assert len(list(folder.iterdir())) == 2 * len(SIZES)
    assert taken >= 2 * sum(SIZES.values())


def test_a_slot_that_is_free_keeps_its_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gauges of a worker that has ended are empty; its other files are as they were."""
    monkeypatch.setattr(metrics_files, "MEMORY", tmp_path)
    folder = make_folder(2)
    for path in folder.iterdir():
        path.write_bytes(b"x")

    free_slot(folder, 0)

    changed = {path.name for path in folder.iterdir() if path.read_bytes() != b"x"}
    assert changed == {f"{kind}_0.db" for kind in SIZES if kind.startswith("gauge_")}


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start ends with one line; nothing is left behind."""
    monkeypatch.setattr(metrics_files, "MEMORY", tmp_path / "missing")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(metrics_files, "SIZES", {"counter": 1, "no/such/folder": 1})

    with pytest.raises(OperatorError, match="the metrics of 2 workers need"):
        make_folder(2)

    assert list(tmp_path.iterdir()) == []


def test_the_folders_of_killed_services_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start removes them, but no folder that is in use."""
    monkeypatch.setattr(metrics_files, "MEMORY", tmp_path)
    in_use = make_folder(1)
    killed = tmp_path / f"{PREFIX}killed"
    killed.mkdir()
    (killed / "counter_0.db").touch()
    other = tmp_path / "other"
    other.mkdir()

    new = make_folder(1)

    assert set(tmp_path.iterdir()) == {in_use, other, new}


def test_the_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its files."""
    monkeypatch.setattr(metrics_files, "MEMORY", tmp_path)

    remove_folder(make_folder(1))

    assert list(tmp_path.iterdir()) == []
