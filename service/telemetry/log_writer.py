"""Writes the lines of the log to stdout or stderr, in a thread of its own.

So the event loop never waits for a reader that stalls or has gone, or for a full disk: lines wait
in a queue, and when it is full, further lines are dropped and counted. A process that is killed
loses the lines of its last milliseconds.
"""

import atexit
import io
import os
import sys
import threading
import time
from functools import cache
from queue import SimpleQueue

import structlog

MAX_LINES = 4096  # about 1 MB
# Linux does not mix the lines of several processes on one pipe if no write is longer than this
# (https://man7.org/linux/man-pages/man7/pipe.7.html, PIPE_BUF).
PIPE_BUF_BYTES = 4096
# The thread writes the lines of this time together: each wake-up costs the event loop some us.
COLLECT_S = 0.02
RETRY_S = 0.5  # after an error
EXIT_WAIT_S = 1.0
END = b""

log = structlog.get_logger()


class Writer(io.TextIOBase):
    """A text stream for `logging` and structlog; `stream` is the name of a stream in `sys`."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self.start()

    def start(self) -> None:
        """Start the thread; called again in a forked process, which has no thread."""
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        self._is_closing = threading.Event()
        self._dropped = 0
        self.dropped_in_all = 0  # lines
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Write whole lines."""
        self.write_line(text.encode(errors="replace"))
        return len(text)

    def write_line(self, line: bytes) -> None:
        """Hand a line to the thread; never waits."""
        if self._queue.qsize() < MAX_LINES:
            self._queue.put(line)
        else:
            self._dropped += 1
            self.dropped_in_all += 1

    def close(self) -> None:
        """Write the lines that wait, for `EXIT_WAIT_S` at most; later ones are not written."""
        self._is_closing.set()
        self._queue.put(END)
        self._thread.join(EXIT_WAIT_S)

    def _run(self) -> None:
        text = b""
        while True:
            line = self._queue.get()
            if text and (not line or len(text) + len(line) > PIPE_BUF_BYTES):
                self._write(text)
                text = b""
            if not line:
                return
            text += line
            if self._queue.empty():
                self._write(text)
                text = b""
                if self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    log.error("log lines dropped", lines=dropped)
                if not self._is_closing.is_set():
                    time.sleep(COLLECT_S)

    def _write(self, text: bytes) -> None:
        """Write all of the text, again after an error; end the thread when the writer is closing.

        A full disk may take a part of it: the rest must come next, or a line would be torn.
        """
        while text:
            try:
                text = text[os.write(getattr(sys, self._stream).fileno(), text) :]
            except (OSError, ValueError, AttributeError):  # the last two: the stream was closed
                if self._is_closing.wait(RETRY_S):
                    sys.exit()


@cache
def get_writer(stream: str = "stdout") -> Writer:
    """Return the writer of this process for a stream."""
    writer = Writer(stream)
    os.register_at_fork(after_in_child=writer.start)
    atexit.register(writer.close)
    return writer
