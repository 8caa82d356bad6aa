"""Writes the lines of the log to stdout or stderr, in a thread of its own.

So neither a reader that stalls, nor one that has gone, nor a full disk stops the event loop: lines
wait in a buffer, and when it is full, further lines are dropped and counted. A process that is
killed loses the lines of its last milliseconds.
"""

import atexit
import io
import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from functools import cache

import structlog

BUFFER_BYTES = 1024 * 1024
# Linux does not mix the lines of several processes on one pipe if no write is longer than this
# (https://man7.org/linux/man-pages/man7/pipe.7.html, PIPE_BUF).
PIPE_BUF_BYTES = 4096
# Lines of this time are written together: each switch to the thread costs the event loop some us.
COLLECT_S = 0.02
RETRY_S = 0.5  # after an error
EXIT_WAIT_S = 1.0

log = structlog.get_logger()


class Writer(io.TextIOBase):
    """A text stream for `logging` and structlog; its thread starts with the first line.

    `stream` is the name of a stream in `sys`.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self.start_anew()

    def start_anew(self) -> None:
        """Forget all; for a forked process, whose lines are its parent's, without the thread."""
        self._lock = threading.RLock()  # reentrant: a finalizer that runs meanwhile may log, too
        self._changed = threading.Condition(self._lock)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_idle = False  # the thread waits for a line
        self._lines: deque[bytes] = deque()
        self._size = 0  # bytes of `_lines`
        self._dropped = 0
        self.dropped_in_all = 0  # lines

    def write(self, text: str) -> int:
        """Write whole lines."""
        self.write_line(text.encode(errors="replace"))
        return len(text)

    def write_line(self, line: bytes) -> None:
        """Hand a line to the thread; never waits."""
        with self._lock:
            if self._size + len(line) > BUFFER_BYTES:
                self._dropped += 1
                self.dropped_in_all += 1
                return
            self._lines.append(line)
            self._size += len(line)
            if self._is_idle:
                self._is_idle = False
                self._changed.notify()
            elif not self._thread and not self._closing.is_set():
                thread = threading.Thread(target=self._run, name="log", daemon=True)
                with suppress(RuntimeError):  # no more threads: the next line tries again
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        """Write the lines that wait, for `EXIT_WAIT_S` at most; later ones are not written."""
        self._closing.set()
        with self._lock:
            self._changed.notify()
        if self._thread:
            self._thread.join(EXIT_WAIT_S)

    def _run(self) -> None:
        while self._wait_for_line():
            if not self._closing.is_set():
                time.sleep(COLLECT_S)
            while text := self._take():
                if not self._write(text):
                    return
            with self._lock:
                dropped, self._dropped = self._dropped, 0
            if dropped:
                log.error("log lines dropped", lines=dropped)

    def _wait_for_line(self) -> bool:
        """Wait for a line; False when the writer is closing and all lines are written."""
        with self._lock:
            while not self._lines and not self._closing.is_set():
                self._is_idle = True
                self._changed.wait()
            return bool(self._lines)

    def _take(self) -> bytes:
        """Take as many lines as one write may have, or one longer line."""
        with self._lock:
            text = self._lines.popleft() if self._lines else b""
            while self._lines and len(text) + len(self._lines[0]) <= PIPE_BUF_BYTES:
                text += self._lines.popleft()
            self._size -= len(text)
            return text

    def _write(self, text: bytes) -> bool:
        """Write all of the text, again after an error; False when the writer is closing.

        A full disk may take a part of it: the rest must come next, or a line would be torn.
        """
        while text:
            try:
                text = text[os.write(getattr(sys, self._stream).fileno(), text) :]
            except (OSError, ValueError, AttributeError):  # the last two: it was closed
                if self._closing.wait(RETRY_S):
                    return False
        return True


@cache
def get_writer(stream: str = "stdout") -> Writer:
    """Return the writer of this process for a stream."""
    writer = Writer(stream)
    os.register_at_fork(after_in_child=writer.start_anew)
    atexit.register(writer.close)
    return writer
