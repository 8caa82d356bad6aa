"""Export: all movies as the API answers them, by id, as of one moment."""

import os
import sys
import time
import zlib
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
from service.transfer.formats import writing

Write = Callable[[bytes], object]
GZIP = 16 + zlib.MAX_WBITS  # zlib's way to say that it is to look like gzip's
LEVEL = 6  # as gzip itself
CHUNK_ROWS = 2000
BEFORE_ALL_IDS = -(2**63) + 1


class Outcome(NamedTuple):
    """What an export did."""

    exported: int
    seconds: float


def export_movies(url: str, queries: Mapping[str, Query], path: str, kind: str) -> Outcome:
    """Write all movies into a file, which appears once it is whole, or to stdout (`-`).

    `BrokenPipeError` where nobody reads on; `OperatorError` for all else that is in the way.
    """
    started = time.monotonic()
    exported = 0
    with _target(path) as write, transactions.begin(url, queries, read_only=True) as transaction:
        form = writing(kind)
        start = form.head
        for movies in read_chunks(transaction):
            write(start + form.between.join([form.movie(movie_json(movie)) for movie in movies]))
            start = form.between
            exported += len(movies)
        write(form.tail if exported else form.empty)
    return Outcome(exported, time.monotonic() - started)


def read_chunks(transaction: Transaction) -> Iterator[list[Movie]]:
    """Yield all movies by id, some thousands at a time; the next are fetched meanwhile."""
    transaction.start("export_movies", after_id=str(BEFORE_ALL_IDS), size=CHUNK_ROWS)
    try:
        while rows := transaction.finish():
            movies = [Movie._make(row) for row in rows]
            transaction.start("export_movies", after_id=str(movies[-1].id), size=CHUNK_ROWS)
            yield movies
    except (ValueError, OverflowError) as error:  # a time before the year 1 or after 9999
        raise OperatorError(f"a movie cannot be read: {error}") from error


@contextmanager
def _target(path: str) -> Iterator[Write]:
    if path == "-":
        if sys.stdout is None:  # closed from the start
            raise OperatorError("stdout is closed")
        yield _to_stdout
        _to_stdout(b"", whole=True)
        return
    target = Target(Path(path))
    packing = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP) if path.lower().endswith(".gz") else None
    try:
        if packing:
            yield lambda data: target.write(packing.compress(data))
            target.write(packing.flush())
        else:
            yield target.write
        target.finish()
        target.appear()
    except BaseException:
        target.discard()
        raise


def _to_stdout(data: bytes, *, whole: bool = False) -> None:
    try:
        sys.stdout.buffer.write(data)
        if whole:
            sys.stdout.buffer.flush()
    except OSError as error:
        # Python flushes what is left once more at its end, and would say so again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise OperatorError(f"stdout: cannot be written: {error.strerror}") from error
