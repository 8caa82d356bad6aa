"""Reading a file, gzip or not, and writing one that gets its name when it is complete."""

import errno
import gzip
import io
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from service.errors import OperatorError

BUFFER_BYTES = 1 << 18
GZIP_MAGIC = b"\x1f\x8b"  # https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1


class Source(NamedTuple):
    """An open file; `stream` is unpacked, `size` and `position` count the bytes on disk."""

    stream: BinaryIO
    size: int | None  # None: a pipe
    position: Callable[[], int]


@contextmanager
def open_source(path: str) -> Iterator[Source]:
    """Open a file (`-`: stdin); gzip is recognized by the first bytes."""
    with ExitStack() as files:
        try:
            number = sys.stdin.fileno() if path == "-" else path
            raw = files.enter_context(open(number, "rb", buffering=0, closefd=path != "-"))
            status = os.fstat(raw.fileno())
            stream = files.enter_context(io.BufferedReader(raw, BUFFER_BYTES))
            is_gzip = stream.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
        except KeyboardInterrupt:  # while waiting for the first bytes of a pipe
            raise OperatorError("interrupted: nothing was imported") from None
        except AttributeError:  # no sys.stdin: closed before the start
            raise OperatorError("stdin is closed") from None
        except (OSError, ValueError) as error:  # ValueError: NUL in the name
            raise make_unreadable_error(path, error) from error
        size = status.st_size if raw.seekable() and status.st_size else None
        if is_gzip:
            unpacked = files.enter_context(gzip.GzipFile(fileobj=stream))
            yield Source(io.BufferedReader(unpacked, BUFFER_BYTES), size, raw.tell)
        else:
            yield Source(stream, size, raw.tell)


def make_unreadable_error(path: str, error: Exception) -> OperatorError:
    """Return the error that a file cannot be read."""
    return OperatorError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}")


class Target:
    """A file that gets its name when it is complete; raises `OperatorError` if that fails.

    It is written under another name first, so that a full disk or a kill leaves no half file. A
    target that is not an ordinary file (/dev/null, a pipe) is written directly.

    `follows_links`: whether a link to a file is followed; otherwise it is an error.
    """

    def __init__(self, path: Path, *, follows_links: bool = True) -> None:
        self._path = path
        with self._convert_errors():
            self._final = path.resolve() if follows_links else path.parent.resolve() / path.name
            is_direct = self._final.exists() and not self._final.is_file()
            if self._final.is_symlink() and not is_direct:
                raise OSError(errno.ELOOP, "it is a symbolic link")
            part = f".{self._final.name}.{secrets.token_hex(4)}.part"
            self._part = None if is_direct else self._final.with_name(part)
            # "x": fail if the file exists.
            self.stream = (self._part or self._final).open("xb" if self._part else "wb")

    def write(self, data: bytes) -> None:
        """Write bytes."""
        with self._convert_errors():
            self.stream.write(data)

    def finish(self) -> None:
        """Write everything to disk; the file does not have its name yet."""
        with self._convert_errors():
            self.stream.flush()
            if self._part:
                os.fsync(self.stream.fileno())
            self.stream.close()

    def appear(self) -> None:
        """Give the file its name, replacing an older file."""
        if self._part:
            with self._convert_errors():
                self._part.replace(self._final)

    def discard(self) -> None:
        """Remove what was written."""
        with suppress(OSError):
            self.stream.close()
        if self._part:
            with suppress(OSError):
                self._part.unlink()

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except (OSError, ValueError, RuntimeError) as error:  # NUL in the name; a loop of symlinks
            reason = getattr(error, "strerror", None) or error
            raise OperatorError(f"{self._path}: cannot be written: {reason}") from error
