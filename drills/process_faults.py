"""Processes die or stop, or nobody reads their log."""

import asyncio
import os
import shutil
import signal
from functools import partial

from drills.lab import Checks, Lab, drill
from drills.load import (
    CREATED,
    NO_RESPONSE,
    NOT_CONNECTED,
    OK,
    Load,
    list_problems,
    summarize,
    wait_until,
)
from drills.service import ROOT, Service

STOPS = 20
BROKEN_QUERY = "\n-- name: broken(\nselect from nothing;\n"


@drill(
    "Two workers under gunicorn. kill -9 one of them while a query file is broken, then while"
    " PostgreSQL is stopped; each time the cause ends after 5 s.",
    "The service stays: the other worker serves, requests get an answer, and both workers serve"
    " within 15 s of the end of the cause.",
)
async def killed_worker(lab: Lab, checks: Checks) -> None:
    """A new worker starts while something is wrong."""
    checkout = lab.new_folder("checkout")
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    service = await lab.serve(lab.postgres.url(lab.database()), workers=2, folder=checkout)
    query_file = checkout / "queries" / "movies.sql"
    right = query_file.read_text()
    for cause in ("broken query file", "database away"):
        victim = service.workers[0]
        load = Load(service.url, readers=16, writers=0, pause_s=0.02)
        async with load.running():
            if cause == "database away":
                lab.postgres.stop()
            else:
                query_file.write_text(right + BROKEN_QUERY)
            os.kill(victim, signal.SIGKILL)
            killed = asyncio.get_running_loop().time()
            await asyncio.sleep(5)
        checks.require(service.is_running, f"{cause}: the master runs: {service.is_running}")
        reads = load.select("read", since=killed)
        checks.require_statuses("reads", reads, OK, 503, NO_RESPONSE)
        good = sum(sent.status == OK for sent in reads)
        checks.require(good > 0 or cause == "database away", f"{good:,} by the other worker")
        # The connections of the killed worker break; none after them.
        unanswered = sum(sent.status == NO_RESPONSE for sent in reads)
        checks.require(unanswered <= load.readers, f"{unanswered} without a response")
        query_file.write_text(right)
        if cause == "database away":
            lab.postgres.start()
        delay = await wait_until(partial(service.has_replaced, victim), 15)
        async with Load(service.url, readers=40, writers=0, pause_s=0.02).running() as load:
            delay += await wait_until(partial(_succeeds, load), 15)
        checks.require(delay <= 15, f"both workers serve after {delay:.1f} s")
    status = await service.stop()
    checks.require(status == 0, f"exit status {status}")


def _succeeds(load: Load) -> bool:
    return len(load.sent) > 1000 and not list_problems(load.sent[-400:], OK)


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
