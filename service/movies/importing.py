"""Import: rows of a file, checked by the API's rules, into the table; all rows or none."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import orjson

from service.database import transactions
from service.database.query import Expected, Query
from service.database.transactions import Transaction
from service.errors import CatalogueError, Malformed, OperatorError
from service.movies.formats import convert_write_errors, write_file
from service.movies.rows import FileRow, read_record

QUERIES: Mapping[str, Expected] = {
    "reserve_movie_ids": Expected(
        {"drawn": int}, [{"highest": 0}], "import", writes=True, by_command=True
    ),
    "import_movies": Expected({}, [{"movies": "[]"}], "import", writes=True, by_command=True),
    "postpone_words": Expected({"postponed": str}, [{}], "import", writes=True, by_command=True),
    "add_postponed_words": Expected(
        {"words": int}, [{"run": False}], "import", writes=True, by_command=True
    ),
    "analyze_movies": Expected({}, [{}], "import", writes=True, by_command=True),
}
# One statement inserts a chunk while the next chunk is read.
MAX_CHUNK_ROWS = 10_000
MAX_CHUNK_BYTES = 4 << 20
CANCEL_AFTER_S = 0.1


class ImportResult(NamedTuple):
    """The result of an import, in numbers of rows."""

    read: int
    inserted: int  # and rolled back in a dry run, or if there are rejects that are not allowed
    rejected: int
    seconds: float

    def summary(self, rejects: Path, *, allow_rejects: bool, dry_run: bool) -> str:
        """Summarize it in one line."""
        verb = "would import" if dry_run else "imported"
        imported = self.inserted if allow_rejects or not self.rejected else 0
        left_out = self.read - self.inserted - self.rejected
        text = (
            f"{verb} {imported:,}{f', left out {left_out:,}' if left_out else ''} and rejected"
            f" {self.rejected:,} of {self.read:,} rows in {self.seconds:.1f} s"
            f" ({self.read / max(self.seconds, 1e-6):,.0f} rows/s)"
        )
        return f"{text}; the rejected rows are in {rejects}" if self.rejected else text


class Chunk:
    """Some rows of the file, in its order."""

    def __init__(self) -> None:
        self.read = 0  # rows
        self.bytes = 0
        self.inserted = 0
        self.rows: list[FileRow] = []  # to be imported
        self.movies: list[str] = []  # of these rows, as JSON
        self.highest_id = 0
        # Line and text, not the parsed row: that may take a hundred times as much memory.
        self.rejects: list[tuple[int, bytes]] = []

    def add(self, row: FileRow) -> None:
        """Validate a row."""
        self.read += 1
        self.bytes += row.size
        if row.movie is None:
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

    def insert(self, transaction: Transaction) -> None:
        """Insert the movies; reject the rows that the database refuses."""
        if self.highest_id:
            transaction.run("reserve_movie_ids", {"highest": self.highest_id})
        refusals = transaction.insert("import_movies", self.movies)
        for index, reason in refusals:
            self.reject(self.rows[index], [f"is refused by the database: {reason}"])
        self.inserted = len(self.movies) - len(refusals)


def import_rows(  # noqa: PLR0913 - its inputs and options
    url: str,
    queries: Mapping[str, Query],
    rows: Iterator[FileRow],
    rejects: Path,
    *,
    allow_rejects: bool,
    dry_run: bool,
) -> ImportResult:
    """Import all rows, or none; with `allow_rejects`, all rows that are not rejected.

    `dry_run`: roll back at the end. An error or Ctrl-C before the commit leaves nothing behind.
    Raises `OperatorError`.
    """
    started = time.monotonic()
    read = inserted = rejected = 0
    with transactions.begin(url, queries) as transaction:
        try:
            transaction.run("postpone_words")
            with write_rejects(rejects) as write_reject:
                for chunk in _insert_chunks(transaction, _split_into_chunks(rows)):
                    for _, reject in sorted(chunk.rejects):
                        write_reject(reject)
                    read += chunk.read
                    inserted += chunk.inserted
                    rejected += len(chunk.rejects)
            must_commit = not dry_run and (allow_rejects or not rejected)
            if must_commit:
                transaction.run("add_postponed_words", {"run": True})
                transaction.run("analyze_movies")
        except KeyboardInterrupt as error:
            raise OperatorError("interrupted: nothing was imported") from error
        if must_commit:
            transaction.commit()
    return ImportResult(read, inserted, rejected, time.monotonic() - started)


def _split_into_chunks(rows: Iterable[FileRow]) -> Iterator[Chunk]:
    """Yield at least one chunk."""
    chunk = Chunk()
    for row in rows:
        chunk.add(row)
        if chunk.read >= MAX_CHUNK_ROWS or chunk.bytes >= MAX_CHUNK_BYTES:
            yield chunk
            chunk = Chunk()
    yield chunk


def _insert_chunks(transaction: Transaction, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Insert each chunk in a thread and yield it; the next chunk is read meanwhile."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        chunk = next(chunks)
        inserting = thread.submit(chunk.insert, transaction)
        try:
            for following in chunks:
                inserting.result()
                inserting = thread.submit(following.insert, transaction)
                yield chunk
                chunk = following
            inserting.result()
        except BaseException:  # Ctrl-C is an exception in this thread only
            while wait([inserting], CANCEL_AFTER_S).not_done:
                transaction.cancel()
            raise
        yield chunk


@contextmanager
def write_rejects(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that adds a line; the file exists only if a line was added.

    The file of an earlier import is replaced or removed. Raises `OperatorError`.
    """
    stream: BinaryIO | None = None
    with ExitStack() as files:

        def add(line: bytes) -> None:
            nonlocal stream
            stream = stream or files.enter_context(write_file(str(path)))
            stream.write(line)

        yield add
    with convert_write_errors(str(path)):
        if not stream and path.is_file():
            path.unlink()


def explain(error: CatalogueError) -> list[str]:
    """Return what is wrong with a row, in the words of the API."""
    if isinstance(error, Malformed) and len(error.failures) == 1:
        return [str(error)]
    return [f"{field}: {detail}" for field, detail in error.failures] or [str(error)]


def to_reject(row: FileRow, reasons: list[str]) -> bytes:
    """Return the line of a rejected row."""
    reject = {"line": row.line, "reasons": reasons, "row": row.given}
    try:
        text = json.dumps(reject, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:  # nested too deep to be written
        text = json.dumps(reject | {"row": None}, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"  # a lone surrogate becomes its escape
