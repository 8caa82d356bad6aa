"""PostgreSQL dies, hangs, ends sessions, or changes under the service."""

import asyncio
import time
from contextlib import closing
from functools import partial
from math import inf

from drills.client import Connection
from drills.lab import FILL, Checks, Lab, drill
from drills.load import Load, list_problems, summarize, wait_for_status, wait_until
from drills.postgres import Postgres
from drills.service import run_command

READS = ("/v1/movies?title=great&sort=-year", "/v1/genres", "/v1/movies?page_size=50")
BACKENDS = """
from pg_stat_activity
where datname = %s and application_name like 'movie-catalogue%%'
"""
COUNT_BACKENDS = f"select count(*) {BACKENDS}"
TERMINATE = f"select pg_terminate_backend(pid) {BACKENDS}"
DATABASE = "catalogue"  # on a server of its own


async def make_pair(lab: Lab) -> tuple[Postgres, Postgres]:
    """Make a primary with the drills' movies, and its synchronous standby."""
    primary = Postgres(lab.processes, lab.new_folder("primary"))
    await asyncio.to_thread(primary.create)
    primary.execute("postgres", f"create database {DATABASE}")
    await asyncio.to_thread(lab.migrate, primary.url(DATABASE))
    primary.execute(DATABASE, FILL.format(first=1, last=1000))
    standby = await asyncio.to_thread(primary.clone, lab.new_folder("standby"))
    primary.execute("postgres", "alter system set synchronous_standby_names = '*'")
    primary.execute("postgres", "select pg_reload_conf()")
    await until_synchronous(primary)
    return primary, standby


async def until_synchronous(primary: Postgres) -> None:
    """Wait until a standby takes part in commits."""
    sql = "select 1 from pg_stat_replication where sync_state = 'sync'"
    if await wait_until(lambda: primary.execute("postgres", sql), 60) == inf:
        raise RuntimeError("the standby does not stream")


@drill(
    "A primary with a synchronous standby, both in the URL. kill -9 the primary under load, promote"
    " the standby after 2 s.",
    "Writes succeed within 10 s of the promotion. No acknowledged write is lost.",
)
async def failover(lab: Lab, checks: Checks) -> None:
    """A1."""
    primary, standby = await make_pair(lab)
    url = (
        f"postgresql://catalogue@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/{DATABASE}"
        "?target_session_attrs=read-write"
    )
    service = await lab.serve(url)
    loop = asyncio.get_running_loop()
    async with Load(service.url, movies=1000).running() as load:
        await asyncio.sleep(3)
        primary.kill()
        await asyncio.sleep(2)
        before = len(load.known)
        await asyncio.to_thread(standby.promote)
        promoted = loop.time()
        await wait_until(lambda: _find_writes(load, promoted), 15)
        await asyncio.sleep(3)
    delay = min(_find_writes(load, promoted), default=inf) - promoted
    checks.require(delay <= 10, f"first write {delay:.1f} s after the promotion")
    checks.note(f"{before:,} creates before, {len(load.known) - before:,} after it")
    checks.audit(load, standby, DATABASE)
    await service.stop()
    standby.kill()


def _find_writes(load: Load, since: float) -> list[float]:
    """Return when writes were acknowledged since then."""
    return [sent.at for sent in load.select("write", since) if sent.status in (200, 201)]


@drill(
    "The synchronous standby is away for 20 s under load, twice: then it comes back, or"
    " `synchronous_standby_names` is cleared.",
    "At most max_open backends; reads continue; writes are answered within 11 s and none is"
    " acknowledged; then writes succeed again.",
)
async def standby_away(lab: Lab, checks: Checks) -> None:
    """A2."""
    primary, standby = await make_pair(lab)
    max_open = 25
    service = await lab.serve(primary.url(DATABASE), settings={"database_max_open": max_open})
    loop = asyncio.get_running_loop()
    most = 0
    async with Load(service.url, movies=1000, writers=60, pause_s=0.02).running() as load:
        for ending in ("it came back", "names cleared"):
            await asyncio.sleep(2)
            standby.kill()
            await asyncio.sleep(0.5)  # the replies to what was replicated before
            left = loop.time()
            while loop.time() < left + 20:
                count = primary.execute("postgres", COUNT_BACKENDS, DATABASE)[0][0]
                most = max(most, int(count))
                await asyncio.sleep(0.5)
            back = loop.time()
            if ending == "it came back":
                await asyncio.to_thread(standby.start)
            else:
                primary.execute("postgres", "alter system set synchronous_standby_names = ''")
                primary.execute("postgres", "select pg_reload_conf()")
            reads, writes = load.select("read", left, back), load.select("write", left, back)
            acknowledged = [sent for sent in writes if sent.status in (200, 201)]
            checks.require(not acknowledged, f"{len(acknowledged)} writes acknowledged while away")
            slowest = max((sent.seconds for sent in writes), default=0)
            checks.require(slowest <= 11, f"writes while away: {summarize(writes)}")
            # 409: the create with this key has not ended.
            wrong = list_problems(writes, (200, 201, 409, 503))
            checks.require(not wrong, f"{len(wrong)} of them neither 2xx, 409 nor 503")
            failed = list_problems(reads)
            checks.require(reads and not failed, f"reads while away: {summarize(reads)}")
            delay = await wait_until(partial(_find_writes, load, back), 20)
            checks.require(delay <= 15, f"{ending}: first write after {delay:.1f} s")
    checks.require(most <= max_open, f"at most {most} backends (max_open {max_open})")
    await asyncio.sleep(1)
    checks.audit(load, primary, DATABASE)
    await service.stop()
    standby.kill()
    primary.kill()


@drill(
    "Terminate all backends of the service once a second for 20 s, under load.",
    "No read fails. No acknowledged write is lost.",
)
async def terminated_backends(lab: Lab, checks: Checks) -> None:
    """A3."""
    database = lab.database()
    service = await lab.serve(lab.postgres.url(database))
    ended = 0
    async with Load(service.url, movies=1000, readers=16, paths=READS).running() as load:
        await asyncio.sleep(1)
        for _ in range(20):
            ended += len(lab.postgres.execute("postgres", TERMINATE, database))
            await asyncio.sleep(1)
    reads = load.select("read")
    checks.note(f"{ended} backends terminated")
    checks.require(reads and not list_problems(reads), f"reads: {summarize(reads)}")
    checks.note(f"writes: {summarize(load.select('write'))}")
    checks.audit(load, lab.postgres, database)
    await service.stop()


@drill(
    "Another session locks the table of movies for 8 s, under load.",
    "Every request is answered: 200 or, after the statement timeout, 503. Then all is as before.",
)
async def locked_table(lab: Lab, checks: Checks) -> None:
    """A statement timeout must become a response."""
    database = lab.database()
    service = await lab.serve(lab.postgres.url(database))
    loop = asyncio.get_running_loop()
    async with Load(service.url, movies=1000, paths=READS).running() as load:
        await asyncio.sleep(1)
        with closing(lab.postgres.connect(database)) as session, session.cursor() as cursor:
            session.autocommit = False
            await asyncio.to_thread(cursor.execute, "lock table movies in access exclusive mode")
            # Lists share no statement: each learns of the timeout by itself.
            lists = [load.send(Connection(service.url), "list", "GET", path) for path in READS]
            await asyncio.gather(*lists, asyncio.sleep(8))
            session.rollback()
        released = loop.time()
        await asyncio.sleep(2)
    refused = [sent for sent in load.sent if sent.status == 503]
    checks.require(refused, f"{len(refused)} requests answered 503")
    wrong = [sent for sent in load.sent if sent.status not in (200, 201, 503)]
    checks.require(not wrong, f"{len(wrong)} without a response, or another one")
    slowest = max(sent.seconds for sent in load.sent)
    checks.require(slowest <= 11, f"at most {slowest:.1f} s")
    late = [sent for sent in load.select("read", released + 1) if sent.status != 200]
    checks.require(not late, f"{len(late)} failed reads 1 s after the lock or later")
    checks.audit(load, lab.postgres, database)
    await service.stop()


@drill(
    "`alter column year type bigint` and back during load; sessions begin as serializable, then as"
    " read-only, then as usual.",
    "No 5xx 2 s after each change, except for writes while the database is read-only.",
)
async def changed_defaults(lab: Lab, checks: Checks) -> None:
    """A6, second part."""
    database = lab.database()
    service = await lab.serve(lab.postgres.url(database), settings={"database_max_idle_time": 60})
    loop = asyncio.get_running_loop()
    steps = {
        "bigint": (database, "alter table movies alter column year type bigint"),
        "integer": (database, "alter table movies alter column year type integer"),
        "serializable": (
            "postgres",
            f"alter database {database} set default_transaction_isolation = serializable",
        ),
        "read-only": (
            "postgres",
            f"alter database {database} set default_transaction_read_only = on",
        ),
        "as usual": ("postgres", f"alter database {database} reset all"),
    }
    async with Load(service.url, movies=1000, paths=READS, pause_s=0.005).running() as load:
        await asyncio.sleep(1)
        for name, (place, sql) in steps.items():
            await asyncio.to_thread(lab.postgres.execute, place, sql)
            if name in ("serializable", "read-only"):
                lab.postgres.execute("postgres", TERMINATE, database)
            changed = loop.time()
            await asyncio.sleep(4)
            reads = load.select("read", changed + 2)
            writes = load.select("write", changed + 2)
            checks.require(reads and not list_problems(reads), f"{name}: reads {summarize(reads)}")
            is_right = bool(writes) and not list_problems(
                writes, (503,) if name == "read-only" else (200, 201)
            )
            checks.require(is_right, f"writes {summarize(writes)}")
    checks.audit(load, lab.postgres, database)
    await service.stop()


@drill(
    "A role limited to 20 connections. One process is loaded with 60 clients for 5 s, then idle;"
    " at once a release (`migrate`) and then a second process start.",
    "Both get connections: the release within a minute, the second process answers all reads.",
)
async def few_connections(lab: Lab, checks: Checks) -> None:
    """A7."""
    database = lab.database()
    server = lab.postgres
    role = f"{database}_role"
    server.execute("postgres", f"create role {role} login connection limit 20")
    server.execute("postgres", f"grant catalogue to {role}")
    url = server.url(database, role)
    first = await lab.serve(url)
    async with Load(first.url, 1000, readers=40, writers=20, paths=READS).running() as load:
        await asyncio.sleep(5)
    checks.note(f"first process: {summarize(load.sent)}")
    started = time.monotonic()
    done = await asyncio.to_thread(run_command, lab.tree, url, "migrate")
    took = time.monotonic() - started
    checks.require(done.returncode == 0, f"release: status {done.returncode} after {took:.1f} s")
    if done.returncode:
        checks.note(done.stderr.strip()[-200:])
    second = lab.start(url)
    ready = await wait_for_status(second.url, "/v1/healthcheck/ready", 200, 60)
    checks.require(ready <= 60, f"second process ready after {ready:.1f} s")
    if ready <= 60:
        async with Load(second.url, 1000, readers=8, writers=0).running() as other:
            await asyncio.sleep(3)
        failed = list_problems(other.sent)
        checks.require(not failed, f"its reads: {summarize(other.sent)}")
    checks.audit(load, server, database)
    await first.stop()
    await second.stop()


@drill(
    "`migrate` and `serve` on empty databases in SQL_ASCII and LATIN1.",
    "Both refuse, with one line that names the encoding.",
)
async def other_encodings(lab: Lab, checks: Checks) -> None:
    """A8."""
    for encoding in ("SQL_ASCII", "LATIN1"):
        name = f"drill_{encoding.lower()}"
        lab.postgres.execute(
            "postgres",
            f"create database {name} template template0 encoding {encoding}"
            " locale_provider libc locale 'C'",
        )
        for command in ("migrate", "serve"):
            done = await asyncio.to_thread(
                run_command, lab.tree, lab.postgres.url(name), command, PORT="0"
            )
            lines = done.stderr.strip().splitlines()
            is_named = len(lines) == 1 and encoding in lines[0]
            checks.require(
                done.returncode == 1 and is_named,
                f"{command} on {encoding}: status {done.returncode}, {len(lines)} lines",
            )
