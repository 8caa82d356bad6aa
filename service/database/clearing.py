"""Deletes what is kept only for some time: idempotency keys, and the changes of the feed.

It also measures how many keys there are, how far the feed is behind, and what the schema lacks.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping

from service.database.query import Expected, Row
from service.database.statements import Statements

BEGINNING: dict[str, int | str] = {"after": "0", "after_id": 0}  # of the changes
USED_BY = "clearing what has expired, once a minute"
QUERIES: Mapping[str, Expected] = {
    "clear_idempotency_keys": Expected({"cleared": int}, [{"at_most": 0}], USED_BY, writes=True),
    "estimate_idempotency_keys": Expected({"keys": int}, [{}], "a metric, once a minute"),
    "measure_changes_delay": Expected({"seconds": float}, [{}], "a metric, once a minute"),
    "clear_changes": Expected(
        {"cleared": int, "last_transaction": str, "last_id": int},
        [{"keep_days": 1, **BEGINNING, "at_most": 0}],
        USED_BY,
        writes=True,
    ),
}

INTERVAL_S = 60
# Rows are deleted in batches (1000 take about 20 ms), with short pauses while there are more: about
# 8,000 rows a second, without delaying requests.
BATCH_ROWS = 1000
BATCH_PAUSE_S = 0.1


class Clearing:
    """Clears regularly; `keep_days`: of the changes (0: there is no feed)."""

    def __init__(self, statements: Statements, keep_days: int) -> None:
        self._statements = statements
        self._parameters: dict[str, dict[str, int | str]] = {"clear_idempotency_keys": {}}
        metrics = statements.metrics
        self._gauges = {
            "estimate_idempotency_keys": (metrics.idempotency_keys, _get_value),
            "get_schema_faults": (metrics.schema_faults, len),
        }
        if keep_days:
            self._gauges["measure_changes_delay"] = (metrics.changes_delay, _get_value)
            self._parameters["clear_changes"] = {"keep_days": keep_days, **BEGINNING}

    async def clear(self, query: str) -> int:
        """Delete up to `BATCH_ROWS` expired rows and return how many were deleted."""
        parameters = self._parameters[query]
        ((cleared, *last),) = await self._statements.fetch(
            query, {"at_most": BATCH_ROWS, **parameters}
        )
        if last:  # the next statement goes on behind it, or begins anew
            goes_on = cleared == BATCH_ROWS
            parameters |= dict(zip(BEGINNING, last, strict=True)) if goes_on else BEGINNING
        return int(cleared)

    async def run(self, _: object) -> AsyncIterator[None]:
        """Clear every `INTERVAL_S` (a `cleanup_ctx`)."""
        task = asyncio.create_task(self._keep_clearing())
        yield
        task.cancel()  # do not wait: a running statement finishes by itself

    async def _keep_clearing(self) -> None:
        while True:
            await self._measure()
            await asyncio.sleep(INTERVAL_S)
            for query in self._parameters:
                try:
                    cleared = BATCH_ROWS
                    while cleared == BATCH_ROWS:
                        cleared = await self.clear(query)
                        await asyncio.sleep(BATCH_PAUSE_S)
                except Exception as error:  # noqa: BLE001 - tried again after the interval
                    self._statements.report(query, error)

    async def _measure(self) -> None:
        if not self._statements.metrics.is_enabled:
            return
        for query, (gauge, measure) in self._gauges.items():
            try:
                gauge.set(measure(await self._statements.fetch(query)))
            except Exception as error:  # noqa: BLE001 - it is only a metric
                self._statements.report(query, error)


def _get_value(rows: list[Row]) -> float:
    """Return the only value of the only row."""
    ((value,),) = rows
    return float(value)
