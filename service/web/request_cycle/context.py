"""Makes the context of each request: its id, its trace, and its client's address."""

import re
from typing import TYPE_CHECKING

from aiohttp import web
from multidict import CIMultiDictProxy, istr

from service.context import RequestContext

if TYPE_CHECKING:
    from service.spans import Tracer

CONTEXT = web.RequestKey("context", RequestContext)
REQUEST_ID = istr("X-Request-Id")
WELL_FORMED_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
MAX_LOGGED_LENGTH = 256  # characters of a path or a user agent; a request may have 8,190

TRACEPARENT = istr("traceparent")
_TRACESTATE = istr("tracestate")
# version-trace_id-parent_id-flags. Later versions may have more fields, but no version is ff.
# https://www.w3.org/TR/trace-context/
_WELL_FORMED_TRACE = re.compile(
    r"(?!ff)(?!00.{53}.)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)


def find_trace_id(headers: CIMultiDictProxy[str]) -> str | None:
    """Return the id of the trace if the request has exactly one valid `traceparent`."""
    lines = headers.getall(TRACEPARENT)
    match = _WELL_FORMED_TRACE.fullmatch(lines[0]) if len(lines) == 1 else None
    return match[1] if match else None


def start_span(tracer: "Tracer", request: web.BaseRequest, context: RequestContext) -> None:
    """Start the span of a request, if it is sampled."""
    parent = {}
    if context.trace_id:
        state = ",".join(request.headers.getall(_TRACESTATE, ()))
        parent = {"traceparent": request.headers[TRACEPARENT], "tracestate": state}
    attributes = {
        "url.path": request.rel_url.raw_path[:MAX_LOGGED_LENGTH],
        "url.scheme": request.scheme,
        "client.address": context.address,
    }
    context.span = tracer.start_request(request.method, parent, attributes)
    if context.span:
        context.trace_id = context.span.trace_id
