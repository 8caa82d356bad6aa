"""Logs on stdout, one line per event: text on a terminal, JSON elsewhere (structlog).

The libraries' logs (aiohttp, asyncio, alembic, gunicorn) get the same form. A thread writes the
lines, so the event loop never waits for a reader that stalls or has gone, or for a full disk. A
process that is killed loses the lines of its last milliseconds.
"""

import json
import logging
import os
import sys
import time
from collections.abc import MutableMapping
from functools import cache
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from select import PIPE_BUF
from threading import Event
from typing import Any

import orjson
import structlog

from service.config import Log

MAX_LINES = 4096  # about 1 MB
# The thread sleeps so long when it has written all: each wake-up costs the event loop some us.
COLLECT_S = 0.02
RETRY_S = 0.5  # after an error
EXIT_WAIT_S = 1.0
JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z

log = structlog.get_logger()


class Lines(QueueHandler):
    """Hands lines to a thread that writes them to a stream; those that do not fit are dropped.

    `stream`: its name in `sys`.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self.start()
        super().__init__(self.waiting)
        os.register_at_fork(after_in_child=self.start)

    def start(self) -> None:
        """Start the thread; called again in a forked process, which has none."""
        self.queue = self.waiting = SimpleQueue[bytes | Event]()
        self.dropped = 0
        Writer(self, self._stream).start()

    def prepare(self, record: logging.LogRecord) -> bytes:
        """Return the line of a record."""
        return f"{self.format(record)}\n".encode(errors="replace")

    def enqueue(self, line: Any) -> None:
        """Hand over a line, as bytes; never waits."""
        if self.waiting.qsize() < MAX_LINES:
            self.waiting.put(line)
        else:
            self.dropped += 1

    def flush(self) -> None:
        """Wait for the lines to be written, at most `EXIT_WAIT_S`; `logging` calls it at exit."""
        is_written = Event()
        self.waiting.put(is_written)
        is_written.wait(EXIT_WAIT_S)


class Writer(QueueListener):
    """The thread that writes lines."""

    def __init__(self, lines: Lines, stream: str) -> None:
        super().__init__(lines.waiting)
        self._lines, self._stream, self._reported = lines, stream, 0
        self._next: Any = None  # what did not fit

    def dequeue(self, block: bool) -> Any:  # noqa: FBT001 - as its base class
        """Return the next lines, as many as a pipe takes whole: saves 7 us of a read."""
        lines, self._next = self._next or self._wait(block), None
        while isinstance(lines, bytes) and not self._lines.waiting.empty():
            self._next = super().dequeue(block=False)
            if not isinstance(self._next, bytes) or len(lines) + len(self._next) > PIPE_BUF:
                break
            lines, self._next = lines + self._next, None
        return lines

    def _wait(self, block: bool) -> Any:  # noqa: FBT001 - as its base class
        if self._lines.waiting.empty():
            if dropped := self._lines.dropped - self._reported:
                self._reported += dropped
                log.error("log lines dropped", lines=dropped)
            time.sleep(COLLECT_S)
        return super().dequeue(block)

    def handle(self, line: Any) -> None:
        """Write the lines, again after an error.

        At most `PIPE_BUF` bytes, or those of several processes could be mixed. A full disk may take
        a part of them: the rest must come next, or a line would be torn.
        """
        if isinstance(line, Event):  # `flush` waits for it
            line.set()
            return
        while line:
            try:
                line = line[os.write(getattr(sys, self._stream).fileno(), line) :]
            except (OSError, ValueError, AttributeError):  # the last two: the stream was closed
                time.sleep(RETRY_S)


@cache
def get_lines(stream: str = "stdout") -> Lines:
    """Return the lines of this process for a stream."""
    return Lines(stream)


def configure(settings: Log) -> None:
    """Set up logging for this process; called by commands, never by an import."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    common: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper("iso"),  # in UTC
    ]
    final: list[Any] = (
        [
            structlog.dev.ConsoleRenderer(
                colors=_is_terminal(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
        if is_as_text(settings)
        else [structlog.processors.format_exc_info, _to_json]
    )
    structlog.configure(
        processors=[*common, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: logging.getLogger("service"),
        cache_logger_on_first_use=True,
    )
    handler = get_lines()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    logging.getLogger("service").setLevel(level)
    logging.getLogger("aiosql").setLevel(logging.ERROR)  # it warns of inserts
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)


def is_as_text(settings: Log) -> bool:
    """Whether lines are text, not JSON."""
    return settings.format == "text" or (settings.format == "auto" and _is_terminal())


def log_start_failure(error: Exception) -> None:
    """Log why the service does not start, also if the settings of its log are unknown."""
    if not structlog.is_configured():
        configure(Log())
    structlog.get_logger().error("not started", reason=str(error))


def encode_line(fields: MutableMapping[str, Any]) -> bytes:
    """Encode the fields of a line as JSON; accepts values of any type."""
    try:
        return orjson.dumps(fields, default=str, option=JSON_OPTIONS)
    except TypeError:  # a huge integer, a lone surrogate
        return json.dumps(fields, default=str, skipkeys=True).encode()


def _to_json(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    return encode_line(event).decode()


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()  # None: closed before the start
