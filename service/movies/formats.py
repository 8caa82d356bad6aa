"""The files of import and export: their formats, gzip or not, and whole or not there."""

import codecs
import gzip
import io
import os
import secrets
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from service.errors import OperatorError
from service.movies.json_rows import read_array, read_ndjson
from service.movies.movie import COLUMNS
from service.movies.rows import BrokenFile, FileRow
from service.movies.table_rows import read_csv, read_imdb
from service.text_files import START_BYTES, require_utf8

READERS = {"ndjson": read_ndjson, "json": read_array, "imdb": read_imdb}
IMPORTED = ("ndjson", "json", "csv", "imdb")
ENDINGS = {".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "json", ".csv": "csv", ".tsv": "imdb"}


def detect_format(path: str, given: str | None, known: Collection[str]) -> str:
    """Return the given format, or else the format of the file name's ending."""
    name = path.lower().removesuffix(".gz")
    found = given or next((ENDINGS[end] for end in ENDINGS if name.endswith(end)), None)
    if found is None or found not in known:
        problem = f"{found} is for import only" if found else "its name does not tell the format"
        raise OperatorError(f"{path}: {problem}: add --format with one of {', '.join(known)}")
    return found


def read_rows(
    path: str,
    stream: BinaryIO,
    kind: str,
    columns: Mapping[str, str],
    where: Sequence[tuple[str, str]],
) -> Iterator[FileRow]:
    """Read the rows of a file; raises `OperatorError` with the line that stops the reading.

    `columns` (field -> column) and `where` (column, value) are for CSV.
    """
    if kind != "csv" and (columns or where):
        raise OperatorError("--map and --where are for CSV")
    if unknown := next((field for field in columns if field not in COLUMNS), None):
        raise OperatorError(f"--map {unknown}: a movie has {', '.join(COLUMNS)}")
    rows = READERS[kind](stream) if kind in READERS else read_csv(stream, columns, where)
    return _convert_errors(path, rows)


def _convert_errors(path: str, rows: Iterator[FileRow]) -> Iterator[FileRow]:
    try:
        with convert_read_errors(path):
            yield from rows
    except BrokenFile as error:
        raise OperatorError(f"{path}:{error.line}: {error}") from error


@contextmanager
def open_source(path: str) -> Iterator[BinaryIO]:
    """Yield the unpacked content of a file (`-`: stdin); detects gzip by its first bytes."""
    with ExitStack() as files:
        with convert_read_errors(path):
            number = 0 if path == "-" else path
            opened = files.enter_context(open(number, "rb", closefd=path != "-"))
            # https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1
            is_gzip = opened.peek().startswith(b"\x1f\x8b")
            unpacked = files.enter_context(gzip.GzipFile(fileobj=opened)) if is_gzip else None
            source = io.BufferedReader(unpacked) if unpacked else opened
            start = source.peek(START_BYTES)
            try:
                require_utf8(start)
            except ValueError as error:
                raise OperatorError(f"{path}: {error}") from error
            if start.startswith(codecs.BOM_UTF8):
                source.read(len(codecs.BOM_UTF8))
        yield source


@contextmanager
def convert_read_errors(path: str) -> Iterator[None]:
    """Raise an `OperatorError` if the file cannot be read, or is not gzip from some byte on."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise OperatorError(f"{path}: cannot be read: {reason}") from error


@contextmanager
def write_file(path: str) -> Iterator[BinaryIO]:
    """Write a file that gets its name when it is complete; `-` is stdout.

    Until then it has a temporary name, so that a full disk or a kill leaves no half file. Only a
    device or a pipe is written directly. A link to a file is replaced, never followed.

    Raises `BrokenPipeError` if the reader of a pipe has gone, `OperatorError` for other errors.
    """
    with convert_write_errors("stdout" if path == "-" else path):
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


@contextmanager
def convert_write_errors(name: str) -> Iterator[None]:
    """Raise an `OperatorError` if a file cannot be written."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OperatorError(f"{name}: cannot be written: {error.strerror}") from error
