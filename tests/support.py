"""What several tests need."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

Environment = dict[str, str]
Execute = Callable[..., list[tuple[Any, ...]]]

WAIT_S = 30.0  # what is waited for takes milliseconds, and seconds on a loaded machine
POLL_S = 0.01


async def until(condition: Callable[[], object]) -> None:
    """Wait for something to become true, which may have to be awaited."""
    async with asyncio.timeout(WAIT_S):
        while True:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            await asyncio.sleep(POLL_S)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something to become true, without an event loop."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(POLL_S)
