"""Writes all movies from one snapshot: an export into a file, or a whole list as a stream."""

import asyncio
import gzip
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

from aiohttp import HttpVersion11, hdrs, web

from service.database import MAX_BIGINT, transactions
from service.database.caller import Caller
from service.database.listing import Listing
from service.database.query import Expected, Query
from service.database.transactions import Transaction
from service.errors import OperatorError, UpgradeRequired
from service.movies.movie import COLUMN_TYPES, OUTPUT_FORMS, Form, Movie, movie_json
from service.movies.parameters import parse_list_query
from service.movies.rows import convert_file_errors
from service.web.context import CONTEXT, ClientGone
from service.web.headers import parse_qualities, prefers_gzip

QUERIES: Mapping[str, Expected] = {
    "export_movies": Expected(
        COLUMN_TYPES, [{"after_id": "0", "size": 0}], "export", by_command=True, in_order=True
    )
}
CHUNK_ROWS = 2000
READ_TIMEOUT_S = 10.0  # for a client to read what was sent
MAX_STREAM_S = 3600.0  # VACUUM keeps dead rows as long as a snapshot may see them
# Returns the headers with which a copy of all movies begins; called before the list is read.
BeginCopy = Callable[[Caller], Awaitable[dict[str, str]]]
STREAMS = {"application/x-ndjson": OUTPUT_FORMS["ndjson"], "text/csv": OUTPUT_FORMS["csv"]}


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


@contextmanager
def write_file(path: str) -> Iterator[BinaryIO]:
    """Write a file that gets its name when it is complete; `-` is stdout.

    Until then it has a temporary name, so that a full disk or a kill leaves no half file. Only a
    device or a pipe is written directly. A link to a file is replaced, never followed.

    Raises `BrokenPipeError` if the reader of a pipe has gone, `OperatorError` for other errors.
    """
    with convert_file_errors("stdout" if path == "-" else path, "cannot be written"):
        final = Path(path)
        if path == "-" or (final.exists() and not final.is_file()):
            with open(1 if path == "-" else path, "wb", closefd=path != "-") as stream:
                yield stream
        else:
            part = final.with_name(f".{final.name}.{secrets.token_hex(4)}.part")
            try:
                with part.open("xb") as stream:
                    yield stream
                    stream.flush()
                    os.fsync(stream.fileno())
                part.replace(final)
            finally:
                part.unlink(missing_ok=True)


def choose_form(request: web.Request) -> Form | None:
    """Return the form of a stream that `Accept` names and prefers; None: send JSON."""
    qualities = parse_qualities(",".join(request.headers.getall(hdrs.ACCEPT)))
    name = max(STREAMS, key=lambda name: qualities.get(name, 0))
    others = qualities.get("application/*", qualities.get("*/*", 0))
    # At the same quality, JSON is preferred if it is named, and not if a wildcard stands for it.
    json = qualities.get("application/json", others - 0.0005)
    return STREAMS[name] if qualities.get(name, 0) > max(json, 0) else None


async def stream_movies(
    request: web.Request, listing: Listing[Movie], begin_copy: BeginCopy | None, form: Form
) -> web.StreamResponse:
    """Send all movies that match the query string; for HEAD, only the headers.

    An error before the first movies is a problem document. A later one resets the connection:
    otherwise the client would take the list for complete, as every client of HTTP/1.0 would.
    """
    context = request[CONTEXT]
    context.name_stream()
    if request.version < HttpVersion11:
        raise UpgradeRequired
    query = parse_list_query(request.rel_url.raw_query_string, is_stream=True)
    headers = {"Content-Type": form.media_type, "Vary": "Accept, Accept-Encoding"}
    response = web.StreamResponse(headers=headers)
    if begin_copy:  # before the list, to miss no change
        response.headers.update(await begin_copy(context.caller))
    if request.method == hdrs.METH_HEAD:
        return response
    if prefers_gzip(",".join(request.headers.getall(hdrs.ACCEPT_ENCODING, ()))):
        response.enable_compression(web.ContentCoding.gzip)
    context.extend(MAX_STREAM_S)
    text = form.head
    try:
        filters, caller = query.filter.as_json(), context.caller
        stream = listing.stream(filters, query.sort, caller, lambda: request.transport is None)
        async with aclosing(stream) as chunks:
            async for total, rows in chunks:
                text += b"".join([form.encode(movie_json(Movie._make(row))) for row in rows])
                async with asyncio.timeout(READ_TIMEOUT_S):
                    if not response.prepared:
                        response.headers["Total-Records"] = f"{total}"
                        await response.prepare(request)
                    await response.write(text)
                text = b""
    except BaseException as error:
        if response.prepared and request.transport:
            request.transport.abort()
        if isinstance(error, OSError):
            raise ClientGone(str(error) or "the client does not read") from error
        raise
    return response
