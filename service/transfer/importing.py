"""Import: rows of a file, checked as the API checks movies, into the table, all or nothing."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from service.database import copying
from service.errors import CatalogueError, OperatorError
from service.movies import COLUMNS, FIELDS
from service.transfer.records import read_record
from service.transfer.rejects import Rejects, reasons, written
from service.transfer.rows import Row

# Of a chunk, which is copied at once: so much is in memory, four times.
ROWS = 10_000
BYTES = 4 << 20
# Chunks that are copied or wait for it while the next one is read. With a second one, neither side
# waits where the other has a slow one: when the database merges new words into an index.
AHEAD = 2

ID = COLUMNS.index("id")


class Outcome(NamedTuple):
    """What an import did, or a dry run would: the good rows are `kept`, or none."""

    imported: int
    rejected: int
    seconds: float
    kept: bool

    def summary(self, rejects: Path, *, dry_run: bool) -> str:
        """Say it in one line."""
        rows = self.imported + self.rejected
        verb = "would import" if dry_run else "imported"
        count = self.imported if self.kept else 0
        text = (
            f"{verb} {count:,} and rejected {self.rejected:,} of {rows:,} rows"
            f" in {self.seconds:.1f} s ({rows / max(self.seconds, 1e-6):,.0f} rows/s)"
        )
        return f"{text}; the rejected ones are in {rejects}" if self.rejected else text


class Reject(NamedTuple):
    """A row that is not imported, as it is written down."""

    line: int
    written: bytes  # parsed, a hostile one takes a hundred times as much memory


class Copied(NamedTuple):
    """What became of a chunk."""

    imported: int
    rejects: list[Reject]


@dataclass
class Group:
    """Rows that bring the same columns, as COPY takes them."""

    columns: Sequence[str]
    rows: list[Row] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)


class Chunk:
    """Some rows in the file's order, those that the rules refuse included."""

    def __init__(self) -> None:
        self.rejects: list[Reject] = []
        # Ids that rows bring come before those that are drawn for the others.
        self.groups = {len(columns): Group(columns) for columns in (COLUMNS, FIELDS)}
        self.size = 0
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether it holds all that one may."""
        return self.size >= ROWS or self._bytes >= BYTES

    def add(self, row: Row) -> None:
        """Check a row and keep what comes of it."""
        self.size += 1
        self._bytes += row.size
        try:
            if isinstance(row.movie, CatalogueError):
                raise row.movie
            values = read_record(row.movie)
        except CatalogueError as error:
            self.rejects.append(Reject(row.line, written(row, reasons(error))))
        else:
            group = self.groups[len(values)]
            group.rows.append(row)
            group.lines.append(copying.line(values))
            if group.columns is COLUMNS:
                group.ids.append(values[ID])


def import_rows(  # noqa: PLR0913 - what it works with, and its options
    url: str,
    rows: Iterator[Row],
    rejects: Rejects,
    *,
    allow_rejects: bool,
    dry_run: bool,
    report: Callable[[int], None],
) -> Outcome:
    """Import all of `rows`, or all but the rejected ones with `allow_rejects`, or none.

    `report` is told after each chunk how many rows there were. Whatever happens before the commit,
    Ctrl-C included, leaves nothing behind; `OperatorError` for what no single row is to blame for.
    """
    started = time.monotonic()
    read = imported = 0
    committed = False
    try:
        with copying.working(url) as (session, worker):
            table = worker.run(partial(copying.Copying, session, rehearsal=dry_run))
            for chunk in _chunks(rows):
                if worker.started == AHEAD:
                    imported += _settle(worker.finish(), rejects)
                worker.start(_copy, table, chunk)
                read += chunk.size
                report(read)
            while worker.started:
                imported += _settle(worker.finish(), rejects)
            rejects.finish()
            kept = allow_rejects or not rejects.count
            if kept and not dry_run:
                copying.commit(session, worker)
                committed = True
            rejects.appear()
            seconds = time.monotonic() - started
            if committed:
                copying.analyze(session, worker)
    except BaseException as error:
        rejects.discard()
        what = "after all was imported" if committed else "nothing was imported"
        if isinstance(error, KeyboardInterrupt):
            raise OperatorError(f"interrupted: {what}") from error
        if isinstance(error, OperatorError) and committed:
            raise OperatorError(f"{error}: {what}") from error
        raise
    return Outcome(imported, rejects.count, seconds, kept)


def _chunks(rows: Iterable[Row]) -> Iterator[Chunk]:
    chunk = Chunk()
    for row in rows:
        chunk.add(row)
        if chunk.full:
            yield chunk
            chunk = Chunk()
    yield chunk


def _copy(table: copying.Copying, chunk: Chunk) -> Copied:
    """Copy what the rules let through; what the database refuses joins the rejects."""
    imported = 0
    rejects = chunk.rejects
    for group in chunk.groups.values():
        if group.ids:
            table.reserve(group.ids)
        refusals = table.copy(group.columns, group.lines)
        imported += len(group.lines) - len(refusals)
        rejects += [
            Reject(row.line, written(row, [f"is refused by the database: {said}"]))
            for row, said in [(group.rows[position], said) for position, said in refusals]
        ]
    return Copied(imported, sorted(rejects, key=attrgetter("line")))


def _settle(copied: Copied, rejects: Rejects) -> int:
    for reject in copied.rejects:
        rejects.add(reject.written)
    return copied.imported
