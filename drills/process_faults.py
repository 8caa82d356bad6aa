"""Processes die, restart, or run out of what the system gives them."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterable
from contextlib import suppress
from math import inf

from drills.client import Connection, NoResponse, NotConnected
from drills.database_faults import TERMINATE
from drills.lab import Checks, Lab, drill
from drills.load import Load, list_problems, summarize, wait_for_status, wait_until
from drills.processes import count_files
from drills.service import Service, run_command

FILES_OF_POOL = 25
BROKEN_QUERY = "\n-- name: broken(\nselect from nothing;\n"


@drill(
    "A process may open 512 files. 20 clients are connected; 700 further ones connect and wait.",
    "The 20 clients are served, even when all connections to the database have to be opened again;"
    " the log grows by at most 20 lines; afterwards new clients are served, and the number of open"
    " files is as before.",
)
async def file_descriptors(lab: Lab, checks: Checks) -> None:
    """A4."""
    database = lab.database()
    service = await lab.serve(
        lab.postgres.url(database),
        wrapper=("prlimit", "--nofile=512"),
        settings={"log_level": "warning"},
    )
    before = count_files(service.pid)
    async with Load(service.url, 1000, readers=20, writers=0, pause_s=0.02).running() as load:
        await asyncio.sleep(1)
        lines = len(service.read_log())
        crowd = [Connection(service.url) for _ in range(700)]
        await asyncio.gather(*(_connect(each) for each in crowd))
        await asyncio.sleep(4)
        # Each time the service needs new files, while 500 connections wait for the same ones.
        for _ in range(20):
            lab.postgres.execute("postgres", TERMINATE, database)
            await asyncio.sleep(0.2)
        for each in crowd:
            each.close()
        await asyncio.sleep(2)
    checks.require(not list_problems(load.sent), f"20 clients: {summarize(load.sent)}")
    checks.require(len(load.sent) > 500, f"{len(load.sent) / 11:.0f} of their reads per second")
    grown = len(service.read_log()) - lines
    checks.require(grown <= 20, f"{grown} lines logged")
    delay = await wait_for_status(service.url, "/v1/movies/1", 200, 10)
    checks.require(delay < 2, f"new clients served after {delay:.1f} s")
    await wait_until(lambda: count_files(service.pid) <= before + FILES_OF_POOL, 5)
    after = count_files(service.pid)
    checks.require(after <= before + FILES_OF_POOL, f"{before} files before, {after} after")
    await service.stop()


async def _connect(connection: Connection) -> None:
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(5):
            await connection.connect()


@drill(
    "Two workers under gunicorn. kill -9 one of them while a query file is broken, then while"
    " PostgreSQL is stopped; each time the cause ends after 5 s.",
    "The service stays: the other worker serves, requests get an answer, and both workers serve"
    " within 15 s of the end of the cause.",
)
async def killed_worker(lab: Lab, checks: Checks) -> None:
    """A5."""
    database = lab.database()
    checkout = lab.new_folder("checkout")
    shutil.copytree(lab.tree, checkout, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    service = await Lab(checkout, lab.folder, lab.processes).serve(
        lab.postgres.url(database), workers=2
    )
    query_file = checkout / "queries" / "movies.sql"
    right = query_file.read_text()
    for cause in ("broken query file", "database away"):
        if cause == "database away":
            lab.postgres.stop()
        else:
            query_file.write_text(right + BROKEN_QUERY)
        victim = service.workers[0]
        readers = 16
        async with Load(service.url, 1000, readers, writers=0, pause_s=0.02).running() as load:
            await asyncio.sleep(1)
            os.kill(victim, signal.SIGKILL)
            killed = asyncio.get_running_loop().time()
            await asyncio.sleep(5)
        checks.require(service.is_running, f"{cause}: the master runs: {service.is_running}")
        reads = load.select("read", killed)
        checks.require(not list_problems(reads, (0, 200, 503)), f"reads: {summarize(reads)}")
        good = sum(sent.status == 200 for sent in reads)
        checks.require(good > 0 or cause == "database away", f"{good:,} by the other worker")
        # The connections of the killed worker break; none after them.
        unanswered = sum(not sent.status for sent in reads)
        checks.require(unanswered <= readers, f"{unanswered} without a response")
        query_file.write_text(right)
        if cause == "database away":
            lab.postgres.start()
        delay = await _until_workers_serve(service, victim)
        checks.require(delay <= 15, f"two workers serve after {delay:.1f} s")
    status = await service.stop()
    checks.require(status == 0, f"exit status {status}")


async def _until_workers_serve(service: Service, victim: int) -> float:
    """Wait until there are two workers, none of them `victim`, and 40 connections are served."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while loop.time() < started + 30 and service.is_running:
        await asyncio.sleep(0.2)
        workers = service.workers
        if len(workers) < 2 or victim in workers:
            continue
        connections = [Connection(service.url) for _ in range(40)]
        try:
            responses = await asyncio.gather(
                *(each.request("GET", "/v1/healthcheck/ready") for each in connections)
            )
        except (NotConnected, NoResponse):
            continue
        finally:
            for each in connections:
                each.close()
        if all(response.status == 200 for response in responses):
            return loop.time() - started
    return inf


@drill(
    "kill -TERM twenty times, of `serve` and of gunicorn in turn, while keep-alive clients send"
    " requests, 8 without a pause and 16 with pauses; ten times, half of a body arrives before"
    " the signal and the rest 1.5 s later. Start again each time.",
    "No request fails that was sent on an open connection; exit status 0.",
)
async def sigterm(lab: Lab, checks: Checks) -> None:
    """A6: a graceful stop."""
    database = lab.database()
    url = lab.postgres.url(database)
    lost: list[str] = []
    statuses: set[int] = set()
    total = 0
    slowest = 0.0
    loads = []
    for turn in range(20):
        service = await lab.serve(url, workers=1 if turn % 2 else None)
        load = Load(service.url, 1000, readers=6, writers=2)
        resting = Load(service.url, 1000, readers=16, writers=0, pause_s=0.01)
        loads.append(load)
        # At a different moment of its requests each time.
        async with load.running(), resting.running():
            await asyncio.sleep(0.3 + 0.013 * turn)
            slow = asyncio.create_task(_create_slowly(service)) if turn % 4 < 2 else None
            await asyncio.sleep(0.1)
            started = asyncio.get_running_loop().time()
            statuses.add(await service.stop())
            slowest = max(slowest, asyncio.get_running_loop().time() - started)
        sent_in_all = [*load.sent, *resting.sent]
        total += len(sent_in_all) + bool(slow)
        lost += [sent.problem for sent in sent_in_all if sent.problem.startswith("no response")]
        lost += [str(sent.status) for sent in sent_in_all if sent.status not in (0, 200, 201)]
        if slow and (line := await slow) != "HTTP/1.1 201 Created":
            lost.append(f"a slow body: {line or 'no response'}")
    checks.require(not lost, f"{len(lost)} of {total:,} requests lost")
    for problem in sorted(set(lost))[:3]:
        checks.note(problem)
    checks.require(statuses == {0}, f"exit statuses {sorted(statuses)}")
    checks.require(slowest <= 15, f"a stop takes at most {slowest:.1f} s")
    wrong = [problem for load in loads for problem in load.audit(lab.postgres, database)]
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
    return line.decode().strip()


@drill(
    "kill -HUP twenty times, of `serve` and of gunicorn, while 8 keep-alive clients send requests.",
    "No request fails, and no connection ends.",
)
async def sighup(lab: Lab, checks: Checks) -> None:
    """A6: the queries are loaded again."""
    database = lab.database()
    for workers in (None, 1):
        service = await lab.serve(lab.postgres.url(database), workers=workers)
        async with Load(service.url, 1000, readers=6, writers=2).running() as load:
            for _ in range(20):
                service.process.send_signal(signal.SIGHUP)
                await asyncio.sleep(0.25)
        name = "gunicorn" if workers else "serve"
        failed = list_problems(load.sent, (200, 201))
        checks.require(not failed, f"{name}: {summarize(load.sent)}")
        checks.audit(load, lab.postgres, database)
        status = await service.stop()
        checks.require(status == 0, f"exit status {status}")


@drill(
    "The reader of stdout stalls, then goes away; stdout is a full disk (/dev/full). `serve` and"
    " gunicorn, each for 3 s under load.",
    "All requests are answered 200, within 1 s; exit status 0.",
)
async def stalled_log(lab: Lab, checks: Checks) -> None:
    """A9."""
    database = lab.database()
    url = lab.postgres.url(database)
    for workers in (None, 1):
        name = "gunicorn" if workers else "serve"
        for fault in ("stalled", "closed", "full disk"):
            reading, writing = os.pipe()
            output = os.open("/dev/full", os.O_WRONLY) if fault == "full disk" else writing
            service = lab.start(url, workers=workers, output=output)
            os.close(writing)
            if fault == "full disk":
                os.close(output)
            await service.wait_until_ready()
            if fault == "closed":
                os.close(reading)
            load = Load(service.url, 1000, readers=16, writers=0)
            async with load.running():
                await asyncio.sleep(3)
            failed = list_problems(load.sent)
            slowest = max((sent.seconds for sent in load.sent), default=inf)
            checks.require(not failed and slowest <= 1, f"{name}, {fault}: {summarize(load.sent)}")
            status = await service.stop()
            checks.require(status == 0, f"exit status {status}")
            if fault != "closed":
                os.close(reading)


@drill(
    "The Procfile's `web` with and without mistakes: no database URL, WEB_CONCURRENCY=many, and a"
    " start and stop as usual.",
    "A mistake gives status 1 and one line; every line on stdout is JSON.",
)
async def web_process(lab: Lab, checks: Checks) -> None:
    """A9, under gunicorn."""
    url = lab.postgres.url(lab.database())
    service = await lab.serve(url, workers=2)
    await service.stop()
    strange = _find_no_json(service.read_log())
    checks.require(not strange, "; ".join([f"{len(strange)} lines are not JSON", *strange[:2]]))
    mistakes = {"no database": ("", 1), "WEB_CONCURRENCY=many": (url, "many")}
    for name, (database_url, workers) in mistakes.items():
        service = lab.start(database_url, workers=1, settings={"server_workers": workers})
        status = await service.wait()
        lines = service.read_log()
        checks.require(
            status != 0 and len(lines) == 1, f"{name}: status {status}, {len(lines)} lines"
        )


def _find_no_json(lines: Iterable[str]) -> list[str]:
    strange = []
    for line in lines:
        try:
            json.loads(line)
        except ValueError:
            strange.append(line)
    return strange


@drill(
    "Start with a password in the URL of a database on another machine, without sslmode; then with"
    " `[database] require_tls`.",
    "One warning names the remedy; with `require_tls` the service refuses to start.",
)
async def no_tls(lab: Lab, checks: Checks) -> None:
    """B8."""
    url = "postgresql://catalogue:secret@192.0.2.1/catalogue"  # RFC 5737: nobody has this address
    service = lab.start(url, settings={"database_connect_timeout": 0.5})
    await asyncio.sleep(4)
    await service.stop()
    lines = service.read_log()
    warnings = [line for line in lines if "sslmode" in line]
    checks.require(len(warnings) == 1, f"{len(warnings)} warnings")
    checks.require(not any("secret" in line for line in lines), "no line has the password")
    done = await asyncio.to_thread(
        run_command, lab.tree, url, "serve", PORT="0", CATALOGUE_DATABASE_REQUIRE_TLS="true"
    )
    told = len(done.stderr.strip().splitlines())
    checks.require(
        done.returncode == 1 and told == 1,
        f"require_tls: status {done.returncode}, {told} lines",
    )
