"""Going out of service without losing a request."""

import asyncio


class Draining:
    """Whether this process is on its way out, and how many requests are under way.

    aiohttp's own shutdown stops reading from connections first, and so cuts off a body that is
    still on its way. This is waited for before.
    """

    def __init__(self) -> None:
        self.begun = False
        self.under_way = 0
        self._one_done = asyncio.Event()

    def done(self) -> None:
        """Count a request as answered."""
        self.under_way -= 1
        self._one_done.set()

    async def wait(self, timeout: float) -> None:  # noqa: ASYNC109 - a bound, not a cancellation
        """Wait until no request is under way, for `timeout` seconds at most."""
        try:
            async with asyncio.timeout(timeout):
                while self.under_way:
                    self._one_done.clear()
                    await self._one_done.wait()
        except TimeoutError:
            pass
