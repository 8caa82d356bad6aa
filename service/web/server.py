"""The server: aiohttp's own, with problem documents, a limit of connections and a gentle stop."""

import asyncio
import resource
import socket
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from http import HTTPStatus

import structlog
from aiohttp import hdrs, web
from aiohttp.http_exceptions import InvalidHeader, InvalidURLError, LineTooLong

from service.config import Config
from service.errors import BadRequest, CatalogueError, ExpectationFailed, OperatorError
from service.web import problems
from service.web.context import CONTEXT
from service.web.middleware import CYCLE

log = structlog.get_logger()

ACCEPTED_AT_ONCE = 32
BACKLOG = 2048  # connections that may wait to be accepted; further clients retry after 1 s
RESERVED_FILES = 128  # besides connections: log, event loop, listening sockets, DNS lookups
UNREAD_MAX_MS = 30_000  # for a client to read what was sent
LINGERING_S = 2.0  # for the rest of a body that was refused
# At a stop, each connection has this time for a last response, which says that it ends.
LAST_RESPONSE_S = 1.0
DRAIN_CHECK_S = 0.02
FULL_LOG_S = 10.0  # between two lines in the log about too many connections
OPERATIONS_APP = web.AppKey("operations", web.Application)


class ClientConnection(web.RequestHandler):
    """Answers invalid HTTP with a problem document; ends at once if there are too many."""

    def __init__(self, runner: "Runner", server: web.Server) -> None:
        cycle = runner.app[CYCLE]
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            auto_decompress=False,  # `bodies.py` decompresses, up to a limit
            keepalive_timeout=cycle.settings.keepalive_timeout,
            lingering_time=LINGERING_S,
            # aiohttp would make one for each connection.
            access_log_class=lambda *_: cycle.access_log,  # type: ignore[arg-type]
        )
        self._runner, self._server, self._cycle = runner, server, cycle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuse the connection if `max_connections` are open."""
        super().connection_made(transport)
        most = self._cycle.settings.max_connections
        if len(self._server.connections) > most:
            self.force_close()
            now = asyncio.get_running_loop().time()
            if now >= self._runner.next_full_line:
                self._runner.next_full_line = now + FULL_LOG_S
                log.warning("too many connections", max_connections=most)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that the HTTP parser refused, or that failed within aiohttp."""
        error = CatalogueError()
        is_new = CONTEXT not in request  # it did not reach the middleware
        if is_new:
            request[CONTEXT] = self._cycle.contexts.make(request)
        context = request[CONTEXT]
        if is_new and hdrs.EXPECT in request.headers:  # aiohttp cannot encode its text about it
            error = ExpectationFailed()
        elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("connection failed", **context.ids, exc_info=exc)
        else:
            mistake = _describe_mistake(exc, message)
            context.parser_error = mistake or HTTPStatus(status).phrase
            error = BadRequest(mistake and mistake[0].lower() + mistake[1:])
        response = problems.respond(request, error)
        response.force_close()
        return response


def _describe_mistake(exc: BaseException | None, message: str | None) -> str | None:
    """Say in one line what is wrong with the HTTP, without the client's data."""
    if isinstance(exc, LineTooLong):  # its message has the line
        return "a line is too long"
    if isinstance(exc, InvalidHeader):  # its message has the header, perhaps a token
        return "Invalid HTTP header"
    if isinstance(exc, InvalidURLError):  # its message is the URL
        return "Invalid URL"
    # Other lines of the message quote the request.
    return message and message.strip().partition("\n")[0].rstrip(": ")


class Runner(web.AppRunner):
    """Runs an application and, if there is an operations port, the application of that port.

    What must stay true: no more connections are open than the process may open files; at a stop,
    readiness is 503 first, then no connection is accepted, and requests that have begun get their
    responses.
    """

    def __init__(self, app: web.Application) -> None:
        # aiohttp's own wait is short, because `cleanup` has waited for the requests before.
        super().__init__(app, shutdown_timeout=1)
        self.next_full_line = 0.0  # by the loop's clock: the next line about too many connections
        self.servers: list[asyncio.Server] = []
        self._operations: Runner | None = None

    async def listen(
        self, sockets: Iterable[socket.socket], for_operators: Iterable[socket.socket] = ()
    ) -> None:
        """Accept connections on these sockets."""
        if for_operators:
            self._operations = Runner(self.app[OPERATIONS_APP])
            await self._operations.setup()
            await self._operations.listen(for_operators)
        assert self.server, "set up before"  # noqa: S101 - for mypy
        make_connection = partial(ClientConnection, self, self.server)
        for each in sockets:
            if each.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
                # Connections inherit it: the kernel ends one whose client does not read.
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MAX_MS)
            # asyncio uses `backlog` also as the number of connections that it accepts at once, and
            # each opens a file before it is counted. So it is small first, and then raised.
            loop = asyncio.get_running_loop()
            self.servers.append(
                await loop.create_server(make_connection, sock=each, backlog=ACCEPTED_AT_ONCE)
            )
            each.listen(BACKLOG)

    async def cleanup(self) -> None:
        """Report "not ready", accept no more connections, wait for requests in flight, stop."""
        loop, cycle = asyncio.get_running_loop(), self.app[CYCLE]
        must_drain = self.servers and not cycle.is_draining
        if must_drain:
            cycle.is_draining = True
            await asyncio.sleep(cycle.settings.drain_delay)
        for each in self.servers:
            each.close()
        if must_drain and self.server:  # aiohttp's own wait would not receive bodies
            started, passed = loop.time(), 0.0
            while passed < cycle.settings.shutdown_timeout:
                await asyncio.sleep(DRAIN_CHECK_S)  # asyncio may still be accepting connections
                passed = loop.time() - started
                is_waited_for = self.server.connections and passed < LAST_RESPONSE_S
                if not (is_waited_for or cycle.in_flight):
                    break
        await super().cleanup()
        if self._operations:
            await self._operations.cleanup()


def choose_max_connections(config: Config) -> int:
    """Return the most connections of a process: the setting, or what its files allow.

    The process may open as many files as its hard limit says (`ulimit -Hn`). Raises `OperatorError`
    if no connection is left.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS refuses to set no limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return config.server.max_connections
    needed = RESERVED_FILES + config.database.max_open
    if files <= needed:
        raise OperatorError(f"expected more than {needed} open files, found {files} (ulimit -n)")
    return min(config.server.max_connections, files - needed)
