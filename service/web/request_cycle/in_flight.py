"""The requests in flight and their deadlines."""

import asyncio
import time
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.typedefs import Handler

from service.errors import Refusal, Unavailable
from service.web.request_cycle.error_responses import respond_to_error

CHECK_INTERVAL_S = 0.5


class InFlight:
    """Ends requests that take longer than `request_timeout` seconds.

    One timer checks all requests, so a request may take up to `CHECK_INTERVAL_S` longer.
    `asyncio.timeout` for each request would cost a read 20 % more CPU time (docs/decisions).
    """

    def __init__(self, request_timeout: float) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_draining = False  # set when the process is about to stop
        self._request_timeout = request_timeout
        self._started: dict[asyncio.Task[object], float] = {}  # the oldest first
        self._overdue: set[asyncio.Task[object]] = set()

    @property
    def count(self) -> int:
        """Requests that have no response yet."""
        return len(self._started)

    @web.middleware
    async def limit_time(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer 503 at the deadline.

        Ends the connection if no further request is wanted on it: when the process is about to
        stop, or if a handler has refused the body before reading all of it.
        """
        task: asyncio.Task[object] = asyncio.current_task(self._loop)  # type: ignore[assignment] # in one
        self._started[task] = time.monotonic()
        try:
            response = await handler(request)
        except asyncio.CancelledError:
            if task not in self._overdue:
                raise
            task.uncancel()
            response = respond_to_error(
                request, Unavailable("the request took too long", Refusal.REQUEST_TIMEOUT)
            )
        finally:
            del self._started[task]
            self._overdue.discard(task)
        if self.is_draining or not request.content.is_eof():
            response.force_close()
        return response

    async def check_deadlines(self, _: web.Application) -> AsyncIterator[None]:
        """Cancel overdue requests while the application runs (a `cleanup_ctx`)."""
        self._loop = asyncio.get_running_loop()
        check = asyncio.create_task(self._check())
        yield
        check.cancel()

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(min(CHECK_INTERVAL_S, self._request_timeout / 2))
            latest_start = time.monotonic() - self._request_timeout
            for task, started in list(self._started.items()):
                if started > latest_start:
                    break
                if task not in self._overdue:
                    self._overdue.add(task)
                    task.cancel()


IN_FLIGHT = web.AppKey("in_flight", InFlight)
