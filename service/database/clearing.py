"""Deletes what is kept only for some time, and measures what the metrics show, once a minute."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import Gauge

from service.database.query import NO_PARAMETERS, Row
from service.database.statements import Statements
from service.telemetry.metrics import Off

USED_BY = "clearing what has expired, once a minute"
MEASURED = "a metric, once a minute"
INTERVAL_S = 60
# Rows are deleted in batches (1000 take about 20 ms), with short pauses while there are more: about
# 8,000 rows a second, without delaying requests.
BATCH_ROWS = 1000
BATCH_PAUSE_S = 0.1


class Expiry(NamedTuple):
    """A query that deletes up to `at_most` expired rows, and returns their number.

    `parameters`: its other ones. `start`: those that say where the first statement starts; after
    the number, the query returns them for the next one.
    """

    query: str
    parameters: Mapping[str, object] = NO_PARAMETERS
    start: Mapping[str, object] = NO_PARAMETERS


def _get_value(rows: list[Row]) -> float:
    """Return the only value of the only row."""
    ((value,),) = rows
    return float(value)


class Measure(NamedTuple):
    """A query, and the gauge that shows what `read` returns of its rows."""

    query: str
    gauge: Gauge | Off
    read: Callable[[list[Row]], float] = _get_value


class Clearing:
    """Clears and measures regularly."""

    def __init__(
        self, statements: Statements, expiries: Sequence[Expiry], measures: Sequence[Measure] = ()
    ) -> None:
        self._statements = statements
        self._expiries = expiries
        self._measures = measures if statements.metrics.is_enabled else ()
        self._starts = {expiry.query: expiry.start for expiry in expiries}

    async def clear(self, expiry: Expiry) -> int:
        """Delete up to `BATCH_ROWS` expired rows and return how many were deleted."""
        query, parameters, start = expiry
        sent = {"at_most": BATCH_ROWS, **parameters, **self._starts[query]}
        ((cleared, *last),) = await self._statements.fetch(query, sent)
        # The next statement continues after the last row, or restarts.
        continues = cleared == BATCH_ROWS
        self._starts[query] = dict(zip(start, last, strict=True)) if continues else start
        return int(cleared)

    async def clear_regularly(self) -> None:
        """Clear every `INTERVAL_S`."""
        while True:
            await self._measure()
            await asyncio.sleep(INTERVAL_S)
            for expiry in self._expiries:
                try:
                    cleared = BATCH_ROWS
                    while cleared == BATCH_ROWS:
                        cleared = await self.clear(expiry)
                        await asyncio.sleep(BATCH_PAUSE_S)
                except Exception as error:  # noqa: BLE001 - tried again after the interval
                    self._statements.report(expiry.query, error)

    async def _measure(self) -> None:
        for query, gauge, read in self._measures:
            try:
                gauge.set(read(await self._statements.fetch(query)))
            except Exception as error:  # noqa: BLE001 - it is only a metric
                self._statements.report(query, error)
