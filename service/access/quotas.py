"""The quotas of a day in UTC: movies that a client creates, and Idempotency-Keys that it uses.

A request takes its share before its body is read, so requests that arrive together stay within the
quota. It gives the share back if no movie was created: for an error, or a repeat with the same key.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

from service.access.counts import Counts, Refused
from service.errors import Limit, LimitReached, Policy

NOUNS = {Limit.CREATES_PER_DAY: "new movies", Limit.KEYS_PER_DAY: "new Idempotency-Keys"}


@dataclass(slots=True)
class Share:
    """What a request may do.

    `error`: raised in place of creating a movie, if a quota is used up. `was_used`: set by the
    request when it has created a movie.
    """

    error: LimitReached | None = None
    was_used: bool = False


class Quotas:
    """Takes shares of the quotas."""

    def __init__(
        self, counts: Mapping[Policy, Counts], count_refusal: Callable[[Limit], None]
    ) -> None:
        self._counts = counts
        self._count_refusal = count_refusal

    def take(self, identity: str, *, has_key: bool) -> AbstractAsyncContextManager[Share]:
        """Take a share while a request runs; raises `LimitReached` on entering.

        With a key, the request may be a repeat, which is free: then the error is in the share.
        """
        return self._take(identity, has_key) if self._counts else nullcontext(Share())

    @asynccontextmanager
    async def _take(self, identity: str, has_key: bool) -> AsyncIterator[Share]:  # noqa: FBT001
        day, elapsed_s = divmod(time.time(), 86_400)
        # Redis begins the window of a day with its first request: each day counts for itself.
        identity = f"{identity}/{int(day)}"
        share = Share()
        taken: list[Counts] = []
        for policy, counts in self._counts.items():
            if policy.name is Limit.KEYS_PER_DAY and not has_key:
                continue
            if refused := await counts.take(identity, 1):
                share.error = _make_error(policy, refused, int(policy.window_s - elapsed_s) + 1)
                break
            taken.append(counts)
        try:
            if share.error and not has_key:
                raise share.error
            yield share
        except asyncio.CancelledError:
            share.was_used = True  # perhaps: a statement goes on without its request
            raise
        except LimitReached as error:
            self._count_refusal(error.policy.name)
            raise
        finally:
            if not share.was_used:
                for counts in taken:
                    await counts.give_back(identity, 1)


def _make_error(policy: Policy, refused: Refused, retry_after_s: int) -> LimitReached:
    return LimitReached(
        f"the limit is {policy.quota} {NOUNS[policy.name]} per day; the next day begins at 00:00"
        f" UTC, in {retry_after_s} s",
        policy,
        refused.remaining,
        retry_after_s,
    )
