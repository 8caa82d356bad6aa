"""Makes one measurement: the load, its CPU time, and the rows that were added."""

import os
import time

from bench import cpu, load, targets
from bench.database import Database
from bench.load import Load
from bench.results import Measurement
from bench.targets import Running

WARM_UP_S = 1  # before each measurement


class CpuMeter:
    """Measures the CPU time from its construction to `read`."""

    def __init__(self, pid: int, database: Database) -> None:
        self._pid = pid
        self._database = database
        self._started_at = time.monotonic()
        self._before = self._read_seconds()

    def read(self, result: Load) -> dict[str, float | None]:
        """Return microseconds per request, and other programs' share of the machine's CPU time."""
        service, database, machine = (
            None if after is None or before is None else after - before
            for after, before in zip(self._read_seconds(), self._before, strict=True)
        )
        other_programs = None
        if machine is not None and database is not None:
            benchmark = (service or 0) + database + result.generator_cpu_seconds
            capacity = (time.monotonic() - self._started_at) * (os.cpu_count() or 1)
            other_programs = max(0.0, machine - benchmark) / capacity
        per_request = 1e6 / max(1, result.requests)
        return {
            "service_cpu": None if service is None else service * per_request,
            "database_cpu": None if database is None else database * per_request,
            "generator_cpu": result.generator_cpu_seconds * per_request,
            "other_programs": other_programs,
        }

    def _read_seconds(self) -> tuple[float | None, float | None, float | None]:
        service = cpu.read_tree_seconds(self._pid) if self._pid else None
        return service, self._database.read_cpu_seconds(), cpu.read_machine_seconds()


def measure(
    running: Running, database: Database, workload: str, connections: int, seconds: int
) -> Measurement:
    """Measure one target with one workload, once."""

    def run_load(seconds: int) -> Load:
        protocol = running.target.pgbench_protocol
        if protocol:
            return load.run_pgbench(database.url, protocol, seconds, database.movies)
        return load.run_wrk(running.url, workload, connections, seconds, database.movies)

    run_load(WARM_UP_S)
    has_creates = workload != targets.READS
    before = database.count_added() if has_creates else 0
    meter = CpuMeter(running.pid, database)
    result = run_load(seconds)
    cpu_times = meter.read(result)
    added = database.count_added() - before if has_creates else 0
    if has_creates:
        database.reset()
    return Measurement(
        rate=result.requests / result.seconds,
        p50=result.p50,
        p99=result.p99,
        max=result.max,
        requests=result.requests,
        seconds=result.seconds,
        errors=result.errors,
        **cpu_times,
        added=added,
        confirmed=_count_confirmed(result, workload, connections) if has_creates else 0,
        surplus=max(0, added - result.creates_sent),
    )


def _count_confirmed(result: Load, workload: str, connections: int) -> int:
    """Return the least possible number of creates with a 201 response.

    For a mix, wrk counts the creates sent, but not their responses. When it stops, each connection
    may have one create without a response. wrk also calls `request` once without sending it.
    """
    if workload == "creates":
        return result.requests - result.failed
    return max(0, result.creates_sent - connections - 1 - result.failed)
