"""Spans of requests and statements, exported over HTTP (OTLP) by a thread of OpenTelemetry's SDK.

The SDK reads its own settings from the environment (OTEL_*):
https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
The names of attributes are those of the semantic conventions:
https://opentelemetry.io/docs/specs/semconv/http/http-spans/
https://opentelemetry.io/docs/specs/semconv/database/database-spans/
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus

from multidict import CIMultiDictProxy, istr
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service import __version__
from service.context import MAX_LOGGED_LENGTH, METHODS, TRACEPARENT, RequestContext
from service.errors import RuleBroken

TRACESTATE = istr("tracestate")
NAME = "movie-catalogue"


class Tracer:
    """Makes the spans of requests, and exports them.

    Whether a request has a span is decided by its `traceparent` and by OTEL_TRACES_SAMPLER.
    """

    def __init__(self, environment: str) -> None:
        own = Resource.create(
            {
                "service.name": NAME,
                "service.version": __version__,
                "deployment.environment.name": environment,
            }
        )
        self._provider = TracerProvider(
            resource=own.merge(OTELResourceDetector().detect()),  # OTEL_SERVICE_NAME wins
            shutdown_on_exit=False,  # it would wait for 30 s
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer(NAME, __version__)
        self._propagator = TraceContextTextMapPropagator()
        logging.getLogger(trace.span.__name__).setLevel(logging.ERROR)  # it quotes `tracestate`

    def start_request(
        self, context: RequestContext, headers: CIMultiDictProxy[str], path: str
    ) -> None:
        """Start the span of a request, if it is sampled."""
        parent = None
        if context.trace_id:
            state = ",".join(headers.getall(TRACESTATE, ()))
            fields = {"traceparent": headers[TRACEPARENT], "tracestate": state}
            parent = self._propagator.extract(fields)
        method = context.method if context.method in METHODS else "_OTHER"
        span = self._tracer.start_span(
            method.replace("_OTHER", "HTTP"),
            parent,
            trace.SpanKind.SERVER,
            {
                "http.request.method": method,
                "url.path": path[:MAX_LOGGED_LENGTH],
                "url.scheme": "http",
                "client.address": context.address,
            },
        )
        if span.is_recording():
            context.span = RequestSpan(self._tracer, span)
            context.trace_id = trace.format_trace_id(span.get_span_context().trace_id)

    def stop(self) -> None:
        """Export the last spans."""
        self._provider.shutdown()


class RequestSpan:
    """The span of a request; it also makes the spans of the statements of the request."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    def end(self, method: str, route: str | None, status: int) -> None:
        """End it with the response; 5xx is an error."""
        if route and method in METHODS:
            self._span.update_name(f"{method} {route}")
            self._span.set_attribute("http.route", route)
        self._span.set_attribute("http.response.status_code", status)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._span.set_attribute("error.type", str(status))
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()

    @contextmanager
    def trace_statement(
        self, query: str, waiting: Sequence["RequestSpan"]
    ) -> Iterator[Callable[[int], None]]:
        """Make the span of a statement, a child of this request's; yield what reports its rows.

        It has links to all requests that are `waiting`, if there are several.
        """
        is_shared = len(waiting) > 1
        span = self._tracer.start_span(
            query,
            trace.set_span_in_context(self._span),
            trace.SpanKind.CLIENT,
            {"db.system.name": "postgresql", "db.query.summary": query},
            [trace.Link(each._span.get_span_context()) for each in waiting] if is_shared else None,  # noqa: SLF001 - of this class
        )
        try:
            yield lambda rows: span.set_attribute("db.response.returned_rows", rows)
        except BaseException as error:
            if not isinstance(error, RuleBroken):  # that is its client's mistake
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(trace.StatusCode.ERROR)
            raise
        finally:
            span.end()
