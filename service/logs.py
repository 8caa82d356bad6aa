"""Logs on stdout, one line per event: text on a terminal, JSON elsewhere (structlog).

The libraries' logs (aiohttp, asyncio, alembic) get the same form.
"""

import io
import json
import logging
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import orjson
import structlog

from service.config import Log


class Stdout(io.TextIOBase):
    """stdout for logs: an error (full disk, closed pipe) must not fail the request that logs.

    A line is one write, so lines of several processes on one pipe are not mixed, up to 4096 bytes
    on Linux (https://man7.org/linux/man-pages/man7/pipe.7.html, PIPE_BUF).
    """

    def write(self, text: str) -> int:
        """Write the text and flush it."""
        with suppress(OSError, ValueError, AttributeError):  # AttributeError: there is no stdout
            sys.stdout.buffer.write(text.encode(errors="replace"))
            sys.stdout.buffer.flush()
        return len(text)


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
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if as_text
        else [structlog.processors.format_exc_info, _to_json]
    )
    stdout = Stdout()
    structlog.configure(
        processors=[*common, *final],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", stdout)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    logging.getLogger("aiosql").setLevel(logging.ERROR)  # it warns of inserts
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)


def _to_json(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    try:
        return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # a huge integer, a lone surrogate
        return json.dumps(event, default=str, skipkeys=True)
