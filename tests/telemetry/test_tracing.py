"""Tests the spans that a collector gets when OpenTelemetry starts the service (docs/logs.md)."""

import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from processes import BIN, SERVE, WEB, serving
from support import WAIT_S, Environment, wait_until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


class Collector:
    """Receives spans as OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in part.scope_spans:
                        collector.spans += scope.spans
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Return a collector."""
    collector = Collector()
    yield collector
    collector.close()


@pytest.mark.parametrize("command", [SERVE, WEB], ids=["serve", "web"])
def test_a_request_has_a_span_within_its_callers_trace(
    environment: Environment, collector: Collector, command: list[str]
) -> None:
    """It is named after method and route; under gunicorn, each worker exports its spans."""
    changes = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_SEMCONV_STABILITY_OPT_IN": "http",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
    }
    instrumented = [str(BIN / "opentelemetry-instrument"), *command]
    with serving(instrumented, environment | changes) as (base, _):
        request = urllib.request.Request(  # noqa: S310 - ours
            f"{base}/v1/genres", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}
        )
        urllib.request.urlopen(request, timeout=WAIT_S).close()  # noqa: S310 - ours
        wait_until(lambda: [span for span in collector.spans if span.name == "GET /v1/genres"])

    (span,) = [span for span in collector.spans if span.name == "GET /v1/genres"]
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    found = {each.key: each.value for each in span.attributes}
    assert found["http.response.status_code"].int_value == 200
