"""Logs on stdout, one line per event: text on a terminal, JSON elsewhere (structlog).

The libraries' logs (aiohttp, asyncio, alembic, gunicorn) get the same form. `configure` is called
once in a process, by a command and never by an import. After it, every line goes to `Lines`.
"""

import json
import logging
import os
import sys
import time
from collections.abc import MutableMapping
from functools import cache
from logging.handlers import QueueHandler
from queue import SimpleQueue
from select import PIPE_BUF
from threading import Event, Thread
from typing import Any

import orjson
import structlog

from service.config import Log

MAX_LINES = 4096  # about 1 MB
COLLECT_S = 0.02  # between the wake-ups of the thread; each costs the event loop some us
WRITE_RETRY_S = 0.5  # after an error
EXIT_WAIT_S = 1.0

log = structlog.get_logger()


class Lines(QueueHandler):
    """Writes lines to stdout in a thread, so that the event loop never waits for its reader.

    What must stay true: `enqueue` never waits. Lines are written whole and in their order, also if
    several processes write to one pipe, and if the disk was full. A line is lost only if
    `MAX_LINES` wait already, which is counted, or if the process is killed within milliseconds.
    """

    def __init__(self) -> None:
        self._start()
        super().__init__(self._waiting)
        os.register_at_fork(after_in_child=self._start)  # a forked process has no threads

    def _start(self) -> None:
        self.dropped = 0
        self._waiting = SimpleQueue[bytes | Event]()
        Thread(target=self._write_lines, args=[self._waiting], daemon=True).start()

    def prepare(self, record: logging.LogRecord) -> bytes:
        """Return the line of a record; `QueueHandler` hands it to `enqueue`."""
        return f"{self.format(record)}\n".encode(errors="replace")

    def enqueue(self, line: Any) -> None:
        """Hand a line, as bytes, to the thread."""
        if self._waiting.qsize() < MAX_LINES:
            self._waiting.put(line)
        else:
            self.dropped += 1

    def flush(self) -> None:
        """Wait for the lines to be written, at most `EXIT_WAIT_S`; `logging` calls it at exit."""
        are_written = Event()
        self._waiting.put(are_written)
        are_written.wait(EXIT_WAIT_S)

    def _write_lines(self, waiting: SimpleQueue[bytes | Event]) -> None:
        """Write the lines as they come, as many at once as a pipe takes whole (`PIPE_BUF`)."""
        lines, reported = b"", 0
        while True:
            if waiting.empty():
                _write(lines)
                lines = b""
                if dropped := self.dropped - reported:
                    reported += dropped
                    log.error("log lines dropped", lines=dropped)
                time.sleep(COLLECT_S)
            line = waiting.get()
            if isinstance(line, Event):  # `flush` waits for it
                _write(lines)
                lines = b""
                line.set()
            elif len(lines) + len(line) <= PIPE_BUF:
                lines += line
            else:
                _write(lines)
                lines = line


def _write(lines: bytes) -> None:
    """Write to stdout, again after an error; a full disk may take a part, and later the rest."""
    while lines:
        try:
            lines = lines[os.write(sys.stdout.fileno(), lines) :]
        except (OSError, ValueError, AttributeError):  # the last two: stdout was closed
            time.sleep(WRITE_RETRY_S)


@cache
def get_lines() -> Lines:
    """Return the handler of this process."""
    return Lines()


def configure(settings: Log) -> None:
    """Set up logging for this process; called by commands, never by an import."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    final: list[Any]
    common: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper("iso"),  # in UTC
    ]
    if is_as_text(settings):
        plain = structlog.dev.plain_traceback
        final = [structlog.dev.ConsoleRenderer(colors=_is_terminal(), exception_formatter=plain)]
    else:
        final = [
            structlog.processors.format_exc_info,
            lambda _, __, event: encode_line(event).decode(),
        ]
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
        return orjson.dumps(fields, default=str, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z)
    except TypeError:  # a huge integer, a lone surrogate
        return json.dumps(fields, default=str, skipkeys=True).encode()


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()  # None: closed before the start
