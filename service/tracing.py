"""Tracing: the trace of a request (https://www.w3.org/TR/trace-context/), and its span.

Without `[tracing] enabled`, no request has a span, and OpenTelemetry is never imported.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

from multidict import CIMultiDictProxy

from service.config import Config
from service.context import TRACEPARENT
from service.errors import OperatorError

if TYPE_CHECKING:
    from service.spans import Tracer

EXIT_WAIT_S = 2.0  # for the last spans
# version-trace_id-parent_id-flags. Later versions may have more fields, but no version is ff.
WELL_FORMED_TRACE = re.compile(
    r"(?!ff)(?!00.{53}.)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)


class Tracing:
    """Exports spans while the application runs; `OperatorError` if the extra is not installed."""

    def __init__(self, config: Config) -> None:
        self.tracer: Tracer | None = None  # None: no spans
        self._make_tracer: Callable[[], Tracer] | None = None
        if not config.tracing.enabled:
            return
        try:
            from service import spans  # noqa: PLC0415 - of an extra, and takes 0.3 s to load
        except ImportError as error:
            raise OperatorError(
                "[tracing] enabled needs OpenTelemetry: pip install -r requirements-tracing.txt"
                f" ({error})"
            ) from error
        self._make_tracer = partial(spans.Tracer, config.service.environment)

    async def run(self, _: object) -> AsyncIterator[None]:
        """Start and stop the export (a `cleanup_ctx`); the stop takes at most `EXIT_WAIT_S`."""
        if self._make_tracer is None:
            yield
            return
        try:
            self.tracer = tracer = self._make_tracer()
        except ValueError as error:
            raise OperatorError(f"OpenTelemetry refuses an OTEL_* variable: {error}") from error
        yield
        # The export may wait for a collector; a daemon thread does not delay the process's end.
        stop = Thread(target=tracer.stop, name="tracing", daemon=True)
        stop.start()
        await asyncio.to_thread(stop.join, EXIT_WAIT_S)


def find_trace_id(headers: CIMultiDictProxy[str]) -> str | None:
    """Return the id of the trace if the request has exactly one valid `traceparent`."""
    lines = headers.getall(TRACEPARENT)
    match = WELL_FORMED_TRACE.fullmatch(lines[0]) if len(lines) == 1 else None
    return match[1] if match else None
