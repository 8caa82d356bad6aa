"""The server: aiohttp's, with limits for all connections together, and a graceful stop.

`Runner` is what both `python -m service serve` and gunicorn's workers run.
"""

import asyncio
import itertools
import resource
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import structlog
from aiohttp import hdrs, web, web_protocol
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.streams import StreamReader
from multidict import CIMultiDict, CIMultiDictProxy

from service.config import Config, Operations
from service.config import Server as Settings
from service.context import RequestContext
from service.errors import OperatorError
from service.metrics import Metrics
from service.tracing import Tracing
from service.web.problems import MAX_HEAD_BYTES
from service.web.request_cycle.access_log import AccessLog
from service.web.request_cycle.client_address import ClientAddresses
from service.web.request_cycle.connections import Connection, EndOfRequest
from service.web.request_cycle.context import (
    CONTEXT,
    REQUEST_ID,
    TRACEPARENT,
    WELL_FORMED_ID,
    find_trace_id,
    start_span,
)
from service.web.request_cycle.cycle import CYCLE
from service.web.request_cycle.headers import CommonHeaders

log = structlog.get_logger()

CHECK_INTERVAL_S = 0.5
ACCEPTED_AT_ONCE = 32
BACKLOG = 2048  # connections that may wait to be accepted; further clients retry after 1 s
CROWDED_S = 10.0  # without another line in the log about too many connections
RESERVED_FILES = 128  # of a process: the log, the loop, sockets that listen, a lookup
# Of the connections whose clients do not read. A page has up to 0.6 MB.
MAX_UNSENT_BYTES_IN_ALL = 32 * 1024 * 1024
SEND_TIMEOUT_S = 30.0  # for a client to read a response
LINGERING_S = 2.0  # for the rest of a body that was refused
# When the process stops, idle connections stay open so long for one more response, which tells the
# client that the connection ends.
IDLE_GRACE_S = 1.0
DRAIN_CHECK_INTERVAL_S = 0.02
# Requests of one connection that wait for the one before; aiohttp's own limit of 32 lets a client
# fill 4 MB with large heads.
MAX_PIPELINED = 2


@dataclass(frozen=True)
class Parts:
    """What a server uses beside its application."""

    settings: Settings
    max_connections: int
    headers: CommonHeaders
    metrics: Metrics
    tracing: Tracing | None = None
    access_log: AccessLog | None = None


PARTS = web.AppKey("parts", Parts)


class Server(web.Server):
    """Makes a `Connection` of each connection, and a context of each request.

    At most `max_connections` stay open: a new one ends the one that has been idle for longest.
    """

    def __init__(self, made: web.Server, app: web.Application, **options: Any) -> None:
        super().__init__(made.request_handler, request_factory=self._make, **options)
        web_protocol.MAX_MSG_QUEUE_SIZE = MAX_PIPELINED
        self.now = asyncio.get_running_loop().time()  # of the last check
        self._make_bare = made.request_factory
        self._options = options
        self.parts = app[PARTS]
        self._cycle = app[CYCLE]
        trusted = self.parts.settings.trusted_proxies
        self._clients = ClientAddresses(trusted) if trusted else None
        self.idle: dict[Connection, None] = {}  # the one that is idle for longest is first
        self._open = 0
        # In the ids of requests; each process has another one.
        self._id = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._crowded_until = 0.0

    def __call__(self) -> Connection:
        """Make the protocol of a new connection."""
        return Connection(self, loop=asyncio.get_running_loop(), **self._options)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Make room for the connection if there are too many."""
        super().connection_made(handler, transport)
        self._open += 1
        self.idle[cast("Connection", handler)] = None
        if self._open > self.parts.max_connections:
            if self.now > self._crowded_until:
                log.warning("too many connections", max_connections=self.parts.max_connections)
            self._crowded_until = self.now + CROWDED_S
            longest_idle = next(iter(self.idle))
            del self.idle[longest_idle]
            longest_idle.abort()

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        """Forget the connection."""
        super().connection_lost(handler, exc)
        self._open -= 1
        self.idle.pop(cast("Connection", handler), None)

    def _make(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.BaseRequest:
        """Make a request with its context; also of what is not valid HTTP."""
        connection: Connection = protocol  # type: ignore[assignment] # of this server
        connection.is_busy = True
        connection.body = payload
        self.idle.pop(connection, None)
        refused_status = None
        is_large = connection.received > MAX_HEAD_BYTES and _count_bytes(message) > MAX_HEAD_BYTES
        if is_large:
            refused_status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        if has_expectation := hdrs.EXPECT in message.headers:
            # Not for aiohttp: it would respond to an unknown one with a text.
            if message.headers[hdrs.EXPECT].lower() not in ("100-continue", ""):
                refused_status = refused_status or HTTPStatus.EXPECTATION_FAILED
            others = CIMultiDict(message.headers)
            del others[hdrs.EXPECT]
            message = message._replace(headers=CIMultiDictProxy(others))
        request = self._make_bare(message, payload, connection, writer, task)
        headers, common = message.headers, self.parts.headers
        request_id = headers.get(REQUEST_ID)
        if request_id is None or not WELL_FORMED_ID.fullmatch(request_id):
            request_id = f"{self._id}-{next(self._numbers):x}"
        connection.context = request[CONTEXT] = context = RequestContext(
            request_id,
            self._clients.find(connection.peer, headers) if self._clients else connection.peer,
            {**common.constant, "X-Request-Id": request_id},
            is_usual=message.version == HttpVersion11
            and not message.should_close
            and message.method != hdrs.METH_HEAD,
            refused_status=refused_status,
            expects_continue=has_expectation and message.version == HttpVersion11,
        )
        if common.origins:
            context.headers |= common.choose_cors(request)
        if TRACEPARENT in headers:
            context.trace_id = find_trace_id(headers)
        if self.parts.tracing and self.parts.tracing.tracer:
            start_span(self.parts.tracing.tracer, request, context)
        return request

    async def check_regularly(self) -> None:
        """End slow connections and requests, until it is cancelled."""
        settings, cycle = self.parts.settings, self._cycle
        interval = min(CHECK_INTERVAL_S, cycle.timeout / 2, settings.head_timeout / 2)
        while True:
            self.now = now = asyncio.get_running_loop().time()
            cycle.cancel_overdue(now, now + interval)
            unread = []
            for connection in self._list():
                try:
                    connection.check(now, settings.head_timeout, SEND_TIMEOUT_S)
                except Exception:  # the other connections must be checked, whatever happens
                    log.exception("connection failed")
                if connection.unsent_bytes:
                    unread.append(connection)
            unsent = sum(connection.unsent_bytes for connection in unread)
            while unsent > MAX_UNSENT_BYTES_IN_ALL:  # the oldest connections first
                unsent -= unread[0].unsent_bytes
                unread.pop(0).abort()
            await asyncio.sleep(interval)

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109 - a bound, not a cancellation
        """Wait until all connections have ended, for `timeout` seconds at most.

        Each response now says that its connection ends. aiohttp's own shutdown cuts off requests
        that are still on their way.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        await asyncio.sleep(DRAIN_CHECK_INTERVAL_S)  # asyncio may still be accepting connections
        while self.connections and (passed := loop.time() - started) < timeout:
            if passed >= IDLE_GRACE_S:
                for connection in list(self.idle):
                    if connection.head_since is None or not connection.received:
                        connection.force_close()
            await asyncio.sleep(DRAIN_CHECK_INTERVAL_S)

    def _list(self) -> list[Connection]:
        return cast("list[Connection]", self.connections)


def _count_bytes(message: RawRequestMessage) -> int:
    """Return the size of a head, without its separators."""
    return len(message.path) + sum(len(name) + len(value) for name, value in message.raw_headers)


def choose_max_connections(config: Config) -> int:
    """Return the most connections of a process: the setting, or what its files allow."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return config.server.max_connections
    available = files - RESERVED_FILES - config.database.max_open
    return max(1, min(config.server.max_connections, available))


def bind(address: Settings | Operations, setting: str) -> list[socket.socket]:
    """Return a socket for each address of the host.

    Raises `OperatorError`, which names the setting that changes the address.
    """
    host, port = address.host, address.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses = dict.fromkeys((family, address) for family, *_, address in found)
        return [socket.create_server(each[:2], family=family) for family, each in addresses]
    except OSError as error:
        raise OperatorError(
            f"cannot listen on {host}:{port}: {error.strerror}; {setting} set the address"
        ) from error


class Runner(web.AppRunner):
    """Runs an application with its `Parts`."""

    def __init__(self, app: web.Application) -> None:
        parts = app[PARTS]
        self._options: dict[str, Any] = {
            "auto_decompress": False,  # `bodies.py` decompresses what it reads, and no more
            "keepalive_timeout": parts.settings.keepalive_timeout,
            "lingering_time": LINGERING_S,
            "access_log_class": EndOfRequest,
        }
        # Nearly no time for aiohttp's own wait at the end: `cleanup` has waited by then.
        super().__init__(app, shutdown_timeout=1, **self._options)
        self._settings = parts.settings
        self._check: asyncio.Task[None] | None = None
        self._operations: Runner | None = None

    async def listen_to_operators(
        self, app: web.Application, sockets: Iterable[socket.socket]
    ) -> None:
        """Serve the application of the operations port on these sockets, until `cleanup` ends."""
        self._operations = Runner(app)
        await self._operations.setup()
        await self._operations.listen(sockets)

    async def listen(self, sockets: Iterable[socket.socket]) -> None:
        """Accept connections on these sockets."""
        for each in sockets:
            # asyncio has one number for the backlog and for the connections that it accepts at
            # once, each of which opens a file before it can be counted.
            await web.SockSite(self, each, backlog=ACCEPTED_AT_ONCE).start()
            each.listen(BACKLOG)

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        server = Server(made, self.app, **self._options)
        self._check = asyncio.create_task(server.check_regularly())
        return server

    async def cleanup(self) -> None:
        """Report "not ready", accept no more connections, wait for requests in flight, stop."""
        cycle = self.app[CYCLE]
        if self.sites and isinstance(self.server, Server) and not cycle.is_draining:
            cycle.is_draining = True
            await asyncio.sleep(self._settings.drain_delay)
            for site in list(self.sites):
                await site.stop()
            await self.server.drain(self._settings.shutdown_timeout)
        if self._check:
            self._check.cancel()
        await super().cleanup()
        if self._operations:
            await self._operations.cleanup()
