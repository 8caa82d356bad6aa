"""Logs on stdout, one line per event: text on a terminal, JSON elsewhere (structlog).

The libraries' logs (aiohttp, asyncio, alembic, gunicorn) get the same form.
"""

import json
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import orjson
import structlog

from service.config import Log
from service.telemetry.log_writer import get_writer

JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z


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
    writer = get_writer()
    structlog.configure(
        processors=[*common, *final],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", writer)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(writer)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
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
