"""Tests the spans that a collector gets: of requests, and of the statements that they wait for."""

import asyncio
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from conftest import MOANA, ROOT, Client, Start
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from processes import GUNICORN, SERVE, get, serving
from support import WAIT_S, Environment, Execute, until, wait_until

import service
from service.config import Config, Tracing
from service.errors import OperatorError
from service.tracing import Tracing as Traces

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
STATUS_UNSET, STATUS_ERROR = 0, 2
STOP_MAX_S = 25  # OpenTelemetry itself would wait for 30 s


class Collector:
    """Receives spans as OTLP over HTTP; a silent one accepts them and never responds."""

    def __init__(self, *, is_silent: bool) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.is_asked = threading.Event()
        self.end = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.is_asked.set()
                if is_silent:
                    collector.end.wait()
                    return
                for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.resources.append(read_attributes(part.resource))
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

    def find(self, name: str) -> list[Any]:
        """Return the spans with this name."""
        return [span for span in self.spans if span.name == name]

    def close(self) -> None:
        """Stop."""
        self.end.set()
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


def read_attributes(span: Any) -> dict[str, Any]:
    """Return the attributes of a span or a resource."""
    values = ((each.key, each.value) for each in span.attributes)
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Return a collector that the environment names."""
    collector = Collector(is_silent=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    yield collector
    collector.close()


@pytest.fixture
async def traced(collector: Collector, start: Start) -> Client:
    """Return a client of a service that exports spans to the collector."""
    del collector  # the environment names it
    return await start(tracing=Tracing(enabled=True))


def sent_by(flags: str = "01") -> dict[str, str]:
    """Return the headers of a caller with a span of its own."""
    return {"traceparent": f"00-{TRACE}-{PARENT}-{flags}"}


async def test_a_request_has_a_span_within_its_callers_trace(
    traced: Client, collector: Collector
) -> None:
    """It is named after method and route, with the attributes of the semantic conventions."""
    await traced.get("/v1/movies/7?page=1", headers=sent_by())

    await until(lambda: collector.find("GET /v1/movies/{id}"))
    (span,) = collector.spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.kind == span.SPAN_KIND_SERVER
    assert span.status.code == STATUS_UNSET
    assert span.end_time_unix_nano > span.start_time_unix_nano
    assert read_attributes(span) == {
        "http.request.method": "GET",
        "http.route": "/v1/movies/{id}",
        "http.response.status_code": 422,
        "url.path": "/v1/movies/7",
        "url.scheme": "http",
        "client.address": "127.0.0.1",
    }
    resource = collector.resources[0]
    assert resource["service.name"] == "movie-catalogue"
    assert resource["deployment.environment.name"] == "development"


async def test_a_statement_has_a_span_within_its_requests(
    traced: Client, collector: Collector
) -> None:
    """It has the name of the query, and how many rows it returned."""
    await traced.post("/v1/movies", json=MOANA)

    await until(lambda: collector.find("POST /v1/movies"))
    (request,) = collector.find("POST /v1/movies")
    (statement,) = collector.find("create_movies")
    assert statement.trace_id == request.trace_id
    assert statement.parent_span_id == request.span_id
    assert statement.kind == statement.SPAN_KIND_CLIENT
    assert read_attributes(statement) == {
        "db.system.name": "postgresql",
        "db.query.summary": "create_movies",
        "db.response.returned_rows": 1,
    }


async def test_every_request_finds_the_statement_that_it_shared(
    traced: Client, collector: Collector
) -> None:
    """The span of the statement is a child of the request's span, or has a link to it."""
    await asyncio.gather(*(traced.get(f"/v1/movies/{number}") for number in range(1, 31)))

    await until(lambda: len(collector.find("GET /v1/movies/{id}")) == 30)
    served = []
    for statement in collector.find("get_movies"):
        linked = [link.span_id for link in statement.links]
        assert not linked or statement.parent_span_id == linked[0]
        served += linked or [statement.parent_span_id]
    assert sorted(served) == sorted(span.span_id for span in collector.find("GET /v1/movies/{id}"))


async def test_an_error_of_the_service_is_one_of_its_spans(
    traced: Client, collector: Collector, execute: Execute
) -> None:
    """5xx, and the failed statement."""
    execute("alter table movies rename to gone")

    await traced.get("/v1/movies/1")

    await until(lambda: collector.find("GET /v1/movies/{id}"))
    (request,), (statement,) = collector.find("GET /v1/movies/{id}"), collector.find("get_movies")
    assert request.status.code == statement.status.code == STATUS_ERROR
    assert read_attributes(request)["error.type"] == "500"
    assert read_attributes(statement)["error.type"] == "StatementFailed"


async def test_a_rule_that_a_client_broke_is_no_error(
    traced: Client, collector: Collector, execute: Execute
) -> None:
    """The statement is refused as it should be."""
    execute("alter table movies add constraint movies_title_short check (length(title) < 3)")

    response = await traced.post("/v1/movies", json=MOANA)

    assert response.status == 422
    await until(lambda: collector.find("POST /v1/movies"))
    assert {span.status.code for span in collector.spans} == {STATUS_UNSET}


async def test_the_caller_decides_whether_its_request_has_a_span(
    traced: Client, collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the flag `sampled`; the log has the trace in both cases."""
    await traced.get("/v1/movies/1", headers=sent_by("00"))
    await traced.get("/v1/genres", headers=sent_by("01"))

    await until(lambda: collector.find("GET /v1/genres"))
    assert not collector.find("GET /v1/movies/{id}")
    assert not collector.find("get_movies")
    assert capsys.readouterr().out.count(f"trace_id={TRACE}") == 2


async def test_the_sampler_decides_about_requests_without_a_trace(
    start: Start, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OTEL_TRACES_SAMPLER, as in any service with OpenTelemetry."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    client = await start(tracing=Tracing(enabled=True))

    await client.get("/v1/movies/1")
    await client.get("/v1/genres", headers=sent_by())

    await until(lambda: collector.find("GET /v1/genres"))
    assert not collector.find("GET /v1/movies/{id}")


async def test_a_request_that_begins_a_trace_on_a_path_that_is_no_route(
    traced: Client, collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log has its trace, too. The path does not name it: clients could make any names."""
    path = f"/nowhere/{'x' * 8000}"
    await traced.get(path)

    await until(lambda: collector.spans)
    (span,) = collector.spans
    assert span.name == "GET"
    assert read_attributes(span)["url.path"] == path[:256]  # as in the log
    assert f"trace_id={span.trace_id.hex()}" in capsys.readouterr().out


async def test_a_wrong_tracestate_is_ignored(
    traced: Client, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients cannot write to the log with it."""
    await traced.get("/v1/genres", headers={**sent_by(), "tracestate": "a=1,wrong\x9b=\xe9"})

    await until(lambda: collector.find("GET /v1/genres"))
    (span,) = collector.find("GET /v1/genres")
    assert (span.trace_id.hex(), span.trace_state) == (TRACE, "")
    assert "wrong" not in caplog.text


def test_each_of_two_workers_exports_its_spans(
    environment: Environment, collector: Collector
) -> None:
    """The thread that exports starts in the worker, after the fork; a stop loses no span."""
    changes = {
        "CATALOGUE_TRACING_ENABLED": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "60000",  # only the stop exports
        "WEB_CONCURRENCY": "2",
    }
    sent = 0
    with serving(GUNICORN, environment, **changes) as (base, process):
        prefixes: set[str] = set()
        while len(prefixes) < 2:  # each process has its own request ids
            with urllib.request.urlopen(f"{base}/v1/genres", timeout=WAIT_S) as response:  # noqa: S310 - ours
                prefixes.add(response.headers["X-Request-Id"].partition("-")[0])
            sent += 1
        process.terminate()
        process.communicate(timeout=60)

    assert len(collector.find("GET /v1/genres")) == sent


def test_a_collector_that_does_not_respond_disturbs_nothing(environment: Environment) -> None:
    """The service responds, and stops without the spans."""
    collector = Collector(is_silent=True)
    changes = {
        "CATALOGUE_TRACING_ENABLED": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
    }
    with serving(SERVE, environment, **changes) as (base, process):
        wait_until(collector.is_asked.is_set)

        assert get(f"{base}/v1/genres") == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_MAX_S) == 0
    collector.close()


async def test_a_missing_collector_is_a_line_in_the_log(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing else."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    client = await start(tracing=Tracing(enabled=True))

    await client.get("/v1/genres")
    await until(lambda: [record for record in caplog.records if record.levelname == "ERROR"])

    assert (await client.get("/v1/genres")).status == 200


def test_tracing_without_the_extra_is_a_clear_error(
    settings: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the packages to install."""
    monkeypatch.delattr(service, "spans", raising=False)
    monkeypatch.setitem(sys.modules, "service.spans", None)

    with pytest.raises(OperatorError, match=r"pip install -r requirements-tracing\.txt"):
        Traces(settings(tracing=Tracing(enabled=True)))


async def test_a_wrong_variable_stops_the_start(
    settings: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")

    with pytest.raises(OperatorError, match=r"OTEL_\* variable: max_queue_size must be"):
        await anext(Traces(settings(tracing=Tracing(enabled=True))).run(object()))


def test_without_tracing_its_packages_are_not_loaded() -> None:
    """They would take time and memory."""
    code = "import service.app, sys; sys.exit('opentelemetry' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
