"""Import: rows of a file, checked by the API's rules, into the table; all rows or none."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import orjson

from service.database import transactions
from service.database.queries import Query
from service.database.transactions import Transaction
from service.errors import CatalogueError, OperatorError
from service.transfer.records import read_record
from service.transfer.rejects import Rejects, explain, to_reject
from service.transfer.rows import FileRow

# One statement inserts a chunk while the next chunk is read.
MAX_CHUNK_ROWS = 10_000
MAX_CHUNK_BYTES = 4 << 20


class ImportResult(NamedTuple):
    """What an import did, or what a dry run would do."""

    imported: int
    left_out: int
    rejected: int
    seconds: float
    is_accepted: bool  # False: rows were rejected, so nothing was imported
    analyze_error: str | None  # why the planner has no statistics of the movies yet

    def summary(self, rejects: Path, *, dry_run: bool) -> str:
        """Summarize it in one line."""
        rows = self.imported + self.left_out + self.rejected
        verb = "would import" if dry_run else "imported"
        imported = self.imported if self.is_accepted else 0
        left_out = f", left out {self.left_out:,}" if self.left_out else ""
        text = (
            f"{verb} {imported:,}{left_out} and rejected {self.rejected:,} of {rows:,} rows"
            f" in {self.seconds:.1f} s ({rows / max(self.seconds, 1e-6):,.0f} rows/s)"
        )
        return f"{text}; the rejected rows are in {rejects}" if self.rejected else text


class Chunk:
    """Some rows of the file, in its order."""

    def __init__(self) -> None:
        self.rows: list[FileRow] = []  # to be imported
        self.movies: list[str] = []  # of these rows, as JSON
        self.highest_id = 0
        self.imported = 0
        self.left_out = 0
        # Line and text of each; a parsed hostile row takes a hundred times as much memory.
        self.rejects: list[tuple[int, bytes]] = []
        self.size = 0  # rows
        self.bytes = 0

    def add(self, row: FileRow) -> None:
        """Validate a row."""
        self.size += 1
        self.bytes += row.size
        if row.movie is None:
            self.left_out += 1
            return
        try:
            if isinstance(row.movie, CatalogueError):
                raise row.movie
            movie = read_record(row.movie)
        except CatalogueError as error:
            self.reject(row, explain(error))
        else:
            self.rows.append(row)
            self.movies.append(orjson.dumps(movie).decode())  # orjson's bytes take 4 KB each
            self.highest_id = max(self.highest_id, movie.get("id", 0))

    def reject(self, row: FileRow, reasons: list[str]) -> None:
        """Add a row to the rejects."""
        self.rejects.append((row.line, to_reject(row, reasons)))

    def start_insert(self, transaction: Transaction) -> None:
        """Send the movies."""
        if self.highest_id:
            transaction.run("reserve_movie_ids", highest=self.highest_id)
        transaction.start_insert("import_movies", "movies", self.movies)

    def finish_insert(self, transaction: Transaction) -> None:
        """Wait until the movies are inserted; reject the rows that the database refuses."""
        refusals = transaction.finish_insert("import_movies", "movies", self.movies)
        self.imported = len(self.movies) - len(refusals)
        for position, reason in refusals:
            self.reject(self.rows[position], [f"is refused by the database: {reason}"])
        self.rejects.sort()


def import_rows(  # noqa: PLR0913 - what it works with, and its options
    url: str,
    queries: Mapping[str, Query],
    rows: Iterator[FileRow],
    rejects: Rejects,
    *,
    allow_rejects: bool,
    dry_run: bool,
    report: Callable[[int], None],
) -> ImportResult:
    """Import all rows, or none; with `allow_rejects`, all rows that are not rejected.

    `dry_run`: roll back at the end. `report` gets the number of rows read after each chunk. An
    error or Ctrl-C before the commit leaves nothing behind. Raises `OperatorError`.
    """
    started = time.monotonic()
    read = imported = left_out = 0
    is_committed = False
    analyze_error = None
    try:
        with transactions.begin(url, queries) as transaction:
            for chunk in _insert(transaction, _split_into_chunks(rows)):
                for _, reject in chunk.rejects:
                    rejects.add(reject)
                imported += chunk.imported
                left_out += chunk.left_out
                read += chunk.size
                report(read)
            rejects.finish()
            is_accepted = allow_rejects or not rejects.count
            if is_accepted and not dry_run:
                transaction.commit("either all movies were imported or none; check the catalogue")
                is_committed = True
            rejects.appear()
            seconds = time.monotonic() - started
            if is_committed:
                analyze_error = transaction.try_to_run("analyze_movies")
    except BaseException as error:
        rejects.discard()
        result = "the movies were imported" if is_committed else "nothing was imported"
        if isinstance(error, KeyboardInterrupt):
            raise OperatorError(f"interrupted: {result}") from error
        if isinstance(error, OperatorError) and is_committed:
            raise OperatorError(f"{error}; {result}") from error
        raise
    return ImportResult(imported, left_out, rejects.count, seconds, is_accepted, analyze_error)


def _split_into_chunks(rows: Iterable[FileRow]) -> Iterator[Chunk]:
    """Yield at least one chunk."""
    chunk = Chunk()
    for row in rows:
        chunk.add(row)
        if chunk.size >= MAX_CHUNK_ROWS or chunk.bytes >= MAX_CHUNK_BYTES:
            yield chunk
            chunk = Chunk()
    yield chunk


def _insert(transaction: Transaction, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Insert each chunk and yield it; the next chunk is read meanwhile."""
    chunk = next(chunks)
    chunk.start_insert(transaction)
    for following in chunks:
        chunk.finish_insert(transaction)
        following.start_insert(transaction)
        yield chunk
        chunk = following
    chunk.finish_insert(transaction)
    yield chunk
