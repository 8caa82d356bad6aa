"""Waits for changes: one statement at a time asks for all requests of this process that wait."""

import asyncio
from bisect import bisect_right
from collections.abc import Mapping
from operator import attrgetter

from service.changes.feed import ChangePage, CursorExpired, Feed, FeedCursor
from service.errors import Refusal, Unavailable

POLL_PAUSE_S = 0.2  # between two statements
MAX_WAITERS = 1000  # requests; further ones are refused
Waiter = asyncio.Future[ChangePage]  # to a request that waits


class LongPolls:
    """The requests that wait. What must stay true: each gets the first changes after its cursor."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._cursors: dict[Waiter, FeedCursor] = {}  # of the requests that wait
        self._polling: asyncio.Task[None] | None = None

    async def wait(self, after: FeedCursor, seconds: float) -> ChangePage | None:
        """Wait for changes; None after `seconds` without any. `CursorExpired` or `Unavailable`."""
        if len(self._cursors) >= MAX_WAITERS:
            raise Unavailable("too many requests wait for changes", Refusal.QUEUE_FULL)
        answer: Waiter = asyncio.get_running_loop().create_future()
        self._cursors[answer] = after
        self._polling = self._polling or asyncio.create_task(self._poll())
        try:
            await asyncio.wait([answer], timeout=seconds)
        finally:
            self._cursors.pop(answer, None)
        return answer.result() if answer.done() else None

    async def _poll(self) -> None:
        """Read changes until no request waits."""
        try:
            while self._cursors:
                # Those of now: a request that comes during the read may have an earlier cursor.
                cursors = self._cursors.copy()
                first = min(cursors.values(), key=attrgetter("order"))
                found: dict[Waiter, ChangePage | Exception]
                try:
                    found = divide_page(await self._feed.read(first), cursors)
                except Exception as error:  # noqa: BLE001 - each request gets it
                    found = {answer: error for answer in cursors}  # noqa: C420 - for its type
                for answer, result in found.items():
                    if self._cursors.pop(answer, None) is None:
                        continue  # it waits no longer
                    if isinstance(result, Exception):
                        answer.set_exception(result)
                    else:
                        answer.set_result(result)
                await asyncio.sleep(POLL_PAUSE_S)
        finally:
            self._polling = None


def divide_page(
    page: ChangePage, cursors: Mapping[Waiter, FeedCursor]
) -> dict[Waiter, ChangePage | Exception]:
    """Return the changes of the page after each cursor; without those that have none.

    Requests with the same changes get the same page, which is then encoded once: 1,000 copies could
    have 600 MB. If the page lacks changes, only the result of the first cursor is known.
    """
    found, pages = dict[Waiter, ChangePage | Exception](), dict[int, ChangePage]()
    first = min(after.order for after in cursors.values())
    for answer, after in cursors.items():
        start = bisect_right(page.changes, after.order, key=attrgetter("cursor.order"))
        if after.feed != page.next.feed or (page.is_expired and after.order == first):
            found[answer] = CursorExpired()
        elif page.is_expired:
            continue
        elif changes := page.changes[start:]:
            found[answer] = pages.setdefault(start, ChangePage(changes, page.next, page.as_of))
    return found
