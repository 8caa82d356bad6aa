"""Export: all movies in the form of the API, by id, from one snapshot."""

import gzip
import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext

from service.database import MAX_BIGINT, transactions
from service.database.query import Expected, Query
from service.database.transactions import Transaction
from service.errors import OperatorError
from service.movies.formats import write_file
from service.movies.movie import COLUMN_TYPES, OUTPUT_FORMS, Movie, movie_json

QUERIES: Mapping[str, Expected] = {
    "export_movies": Expected(
        COLUMN_TYPES, [{"after_id": "0", "size": 0}], "export", by_command=True
    ),
}
CHUNK_ROWS = 2000


def export_movies(url: str, queries: Mapping[str, Query], path: str, kind: str) -> int:
    """Write all movies into a file, or to stdout (`-`); return their number.

    The file gets its name when it is complete. If `path` is a link, its target is replaced.
    Raises `BrokenPipeError` if the reader of stdout has gone, `OperatorError` for other errors.
    """
    exported = 0
    form = OUTPUT_FORMS[kind]
    is_gzip = path.lower().endswith(".gz")
    with (
        write_file(path if path == "-" else os.path.realpath(path)) as file,
        gzip.GzipFile("", "wb", 6, file, mtime=0) if is_gzip else nullcontext(file) as out,
        transactions.begin(url, queries, start=transactions.BEGIN_READING) as transaction,
    ):
        out.write(form.head)
        separator = b""
        for movies in read_chunks(transaction):
            texts = [form.encode(movie_json(movie)) for movie in movies]
            out.write(separator + form.separator.join(texts))
            separator = form.separator
            exported += len(movies)
        out.write(form.tail)
    return exported


def read_chunks(transaction: Transaction) -> Iterator[list[Movie]]:
    """Yield all movies by id in chunks."""
    after_id = -MAX_BIGINT
    try:
        while rows := transaction.run(
            "export_movies", {"after_id": str(after_id), "size": CHUNK_ROWS}
        ):
            movies = [Movie._make(row) for row in rows]
            yield movies
            after_id = movies[-1].id
    except (ValueError, OverflowError) as error:  # a time before the year 1 or after 9999
        raise OperatorError(f"a movie cannot be read: {error}") from error
