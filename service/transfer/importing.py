"""Import: rows of a file, checked as the API checks movies, into the table, all or nothing."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import orjson

from service.database import transactions
from service.database.queries import Query
from service.database.transactions import Transaction
from service.errors import CatalogueError, OperatorError
from service.transfer.records import read_record
from service.transfer.rejects import Rejects, reasons, written
from service.transfer.rows import Row

# Of a chunk, which one statement inserts while the next chunk is read.
CHUNK_ROWS = 10_000
CHUNK_BYTES = 4 << 20


class Outcome(NamedTuple):
    """What an import did, or a dry run would do: the good rows are `kept`, or none."""

    imported: int
    left_out: int
    rejected: int
    seconds: float
    kept: bool
    not_analyzed: str | None  # why the planner does not know of the movies yet

    def summary(self, rejects: Path, *, dry_run: bool) -> str:
        """Say it in one line."""
        rows = self.imported + self.left_out + self.rejected
        verb = "would import" if dry_run else "imported"
        count = self.imported if self.kept else 0
        left_out = f", left out {self.left_out:,}" if self.left_out else ""
        text = (
            f"{verb} {count:,}{left_out} and rejected {self.rejected:,} of {rows:,} rows"
            f" in {self.seconds:.1f} s ({rows / max(self.seconds, 1e-6):,.0f} rows/s)"
        )
        return f"{text}; the rejected ones are in {rejects}" if self.rejected else text


class Reject(NamedTuple):
    """A row that is not imported, as it is written down."""

    line: int
    written: bytes  # parsed, a hostile one takes a hundred times as much memory


class Chunk:
    """Some rows of the file, in its order."""

    def __init__(self) -> None:
        self.rows: list[Row] = []  # to be imported
        self.movies: list[str] = []  # of these, as JSON
        self.highest_id = 0  # that these bring
        self.imported = 0
        self.left_out = 0
        self.rejects: list[Reject] = []
        self.size = 0
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether it holds all that one may."""
        return self.size >= CHUNK_ROWS or self._bytes >= CHUNK_BYTES

    def add(self, row: Row) -> None:
        """Check a row and keep what comes of it."""
        self.size += 1
        self._bytes += row.size
        if row.movie is None:
            self.left_out += 1
            return
        try:
            if isinstance(row.movie, CatalogueError):
                raise row.movie
            movie = read_record(row.movie)
        except CatalogueError as error:
            self.rejects.append(Reject(row.line, written(row, reasons(error))))
        else:
            self.rows.append(row)
            self.movies.append(orjson.dumps(movie).decode())  # orjson's bytes take 4 KB each
            self.highest_id = max(self.highest_id, movie.get("id", 0))

    def start_insert(self, transaction: Transaction) -> None:
        """Send the movies."""
        if self.highest_id:
            transaction.run("reserve_movie_ids", highest=self.highest_id)
        if self.movies:
            transaction.start_insert("import_movies", "movies", self.movies)

    def finish_insert(self, transaction: Transaction) -> None:
        """Wait for the answer; the rows that the database refuses join the rejects."""
        if not self.movies:
            return
        refusals = transaction.finish_insert("import_movies", "movies", self.movies)
        self.imported = len(self.movies) - len(refusals)
        for position, reason in refusals:
            row = self.rows[position]
            why = [f"is refused by the database: {reason}"]
            self.rejects.append(Reject(row.line, written(row, why)))
        self.rejects.sort(key=attrgetter("line"))


def import_rows(  # noqa: PLR0913 - what it works with, and its options
    url: str,
    queries: Mapping[str, Query],
    rows: Iterator[Row],
    rejects: Rejects,
    *,
    allow_rejects: bool,
    dry_run: bool,
    report: Callable[[int], None],
) -> Outcome:
    """Import all of `rows`, or all but the rejected ones with `allow_rejects`, or none.

    `dry_run`: do the same and roll it back. `report` is told after each chunk how many rows there
    were. Whatever happens before the commit, Ctrl-C included, leaves nothing behind;
    `OperatorError` for what no single row is to blame for.
    """
    started = time.monotonic()
    read = imported = left_out = 0
    committed = False
    not_analyzed = None
    try:
        with transactions.begin(url, queries) as transaction:
            for chunk in _insert(transaction, _chunks(rows)):
                for reject in chunk.rejects:
                    rejects.add(reject.written)
                imported += chunk.imported
                left_out += chunk.left_out
                read += chunk.size
                report(read)
            rejects.finish()
            kept = allow_rejects or not rejects.count
            if kept and not dry_run:
                transaction.commit()
                committed = True
            rejects.appear()
            seconds = time.monotonic() - started
            if committed:
                not_analyzed = transaction.try_to_run("analyze_movies")
    except BaseException as error:
        rejects.discard()
        what = "the movies were imported" if committed else "nothing was imported"
        if isinstance(error, KeyboardInterrupt):
            raise OperatorError(f"interrupted: {what}") from error
        if isinstance(error, OperatorError) and committed:
            raise OperatorError(f"{error}; {what}") from error
        raise
    return Outcome(imported, left_out, rejects.count, seconds, kept, not_analyzed)


def _chunks(rows: Iterable[Row]) -> Iterator[Chunk]:
    chunk = Chunk()
    for row in rows:
        chunk.add(row)
        if chunk.full:
            yield chunk
            chunk = Chunk()
    yield chunk


def _insert(transaction: Transaction, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield each chunk once it is inserted; meanwhile the next one is read."""
    started = Chunk()
    for chunk in chunks:
        started.finish_insert(transaction)
        chunk.start_insert(transaction)
        yield started
        started = chunk
    started.finish_insert(transaction)
    yield started
