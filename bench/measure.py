"""One measurement: the load, the CPU time that it takes, and what is in the database after it."""

import os
import time

from bench import cpu, load, targets
from bench.database import Database
from bench.load import Load
from bench.results import Measurement
from bench.targets import Running

WARM_UP = 1  # seconds of the same load before each measurement


class Meter:
    """The CPU time that one measurement takes; it runs from when it is made."""

    def __init__(self, pid: int, database: Database) -> None:
        self._pid = pid
        self._database = database
        self._begun = time.monotonic()
        self._before = self._look()

    def read(self, seen: Load) -> dict[str, float | None]:
        """Microseconds for each request, and the share of the machine that went elsewhere."""
        used = [
            None if after is None or before is None else after - before
            for after, before in zip(self._look(), self._before, strict=True)
        ]
        service, database, all_of_it = used
        elsewhere = None
        if all_of_it is not None and database is not None:
            ours = (service or 0) + database + seen.generator_cpu
            capacity = (time.monotonic() - self._begun) * (os.cpu_count() or 1)
            elsewhere = max(0.0, all_of_it - ours) / capacity
        each = 1e6 / max(1, seen.requests)
        return {
            "service_cpu": None if service is None else service * each,
            "database_cpu": None if database is None else database * each,
            "generator_cpu": seen.generator_cpu * each,
            "elsewhere": elsewhere,
        }

    def _look(self) -> tuple[float | None, float | None, float | None]:
        service = cpu.seconds(self._pid) if self._pid else None
        return service, self._database.cpu(), cpu.busy()


def measure(
    running: Running, database: Database, workload: str, connections: int, seconds: int
) -> Measurement:
    """Measure one target under one workload, once."""

    def put_load(seconds: int) -> Load:
        if running.target.protocol:
            return load.pgbench(database.url, running.target.protocol, seconds, database.movies)
        return load.wrk(running.url, workload, connections, seconds, database.movies)

    put_load(WARM_UP)
    writes = workload != targets.READS
    before = database.added() if writes else 0
    meter = Meter(running.pid, database)
    seen = put_load(seconds)
    used = meter.read(seen)
    added = database.added() - before if writes else 0
    if writes:
        database.reset()
    return Measurement(
        rate=seen.requests / seen.seconds,
        p50=seen.p50,
        p99=seen.p99,
        max=seen.max,
        requests=seen.requests,
        seconds=seen.seconds,
        errors=seen.errors,
        **used,
        added=added,
        answered=_answered(seen, workload, connections) if writes else 0,
        surplus=max(0, added - seen.creates_sent),
    )


def _answered(seen: Load, workload: str, connections: int) -> int:
    """How many creates were answered 201, at least.

    wrk tells what was sent and how many answers came. Of a mix, those that were under way when it
    ended, one a connection at most, may all have been creates; and it calls `request` once to look.
    """
    if workload == "creates":
        return seen.requests - seen.failed
    return max(0, seen.creates_sent - connections - 1 - seen.failed)
