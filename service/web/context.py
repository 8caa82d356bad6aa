"""The context of a request: its id, its trace, its client, and what is reported of it."""

import itertools
import re
import secrets
from dataclasses import dataclass

from aiohttp import web
from multidict import istr

from service.config import Server as Settings
from service.database.caller import Caller
from service.errors import Refusal, StatementFailed, Unavailable
from service.web.addresses import UNIX, ClientAddresses
from service.web.cors import choose_cors_headers

MAX_LOGGED_LENGTH = 256  # characters of a path or a user agent; a request may have 8,190
TRACEPARENT = istr("traceparent")
REQUEST_ID = istr("X-Request-Id")
WELL_FORMED_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
# version-trace_id-parent_id-flags (https://www.w3.org/TR/trace-context/). Later versions may have
# more fields, but no version is ff.
WELL_FORMED_TRACE = re.compile(
    r"(?!ff)(?!00.{53}.)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
CONSTANT_HEADERS = {
    "Server": "movie-catalogue",  # aiohttp's own default names versions
    # If a browser opens a response as a page: run nothing, load nothing, and allow no frame.
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    # Unless the handler says otherwise. A cache may keep a 404 (RFC 9111, 4.2.2), although the
    # movie may exist a moment later.
    "Cache-Control": "no-store",
}


@dataclass(slots=True, eq=False)
class RequestContext:
    """One object for each request; the comments name what sets each part."""

    # `Contexts.make`, before anything else:
    id: str
    method: str
    caller: Caller  # `RequestCycle.respond` adds its client, and what its reads must include
    headers: dict[str, str]  # of its response, also if that is an error
    trace_id: str | None = None  # that of the client's `traceparent`
    # `RequestCycle.respond`:
    route: str | None = None  # its path in the table of routes; see also `name_stream`
    deadline: float = 0.0  # by the loop's clock; see also `extend`
    # `RequestCycle._cancel_overdue`:
    is_overdue: bool = False
    # `report`:
    refusal: Refusal | None = None  # why the response is a 503
    reason: str | None = None  # of a 5xx, or of a stream that breaks off, for the log
    # `DirectResponse.prepare`:
    written: int = 0  # bytes that were sent without aiohttp's writer
    # `Connection.handle_error`:
    parser_error: str | None = None  # the request is not valid HTTP: method and path are unknown

    @property
    def ids(self) -> dict[str, str]:
        """The fields that every log line about the request has."""
        ids = {"request_id": self.id}
        if self.trace_id:
            ids["trace_id"] = self.trace_id
        return ids

    def extend(self, seconds: float) -> None:
        """Give the handler more time."""
        self.deadline += seconds

    def name_stream(self) -> None:
        """Give a stream a name of its own in logs and metrics: it takes longer than others."""
        self.route = f"{self.route} (stream)"

    def report(self, error: Exception) -> None:
        """Keep for logs and metrics what the client does not see of an error."""
        if isinstance(error, Unavailable):
            self.refusal = error.refusal
        if isinstance(error, Unavailable | StatementFailed | ClientGone):
            self.reason = str(error) or None


CONTEXT = web.RequestKey("context", RequestContext)


class ClientGone(Exception):
    """The client has closed its connection, or does not read; the text is for the log."""


class Contexts:
    """Makes the contexts of a server's requests."""

    def __init__(self, settings: Settings) -> None:
        self._constant = dict(CONSTANT_HEADERS)
        if settings.hsts:  # RFC 6797
            self._constant["Strict-Transport-Security"] = f"max-age={settings.hsts}"
        self._origins = settings.cors_origins
        trusted = settings.trusted_proxies
        self._clients = ClientAddresses(trusted) if trusted else None
        self._process_id = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def make(self, request: web.BaseRequest) -> RequestContext:
        """Make the context of a request, also for invalid HTTP."""
        headers = request.headers
        peer = (request.remote or UNIX).removeprefix("::ffff:")  # IPv4 on a socket of IPv6
        sent = headers.get(REQUEST_ID)
        if sent is not None and WELL_FORMED_ID.fullmatch(sent):
            request_id = sent
        else:
            request_id = f"{self._process_id}-{next(self._numbers):x}"
        context = RequestContext(
            request_id,
            request.method,
            Caller(self._clients.find(peer, headers) if self._clients else peer),
            {**self._constant, "X-Request-Id": request_id},
        )
        if self._origins:
            context.headers |= choose_cors_headers(request.method, headers, self._origins)
        if TRACEPARENT in headers:
            lines = headers.getall(TRACEPARENT)
            if len(lines) == 1 and (match := WELL_FORMED_TRACE.fullmatch(lines[0])):
                context.trace_id = match[1]
        return context
