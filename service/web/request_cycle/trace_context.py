"""The trace that a request belongs to: https://www.w3.org/TR/trace-context/."""

import re

from aiohttp import web
from multidict import istr

from service.web.request_cycle.request_ids import REQUEST_ID

TRACE_ID = web.RequestKey("trace_id", str)

_TRACEPARENT = istr("traceparent")
_TRACESTATE = istr("tracestate")
# version-trace_id-parent_id-flags. Later versions may have more fields, but no version is ff.
_WELL_FORMED = re.compile(
    r"(?!ff)(?!00.{53}.)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)


def assign_trace_id(request: web.BaseRequest) -> None:
    """Set `request[TRACE_ID]` if the request has exactly one valid `traceparent`."""
    headers = request.headers
    if _TRACEPARENT not in headers:
        return
    lines = headers.getall(_TRACEPARENT)
    if len(lines) == 1 and (match := _WELL_FORMED.fullmatch(lines[0])):
        request[TRACE_ID] = match[1]


def get_trace_headers(request: web.BaseRequest) -> dict[str, str]:
    """Return the headers with the caller's span; none if `traceparent` is not valid."""
    if TRACE_ID not in request:
        return {}
    state = ",".join(request.headers.getall(_TRACESTATE, ()))
    return {"traceparent": request.headers[_TRACEPARENT], "tracestate": state}


def get_ids(request: web.BaseRequest) -> dict[str, str]:
    """Return the fields that every log line about the request has."""
    ids = {"request_id": request[REQUEST_ID]}
    if trace_id := request.get(TRACE_ID):
        ids["trace_id"] = trace_id
    return ids
