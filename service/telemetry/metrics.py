"""The metrics of the service, in one table, for Prometheus.

A process counts for itself. Under gunicorn, each worker writes to files of a folder that all of
them read (https://prometheus.github.io/client_python/multiprocess/), so any of them can serve the
sums, and what a killed worker has counted remains.
"""

import asyncio
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar, cast

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import disable_created_metrics as hide_creation_times
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from service.errors import Refusal
from service.telemetry.logs import get_lines

Metric = TypeVar("Metric", Counter, Gauge, Histogram)

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

# A read takes 1 to 5 ms, and a request at most 10 s; both in seconds.
DURATIONS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)

# A kind of response takes up to 5 kB. Clients can send every method to every route; further kinds
# are counted with the route and method "other", as a file that grows may find no space.
MAX_RESPONSES = 250
# The files of a process, which prometheus_client maps into memory: by kind, as it names them (one
# for each `multiprocess_mode` below), with more bytes than our metrics need.
MODES = ("livesum", "livemin", "livemax", "livemostrecent")
FILE_BYTES = {"histogram": 1 << 21, "counter": 1 << 17} | {f"gauge_{m}": 1 << 16 for m in MODES}

log = structlog.get_logger()


class Off:
    """Replaces every metric while metrics are off."""

    def labels(self, *_: object) -> Self:
        """Return itself."""
        return self

    def observe(self, amount: float = 1) -> None:
        """Do nothing."""

    inc = set = observe


OFF = Off()


class OfStatement(NamedTuple):
    """The metrics of one query's statements."""

    duration: Histogram
    rows: Counter
    failures: Counter


class Metrics:
    """The metrics of a process; `folder`: of the files that several processes share, if any."""

    def __init__(self, *, is_enabled: bool, folder: Path | None = None) -> None:
        hide_creation_times()  # type: ignore[no-untyped-call]
        self.is_enabled = is_enabled and (folder is None or _reserve_files(folder))
        self._folder = folder
        self._registry = CollectorRegistry()
        self._reported_dropped = 0  # log lines
        # These set gauges, once a second and before they are read.
        self.samplers = list[Callable[[], None]]([self._sample_process])

        histogram = partial(self.add, Histogram, buckets=DURATIONS)
        counter = partial(self.add, Counter)
        # Of all live processes: the sum, the lowest, the highest, and the last that was set.
        gauge = partial(self.add, Gauge, multiprocess_mode="livesum")
        lowest = partial(self.add, Gauge, multiprocess_mode="livemin")
        highest = partial(self.add, Gauge, multiprocess_mode="livemax")
        latest = partial(self.add, Gauge, multiprocess_mode="livemostrecent")

        # The request. Its `_count` is the number of responses.
        labels = ("method", "route", "status")
        self._requests = histogram("request_duration_seconds", "Time until a response.", labels)
        self.requests_in_flight = gauge("requests_in_flight", "Requests that have no response yet.")
        refusals = counter("refusals_total", "Responses 503, by reason.", ("reason",))
        limited = counter("limited_total", "Responses 429, by limit.", ("limit",))
        self.unlimited = counter("unlimited_total", "Requests that Redis did not limit.")

        # The database.
        query = ("query",)
        self.ready = lowest("ready", "0 while a process cannot use its database.")
        of_statement = (
            histogram(
                "statement_duration_seconds",
                "How long statements took, without the wait for a connection.",
                query,
            ),
            counter("statement_rows_total", "Rows of statements.", query),
            counter(
                "statement_failures_total", "Statements that failed, other than by a rule.", query
            ),
        )
        self.shared_statement_rows = histogram(
            "shared_statement_rows",
            "Requests that shared a statement.",
            query,
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
        )
        self.pool_connections = gauge(
            "pool_connections",
            "Connections by state; open: all that count toward max_open.",
            ("state",),
        )
        self.pool_max_open = gauge("pool_max_open_connections", "max_open of all processes.")
        self.pool_waiting = gauge("pool_waiting", "Statements that wait for a connection.")
        self.connect_failures = counter("connect_failures_total", "Connects that failed.")
        self.pool_wait = histogram("pool_wait_seconds", "The wait for a connection.")
        self.replica_lag = highest(
            "replica_lag_seconds",
            "How old the data of a replica may be; infinite if unknown.",
            ("replica",),
        )
        self.replica_used = lowest(
            "replica_used", "1 while reads may go to a replica; NaN: the primary.", ("replica",)
        )
        self.reads = counter("reads_total", "Reads by the server that was chosen.", ("server",))

        # The catalogue.
        self.list_pages = counter(
            "list_pages_total", "Pages of lists, from memory or fetched together.", ("source",)
        )
        self.pages_ended = counter("list_pages_ended_total", "Pages that a change has ended.")
        self.idempotency_keys = latest("idempotency_keys", "Stored keys (an estimate).")
        self.changes_delay = latest(
            "changes_delay_seconds", "How long a transaction has held back changes from the feed."
        )
        self.schema_faults = latest("schema_faults", "What the schema lacks; `queries` names it.")

        # The processes.
        self.info = highest("info", "Always 1.", ("version", "commit", "environment"))
        self._lines_dropped = counter("log_lines_dropped_total", "Log lines that were not written.")
        self.processes = gauge("processes", "Processes that serve requests.")
        self.resident_memory = gauge("resident_memory_bytes", "Memory of all processes together.")
        self.event_loop_lag = histogram("event_loop_lag_seconds", "How late a timer ran.")
        self.open_files = highest("open_files", "Open files of the process that has the most.")
        self.max_files = lowest("max_files", "Files that a process may open.")
        self.start_time = highest("start_time_seconds", "When the youngest process started.")

        self._get_response = cache(self._make_response)
        self.get_statement = cache(
            lambda query: OfStatement._make(metric.labels(query) for metric in of_statement)
        )
        # Create these series before their first event: only then Prometheus sees it as an increase.
        self.limited = limited.labels("rate")
        self._by_refusal = {reason: refusals.labels(reason) for reason in Refusal}

    def count_response(
        self, method: str, route: str | None, status: int, seconds: float, refusal: Refusal | None
    ) -> None:
        """Count a response that took `seconds`; `refusal`: of a 503."""
        known = method if method in METHODS else "other"  # clients invent some
        self._get_response(known, route or "none", status).observe(seconds)
        if refusal:
            self._by_refusal[refusal].inc()

    def _make_response(self, method: str, route: str, status: int) -> Histogram:
        """Make the metric of these responses."""
        if self._get_response.cache_info().currsize >= MAX_RESPONSES:
            method = route = "other"
        return self._requests.labels(method, route, status)

    def _sample_process(self) -> None:
        max_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.max_files.set(inf if max_files == resource.RLIM_INFINITY else max_files)
        dropped = get_lines().dropped
        self._lines_dropped.inc(dropped - self._reported_dropped)
        self._reported_dropped = dropped
        with suppress(OSError):  # only Linux has them
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.resident_memory.set(pages * resource.getpagesize())
            self.open_files.set(len(list(Path("/proc/self/fd").iterdir())))

    def sample(self) -> None:
        """Set the gauges."""
        for sample in self.samplers:
            sample()

    async def sample_regularly(self) -> None:
        """Set the gauges once a second, for the other processes."""
        loop = asyncio.get_running_loop()
        while True:
            self.sample()
            due = loop.time() + 1
            await asyncio.sleep(1)
            self.event_loop_lag.observe(loop.time() - due)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        registry = self._registry
        if self._folder:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, str(self._folder))  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    def add(
        self, kind: type[Metric], name: str, text: str, labels: tuple[str, ...] = (), **options: Any
    ) -> Metric:
        """Make a metric of these labels."""
        if not self.is_enabled:
            return cast("Metric", OFF)
        return kind(name, text, labels, namespace="catalogue", registry=self._registry, **options)


def _reserve_files(folder: Path) -> bool:
    """Reserve the space of this process's files; False if the disk is full.

    Without it, the kernel would end the process (SIGBUS) when it counts and the disk is full.
    """
    try:
        for kind, size in FILE_BYTES.items():
            with (folder / f"{kind}_{os.getpid()}.db").open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        for path in folder.glob(f"*_{os.getpid()}.db"):
            path.unlink()
        log.error("metrics off", reason=f"{folder}: {error.strerror}")  # noqa: TRY400
        return False
    return True
