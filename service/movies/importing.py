"""Import: rows of a file, checked by the API's rules, into the table; all rows or none."""

import json
import operator
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
from service.errors import CatalogueError, Failure, Invalid, Malformed, OperatorError
from service.movies.exporting import write_file
from service.movies.rows import FileRow, convert_file_errors, read_record
from service.web.fields import Values

QUERIES: Mapping[str, Expected] = {
    "reserve_movie_ids": Expected(
        {"drawn": int}, [{"highest": 0}], "import", writes=True, by_command=True
    ),
    "import_movies": Expected({}, [{"movies": "[]"}], "import", writes=True, by_command=True),
    "put_imported_movies": Expected(
        {"created": int, "changed": int},
        [{"movies": "[]"}],
        "import --update",
        writes=True,
        by_command=True,
    ),
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
PROGRESS_S = 5.0  # between two lines about the progress


class ImportResult(NamedTuple):
    """The result of an import, in numbers of rows."""

    # These are rolled back in a dry run, or if there are rejects that are not allowed:
    created: int = 0
    changed: int = 0  # by an update, which leaves the others equal
    equal: int = 0
    read: int = 0
    rejected: int = 0
    seconds: float = 0

    def summary(self, rejects: Path, *, update: bool, allow_rejects: bool, dry_run: bool) -> str:
        """Summarize it in one line."""
        created, changed, equal = self[:3] if allow_rejects or not self.rejected else (0, 0, 0)
        left_out = self.read - sum(self[:3]) - self.rejected
        done = (
            f"{'would create' if dry_run else 'created'} {created:,}, changed {changed:,}, left"
            f" {equal:,} as they were"
            if update
            else f"{'would import' if dry_run else 'imported'} {created:,}"
        )
        text = (
            f"{done}{f', left out {left_out:,}' if left_out else ''} and rejected"
            f" {self.rejected:,} of {self.read:,} rows in {self.seconds:.1f} s"
            f" ({self.read / max(self.seconds, 1e-6):,.0f} rows/s)"
        )
        return f"{text}; the rejected rows are in {rejects}" if self.rejected else text


class Chunk:
    """Some rows of the file, in its order.

    `updated`: the external ids of an update so far, as hashes; None: it is no update.
    """

    def __init__(self, updated: set[int] | None) -> None:
        self._updated = updated
        self.read = 0  # rows
        self.bytes = 0
        self.created = self.changed = self.equal = 0
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
            if self._updated is not None:
                self._require_external_id(movie, self._updated)
        except CatalogueError as error:
            self.reject(row, explain(error))
        else:
            self.rows.append(row)
            self.movies.append(orjson.dumps(movie).decode())  # orjson's bytes take 4 KB each
            self.highest_id = max(self.highest_id, movie.get("id", 0))

    def _require_external_id(self, movie: Values, updated: set[int]) -> None:
        """Raise `Invalid` unless the movie has an external id that no earlier row has."""
        key = hash(movie.get("external_id"))  # takes less memory than the text
        problem = "must not be repeated" if key in updated else ""
        problem = problem if "external_id" in movie else "is required for an update"
        if problem:
            raise Invalid([Failure("external_id", problem)])
        updated.add(key)

    def reject(self, row: FileRow, reasons: list[str]) -> None:
        """Add a row to the rejects."""
        self.rejects.append((row.line, to_reject(row, reasons)))

    def insert(self, transaction: Transaction) -> None:
        """Insert the movies; reject the rows that the database refuses."""
        is_update = self._updated is not None
        if self.highest_id and not is_update:
            transaction.run("reserve_movie_ids", {"highest": self.highest_id})
        query = "put_imported_movies" if is_update else "import_movies"
        counts, refusals = transaction.insert(query, self.movies)
        for index, reason in refusals:
            self.reject(self.rows[index], [f"is refused by the database: {reason}"])
        accepted = len(self.movies) - len(refusals)
        self.created = sum(created for created, _ in counts) if is_update else accepted
        self.changed = sum(changed for _, changed in counts) if is_update else 0
        self.equal = accepted - self.created - self.changed


def import_rows(  # noqa: PLR0913 - its inputs and options
    url: str,
    queries: Mapping[str, Query],
    rows: Iterator[FileRow],
    rejects: Path,
    *,
    update: bool,
    allow_rejects: bool,
    dry_run: bool,
    report: Callable[[str], None],
) -> ImportResult:
    """Import all rows, or none; with `allow_rejects`, all rows that are not rejected.

    `update`: change the movies that have the external ids of the rows. `dry_run`: roll back at the
    end. `report` gets lines about the progress. An error or Ctrl-C before the commit leaves nothing
    behind. Raises `OperatorError`.
    """
    started = reported = time.monotonic()
    result = ImportResult()
    with transactions.begin(url, queries) as transaction:
        try:
            transaction.run("postpone_words")
            with write_rejects(rejects) as write_reject:
                for chunk in _insert_chunks(transaction, _split_into_chunks(rows, update=update)):
                    for _, reject in sorted(chunk.rejects):
                        write_reject(reject)
                    done = (chunk.created, chunk.changed, chunk.equal, chunk.read)
                    more = (*done, len(chunk.rejects), 0.0)
                    result = ImportResult(*map(operator.add, result, more))
                    if time.monotonic() > reported + PROGRESS_S:
                        reported = time.monotonic()
                        report(f"{result.read:,} rows in {reported - started:.0f} s")
            must_commit = not dry_run and (allow_rejects or not result.rejected)
            if must_commit:
                transaction.run("add_postponed_words", {"run": True})
                transaction.run("analyze_movies")
        except KeyboardInterrupt as error:
            raise OperatorError("interrupted: nothing was imported") from error
        if must_commit:
            transaction.commit()
    return result._replace(seconds=time.monotonic() - started)


def _split_into_chunks(rows: Iterable[FileRow], *, update: bool) -> Iterator[Chunk]:
    """Yield at least one chunk."""
    updated = set[int]() if update else None
    chunk = Chunk(updated)
    for row in rows:
        chunk.add(row)
        if chunk.read >= MAX_CHUNK_ROWS or chunk.bytes >= MAX_CHUNK_BYTES:
            yield chunk
            chunk = Chunk(updated)
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
    with convert_file_errors(str(path), "cannot be written"):
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
