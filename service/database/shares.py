"""A share of the pool's connections, which one kind of statements may use."""

import asyncio

from service.errors import Refusal, Unavailable

# A place that is free again after 6 ms serves so many statements within `acquire_timeout` (2 s).
# With 50, 9 of 10 requests of 200 clients that read lists were refused.
MAX_WAITING_PER_PLACE = 300


class Share:
    """The connections that one kind of statements may use at once, and a bounded queue for them."""

    def __init__(self, places: int) -> None:
        self._places = asyncio.Semaphore(places)
        self._max_waiting = places * MAX_WAITING_PER_PLACE
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Statements that wait for a place."""
        return self._waiting

    async def take_place(self, timeout: float) -> None:  # noqa: ASYNC109 - of all waiters
        """Wait for a place; `Unavailable` at once if too many wait, or after `timeout` seconds."""
        if self._waiting >= self._max_waiting:
            raise Unavailable(
                f"{self._waiting} statements of this kind are waiting already", Refusal.QUEUE_FULL
            )
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout):
                await self._places.acquire()
        except TimeoutError as error:
            raise Unavailable(
                f"no connection for this kind of statements became free in {timeout:g} s",
                Refusal.POOL_TIMEOUT,
            ) from error
        finally:
            self._waiting -= 1

    def free_place(self) -> None:
        """Let the next one have the place."""
        self._places.release()
