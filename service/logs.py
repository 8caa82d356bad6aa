"""Logs on stdout, one line an event: text on a terminal, JSON elsewhere (structlog).

What the libraries log (aiohttp, asyncio, alembic) goes the same way.
"""

import asyncio
import atexit
import json
import logging
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import orjson
import structlog

from service.config import Log

# A write of up to so many bytes to a pipe is never torn apart by another process's
# (https://pubs.opengroup.org/onlinepubs/9799919799/functions/write.html); POSIX promises 512,
# Linux has 4096.
WHOLE_WRITE = 4096


AS_A_LINE = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z


class Stdout:
    """Writes lines; within an event loop once a turn, many lines with one system call.

    A full disk or a closed pipe must not fail the request whose line it is.
    """

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def msg(self, line: str) -> None:
        """Write one line, without its end."""
        self.write(f"{line}\n".encode(errors="replace"))

    debug = info = warning = error = critical = msg

    def write(self, line: bytes) -> None:
        """Write one line, at the end of this turn of the event loop if there is one."""
        self._lines.append(line)
        if len(self._lines) == 1:
            try:
                asyncio.get_running_loop().call_soon(self.flush)
            except RuntimeError:  # no loop
                self.flush()

    def flush(self) -> None:
        """Write what has been gathered."""
        text = b"".join(self._lines)
        self._lines = []
        start = 0
        while len(text) - start > WHOLE_WRITE:
            # As many whole lines as fit, or one that is longer than that.
            end = text.rfind(b"\n", start, start + WHOLE_WRITE) + 1
            end = end or text.index(b"\n", start) + 1
            self._write(text[start:end])
            start = end
        self._write(text[start:])

    def _write(self, text: bytes) -> None:
        with suppress(OSError, ValueError, AttributeError):
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()


class StdoutHandler(logging.Handler):
    """What the libraries log, to the same place."""

    def __init__(self, stdout: Stdout) -> None:
        super().__init__()
        self._stdout = stdout

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, formatted, as one line."""
        try:
            self._stdout.msg(self.format(record))
        except Exception:  # noqa: BLE001 - as every handler of the standard library
            self.handleError(record)


def configure(settings: Log) -> None:
    """Set up logging for this process: the only global state, made by commands, not at import."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    on_terminal = sys.stdout is not None and sys.stdout.isatty()  # None: closed before the start
    as_text = settings.format == "text" or (settings.format == "auto" and on_terminal)
    common: list[Any] = [structlog.processors.add_log_level, _stamp]
    final: list[Any] = (
        [
            structlog.processors.TimeStamper("iso"),
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
        ]
        if as_text
        else [structlog.processors.format_exc_info, _rendered]
    )
    stdout = Stdout()
    atexit.register(stdout.flush)
    structlog.configure(
        processors=[*common, *final],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: stdout,
        cache_logger_on_first_use=True,
    )
    handler = StdoutHandler(stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    logging.getLogger("aiosql").setLevel(logging.ERROR)  # it takes an insert for a mistake
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)


def _stamp(_: Any, __: str, event: MutableMapping[str, Any]) -> Any:
    """Add the time, which orjson writes as RFC 3339 has it."""
    event["timestamp"] = datetime.now(UTC)
    return event


def _json(event: Any) -> bytes:
    try:
        return orjson.dumps(event, default=str, option=AS_A_LINE)
    except TypeError:  # a huge integer, a lone surrogate
        event["timestamp"] = event["timestamp"].isoformat()
        return json.dumps(event, default=str, skipkeys=True).encode() + b"\n"


def _rendered(_: Any, __: str, event: Any) -> str:
    """JSON as the last processor of structlog."""
    return _json(event).decode().removesuffix("\n")
