"""Counts the Python calls of a request, which do not depend on the machine: `make calls`.

Runs the service and bare aiohttp under cProfile, with 64 connections, once with few and once with
many requests; the difference is what a request costs. A file or function counts if at least half of
the requests pass through it. `list` is the mean of the lists that `make bench` sends, in a random
order that is always the same; it is followed by each of their kinds.
"""

import asyncio
import pstats
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import click

from bench.database import create_database
from bench.lists import KINDS, PATHS
from bench.load import LISTS
from bench.targets import wait_for_response
from drills.processes import find_free_port
from drills.service import ROOT, make_environment

CONNECTIONS = 64
FEW, MANY = 2_000, 12_000
FEW_LISTS, MANY_LISTS = 600, 2_400
MOVIES = 100_000
BODY = b'{"title": "The Return", "year": 1999, "runtime": "102 mins", "genres": ["drama", "war"]}'
HEADERS = "Host: localhost\r\nUser-Agent: calls\r\n"
PATCH = b'{"runtime": "%d mins"}'
SERVICE, AIOHTTP = "service", "aiohttp"
# The paths of each label of lists.
PATHS_OF_LISTS = {
    "list": PATHS[LISTS],
    **{f"list {kind}": paths for kind, (_, paths) in KINDS.items()},
}
LABELS = (AIOHTTP, "GET", "POST", "PATCH", *PATHS_OF_LISTS)
PROGRAMS = {SERVICE: ("service", "serve"), AIOHTTP: ("bench.peer_aiohttp",)}


class Connection(asyncio.Protocol):
    """Sends its next request when it has the response."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self._requests = requests
        self._received = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment] # of TCP
        self._send()

    def data_received(self, data: bytes) -> None:
        """Send the next request if the response is complete."""
        self._received += data
        head, _, body = self._received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        if len(body) < length:
            return
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
            self.ended.set_exception(RuntimeError(self._received.decode()))
            return
        self._received = b""
        self._send()

    def _send(self) -> None:
        if request := next(self._requests, None):
            self._transport.write(request)
        else:
            self._transport.close()
            self.ended.set_result(None)


def make_requests(label: str, count: int) -> Iterator[bytes]:
    """Yield so many requests of this label."""
    lists = random.Random(1).choices(PATHS_OF_LISTS.get(label, [""]), k=count)  # noqa: S311 - nothing secret
    for number in range(count):
        method, path, body = "GET", f"/v1/movies/{number % MOVIES + 1}", b""
        if label == "POST":
            method, path, body = label, "/v1/movies", BODY
        elif label == "PATCH":
            method, body = label, PATCH % (1_000 + number)
        elif label in PATHS_OF_LISTS:
            path = lists[number]
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        yield f"{method} {path} HTTP/1.1\r\n{HEADERS}{length}\r\n".encode() + body


async def send(port: int, requests: Iterator[bytes]) -> None:
    """Send these requests over `CONNECTIONS` connections."""
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(lambda: Connection(requests), "127.0.0.1", port))[1]
        for _ in range(CONNECTIONS)
    ]
    await asyncio.gather(*(connection.ended for connection in connections))


def count_calls(
    program: str, requests: Iterator[bytes], database_url: str
) -> Counter[tuple[str, str]]:
    """Return the calls of each function, by its file and name, of a process with these requests."""
    port = find_free_port()
    with tempfile.TemporaryDirectory() as folder:
        profile = f"{folder}/profile"
        process = subprocess.Popen(  # noqa: S603 - one of PROGRAMS
            [sys.executable, "-m", "cProfile", "-o", profile, "-m", *PROGRAMS[program]],
            cwd=ROOT,
            env={
                **make_environment(),
                "PORT": str(port),
                "HOST": "127.0.0.1",
                "DATABASE_URL": database_url,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            if not wait_for_response(process, f"http://127.0.0.1:{port}/v1/movies/1"):
                raise click.ClickException(f"{program} did not start")
            asyncio.run(send(port, requests))
        finally:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
        counts: Counter[tuple[str, str]] = Counter()
        for (file, line, name), stat in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
            counts[file, f"{name}:{line}" if line else name] += stat[1]
        return counts


@click.command()
@click.option("--details", is_flag=True, help="Also list the functions, the most called first.")
@click.option("--only", multiple=True, type=click.Choice(LABELS))
def main(only: tuple[str, ...], *, details: bool) -> None:
    """Print the calls, and the functions and files of service/, of each kind of request."""
    with create_database(MOVIES) as database:
        for label in only or LABELS:
            program = AIOHTTP if label == AIOHTTP else SERVICE
            counts = (FEW_LISTS, MANY_LISTS) if label in PATHS_OF_LISTS else (FEW, MANY)
            few, many = (
                count_calls(program, make_requests(label, count), database.url) for count in counts
            )
            requests = counts[1] - counts[0]
            each = {key: (many[key] - few[key]) / requests for key in many}
            passed = {key for key, calls in each.items() if calls >= 0.5}  # noqa: PLR2004 - half
            own = {(file, name) for file, name in passed if file.startswith(f"{ROOT}/service/")}
            click.echo(
                f"{label:11} {sum(each.values()):5.0f} calls  {len(own):3} functions"
                f"  {len({file for file, _ in own}):3} files"
            )
            if details:
                for (file, name), calls in sorted(each.items(), key=lambda item: -item[1]):
                    if calls > 0.02:  # noqa: PLR2004 - fewer are not of interest
                        short = file.removeprefix(f"{ROOT}/").rpartition("site-packages/")[2]
                        click.echo(f"  {calls:6.2f}  {short} {name}")


if __name__ == "__main__":
    main(prog_name="python -m bench.calls")
