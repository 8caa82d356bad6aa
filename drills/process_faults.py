"""Processes stop."""

import asyncio

from drills.lab import Checks, Lab, drill
from drills.load import (
    CREATED,
    NO_RESPONSE,
    NOT_CONNECTED,
    OK,
    Load,
    list_problems,
    summarize,
)
from drills.service import Service

STOPS = 20


@drill(
    "kill -TERM twenty times, of `serve` and of gunicorn in turn, while keep-alive clients send"
    " requests, 8 without a pause and 16 with pauses; ten times, half of a body arrives before"
    " the signal and the rest 1.5 s later. Start again each time.",
    "At most one request for each stop gets no response, of those sent on an open connection; exit"
    " status 0.",
)
async def sigterm(lab: Lab, checks: Checks) -> None:
    """A graceful stop."""
    database = lab.database()
    loop = asyncio.get_running_loop()
    statuses, slow_lines = set(), set()
    wrong, sent = [], []
    slowest = 0.0
    for turn in range(STOPS):
        service = await lab.serve(lab.postgres.url(database), workers=1 if turn % 2 else None)
        load = Load(service.url, readers=6, writers=2)
        resting = Load(service.url, readers=16, writers=0, pause_s=0.01)
        async with load.running(), resting.running():
            slow = asyncio.create_task(_create_slowly(service)) if turn % 4 < 2 else None
            # At a different moment of its requests each time.
            await asyncio.sleep(0.1 + 0.013 * turn)
            started = loop.time()
            statuses.add(await service.stop())
            slowest = max(slowest, loop.time() - started)
        if slow:
            slow_lines.add(await slow)
        sent += [*load.sent, *resting.sent]
        wrong += load.audit(lab.postgres, database)
    lost = list_problems(sent, OK, CREATED, NOT_CONNECTED)
    # A client may connect in the moment in which the service stops to accept connections.
    is_right = len(lost) <= STOPS and not list_problems(lost, NO_RESPONSE)
    checks.require(is_right, f"{len(lost)} of {len(sent):,} requests lost: {summarize(lost)}")
    checks.require(slow_lines == {"HTTP/1.1 201 Created"}, f"slow bodies: {sorted(slow_lines)}")
    checks.require(statuses == {0}, f"exit statuses {sorted(statuses)}")
    checks.require(slowest <= 15, f"a stop takes at most {slowest:.1f} s")
    checks.require(not wrong, "; ".join([f"audit: {len(wrong)} wrong", *wrong[:3]]))


async def _create_slowly(service: Service) -> str:
    """Send a create whose body takes 1.5 s; return the first line of the response."""
    body = b'{"title": "slow", "year": 2000, "runtime": "90 mins", "genres": ["war"]}'
    head = f"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    try:
        writer.write(head.encode() + body[:20])
        await asyncio.sleep(1.5)
        writer.write(body[20:])
        line = await reader.readline()
    except OSError as error:
        return repr(error)
    finally:
        writer.close()
    return line.decode().strip() or "no response"
