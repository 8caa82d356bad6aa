"""The access log: one line for each response, of level debug for a successful health check."""

from datetime import UTC, datetime
from http import HTTPStatus

import orjson
import structlog
from aiohttp import hdrs, web
from aiohttp.abc import AbstractAccessLogger

from service.config import Log
from service.telemetry.logs import encode_line, get_lines, is_as_text
from service.telemetry.metrics import Metrics
from service.web.context import CONTEXT, MAX_LOGGED_LENGTH, RequestContext

# Platforms send these every few seconds; their lines would hide the others.
HEALTH_CHECKS = ("/v1/healthcheck", "/v1/healthcheck/ready")
LINE_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE


class AccessLog(AbstractAccessLogger):
    """Logs and counts each response; without `settings`, it only counts.

    JSON does not pass through structlog's processors; decision 6 says what that saves. A test
    compares the lines with structlog's.
    """

    def __init__(self, metrics: Metrics, settings: Log | None = None) -> None:
        self._metrics = metrics
        self._lines = None
        self._levels: tuple[str, ...] = ()
        if settings:
            self._levels = {"debug": ("debug", "info"), "info": ("info",)}.get(settings.level, ())
            if structlog.is_configured() and not is_as_text(settings):
                self._lines = get_lines()

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Report a response that was sent, or whose client has gone; `time`: seconds it took."""
        context = request[CONTEXT]
        if self._metrics.is_enabled:
            self._metrics.count_response(
                context.method, context.route, response.status, time, context.refusal
            )
        is_health_check = context.route in HEALTH_CHECKS and response.status == HTTPStatus.OK
        level = "debug" if is_health_check else "info"
        if level not in self._levels:
            return
        line = _make_line(request, context, response, time)
        if self._lines is None:
            log = structlog.get_logger()
            if is_health_check:
                log.debug("request", **line)
            else:
                log.info("request", **line)
            return
        line |= {"event": "request", "level": level, "timestamp": datetime.now(UTC)}
        try:
            text = orjson.dumps(line, option=LINE_OPTIONS)
        except TypeError:  # a path that is not UTF-8
            text = encode_line(line) + b"\n"
        self._lines.enqueue(text)


def _make_line(
    request: web.BaseRequest, context: RequestContext, response: web.StreamResponse, time: float
) -> dict[str, object]:
    """Return the fields of a line."""
    line: dict[str, object] = {"request_id": context.id}
    if context.trace_id:
        line["trace_id"] = context.trace_id
    line["client"] = context.caller.address
    if context.caller.client_id is not None:
        line["client_id"] = context.caller.client_id
    if not context.parser_error:
        line["method"] = context.method
        line["route"] = context.route
        line["path"] = request.rel_url.raw_path[:MAX_LOGGED_LENGTH]
    line["status"] = response.status
    line["bytes"] = context.written + request.writer.output_size
    if context.parser_error:
        line["error"] = context.parser_error
    else:
        line["duration_ms"] = round(time * 1000, 2)
        user_agent = request.headers.get(hdrs.USER_AGENT)
        if user_agent is not None:
            if not user_agent.isascii():  # other characters may control a terminal
                user_agent = user_agent.encode("ascii", "backslashreplace").decode()
            line["user_agent"] = user_agent[:MAX_LOGGED_LENGTH]
    if context.reason:
        line["reason"] = context.reason
    return line
