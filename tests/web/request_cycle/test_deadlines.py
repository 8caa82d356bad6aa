"""The deadlines of requests, which one task after another handles on a connection."""

import asyncio
import time
from contextlib import suppress

from service.web.request_cycle.deadlines import Traffic


async def test_a_cancellation_that_is_lost_does_not_stay_with_the_connection() -> None:
    """What swallows it, as `asyncio.wait_for` may, does not take the next request its answer."""
    traffic = Traffic(request_timeout=0.02)
    overdue = []

    async def requests() -> None:
        for swallows in (True, False):
            task = traffic.begin(time.monotonic())
            try:
                if swallows:
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(10)
                else:
                    await asyncio.sleep(10)
            except asyncio.CancelledError:
                overdue.append(traffic.is_overdue(task))
            finally:
                traffic.end(task)

    async with traffic.watched(), asyncio.timeout(5):
        await asyncio.create_task(requests())

    assert overdue == [True]
