"""The requests in flight, and how the process goes out of service."""

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler


class InFlight:
    """Counts the requests in flight; `draining` is set when the process is to stop."""

    def __init__(self) -> None:
        self.draining = False
        self._count = 0
        self._one_ended = asyncio.Event()

    @web.middleware
    async def count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count the request; end its connection if no further request on it is wanted."""
        self._count += 1
        try:
            response = await handler(request)
        finally:
            self._count -= 1
            self._one_ended.set()
        if self.draining or not request.content.is_eof():  # or the rest of its body is not wanted
            response.force_close()
        return response

    async def wait(self, timeout: float) -> None:  # noqa: ASYNC109 - a bound, not a cancellation
        """Wait until no request is in flight, for `timeout` seconds at most.

        aiohttp's own shutdown stops reading from connections first, and so cuts off a body that is
        still on its way: hence this before it.
        """
        try:
            async with asyncio.timeout(timeout):
                while self._count:
                    self._one_ended.clear()
                    await self._one_ended.wait()
        except TimeoutError:
            pass
