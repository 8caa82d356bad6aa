"""Import: rows of a file, checked by the API's rules, into the table; all rows or none."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import orjson

from service.database import transactions
from service.database.query import Expected, Query, Row
from service.database.transactions import Transaction
from service.errors import CatalogueError, Failure, Invalid, Malformed, OperatorError
from service.movies.exporting import write_file
from service.movies.movie import MOVIES
from service.movies.rows import FileRow, convert_file_errors, read_record

_expect = partial(
    Expected, used_by="import", writes=True, by_command=True, own_tables=MOVIES.own_tables
)
QUERIES: Mapping[str, Expected] = {
    "reserve_movie_ids": _expect({"drawn": int}, [{"highest": 0}]),
    "find_taken_movies": _expect({"position": int, "reasons": list[str]}, [{"movies": "[]"}]),
    "import_movies": _expect({}, [{"movies": "[]"}]),
    "put_imported_movies": _expect(
        {"created": int, "changed": int}, [{"movies": "[]"}], used_by="import --update"
    ),
    "postpone_words": _expect({"postponed": str}, [{}]),
    "add_postponed_words": _expect({"words": int}, [{"run": False}]),
    "analyze_movies": _expect({}, [{}]),
}
# A chunk is inserted while the next one is read.
MAX_CHUNK_ROWS = 10_000
MAX_CHUNK_BYTES = 4 << 20
CANCEL_AFTER_S = 0.1
PROGRESS_S = 5.0  # between two lines about the progress


class ImportResult(NamedTuple):
    """The result of an import, in numbers of rows."""

    # The first three are rolled back in a dry run, or if there are rejects that are not allowed.
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


Entry = tuple[FileRow, str]


class ImportChunk:
    """Some rows of the file, in its order: valid ones are inserted, all others are rejects."""

    def __init__(self) -> None:
        self.read = 0  # rows
        self.bytes = 0
        # The rows to be imported, each with its movie as JSON: those with ids that are new in this
        # chunk, and those with an id that an earlier row has.
        self._firsts: list[Entry] = []
        self._repeats: list[Entry] = []
        self._ids = set[object]()
        self.highest_id = 0
        self.rejects: list[tuple[int, bytes]] = []  # line number, and text for the file of rejects
        self.created = self.changed = self.equal = 0

    def add(self, row: FileRow, updated: set[int] | None) -> None:
        """Validate a row; `updated`: the external ids of an update as hashes, which are smaller."""
        self.read += 1
        self.bytes += row.size
        if row.movie is None:
            return
        try:
            if isinstance(row.movie, CatalogueError):
                raise row.movie
            movie = read_record(row.movie, keep_read_only=updated is None)
            if updated is not None:
                if "external_id" not in movie:
                    raise Invalid([Failure("external_id", "is required for an update")])
                key = hash(movie["external_id"])
                if key in updated:
                    raise Invalid([Failure("external_id", "must not be repeated")])
                updated.add(key)
        except CatalogueError as error:
            is_one_mistake = isinstance(error, Malformed) and len(error.failures) == 1
            failures = () if is_one_mistake else error.failures
            reasons = [f"{field}: {detail}" for field, detail in failures]
            self._reject(row, reasons or [str(error)])
        else:
            ids = {movie.get("id"), movie.get("external_id")} - {None}
            entries = self._firsts if ids.isdisjoint(self._ids) else self._repeats
            entries.append((row, orjson.dumps(movie).decode()))  # orjson's bytes take 4 KB each
            self._ids |= ids
            self.highest_id = max(self.highest_id, movie.get("id", 0))

    def _reject(self, row: FileRow, reasons: list[str]) -> None:
        """Add the text of a rejected row; parsed, it may take a hundred times as much memory."""
        reject = {"line": row.line, "reasons": reasons, "row": row.given}
        encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
        try:
            text = encode(reject)
        except RecursionError:  # nested too deep to be written
            text = encode(reject | {"row": None})
        line = text.encode("utf-8", "backslashreplace")  # a lone surrogate becomes its escape
        self.rejects.append((row.line, line + b"\n"))

    def insert(self, transaction: Transaction, *, update: bool) -> None:
        """Insert the movies; reject the rows that the database refuses."""
        if update:
            counts = self._insert(transaction, "put_imported_movies", self._firsts)
            self.created = sum(created for created, _ in counts)
            self.changed = sum(changed for _, changed in counts)
            self.equal = len(self._firsts) - self.created - self.changed
            return
        if self.highest_id:
            transaction.run("reserve_movie_ids", {"highest": self.highest_id})
        for entries in filter(None, (self._firsts, self._repeats)):
            # To find each row whose ids are taken by inserting takes 20 times as long.
            sent = {"movies": f"[{','.join(movie for _, movie in entries)}]"}
            taken = transaction.run("find_taken_movies", sent)
            for position, reasons in sorted(taken, reverse=True):
                row, _ = entries.pop(position)
                self._reject(row, reasons)
            self._insert(transaction, "import_movies", entries)
            self.created += len(entries)

    def _insert(self, transaction: Transaction, query: str, entries: list[Entry]) -> list[Row]:
        """Return what the query returned; the entries that it refused become rejects."""
        counts, refusals = transaction.insert(query, [movie for _, movie in entries])
        for index, reason in sorted(refusals, reverse=True):
            row, _ = entries.pop(index)
            self._reject(row, [f"is refused by the database: {reason}"])
        return counts


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
    end. `report` gets lines about the progress. An error or Ctrl-C before the commit changes
    nothing. Raises `OperatorError`.
    """
    started = reported = time.monotonic()
    result = ImportResult()
    with transactions.begin(url, queries) as transaction:
        try:
            transaction.run("postpone_words")
            with write_rejects(rejects) as write_reject:
                chunks = _split_into_chunks(rows, update=update)
                for chunk in _insert_chunks(transaction, chunks, update=update):
                    for _, reject in sorted(chunk.rejects):
                        write_reject(reject)
                    result = ImportResult(
                        result.created + chunk.created,
                        result.changed + chunk.changed,
                        result.equal + chunk.equal,
                        result.read + chunk.read,
                        result.rejected + len(chunk.rejects),
                    )
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


def _split_into_chunks(rows: Iterable[FileRow], *, update: bool) -> Iterator[ImportChunk]:
    """Yield at least one chunk."""
    updated = set[int]() if update else None
    chunk = ImportChunk()
    for row in rows:
        chunk.add(row, updated)
        if chunk.read >= MAX_CHUNK_ROWS or chunk.bytes >= MAX_CHUNK_BYTES:
            yield chunk
            chunk = ImportChunk()
    yield chunk


def _insert_chunks(
    transaction: Transaction, chunks: Iterator[ImportChunk], *, update: bool
) -> Iterator[ImportChunk]:
    """Insert each chunk in a thread and yield it; the next chunk is read meanwhile."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        chunk = next(chunks)
        inserting = thread.submit(chunk.insert, transaction, update=update)
        try:
            for following in chunks:
                inserting.result()
                inserting = thread.submit(following.insert, transaction, update=update)
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
    """Yield a function that adds a line; a former file is replaced, or removed without lines."""
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
