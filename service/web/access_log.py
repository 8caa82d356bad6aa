"""The access log: one line for each response, of level debug for a successful health check."""

from datetime import UTC, datetime
from http import HTTPStatus

import orjson
import structlog
from aiohttp import hdrs, web

from service.config import Log
from service.context import MAX_LOGGED_LENGTH, RequestContext
from service.telemetry.logs import encode_line, get_lines, is_as_text

# Platforms send these every few seconds; their lines would hide the others.
HEALTH_CHECKS = ("/v1/healthcheck", "/v1/healthcheck/ready")
LINE_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE


class AccessLog:
    """Writes the lines.

    JSON does not pass through structlog's processors; decision 6 says what that saves. A test
    compares the lines with structlog's.
    """

    def __init__(self, settings: Log) -> None:
        written = {"debug": ("debug", "info"), "info": ("info",)}
        self._levels = written.get(settings.level, ())
        is_json = structlog.is_configured() and not is_as_text(settings)
        self._lines = get_lines() if is_json else None

    def write(
        self,
        request: web.BaseRequest,
        context: RequestContext,
        response: web.StreamResponse,
        seconds: float,
    ) -> None:
        """Write the line of a response, which was sent `seconds` after the request had begun."""
        is_health_check = context.route in HEALTH_CHECKS and response.status == HTTPStatus.OK
        level = "debug" if is_health_check else "info"
        if level not in self._levels:
            return
        line: dict[str, object] = {"request_id": context.id}
        if context.trace_id:
            line["trace_id"] = context.trace_id
        line["client"] = context.address
        if context.client_id is not None:
            line["client_id"] = context.client_id
        if context.parser_error:
            line["status"] = response.status
            line["bytes"] = context.written + request.writer.output_size
            line["error"] = context.parser_error
        else:
            line["method"] = context.method
            line["route"] = context.route
            line["path"] = request.rel_url.raw_path[:MAX_LOGGED_LENGTH]
            line["status"] = response.status
            line["bytes"] = context.written + request.writer.output_size
            line["duration_ms"] = round(seconds * 1000, 2)
            user_agent = request.headers.get(hdrs.USER_AGENT)
            if user_agent is not None:
                line["user_agent"] = (
                    user_agent
                    if user_agent.isascii()  # other characters may control a terminal
                    else user_agent.encode("ascii", "backslashreplace").decode()
                )[:MAX_LOGGED_LENGTH]
        if context.reason:
            line["reason"] = context.reason
        if self._lines is None:
            log = structlog.get_logger()
            if level == "debug":
                log.debug("request", **line)
            else:
                log.info("request", **line)
            return
        line["event"] = "request"
        line["level"] = level
        line["timestamp"] = datetime.now(UTC)
        try:
            text = orjson.dumps(line, option=LINE_OPTIONS)
        except TypeError:  # a path that is not UTF-8
            text = encode_line(line) + b"\n"
        self._lines.enqueue(text)
