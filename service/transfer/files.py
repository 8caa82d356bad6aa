"""Reading a file, gzip or not, and writing one that gets its name when it is complete."""

import gzip
import io
import os
import secrets
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import click

from service.errors import OperatorError

BUFFER_BYTES = 1 << 18
GZIP_MAGIC = b"\x1f\x8b"  # https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1


class Source(NamedTuple):
    """An open file: its unpacked content, and the file itself."""

    stream: BinaryIO
    raw: io.FileIO


@contextmanager
def open_source(path: str) -> Iterator[Source]:
    """Open a file (`-`: stdin); gzip is recognized by the first bytes."""
    with ExitStack() as files:
        with convert_read_errors(path):
            number = 0 if path == "-" else path
            raw = files.enter_context(open(number, "rb", buffering=0, closefd=path != "-"))
            packed = files.enter_context(io.BufferedReader(raw, BUFFER_BYTES))
            stream: BinaryIO = packed
            if packed.peek().startswith(GZIP_MAGIC):
                unpacked = files.enter_context(gzip.GzipFile(fileobj=packed))
                stream = io.BufferedReader(unpacked, BUFFER_BYTES)
        yield Source(stream, raw)


@contextmanager
def convert_read_errors(path: str) -> Iterator[None]:
    """Raise an `OperatorError` if the file cannot be read, or is not gzip from some byte on."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise OperatorError(f"{path}: cannot be read: {reason}") from error


@contextmanager
def show_progress(raw: io.FileIO) -> Iterator[Callable[[], None]]:
    """Yield a function that shows on a terminal how much of the file has been read."""
    size = os.fstat(raw.fileno()).st_size  # 0: a pipe
    if not size or sys.stderr is None or not sys.stderr.isatty():
        yield lambda: None
        return
    with click.progressbar(length=size, file=sys.stderr) as bar:
        yield lambda: bar.update(raw.tell() - bar.pos)


@contextmanager
def write_file(path: str) -> Iterator[BinaryIO]:
    """Write a file that gets its name when it is complete; `-` is stdout.

    It has another name first, so that a full disk or a kill leaves no half file. Only a device or
    a pipe is written directly. A link to a file is replaced, never followed.

    Raises `BrokenPipeError` if the reader of a pipe has gone, `OperatorError` for other errors.
    """
    with convert_write_errors("stdout" if path == "-" else path):
        final = Path(path)
        if path == "-":
            with open(1, "wb", closefd=False) as stream:
                yield stream
        elif final.exists() and not final.is_file():
            with final.open("wb") as stream:
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
