"""Tracing: which requests and clients wait for a statement, and whether spans are exported.

Without `[tracing] enabled`, no request has a span, and OpenTelemetry is never imported.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import ContextVar
from functools import partial, wraps
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast

from service.config import Config
from service.errors import OperatorError

if TYPE_CHECKING:
    from service.spans import RequestSpan, Tracer

EXIT_WAIT_S = 2.0  # for the last spans

# The spans of the requests that wait for what this task does: none, one, or those of a statement.
WAITING: ContextVar[tuple["RequestSpan", ...]] = ContextVar("waiting", default=())
# The clients of these requests: the id of a verified one, the address of any other.
WAITING_CLIENTS: ContextVar[tuple[str, ...]] = ContextVar("waiting_clients", default=())

Fetch = TypeVar("Fetch", bound=Callable[..., Coroutine[Any, Any, list[tuple[Any, ...]]]])


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
        # The export may wait for a collector; a daemon does not keep the process from ending.
        stop = Thread(target=tracer.stop, name="tracing", daemon=True)
        stop.start()
        await asyncio.to_thread(stop.join, EXIT_WAIT_S)


def trace_statement(fetch: Fetch) -> Fetch:
    """Make a span of each statement that requests with spans wait for; a decorator of a method."""

    @wraps(fetch)
    async def traced(self: Any, name: str, **options: Any) -> list[tuple[Any, ...]]:
        waiting = WAITING.get()
        if not waiting:
            return await fetch(self, name, **options)
        with waiting[0].trace_statement(name, waiting) as report_rows:
            rows = await fetch(self, name, **options)
            report_rows(len(rows))
            return rows

    return cast("Fetch", traced)
