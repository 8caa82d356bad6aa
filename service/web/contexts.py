"""Makes the context of each request: its id, its trace, and its client's address."""

import itertools
import re
import secrets

from aiohttp import web
from multidict import CIMultiDictProxy, istr

from service.config import Server as Settings
from service.context import RequestContext
from service.web.client_address import UNIX, ClientAddresses
from service.web.headers import CommonHeaders

CONTEXT = web.RequestKey("context", RequestContext)
TRACEPARENT = istr("traceparent")
REQUEST_ID = istr("X-Request-Id")
WELL_FORMED_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
# version-trace_id-parent_id-flags (https://www.w3.org/TR/trace-context/). Later versions may have
# more fields, but no version is ff.
WELL_FORMED_TRACE = re.compile(
    r"(?!ff)(?!00.{53}.)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)


class Contexts:
    """Makes the contexts of a server's requests."""

    def __init__(self, settings: Settings) -> None:
        self._common = CommonHeaders(settings)
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
            self._clients.find(peer, headers) if self._clients else peer,
            {**self._common.constant, "X-Request-Id": request_id},
        )
        if self._common.origins:
            context.headers |= self._common.choose_cors(request.method, headers)
        if TRACEPARENT in headers:
            context.trace_id = find_trace_id(headers)
        return context


def find_trace_id(headers: CIMultiDictProxy[str]) -> str | None:
    """Return the id of the trace if the request has exactly one valid `traceparent`."""
    lines = headers.getall(TRACEPARENT)
    match = WELL_FORMED_TRACE.fullmatch(lines[0]) if len(lines) == 1 else None
    return match[1] if match else None
