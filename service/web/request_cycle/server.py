"""The server of a process: makes connections and requests, and checks them regularly."""

import asyncio
from http import HTTPStatus
from typing import Any, cast

import structlog
from aiohttp import hdrs, web, web_protocol
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.streams import StreamReader
from multidict import CIMultiDict, CIMultiDictProxy

from service.context import RequestContext
from service.web.http.contexts import CONTEXT
from service.web.problems import MAX_HEAD_BYTES
from service.web.request_cycle.connections import Connection, Shared
from service.web.request_cycle.cycle import RequestCycle

log = structlog.get_logger()

CHECK_INTERVAL_S = 0.5
CROWDED_S = 10.0  # below the limit, until the log gets the next line
# Requests of one connection that wait for the previous one; aiohttp's limit of 32 lets a client
# fill 4 MB with large heads.
MAX_PIPELINED = 2


class HttpServer(web.Server):
    """Makes a `Connection` of each connection, and a context of each request.

    At most `max_connections` stay open: a new one ends the one that has been idle for longest.
    """

    def __init__(self, aiohttp_server: web.Server, cycle: RequestCycle, **options: Any) -> None:
        super().__init__(
            aiohttp_server.request_handler, request_factory=self._begin_request, **options
        )
        web_protocol.MAX_MSG_QUEUE_SIZE = MAX_PIPELINED
        self._cycle = cycle
        self.shared = Shared(cycle, asyncio.get_running_loop().time())
        self._make_bare_request = aiohttp_server.request_factory
        self._options = options
        self._open = 0
        self._crowded_until = 0.0

    def __call__(self) -> Connection:
        """Make the protocol of a new connection."""
        return Connection(self, self.shared, loop=asyncio.get_running_loop(), **self._options)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Make room for the connection if there are too many."""
        super().connection_made(handler, transport)
        self._open += 1
        self.shared.idle[cast("Connection", handler)] = None
        if self._open > self._cycle.settings.max_connections:
            if self.shared.now > self._crowded_until:
                most = self._cycle.settings.max_connections
                log.warning("too many connections", max_connections=most)
            self._crowded_until = self.shared.now + CROWDED_S
            longest_idle = next(iter(self.shared.idle))
            del self.shared.idle[longest_idle]
            longest_idle.outbox.reset()

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        """Forget the connection."""
        super().connection_lost(handler, exc)
        self._open -= 1
        self.shared.idle.pop(cast("Connection", handler), None)

    def _begin_request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.BaseRequest:
        """Make a request and its context, also for invalid HTTP."""
        connection: Connection = protocol  # type: ignore[assignment] # of this server
        connection.is_busy = True
        connection.body = payload
        self.shared.idle.pop(connection, None)
        context = self._cycle.contexts.make(message, connection.peer)
        if connection.received > MAX_HEAD_BYTES and _count_bytes(message) > MAX_HEAD_BYTES:
            context.refused_status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        elif hdrs.EXPECT in message.headers:
            message = _take_expectation(message, context)
        request = self._make_bare_request(message, payload, connection, writer, task)
        connection.context = request[CONTEXT] = context
        return request

    async def check_regularly(self) -> None:
        """End slow connections and requests, until it is cancelled."""
        settings = self._cycle.settings
        interval = min(CHECK_INTERVAL_S, settings.request_timeout / 2, settings.head_timeout / 2)
        while True:
            self.shared.now = now = asyncio.get_running_loop().time()
            self._cycle.cancel_overdue(now, now + interval)
            for connection in cast("list[Connection]", self.connections):
                connection.check(now, settings.head_timeout)
            self.shared.outboxes.limit()
            await asyncio.sleep(interval)


def _count_bytes(message: RawRequestMessage) -> int:
    """Return the size of a head, without its separators."""
    return len(message.path) + sum(len(name) + len(value) for name, value in message.raw_headers)


def _take_expectation(message: RawRequestMessage, context: RequestContext) -> RawRequestMessage:
    """Return the message without `Expect`: aiohttp would respond to an unknown one with a text."""
    if message.headers[hdrs.EXPECT].lower() not in ("100-continue", ""):
        context.refused_status = HTTPStatus.EXPECTATION_FAILED
    context.expects_continue = message.version == HttpVersion11
    others = CIMultiDict(message.headers)
    del others[hdrs.EXPECT]
    return message._replace(headers=CIMultiDictProxy(others))
