"""The access log: one line per response."""

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger
from multidict import istr

from service import logs
from service.web.request_cycle.client_address import CLIENT
from service.web.request_cycle.trace_context import get_ids

CLIENT_ID = web.RequestKey("client_id", int)  # if the request has a valid token
PARSER_ERROR = web.RequestKey("parser_error", str)
MAX_LENGTH = 256  # characters of a path or a user agent in the log; a request may have 8,190

_USER_AGENT = istr("User-Agent")


class AccessLogger(AbstractAccessLogger):
    """Writes the line when the response has been sent, or its client has gone."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Log one response; `time` is in seconds."""
        fields: dict[str, object] = {**get_ids(request), "client": request[CLIENT]}
        if (client_id := request.get(CLIENT_ID)) is not None:
            fields["client_id"] = client_id
        error = request.get(PARSER_ERROR)
        if error is None:  # otherwise neither method nor path is known
            fields["method"] = request.method
            fields["route"] = find_route(request)
            fields["path"] = shorten_path(request)
        fields["status"] = response.status
        fields["bytes"] = request.writer.output_size
        if error is None:
            fields["duration_ms"] = round(time * 1000, 2)
            user_agent = request.headers.get(_USER_AGENT)
            if user_agent is not None:
                fields["user_agent"] = _shorten(_to_ascii(user_agent))
        else:
            fields["error"] = error
        logs.access.write("request", **fields)


def shorten_path(request: web.BaseRequest) -> str:
    """Return the path as it was sent, percent-encoded, cut for the log."""
    return _shorten(request.rel_url.raw_path)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}…"


def _to_ascii(text: str) -> str:
    """Escape other characters: a terminal obeys some of them, and some bytes are no UTF-8."""
    return text if text.isascii() else text.encode("ascii", "backslashreplace").decode()


def find_route(request: web.BaseRequest) -> str | None:
    """Return the path as it is in the table of routes; None for any other path."""
    try:
        resource = request.match_info.route.resource  # type: ignore[attr-defined] # of web.Request
    except (AssertionError, AttributeError):  # no route was looked up
        return None
    return resource.canonical if resource else None
