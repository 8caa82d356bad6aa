"""The requests under way: how long each may take, and how the process goes out of service."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# Seconds between two looks at what is under way.
LOOK = 0.5


class Traffic:
    """Counts requests and ends those that are overdue; `request_timeout` in seconds.

    One timer looks after all requests, the oldest first: one each (`asyncio.timeout`) would cost
    a read 6 % more. So a request may take up to `LOOK` longer.
    """

    def __init__(self, request_timeout: float) -> None:
        self.draining = False
        self._loop: asyncio.AbstractEventLoop | None = None  # known: one system call less a request
        self._request_timeout = request_timeout
        self._under_way: dict[asyncio.Task[object], float] = {}  # since when, the oldest first
        self._overdue: set[asyncio.Task[object]] = set()
        self._one_done = asyncio.Event()

    def begin(self, now: float) -> asyncio.Task[object]:
        """Count what the current task does from now on (`time.monotonic`) as a request."""
        task: asyncio.Task[object] = asyncio.current_task(self._loop)  # type: ignore[assignment] # in one
        self._under_way[task] = now
        return task

    def is_overdue(self, task: asyncio.Task[object]) -> bool:
        """Whether the task was cancelled because its request took too long, and only for that.

        Told once; the task is then as if it had not been.
        """
        if task not in self._overdue:
            return False
        self._overdue.discard(task)
        return task.uncancel() == 0

    def end(self, task: asyncio.Task[object]) -> None:
        """Count the task's request as done."""
        del self._under_way[task]
        # Its own cancellation may not have come through; the task goes on with the next request.
        self.is_overdue(task)
        if self.draining:
            self._one_done.set()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look after the deadlines of requests while inside."""
        self._loop = asyncio.get_running_loop()
        watch = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watch.cancel()

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109 - a bound, not a cancellation
        """Wait until no request is under way, for `timeout` seconds at most.

        aiohttp's own shutdown stops reading from connections first, and so cuts off a body that is
        still on its way: hence this before it.
        """
        try:
            async with asyncio.timeout(timeout):
                while self._under_way:
                    self._one_done.clear()
                    await self._one_done.wait()
        except TimeoutError:
            pass

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(LOOK, self._request_timeout / 2))
            for task, since in list(self._under_way.items()):
                if time.monotonic() - since < self._request_timeout:
                    break
                if task not in self._overdue:
                    self._overdue.add(task)
                    task.cancel()
