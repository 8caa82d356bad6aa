"""The progress bar of an import."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from service.transfer.files import Source

# Called with the number of rows that have been read.
Report = Callable[[int], None]


@contextmanager
def show_progress(source: Source) -> Iterator[Report]:
    """Show the bytes read on a terminal; show nothing for a pipe or without a terminal."""
    if source.size is None or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    started = time.monotonic()
    with click.progressbar(
        length=source.size,
        show_pos=False,
        item_show_func=lambda rate: rate,
        file=sys.stderr,
    ) as bar:

        def report(rows: int) -> None:
            rate = rows / max(time.monotonic() - started, 1e-6)
            bar.update(source.position() - bar.pos, f"{rate:,.0f} rows/s")

        yield report
