"""The access log: one line per response."""

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from service import logs
from service.web.request_cycle.request_ids import REQUEST_ID

PARSER_ERROR = web.RequestKey("parser_error", str)
MAX_PATH_LENGTH = 256  # characters in the log; a request may have 8,190


class AccessLogger(AbstractAccessLogger):
    """Writes the line when the response has been sent, or its client has gone."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Log one response; `time` is in seconds."""
        error = request.get(PARSER_ERROR)
        if error is not None:  # neither method nor path is known
            logs.access.write(
                "request", request_id=request[REQUEST_ID], status=response.status, error=error
            )
            return
        logs.access.write(
            "request",
            request_id=request[REQUEST_ID],
            method=request.method,
            route=_get_route(request),
            path=shorten_path(request),
            status=response.status,
            duration_ms=round(time * 1000, 2),
        )


def shorten_path(request: web.BaseRequest) -> str:
    """Return the path as it was sent, percent-encoded, cut for the log."""
    path = request.rel_url.raw_path
    return path if len(path) <= MAX_PATH_LENGTH else f"{path[:MAX_PATH_LENGTH]}…"


def _get_route(request: web.BaseRequest) -> str | None:
    """Return the path as it is in the table of routes; None for any other path."""
    try:
        resource = request.match_info.route.resource  # type: ignore[attr-defined] # of web.Request
    except (AssertionError, AttributeError):  # no route was looked up
        return None
    return resource.canonical if resource else None
