"""The span of each request, if tracing is on."""

from typing import TYPE_CHECKING

from aiohttp import web

from service.tracing import WAITING, Tracing
from service.web.request_cycle.access_log import shorten_path
from service.web.request_cycle.client_address import CLIENT
from service.web.request_cycle.trace_context import TRACE_ID, get_trace_headers

if TYPE_CHECKING:
    from service.spans import RequestSpan

TRACING = web.AppKey("tracing", Tracing)
SPAN: web.RequestKey["RequestSpan"] = web.RequestKey("span", object)  # type: ignore[arg-type] # of an extra


def start_span(tracing: Tracing | None, request: web.BaseRequest) -> None:
    """Start the span of a request, which then waits for the statements of its task.

    The operations port has no `tracing`: its health checks would be most of the spans.
    """
    if tracing is None or tracing.tracer is None:
        return
    attributes = {
        "url.path": shorten_path(request),
        "url.scheme": request.scheme,
        "client.address": request[CLIENT],
    }
    span = tracing.tracer.start_request(request.method, get_trace_headers(request), attributes)
    if span:
        request[SPAN] = span
        request[TRACE_ID] = span.trace_id
        WAITING.set((span,))
