"""The load: wrk for what speaks HTTP, pgbench for PostgreSQL itself. Both are closed loops."""

import json
import re
import resource
import shutil
import statistics
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from bench.targets import PGBENCH_CLIENTS, pgbench_program

SCRIPT = Path(__file__).with_name("movies.lua")
MISSING = """wrk, which makes the load, is missing. Get it with
  apt-get install wrk     (Debian, Ubuntu)
  brew install wrk        (macOS)
or from https://github.com/wg/wrk"""

# The service's query for one id, as it stands there without sharing.
SELECT = r"""\set id random(1, :movies)
select m.id, m.title, m.year, m.runtime, m.genres, m.version, m.created_at, m.updated_at
from movies as m
where m.id = :id;
"""
SAMPLED = 0.1  # of pgbench's transactions; a log of all would be load of its own


@dataclass(frozen=True)
class Load:
    """What the load generator saw. Times are in milliseconds, `seconds` aside."""

    requests: int  # that were answered, whatever the answer
    seconds: float
    p50: float
    p99: float
    max: float
    creates_sent: int = 0
    errors: dict[str, int] = field(default_factory=dict)  # `status`: answers from 400 on
    generator_cpu: float = 0.0  # seconds

    @property
    def failed(self) -> int:
        """All errors, of whichever kind."""
        return sum(self.errors.values())


def wrk_version() -> str:
    """The version of wrk, or "" where it is missing."""
    program = shutil.which("wrk")
    if not program:
        return ""
    said = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stdout  # noqa: S603 wrk
    return said.partition("[")[0].strip()


def wrk(url: str, workload: str, connections: int, seconds: int, movies: int) -> Load:
    """Load a server: each connection sends its next request when it has its answer."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout=20s", "--latency"]
    said, cpu = _run([*command, f"-s{SCRIPT}", url, "--", workload, str(movies)])
    result = json.loads(re.findall(r"^result (.*)$", said, re.MULTILINE)[0])
    return Load(
        requests=result["requests"],
        seconds=result["duration"] / 1e6,
        p50=result["p50"] / 1e3,
        p99=result["p99"] / 1e3,
        max=result["max"] / 1e3,
        creates_sent=result["creates_sent"],
        errors=result["errors"],
        generator_cpu=cpu,
    )


def pgbench(url: str, protocol: str, seconds: int, movies: int) -> Load:
    """Load PostgreSQL with the same select, by random id, without any service."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "select.sql")
        script.write_text(SELECT)
        command = [pgbench_program(), "-n", f"-f{script}", f"-M{protocol}", f"-T{seconds}", "-j2"]
        command += [f"-c{PGBENCH_CLIENTS}", f"-Dmovies={movies}", "--random-seed=rand"]
        command += ["-l", f"--log-prefix={folder}/log", f"--sampling-rate={SAMPLED}", url]
        said, cpu = _run(command)
        lines = "".join(path.read_text() for path in Path(folder).glob("log*")).splitlines()
    times = [int(line.split()[2]) / 1e3 for line in lines]
    percentiles = statistics.quantiles(times, n=100)
    requests = int(_number(r"actually processed: (\d+)", said))
    return Load(
        requests=requests,
        seconds=requests / _number(r"tps = ([\d.]+)", said),
        p50=percentiles[49],
        p99=percentiles[98],
        max=max(times),
        errors={"status": int(_number(r"failed transactions: (\d+)", said))},
        generator_cpu=cpu,
    )


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    return float(found.group(1)) if found else 0.0


def _run(command: list[str]) -> tuple[str, float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 wrk or pgbench
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, used
