"""The files of a transfer: one that is read, gzip or not, and one that appears once it is whole."""

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

BUFFER = 1 << 18  # bytes
GZIP = b"\x1f\x8b"  # https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1


class Source(NamedTuple):
    """An open file: its bytes, as it is or unpacked; `size` and `position` count it as it is."""

    stream: BinaryIO
    size: int | None  # None: of a pipe
    position: Callable[[], int]


@contextmanager
def reading(path: str) -> Iterator[Source]:
    """Open a file, `-` being stdin; what gzip made is known by its first bytes."""
    with ExitStack() as files:
        try:
            number = sys.stdin.fileno() if path == "-" else path
            raw = files.enter_context(open(number, "rb", buffering=0, closefd=path != "-"))
            status = os.fstat(raw.fileno())
            stream = files.enter_context(io.BufferedReader(raw, BUFFER))
            packed = stream.peek(len(GZIP)).startswith(GZIP)
        except KeyboardInterrupt:  # while it waits for the first bytes of a pipe
            raise OperatorError("interrupted: nothing was imported") from None
        except AttributeError:  # Python has none where it was closed from the start
            raise OperatorError("stdin is closed") from None
        except (OSError, ValueError) as error:  # ValueError: NUL in the name
            raise unreadable(path, error) from error
        size = status.st_size if raw.seekable() and status.st_size else None
        if packed:
            unpacked = files.enter_context(gzip.GzipFile(fileobj=stream))
            yield Source(io.BufferedReader(unpacked, BUFFER), size, raw.tell)
        else:
            yield Source(stream, size, raw.tell)


def unreadable(path: str, error: Exception) -> OperatorError:
    """Say that a file cannot be read."""
    return OperatorError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}")


class Target:
    """A file that takes its name only when it is whole; `OperatorError` where it cannot be written.

    It is written beside that name, so that neither a full disk nor a kill leaves half a file under
    it. What is there and no ordinary file (/dev/null, a pipe) is written as it is.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._checked():
            self._final = path.resolve()  # of a link, what it points to
            direct = self._final.exists() and not self._final.is_file()
            self._part = None if direct else self._beside()
            # "x": it is nobody else's file.
            self.stream = (self._part or self._final).open("xb" if self._part else "wb")

    def write(self, data: bytes) -> None:
        """Add to it."""
        with self._checked():
            self.stream.write(data)

    def finish(self) -> None:
        """Have all of it on disk; it still lacks its name."""
        with self._checked():
            self.stream.flush()
            if self._part:
                os.fsync(self.stream.fileno())
            self.stream.close()

    def appear(self) -> None:
        """Give it its name, in place of what had it."""
        if self._part:
            with self._checked():
                self._part.replace(self._final)

    def discard(self) -> None:
        """Leave nothing of it."""
        with suppress(OSError):
            self.stream.close()
        if self._part:
            with suppress(OSError):
                self._part.unlink()

    def _beside(self) -> Path:
        return self._final.with_name(f".{self._final.name}.{secrets.token_hex(4)}.part")

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except (OSError, ValueError, RuntimeError) as error:  # NUL in the name; a loop of links
            reason = getattr(error, "strerror", None) or error
            raise OperatorError(f"{self._path}: cannot be written: {reason}") from error
