"""The bar on a terminal that shows how far a file has been read."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from service.transfer.files import Source

# Told how many rows there were by now.
Report = Callable[[int], None]


@contextmanager
def shown(source: Source) -> Iterator[Report]:
    """Show a bar, by the file's bytes; none where stderr is no terminal, or for a pipe."""
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
