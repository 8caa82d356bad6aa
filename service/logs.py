"""Logs on stdout, one line an event: text on a terminal, JSON elsewhere (structlog).

What the libraries log (aiohttp, asyncio, alembic) goes the same way.
"""

import logging
import sys
from contextlib import suppress
from typing import Any

import orjson
import structlog

from service.config import Log


class Stdout:
    """Writes whole lines; a full disk or a closed pipe must not fail the request it logs."""

    def msg(self, line: str) -> None:
        """Write one line and flush it: one system call."""
        with suppress(OSError, ValueError):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    debug = info = warning = error = critical = msg


class StdoutHandler(logging.Handler):
    """What the libraries log, to the same place."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, formatted, as one line."""
        Stdout().msg(self.format(record))


def configure(settings: Log) -> None:
    """Set up logging for this process: the only global state, made by commands, not at import."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    as_text = settings.format == "text" or (settings.format == "auto" and sys.stdout.isatty())
    common: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper("iso", utc=True),
    ]
    final: list[Any] = (
        [structlog.dev.ConsoleRenderer()]
        if as_text
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_json)]
    )
    structlog.configure(
        processors=[*common, *final],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: Stdout(),
        cache_logger_on_first_use=True,
    )
    handler = StdoutHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)


def _json(event: Any, **_: Any) -> str:
    return orjson.dumps(event, default=str).decode()
