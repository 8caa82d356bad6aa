"""Crowds of clients, in another process: they must not slow down the clients under test."""

import asyncio
import multiprocessing
import socket
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from drills.client import Connection, NoResponse, NotConnected

RETRY_S = 0.1


async def run_in_process(function: Callable[..., Counter[str]], *arguments: Any) -> Counter[str]:
    """Call a function of this module in another process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


def request_lists(url: str, clients: int, seconds: float, paths: tuple[str, ...]) -> Counter[str]:
    """Request these paths with so many clients; return the number of responses by status."""
    statuses: Counter[str] = Counter()

    async def run(number: int, end: float) -> None:
        connection = Connection(url)
        while time.monotonic() < end:
            if await _count(statuses, connection, "GET", paths[number % len(paths)]) != "200":
                await asyncio.sleep(RETRY_S)
            number += clients

    async def run_all() -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(run(number, end) for number in range(clients)))

    asyncio.run(run_all())
    return statuses


async def _count(statuses: Counter[str], connection: Connection, *request: Any) -> str:
    try:
        status = str((await connection.request(*request)).status)
    except (NoResponse, NotConnected):
        status = "no response"
    statuses[status] += 1
    return status


def open_socket(url: str, receive_bytes: int | None = None) -> socket.socket:
    """Connect; the kernel buffers up to `receive_bytes` that the client has not read."""
    parts = urlsplit(url)
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(30)
    client.connect((parts.hostname, parts.port))
    return client
