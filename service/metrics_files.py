"""The files in which gunicorn's workers count, so that each of them can serve the sums.

Each worker has a slot, whose files have its number in their names. A worker that replaces another
one takes its slot and goes on counting from its values. So the sums never shrink, and the files do
not become more.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from prometheus_client import values
from prometheus_client.multiprocess import mark_process_dead

from service.errors import OperatorError

# In memory where possible: a worker that writes to a mapped file on a disk may have to wait for it.
# https://www.evanjones.ca/jvm-mmap-pause.html
MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes the folder private
PREFIX = "movie-catalogue-metrics-"
KIB = 1024
GAUGES = {f"gauge_live{mode}": 64 * KIB for mode in ("sum", "max", "min", "mostrecent")}
# prometheus_client makes its files sparse, and SIGBUS kills a process that writes where a full disk
# has no room left. All series that usual clients cause take a third of these sizes.
SIZES = {"counter": 64 * KIB, "histogram": KIB * KIB, **GAUGES}


def make_folder(slots: int) -> Path:
    """Make a folder with the files of so many slots; `OperatorError` if there is no room.

    This process and its children hold a lock on it while they run. Folders without a lock are of
    services that were killed: they are removed.
    """
    parents = [MEMORY] if os.access(MEMORY, os.W_OK) else []
    for parent in [*parents, None]:  # None: /tmp, or TMPDIR
        folder = None
        try:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            _lock(folder)
            _remove_others(folder)
            for slot in range(slots):
                _make_files(folder, slot, SIZES)
        except OSError as error:
            failure = error
            if folder:
                remove_folder(folder)
        else:
            return folder
    raise OperatorError(
        f"the metrics of {slots} workers need {slots * sum(SIZES.values()) // KIB} KiB in /dev/shm"
        f" or /tmp: {failure.strerror}"
    )


def remove_folder(folder: Path) -> None:
    """Remove the folder and its files."""
    shutil.rmtree(folder, ignore_errors=True)


def choose_slot(taken: Iterable[int]) -> int:
    """Return the first slot that no live worker has."""
    used = set(taken)
    return next(slot for slot in range(len(used) + 1) if slot not in used)


def use_slot(folder: Path, slot: int) -> None:
    """Let this process count in the files of its slot; before it makes its `Metrics`."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    values.ValueClass = values.MultiProcessValue(lambda: slot)  # type: ignore[no-untyped-call]


def free_slot(folder: Path, slot: int) -> None:
    """Forget the gauges of a worker that has ended; keep its counters."""
    mark_process_dead(slot, str(folder))  # type: ignore[no-untyped-call]
    with suppress(OSError):
        _make_files(folder, slot, GAUGES)


def _lock(folder: Path) -> int:
    """Lock a folder and return its descriptor; `OSError` if another process has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_others(own: Path) -> None:
    """Remove the folders next to this one that nobody has locked."""
    for folder in own.parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is in use, or another user's
            descriptor = _lock(folder)
            remove_folder(folder)
            os.close(descriptor)


def _make_files(folder: Path, slot: int, sizes: Mapping[str, int]) -> None:
    """Make files of zeros, which prometheus_client takes for empty; each appears complete."""
    for kind, size in sizes.items():
        new = folder / "new"
        new.write_bytes(bytes(size))
        new.rename(folder / f"{kind}_{slot}.db")
