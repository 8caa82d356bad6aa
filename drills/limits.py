"""Two workers count what a client uses in one Redis, which restarts and hangs."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from drills.client import Connection
from drills.lab import Checks, Lab, drill
from drills.processes import Process, find_free_port, stop
from drills.proxies import find_program

RATE = 50
WINDOW_S = 2
CONNECTIONS = 16  # some of them reach each worker
PAUSE_S = 0.1
MAX_ERROR = 0.1
MAX_WAIT_S = 0.25  # for Redis
STEP_S = 20.0

Seen = tuple[float, int, float]  # when, the status, and how many seconds it took


@drill(
    "Two workers with a rate of 50 and one Redis. One address sends 150 requests a second for 20 s"
    " each: as usual; while Redis is killed, is away for 1 s and starts empty; while Redis hangs"
    " for 4 s; at last without Redis.",
    "With Redis, as many requests pass as the rate says, to 10 %, also while it restarts. No"
    " request fails, or waits more than 0.25 s for Redis. Each worker logs each outage and its end."
    " Without Redis, a client gets at most the limit of both workers.",
)
async def limits_with_redis(lab: Lab, checks: Checks) -> None:
    """Accuracy, and outages of Redis."""
    port = find_free_port()
    redis = await _start_redis(lab, port)
    settings = {
        "limits_rate": RATE,
        "limits_burst": RATE * WINDOW_S,
        "limits_redis_url": f"redis://127.0.0.1:{port}/0",
    }
    url = lab.postgres.url(lab.database())
    service = await lab.serve(url, workers=2, settings=settings)
    loop = asyncio.get_running_loop()
    async with _clients(service.url) as seen:
        await asyncio.sleep(2 * WINDOW_S)  # the first burst
        steps = [loop.time()]
        await asyncio.sleep(STEP_S)
        steps.append(loop.time())
        await asyncio.to_thread(stop, redis, signal.SIGKILL)
        await asyncio.sleep(1)
        redis = await _start_redis(lab, port)
        await asyncio.sleep(STEP_S - 1)
        steps.append(loop.time())
        redis.send_signal(signal.SIGSTOP)
        await asyncio.sleep(4)
        redis.send_signal(signal.SIGCONT)
        await asyncio.sleep(STEP_S - 4)
        steps.append(loop.time())
        await asyncio.to_thread(stop, redis)
        await asyncio.sleep(STEP_S)
        steps.append(loop.time())
    names = ("with Redis", "while it restarts", "while it hangs", "without Redis")
    for number, name in enumerate(names):
        share = _measure(seen, steps[number], steps[number + 1])
        is_right = abs(share - 1) <= MAX_ERROR if number < 2 else 1 - MAX_ERROR <= share <= 2.1
        checks.require(is_right, f"{name}: {share:.0%} of the rate passes")
    wrong = [status for _, status, _ in seen if status not in (200, 429)]
    checks.require(not wrong, f"{len(seen):,} requests, {len(wrong)} neither 200 nor 429")
    slowest = max(seconds for _, _, seconds in seen)
    checks.require(slowest < MAX_WAIT_S + 0.5, f"the slowest took {slowest:.2f} s")
    status = await service.stop()
    checks.require(status == 0, f"exit status {status}")
    log = service.read_log()
    gone, back = (
        sum(f"limits {word} redis" in line for line in log) for word in ("without", "with")
    )
    checks.require((gone, back) == (6, 4), f"{gone} lines of 3 outages, {back} of 2 ends")


async def _start_redis(lab: Lab, port: int) -> Process:
    """Start an empty Redis, and wait until it accepts connections."""
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(lab.folder)]
    with (lab.folder / "redis.log").open("ab") as log:
        process = lab.processes.start([find_program("redis-server"), *arguments], output=log)

    async def accepts() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    for _ in range(500):
        if await accepts():
            break
        await asyncio.sleep(0.01)
    return process


@asynccontextmanager
async def _clients(url: str) -> AsyncIterator[list[Seen]]:
    """Read a movie again and again on several connections; yield what the responses were."""
    seen: list[Seen] = []
    loop = asyncio.get_running_loop()

    async def read() -> None:
        connection = Connection(url)
        while True:
            response = await connection.request("GET", "/v1/movies/1")
            seen.append((loop.time(), response.status, response.seconds))
            await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as group:
        tasks = []
        for _ in range(CONNECTIONS):
            tasks.append(group.create_task(read()))
            await asyncio.sleep(0.1)  # the worker that wakes first accepts all that wait
        yield seen
        for task in tasks:
            task.cancel()


def _measure(seen: Sequence[Seen], start: float, end: float) -> float:
    """Return how many requests passed between two moments, as a part of what the rate allows."""
    passed = sum(start <= when < end and status == 200 for when, status, _ in seen)
    return passed / (RATE * (end - start))
