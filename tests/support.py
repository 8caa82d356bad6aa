"""What several tests need."""

import asyncio
from collections.abc import Callable
from typing import Any

Execute = Callable[..., list[tuple[Any, ...]]]


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait for something to become true; fail after so many seconds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the database has no events to await
            await asyncio.sleep(0.01)
