"""Counts the units that each client or address has used, by a sliding window counter.

Time is divided into windows. The units of the previous window are weighted by the part of it that
the sliding window still overlaps. So a limit holds over any period as long as a window, within a
few units. `redis_counts.py` counts in the same way.

The in-memory storage of `limits` is not used, because it scans all keys again and again: in a
thread (12 us a request with 100,000 addresses and a busy processor), or with asyncio in a task (770
us with 20,000 addresses). This module takes 0.5 us.
"""

import time
from typing import NamedTuple

from service.errors import Policy

MAX_ADDRESSES = 100_000  # with their own counts in a window; 13 MB
ADDRESS = "address:"  # the start of the identity of a client without a token


class RetryLater(NamedTuple):
    """The request is over the limit: the units that are left, and when to try again."""

    remaining: int
    retry_after_s: int


class MemoryCounts:
    """Counts for this process.

    Two dictionaries hold the current and the previous window; older ones are dropped as a whole.
    Memory is bounded: beyond `MAX_ADDRESSES`, further addresses share one count.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._window = 0  # its number, since 1970
        self._ends_at = 0.0
        self._previous: dict[str, int] = {}
        self._current: dict[str, int] = {}

    async def take(self, identity: str, cost: int) -> RetryLater | None:
        """Count the cost; if that is over the limit, count nothing and return `RetryLater`."""
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
            return make_retry_later(self._policy, cost, previous, current, left_s)
        self._current[identity] = current + cost
        return None

    async def give_back(self, identity: str, cost: int) -> None:
        """Undo a `take`; if its window has ended since, this may count for the next window."""
        if identity not in self._current:
            identity = _share(identity)
        left = self._current.pop(identity, 0) - cost
        if left > 0:  # otherwise remove the entry: refused requests must not fill the memory
            self._current[identity] = left

    def _begin_window(self, now: float) -> None:
        window = int(now // self._policy.window_s)
        self._previous = self._current if window == self._window + 1 else {}
        self._current = {}
        self._window = window
        self._ends_at = (window + 1.0) * self._policy.window_s


def make_retry_later(
    policy: Policy, cost: int, previous: int, current: int, left_s: float
) -> RetryLater:
    """Return how many units are left, and after how many seconds there are enough.

    `current`: the units used in this window, which ends in `left_s` seconds; `previous`: the units
    used in the previous window.
    """
    weighted = int(previous * left_s / policy.window_s)
    room = policy.quota - current - cost  # for the weighted units of the previous window
    if room >= 0:
        wait_s = left_s - (room + 1) * policy.window_s / max(1, previous)
    else:  # wait until this window is the previous one
        room = policy.quota - cost
        wait_s = left_s + max(0.0, policy.window_s - (room + 1) * policy.window_s / current)
    return RetryLater(max(0, policy.quota - current - weighted), max(1, int(wait_s) + 1))


def _share(identity: str) -> str:
    """Return the identity that addresses beyond `MAX_ADDRESSES` share."""
    return ADDRESS if identity.startswith(ADDRESS) else identity
