"""Counts what each client or address has used of a limit, by a sliding window counter.

Time is cut into windows. What was used in the window before this one counts in the proportion in
which the sliding window still overlaps it, so a limit holds over any period as long as a window,
within a few units. `redis_counts.py` counts in the same way.

In memory, this module counts itself: the storage in memory of `limits` has a thread (without
asyncio) or a task that looks at all keys again and again: 12 us a request with 100,000 addresses
and a busy processor, or 770 us with 20,000; this one takes 0.5 us.
"""

import time
from typing import NamedTuple

from service.errors import Policy

MAX_ADDRESSES = 100_000  # that are counted by themselves in a window; 13 MB
ADDRESS = "address:"  # the start of the identity of a client without a token


class RetryLater(NamedTuple):
    """Nothing was counted, as it is too much: how much is left, and when it would be enough."""

    remaining: int
    retry_after_s: int


class MemoryCounts:
    """Counts for this process.

    Two dictionaries hold two windows, so nothing must be cleared. A flood from more addresses than
    `MAX_ADDRESSES` takes no more memory: the others share one count.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._window = 0  # since 1970
        self._ends_at = 0.0
        self._previous: dict[str, int] = {}
        self._current: dict[str, int] = {}

    async def take(self, identity: str, cost: int) -> RetryLater | None:
        """Count the cost, or nothing if that is more than the limit."""
        quota = self._policy.quota
        now = time.time()
        if not 0 < self._ends_at - now <= self._policy.window_s:
            self._begin_window(now)
        current = self._current.get(identity, 0)
        if not current and len(self._current) >= MAX_ADDRESSES:
            identity = _share(identity)
            current = self._current.get(identity, 0)
        previous = self._previous.get(identity, 0)
        left_s = self._ends_at - now
        weighted = int(previous * left_s / self._policy.window_s) if previous else 0
        if current + weighted + cost > quota:
            return refuse(self._policy, cost, previous, current, left_s)
        self._current[identity] = current + cost
        return None

    async def give_back(self, identity: str, cost: int) -> None:
        """Uncount what was taken; nothing if its window is over."""
        if identity not in self._current:
            identity = _share(identity)
        left = self._current.pop(identity, 0) - cost
        if left > 0:  # otherwise requests that fail could fill the memory
            self._current[identity] = left

    def _begin_window(self, now: float) -> None:
        window = int(now // self._policy.window_s)
        self._previous = self._current if window == self._window + 1 else {}
        self._current = {}
        self._window = window
        self._ends_at = (window + 1.0) * self._policy.window_s


def refuse(policy: Policy, cost: int, previous: int, current: int, left_s: float) -> RetryLater:
    """Return what is left, and after how many seconds the cost would not be refused.

    `current`: what was used in this window, which ends in `left_s` seconds; `previous`: in the one
    before it.
    """
    weighted = int(previous * left_s / policy.window_s)
    room = policy.quota - current - cost  # for what was used in the window before
    if room >= 0:
        wait_s = left_s - (room + 1) * policy.window_s / max(1, previous)
    else:  # this window must end; then it is the one before
        room = policy.quota - cost
        wait_s = left_s + max(0.0, policy.window_s - (room + 1) * policy.window_s / current)
    return RetryLater(max(0, policy.quota - current - weighted), max(1, int(wait_s) + 1))


def _share(identity: str) -> str:
    """Return the identity of all addresses that are not counted by themselves."""
    return ADDRESS if identity.startswith(ADDRESS) else identity
