"""Logs on stdout, one line per event: text on a terminal, JSON elsewhere (structlog).

The libraries' logs (aiohttp, asyncio, alembic, gunicorn) get the same form.
"""

import atexit
import json
import logging
import sys
import threading
from collections import Counter
from collections.abc import MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from time import monotonic
from typing import Any, TextIO, cast

import orjson
import structlog

from service.config import Log
from service.errors import OperatorError
from service.log_writer import Writer, get_writer

# Per kind and cause: this many lines in a window of this many seconds.
RATE_LINES = 10
RATE_WINDOW_S = 10.0
RATE_CAUSES = 200  # further ones in a window count as one
JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z


class RateLimit(logging.Filter):
    """Limits the warnings and errors of one kind about one cause; then one line counts the rest.

    So an outage does not fill the disk. A structlog processor for the service's own events, and a
    filter for the libraries'.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()  # reentrant: the report is logged, too
        self._lines: Counter[tuple[str, str]] = Counter()  # by kind and cause, in this window
        self._window_end = 0.0
        self._is_report_due = False

    def __call__(self, _: Any, level: str, event: MutableMapping[str, Any]) -> Any:
        """Drop an event beyond the limit."""
        is_limited = logging.getLevelNamesMapping()[level.upper()] >= logging.WARNING
        if is_limited and not self._allows(event["event"], _find_cause(event)):
            raise structlog.DropEvent
        return event

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a library's line is within the limit; its cause is its first line."""
        cause = str(record.msg).partition("\n")[0]
        return record.levelno < logging.WARNING or self._allows(record.name, cause)

    def report(self) -> None:
        """End the window, and log how many lines of it were left out."""
        with self._lock:
            lines, self._lines = self._lines, Counter()
            self._window_end = monotonic() + RATE_WINDOW_S
            self._is_report_due = False
        for (event, cause), count in lines.items():
            if count > RATE_LINES:
                structlog.get_logger().warning(
                    "log lines left out", of=event, cause=cause, lines=count - RATE_LINES
                )

    def _allows(self, event: str, cause: str) -> bool:
        with self._lock:
            if monotonic() >= self._window_end:
                self.report()
            if (event, cause) not in self._lines and len(self._lines) >= RATE_CAUSES:
                cause = "others"
            self._lines[event, cause] += 1
            is_allowed = self._lines[event, cause] <= RATE_LINES
            if not (is_allowed or self._is_report_due):
                # There may be no further line to report it with.
                timer = threading.Timer(self._window_end - monotonic(), self.report)
                timer.daemon = True
                with suppress(RuntimeError):  # no more threads
                    timer.start()
                    self._is_report_due = True
            return is_allowed


def _find_cause(event: MutableMapping[str, Any]) -> str:
    """Return what one kind of event may have several of: the query, the reason, the exception."""
    error = event.get("exc_info")
    error = sys.exc_info()[1] if error is True else error
    causes = (event.get("query"), event.get("reason"), error and type(error).__name__)
    return ": ".join(str(cause) for cause in causes if cause)


@cache
def get_rate_limit() -> RateLimit:
    """Return the limit of this process."""
    limit = RateLimit()
    atexit.register(limit.report)
    return limit


class AccessLog:
    """Logs the line of each request.

    JSON goes to `writer`, not through structlog's processors: that saves a read 5 us of 45. A test
    compares the line with structlog's.
    """

    writer: Writer | None = None

    def write(self, event: str, **fields: object) -> None:
        """Write one line of level info."""
        if self.writer is None:
            structlog.get_logger().info(event, **fields)
        else:
            fields |= {"event": event, "level": "info", "timestamp": datetime.now(UTC)}
            self.writer.write_line(_encode(fields) + b"\n")


access = AccessLog()


def configure(settings: Log) -> None:
    """Set up logging for this process; called by commands, never by an import."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    on_terminal = sys.stdout is not None and sys.stdout.isatty()  # None: closed before the start
    as_text = settings.format == "text" or (settings.format == "auto" and on_terminal)
    common: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper("iso"),  # in UTC
    ]
    final: list[Any] = (
        [
            structlog.dev.ConsoleRenderer(
                colors=on_terminal, exception_formatter=structlog.dev.plain_traceback
            )
        ]
        if as_text
        else [structlog.processors.format_exc_info, _to_json]
    )
    writer, limit = get_writer(), get_rate_limit()
    access.writer = writer if level <= logging.INFO and not as_text else None
    structlog.configure(
        processors=[limit, *common, *final],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", writer)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(writer)
    handler.addFilter(limit)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    logging.getLogger("aiosql").setLevel(logging.ERROR)  # it warns of inserts
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)


def log_start_failure(error: OperatorError) -> None:
    """Log why the service does not start, also if the settings of its log are unknown."""
    if not structlog.is_configured():
        configure(Log(level="info", format="auto", slow_statement=0))
    structlog.get_logger().error("not started", reason=str(error))


def _to_json(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    return _encode(event).decode()


def _encode(event: MutableMapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(event, default=str, option=JSON_OPTIONS)
    except TypeError:  # a huge integer, a lone surrogate
        return json.dumps(event, default=str, skipkeys=True).encode()
