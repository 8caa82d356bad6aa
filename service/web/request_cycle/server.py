"""The server: aiohttp's, with limits for all connections together, and a graceful stop.

`Runner` is what both `python -m service serve` and gunicorn's workers run.
"""

import asyncio
import gc
import resource
import socket
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, cast

import structlog
from aiohttp import hdrs, web, web_protocol

from service.config import Config
from service.config import Server as Settings
from service.errors import Refusal, Unavailable
from service.metrics import Metrics
from service.web import problems
from service.web.request_cycle.access_log import AccessLogger
from service.web.request_cycle.client_address import CLIENT, ClientAddresses
from service.web.request_cycle.connections import Connection
from service.web.request_cycle.headers import COMMON_HEADERS
from service.web.request_cycle.in_flight import IN_FLIGHT
from service.web.request_cycle.request_ids import assign_request_id
from service.web.request_cycle.request_spans import TRACING, start_span
from service.web.request_cycle.trace_context import assign_trace_id

log = structlog.get_logger()

CHECK_INTERVAL_S = 1.0
# asyncio accepts so many connections in a turn of the event loop, before it counts the first one.
ACCEPTED_AT_ONCE = 32
# For health checks, when there are too many connections; more than are accepted at once.
RESERVED_CONNECTIONS = 2 * ACCEPTED_AT_ONCE
RESERVED_FILES = 64 + RESERVED_CONNECTIONS + 4 * ACCEPTED_AT_ONCE  # for all but the pool
MAX_OPERATORS_CONNECTIONS = 32
OPERATORS_FILES = MAX_OPERATORS_CONNECTIONS + RESERVED_CONNECTIONS  # if they have a port
HEALTHCHECKS = ("/v1/healthcheck", "/live", "/ready")
ROOM_MADE = 0.05  # of the connections, when there are too many
OUTAGE_END_S = 10.0  # without a refused connection
MAX_UNSENT_BYTES = 32 * 1024 * 1024  # of the connections that do not read, together
# When the process stops: idle connections stay open so long for one more response, which tells the
# client that the connection ends.
IDLE_GRACE_S = 1.0
DRAIN_CHECK_INTERVAL_S = 0.02
# Long enough for most clients to get a response, and to try to connect again.
STOP_LISTENING_S = 0.1
# Requests of one connection that wait for the one before; aiohttp's own limit of 32 lets a client
# fill 4 MB with large heads.
MAX_PIPELINED = 2
MAX_CONNECTIONS = web.AppKey("max_connections", int)
METRICS = web.AppKey("metrics", Metrics)
OPERATIONS = web.AppKey("operations", web.Application)


def choose_max_connections(config: Config) -> int:
    """Return the most connections of a process: the setting, or fewer if it may open fewer files.

    The pool opens a second file for each connection that is in use.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return config.server.max_connections
    available = files - RESERVED_FILES - 2 * config.database.max_open
    if config.operations.port:
        available -= OPERATORS_FILES
    return max(1, min(config.server.max_connections, available))


class Server(web.Server):
    """Makes a `Connection` of each connection, and limits all of them together."""

    def __init__(
        self,
        server: web.Server,
        app: web.Application,
        settings: Settings,
        **options: Any,
    ) -> None:
        super().__init__(self._handle, request_factory=server.request_factory, **options)
        web_protocol.MAX_MSG_QUEUE_SIZE = MAX_PIPELINED
        self._application = server.request_handler
        self.common_headers = app[COMMON_HEADERS]
        self.metrics = app[METRICS]
        self.unread: dict[Connection, None] = {}  # those with unsent bytes, the oldest first
        self._settings = settings
        self._tracing = app.get(TRACING)
        self._clients = ClientAddresses(settings.trusted_proxies)
        self._options = options
        self._max_connections = app[MAX_CONNECTIONS]
        self._open = 0
        self._reserve: dict[Connection, None] = {}  # the oldest first
        self._refused = 0  # since there were too many connections
        self._last_refused_at = 0.0

    def __call__(self) -> Connection:
        """Make the protocol of a new connection."""
        return Connection(self, loop=asyncio.get_running_loop(), **self._options)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Count the connection; if there are too many, it is only for health checks."""
        super().connection_made(handler, transport)
        self._open += 1
        if self._open <= self._max_connections:
            return
        if not self._refused:
            log.warning("too many connections", max_connections=self._max_connections)
        self._refused += 1
        self._last_refused_at = asyncio.get_running_loop().time()
        connection = cast("Connection", handler)
        connection.is_reserve = True
        self._reserve[connection] = None
        if len(self._reserve) > RESERVED_CONNECTIONS:
            oldest = next(iter(self._reserve))
            del self._reserve[oldest]
            oldest.abort()

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        """Forget the connection."""
        super().connection_lost(handler, exc)
        self._open -= 1
        self._reserve.pop(cast("Connection", handler), None)
        self.unread.pop(cast("Connection", handler), None)

    @property
    def room(self) -> int:
        """Connections that may be opened."""
        return max(0, self._max_connections - self._open)

    def limit_unsent(self, connection: Connection) -> None:
        """Abort connections with unsent bytes, the oldest first, if they are too many together."""
        self.unread[connection] = None
        unsent = sum(each.unsent_bytes for each in self.unread)
        for oldest in list(self.unread):
            if unsent <= MAX_UNSENT_BYTES or oldest is connection:
                break
            unsent -= oldest.unsent_bytes
            oldest.abort()

    async def check_regularly(self) -> None:
        """End slow connections, and idle ones if there are too many, until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            now = loop.time()
            for connection in self._list():
                connection.check(now, self._settings.head_timeout, self._settings.send_timeout)
            if self._refused and now - self._last_refused_at > OUTAGE_END_S:
                log.warning("no longer too many connections", refused=self._refused)
                self._refused = 0
            elif self._refused and now - self._last_refused_at < 2 * CHECK_INTERVAL_S:
                self._make_room()

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
                for connection in self._list():
                    connection.close_if_unused()
            await asyncio.sleep(DRAIN_CHECK_INTERVAL_S)

    def _list(self) -> list[Connection]:
        return cast("list[Connection]", self.connections)

    def _make_room(self) -> None:
        """Close idle connections, first those that have sent no request, the oldest first."""
        excess = max(0, self._open - int((1 - ROOM_MADE) * self._max_connections))
        idle = [each for each in self._list() if each.is_idle and not each.is_reserve]
        for connection in sorted(idle, key=lambda each: each.has_responded)[:excess]:
            connection.close_if_unused()

    def identify(self, request: web.BaseRequest) -> None:
        """Set the request's id, its client's address, and its trace if it belongs to one."""
        assign_request_id(request)
        assign_trace_id(request)
        request[CLIENT] = self._clients.find(request)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Identify the request; respond to requests that the application does not get.

        aiohttp looks at `Expect` before the middlewares run.
        """
        self.identify(request)
        start_span(self._tracing, request)
        connection = cast("Connection", request.protocol)
        has_large_head = connection.begin_request(request)
        expected = request.headers.get(hdrs.EXPECT) or "100-continue"  # it may be an empty list
        if has_large_head:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            response: web.StreamResponse = problems.respond_http(request, status)
        elif expected.lower() != "100-continue":
            response = problems.respond_http(request, HTTPStatus.EXPECTATION_FAILED)
        elif not connection.is_reserve:
            return await self._application(request)
        elif request.rel_url.raw_path.startswith(HEALTHCHECKS):
            response = await self._application(request)
        else:
            response = problems.respond(
                request, Unavailable("too many connections", Refusal.TOO_MANY_CONNECTIONS)
            )
        response.force_close()
        self.common_headers.add(request, response)
        return response


def exempt_from_collection() -> None:
    """Exempt all that a process has loaded by now from garbage collection.

    Otherwise every full collection looks through it again, and stops all requests while it does; an
    import takes a tenth longer.
    """
    gc.collect()
    gc.freeze()


async def bind(host: str, port: int) -> list[socket.socket]:
    """Return a socket for each address of the host; raises `OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets = []
    for family, address in dict.fromkeys((family, address) for family, *_, address in found):
        sockets.append(socket.create_server(address[:2], family=family))
    return sockets


class Runner(web.AppRunner):
    """Runs the application with the settings of section [server]."""

    def __init__(self, app: web.Application, settings: Settings, **options: Any) -> None:
        self._options: dict[str, Any] = {
            **options,
            "access_log_class": AccessLogger,
            "auto_decompress": False,  # `bodies.py` decompresses what it reads, and no more
            "keepalive_timeout": settings.keepalive_timeout,
        }
        # Nearly no time for aiohttp's own wait at the end: `cleanup` has waited by then.
        super().__init__(app, shutdown_timeout=1, **self._options)
        self._settings = settings
        self._sockets: list[socket.socket] = []
        self._check: asyncio.Task[None] | None = None
        self._operations: Runner | None = None

    async def listen_to_operators(self, sockets: Iterable[socket.socket]) -> None:
        """Serve the operations port on these sockets, until `cleanup` ends.

        It has connections of its own, and is neither in the access log nor in the metrics.
        """
        self._operations = Runner(self.app[OPERATIONS], self._settings, access_log=None)
        await self._operations.setup()
        await self._operations.listen(sockets)

    async def listen(self, sockets: Iterable[socket.socket]) -> None:
        """Accept connections on these sockets.

        asyncio has one number for the backlog and for the connections that it accepts at once. The
        first may be large. The second opens a file for each, before they can be counted.
        """
        for each in sockets:
            await web.SockSite(self, each, backlog=ACCEPTED_AT_ONCE).start()
            each.listen(self._settings.backlog)
            self._sockets.append(each)

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        server = Server(made, self.app, self._settings, **self._options)
        self._check = asyncio.create_task(server.check_regularly())
        return server

    async def cleanup(self) -> None:
        """Report "not ready", accept no more connections, wait for requests in flight, stop."""
        in_flight = self.app[IN_FLIGHT]
        if self.sites and not in_flight.is_draining:
            in_flight.is_draining = True
            await asyncio.sleep(self._settings.drain_delay)
            if isinstance(self.server, Server):
                await self._stop_listening(self.server)
                await self.server.drain(self._settings.shutdown_timeout)
        if self._check:
            self._check.cancel()
        await super().cleanup()
        if self._operations:
            await self._operations.cleanup()

    async def _stop_listening(self, server: Server) -> None:
        """Accept the connections that are waiting, as their clients take them for open; then stop.

        Closing the socket resets connections that still wait. Nothing else runs between the two,
        and with a backlog of 0, only one can wait: the other clients try again after 1 s.
        """
        loop = asyncio.get_running_loop()
        for each in self._sockets:
            loop.remove_reader(each.fileno())
            each.listen(0)
        # asyncio drops connections that it has accepted, but not yet set up when a site stops.
        await asyncio.sleep(STOP_LISTENING_S)
        accepted: list[socket.socket] = []
        for each in self._sockets:
            with suppress(OSError):  # BlockingIOError: no more are waiting
                while len(accepted) < server.room:
                    accepted.append(each.accept()[0])
        for site in list(self.sites):
            await site.stop()
        for connection in accepted:
            await loop.connect_accepted_socket(server, connection)
