"""Runs the load generators, which are closed loops: wrk for HTTP, pgbench for PostgreSQL."""

import json
import re
import resource
import shutil
import statistics
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from bench.targets import PGBENCH_CLIENTS, find_pgbench

WRK_SCRIPT = Path(__file__).with_name("movies.lua")
WRK_MISSING = """wrk, the load generator, is missing. Install it with
  apt-get install wrk     (Debian, Ubuntu)
  brew install wrk        (macOS)
or from https://github.com/wg/wrk"""

# The query that the service sends for one id if sharing is off.
PGBENCH_SCRIPT = r"""\set id random(1, :movies)
select m.id, m.title, m.year, m.runtime, m.genres, m.version, m.created_at, m.updated_at
from movies as m
where m.id = :id;
"""
PGBENCH_LOG_SHARE = 0.1  # of the transactions; logging all of them would slow pgbench down


@dataclass(frozen=True)
class Load:
    """The figures of the load generator; p50, p99 and max are in milliseconds."""

    requests: int  # with a response of any status
    seconds: float
    p50: float
    p99: float
    max: float
    creates_sent: int = 0
    errors: dict[str, int] = field(default_factory=dict)  # `status`: responses from 400 on
    generator_cpu_seconds: float = 0.0

    @property
    def failed(self) -> int:
        """The number of errors of all kinds."""
        return sum(self.errors.values())


def get_wrk_version() -> str:
    """Return the version of wrk, or "" if wrk is missing."""
    program = shutil.which("wrk")
    if not program:
        return ""
    output = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stdout  # noqa: S603 wrk
    return output.partition("[")[0].strip()


def run_wrk(url: str, workload: str, connections: int, seconds: int, movies: int) -> Load:
    """Load a server: each connection sends its next request when it has its response."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout=20s", "--latency"]
    output, cpu_seconds = _run([*command, f"-s{WRK_SCRIPT}", url, "--", workload, str(movies)])
    result = json.loads(re.findall(r"^result (.*)$", output, re.MULTILINE)[0])
    return Load(
        requests=result["requests"],
        seconds=result["duration"] / 1e6,
        p50=result["p50"] / 1e3,
        p99=result["p99"] / 1e3,
        max=result["max"] / 1e3,
        creates_sent=result["creates_sent"],
        errors=result["errors"],
        generator_cpu_seconds=cpu_seconds,
    )


def run_pgbench(url: str, protocol: str, seconds: int, movies: int) -> Load:
    """Load PostgreSQL with the service's query, without the service."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "select.sql")
        script.write_text(PGBENCH_SCRIPT)
        command = [find_pgbench(), "-n", f"-f{script}", f"-M{protocol}", f"-T{seconds}", "-j2"]
        command += [f"-c{PGBENCH_CLIENTS}", f"-Dmovies={movies}", "--random-seed=rand"]
        command += ["-l", f"--log-prefix={folder}/log", f"--sampling-rate={PGBENCH_LOG_SHARE}", url]
        output, cpu_seconds = _run(command)
        lines = "".join(path.read_text() for path in Path(folder).glob("log*")).splitlines()
    times = [int(line.split()[2]) / 1e3 for line in lines]
    percentiles = statistics.quantiles(times, n=100)
    requests = int(_find_number(r"actually processed: (\d+)", output))
    return Load(
        requests=requests,
        seconds=requests / _find_number(r"tps = ([\d.]+)", output),
        p50=percentiles[49],
        p99=percentiles[98],
        max=max(times),
        errors={"status": int(_find_number(r"failed transactions: (\d+)", output))},
        generator_cpu_seconds=cpu_seconds,
    )


def _find_number(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    return float(match.group(1)) if match else 0.0


def _run(command: list[str]) -> tuple[str, float]:
    """Run a load generator and return its output and CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 wrk or pgbench
    if process.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {process.stdout}{process.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
