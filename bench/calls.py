"""Counts the Python calls of a request, which do not depend on the machine: `make calls`.

Runs the service and bare aiohttp under cProfile, with 64 connections, once with few and once with
many requests; the difference is what a request costs. A file or function counts if at least half of
the requests pass through it.
"""

import asyncio
import pstats
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import closing, suppress

import click
import psycopg2

from bench.database import create_database
from bench.targets import wait_for_response
from drills.processes import find_free_port
from drills.service import ROOT, make_environment
from service.access.tokens import hash_token, make_token

CONNECTIONS = 64
FEW, MANY = 2_000, 12_000
MOVIES = 10_000
BODY = b'{"title": "The Return", "year": 1999, "runtime": "102 mins", "genres": ["drama", "war"]}'
PATCH = b'{"runtime": "%d mins"}'
SERVICE, AIOHTTP = "service", "aiohttp"
# So high that no request is refused.
LIMITS = {"CATALOGUE_LIMITS_RATE": "1000000", "CATALOGUE_LIMITS_BURST": "10000000"}
PROGRAMS = {SERVICE: ("service", "serve"), AIOHTTP: ("bench.peer_aiohttp",)}


class Connection(asyncio.Protocol):
    """Sends its next request when it has the response."""

    def __init__(self, method: str, headers: str, first: int, requests: int) -> None:
        self._method = method
        self._headers = headers
        self._next = first
        self._left = requests
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
        if self._left:
            self._send()
        else:
            self._transport.close()
            self.ended.set_result(None)

    def _send(self) -> None:
        self._left -= 1
        self._next = self._next % MOVIES + 1
        path, body = f"/v1/movies/{self._next}", b""
        if self._method == "POST":
            path, body = "/v1/movies", BODY
        elif self._method == "PATCH":
            body = PATCH % (1 + self._left)
        head = f"{self._method} {path} HTTP/1.1\r\n{self._headers}"
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        self._transport.write(f"{head}{length}\r\n".encode() + body)


async def send(port: int, method: str, headers: str, requests: int) -> None:
    """Send so many requests over `CONNECTIONS` connections."""
    loop = asyncio.get_running_loop()
    each = requests // CONNECTIONS
    step = MOVIES // CONNECTIONS
    connections = []
    for number in range(CONNECTIONS):
        made = await loop.create_connection(
            lambda number=number: Connection(method, headers, number * step, each),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        connections.append(made[1])
    await asyncio.gather(*(connection.ended for connection in connections))


def add_client(database_url: str) -> str:
    """Add a client that may write; return the header that sends its token."""
    with closing(psycopg2.connect(database_url)) as connection, connection.cursor() as cursor:
        token = make_token(1)
        sql = "insert into clients (name, token_hash, scopes) values ('calls', %s, '{write}')"
        cursor.execute(sql, [hash_token(token)])
        connection.commit()
    return f"Authorization: Bearer {token}\r\n"


def count_calls(
    program: str,
    method: str,
    headers: str,
    requests: int,
    environment: dict[str, str],
) -> Counter[tuple[str, str]]:
    """Return the calls of each function, by its file and name, of a process with these requests."""
    port = find_free_port()
    with tempfile.TemporaryDirectory() as folder:
        profile = f"{folder}/profile"
        process = subprocess.Popen(  # noqa: S603 - one of PROGRAMS
            [sys.executable, "-m", "cProfile", "-o", profile, "-m", *PROGRAMS[program]],
            cwd=ROOT,
            env={**make_environment(), "PORT": str(port), "HOST": "127.0.0.1", **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            if not wait_for_response(process, f"http://127.0.0.1:{port}/v1/movies/1"):
                raise click.ClickException(f"{program} did not start")
            asyncio.run(send(port, method, headers, requests))
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
@click.option("--only", multiple=True, help="One of aiohttp, GET, POST, PATCH.")
@click.option("--set", "given", multiple=True, help="A setting, such as CATALOGUE_X_Y=1.")
@click.option("--token", "with_token", is_flag=True, help="With a client's token, and limits.")
def main(only: tuple[str, ...], given: tuple[str, ...], *, details: bool, with_token: bool) -> None:
    """Print the calls, and the functions and files of service/, of each kind of request."""
    with create_database(MOVIES) as database:
        environment = {"DATABASE_URL": database.url}
        headers = "Host: localhost\r\nUser-Agent: calls\r\n"
        if with_token:
            environment |= LIMITS
            headers += add_client(database.url)
        environment |= dict(setting.split("=", 1) for setting in given)
        for label in only or (AIOHTTP, "GET", "POST", "PATCH"):
            program = AIOHTTP if label == AIOHTTP else SERVICE
            method = "GET" if label == AIOHTTP else label
            few, many = (
                count_calls(program, method, headers, requests, environment)
                for requests in (FEW, MANY)
            )
            requests = (MANY // CONNECTIONS - FEW // CONNECTIONS) * CONNECTIONS
            each = {key: (many[key] - few[key]) / requests for key in many}
            passed = {key for key, calls in each.items() if calls >= 0.5}  # noqa: PLR2004 - half
            own = {(file, name) for file, name in passed if file.startswith(f"{ROOT}/service/")}
            click.echo(
                f"{label:8} {sum(each.values()):5.0f} calls  {len(own):3} functions"
                f"  {len({file for file, _ in own}):3} files"
            )
            if details:
                for (file, name), calls in sorted(each.items(), key=lambda item: -item[1]):
                    if calls > 0.02:  # noqa: PLR2004 - fewer are not of interest
                        short = file.removeprefix(f"{ROOT}/").rpartition("site-packages/")[2]
                        click.echo(f"  {calls:6.2f}  {short} {name}")


if __name__ == "__main__":
    main(prog_name="python -m bench.calls")
