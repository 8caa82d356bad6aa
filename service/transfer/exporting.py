"""Export: all movies in the form of the API, by id, from one snapshot."""

import gzip
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from service.catalogue.movie import Movie, movie_json
from service.database import transactions
from service.database.queries import Query
from service.database.transactions import Transaction
from service.errors import OperatorError
from service.transfer.files import Target
from service.transfer.formats import output_format

Write = Callable[[bytes], object]
GZIP_LEVEL = 6  # the default of gzip
CHUNK_ROWS = 2000
BEFORE_ALL_IDS = -(2**63) + 1


class ExportResult(NamedTuple):
    """What an export did."""

    exported: int
    seconds: float


def export_movies(url: str, queries: Mapping[str, Query], path: str, kind: str) -> ExportResult:
    """Write all movies into a file, which gets its name when it is complete, or to stdout (`-`).

    Raises `BrokenPipeError` if the reader of stdout has gone, `OperatorError` for other errors.
    """
    started = time.monotonic()
    exported = 0
    with (
        _open_target(path) as write,
        transactions.begin(url, queries, read_only=True) as transaction,
    ):
        form = output_format(kind)
        start = form.head
        for movies in read_chunks(transaction):
            write(start + form.separator.join([form.movie(movie_json(movie)) for movie in movies]))
            start = form.separator
            exported += len(movies)
        write(form.tail if exported else form.empty)
    return ExportResult(exported, time.monotonic() - started)


def read_chunks(transaction: Transaction) -> Iterator[list[Movie]]:
    """Yield all movies by id in chunks; the next chunk is fetched meanwhile."""
    transaction.start("export_movies", after_id=str(BEFORE_ALL_IDS), size=CHUNK_ROWS)
    try:
        while rows := transaction.finish():
            movies = [Movie._make(row) for row in rows]
            transaction.start("export_movies", after_id=str(movies[-1].id), size=CHUNK_ROWS)
            yield movies
    except (ValueError, OverflowError) as error:  # a time before the year 1 or after 9999
        raise OperatorError(f"a movie cannot be read: {error}") from error


@contextmanager
def _open_target(path: str) -> Iterator[Write]:
    if path == "-":
        if sys.stdout is None:  # closed before the start
            raise OperatorError("stdout is closed")
        yield _write_to_stdout
        _write_to_stdout(b"", is_last=True)
        return
    target = Target(Path(path))

    def write_gzip(data: bytes) -> None:
        """Write a member of a gzip file, which may have several (RFC 1952, 2.2)."""
        target.write(gzip.compress(data, GZIP_LEVEL, mtime=0))

    try:
        yield write_gzip if path.lower().endswith(".gz") else target.write
        target.finish()
        target.appear()
    except BaseException:
        target.discard()
        raise


def _write_to_stdout(data: bytes, *, is_last: bool = False) -> None:
    try:
        sys.stdout.buffer.write(data)
        if is_last:
            sys.stdout.buffer.flush()
    except OSError as error:
        # Python flushes stdout again at exit, and would report the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise OperatorError(f"stdout: cannot be written: {error.strerror}") from error
