"""Runs wrk, a load generator that is a closed loop."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

WRK_SCRIPT = Path(__file__).with_name("movies.lua")
READS, CREATES, MIX, LISTS, HOT_LIST = WORKLOADS = ("reads", "creates", "mix", "lists", "hot-list")
LINES = "lines"  # given requests, in random order


@dataclass(frozen=True)
class Load:
    """The figures of wrk; p50 and p99 are in milliseconds."""

    requests: int  # with a response of any status
    seconds: float
    p50: float
    p99: float
    creates_sent: int
    failed: int  # without a response, or with a status from 400 on

    def count_confirmed(self, workload: str, connections: int) -> int:
        """Return the least possible number of creates with a 201 response.

        For a mix, wrk counts the creates sent, but not their responses. When it stops, each
        connection may have one create without a response. wrk also calls `request` once without
        sending it.
        """
        if workload == CREATES:
            return self.requests - self.failed
        return max(0, self.creates_sent - connections - 1 - self.failed)


def get_wrk_version() -> str:
    """Return the version of wrk; exits if wrk is missing."""
    program = shutil.which("wrk")
    if not program:
        raise SystemExit("wrk, the load generator, is missing: apt-get install wrk")
    output = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stdout  # noqa: S603 wrk
    return output.partition("[")[0].removeprefix("wrk").strip()


def run_wrk(
    url: str, workload: str, connections: int, seconds: int, content: int | Sequence[str]
) -> Load:
    """Load a server: each connection sends its next request when it has its response.

    `content`: the number of movies, or the requests of `LINES`.
    """
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout=20s", "--latency"]
    with NamedTemporaryFile("w") as file:
        if not isinstance(content, int):
            file.write("\n".join(content))
            file.flush()
        last = content if isinstance(content, int) else file.name
        command += [f"-s{WRK_SCRIPT}", url, "--", workload, str(last)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 wrk
    result = json.loads(re.findall(r"^result (.*)$", output, re.MULTILINE)[0])
    return Load(
        requests=result["requests"],
        seconds=result["duration"] / 1e6,
        p50=result["p50"] / 1e3,
        p99=result["p99"] / 1e3,
        creates_sent=result["creates_sent"],
        failed=sum(result["errors"].values()),
    )
