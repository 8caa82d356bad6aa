"""The rows of a file, numbered by the line where each starts, and the rules for them."""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from typing import BinaryIO, NamedTuple

from service.database import MAX_INTEGER
from service.errors import CatalogueError, OperatorError
from service.movies.movie import READ_ONLY
from service.movies.rules import MOVIE, MovieInput
from service.text_files import START_BYTES, require_utf8
from service.web.bodies import MAX_BODY_BYTES
from service.web.fields import MAX_NUMBER, JSONField, Values, load_fields, whole_number

TOO_LONG = f"the row must be at most {MAX_BODY_BYTES} bytes"


class FileRow(NamedTuple):
    """A row of the file, and its movie or error; None: left out, as it does not match `--where`."""

    line: int
    given: object
    movie: dict[str, object] | CatalogueError | None
    size: int  # bytes in the file


class BrokenFile(Exception):
    """The file cannot be read from a line on; the arguments are its number and the reason."""


@contextmanager
def open_source(path: str) -> Iterator[BinaryIO]:
    """Yield the unpacked content of a file (`-`: stdin); detects gzip by its first bytes."""
    with ExitStack() as files:
        with convert_file_errors(path, "cannot be read"):
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
def convert_file_errors(name: str, problem: str) -> Iterator[None]:
    """Turn file errors into an `OperatorError` with this text; `BrokenPipeError` stays."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, EOFError, zlib.error) as error:  # the last two are of gzip
        reason = getattr(error, "strerror", None) or error
        raise OperatorError(f"{name}: {problem}: {reason}") from error


def read_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line; raises `BrokenFile` for one that is too long."""
    for number in count(1):
        line = stream.readline(MAX_BODY_BYTES + 1)
        if len(line) > MAX_BODY_BYTES:
            raise BrokenFile(number, f"{TOO_LONG}, and end with LF")
        if not line:
            return
        yield number, line


def read_record(row: Mapping[str, object], *, keep_read_only: bool = True) -> Values:
    """Return the values of `FIELDS`, or of `COLUMNS` if the row has a read-only field.

    Without `keep_read_only`, read-only fields are ignored. Raises `Malformed` or `Invalid`.
    """
    if not keep_read_only:
        row = {name: row[name] for name in row if name not in MovieInput.read_only}
    return load_fields(MOVIE if row.keys().isdisjoint(READ_ONLY) else EXPORTED_MOVIE, row)


def _parse_timestamp(text: str) -> datetime:
    with suppress(ValueError, OverflowError):
        time = datetime.fromisoformat(text)
        if time.tzinfo:
            return time.astimezone(UTC)
    raise ValueError('must be a time of RFC 3339, like "2026-01-05T09:00:00Z"')


class ExportedMovie(MovieInput):
    """A movie as an export writes it: with the fields that clients do not send."""

    read_only = ()
    # Higher ids are left for new movies.
    id, version = whole_number(MAX_NUMBER), whole_number(MAX_INTEGER)
    created_at = updated_at = JSONField(
        str, 'a string like "2026-01-05T09:00:00Z"', convert=_parse_timestamp
    )
    etag = JSONField(str, "a string", optional=True)  # of a stream; not used


EXPORTED_MOVIE = ExportedMovie()
