"""Sends a write again that was not made because of another session."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from service.errors import Contended, RuleBroken, WaitedInVain

Result = TypeVar("Result")

LOCK_RETRY_S = 0.02  # while another session holds a lock that a write needs
# Retries after another session inserted the same unique value; more: a trigger sets a taken value.
MAX_LOSSES = 9


@dataclass(frozen=True)
class Resender:
    """Sends writes until they are made or refused, or `timeout` seconds have passed."""

    timeout: float
    unique_rule: str  # the name of the unique index
    _one_at_a_time: asyncio.Semaphore = field(default_factory=asyncio.Semaphore, init=False)

    async def send(self, send: Callable[[], Awaitable[Result]]) -> Result:
        """Send a write, and return its result; in the end, raises its error, or `Contended`.

        A write is sent again if another session
        - holds a lock that it needs: after `LOCK_RETRY_S`. If its statement has waited for the
          lock, such writes go one at a time: many would use all connections, and delay those that
          share their statements;
        - has just taken its unique value: at once. The next statement sees that, unless the item
          is gone again.
        """
        give_up = time.monotonic() + self.timeout
        last: Contended | None = None
        losses = 0
        while True:
            has_waited = isinstance(last, WaitedInVain)
            async with self._one_at_a_time if has_waited else nullcontext():
                if last and time.monotonic() > give_up:
                    raise last
                try:
                    return await send()
                except Contended as error:
                    last, pause = error, LOCK_RETRY_S
                except RuleBroken as error:
                    losses += 1
                    if error.rule != self.unique_rule or losses > MAX_LOSSES:
                        raise
                    last, pause = Contended(f"other sessions take {error.rule} in turn"), 0
            await asyncio.sleep(pause)
