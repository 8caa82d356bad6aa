"""A failover: the primary is killed, its synchronous standby is promoted, and writes go on."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

import psycopg2
import pytest
from conftest import MOANA, ROOT, Start
from support import make_folder, until, wait_until

from service.database import embedded
from service.database.embedded.place import Server, find_programs
from service.database.migrations import runner as migrations

PROMOTED_MAX_S = 10.0


def run(url: str, *statements: str) -> list[tuple[object, ...]]:
    """Run statements one by one; return the rows of the last one."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for sql in statements:
            cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def folder() -> Iterator[Path]:
    """The folder of two servers."""
    folder = make_folder()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def start_standby(primary: Server, standby: Server) -> subprocess.Popen[bytes]:
    """Copy the primary's cluster and start it as a standby; wait until it replicates."""
    standby.make_private(standby.home)
    programs = find_programs(standby)
    copy = [
        "-h",
        str(primary.sockets),
        "-U",
        "catalogue",
        "-D",
        str(standby.data),
        "-R",
        "--no-sync",
    ]
    output, _ = standby.run(
        [programs / "pg_basebackup", *copy, "-c", "fast"], subprocess.PIPE
    ).communicate()
    assert standby.data.exists(), output
    process = standby.run(
        [
            programs / "postgres",
            "-D",
            standby.data,
            "-k",
            standby.sockets,
            "-c",
            "port=5432",
            "-c",
            "listen_addresses=",
            "-c",
            "max_connections=200",
        ],
        subprocess.DEVNULL,
    )

    def is_ready() -> bool:
        with suppress(psycopg2.OperationalError):
            standby.connect().close()
            return True
        return False

    wait_until(is_ready)
    return process


async def test_writes_go_on_after_a_failover(start: Start, folder: Path) -> None:
    """Within 10 s of the promotion, and no acknowledged write is lost."""
    first = Server(folder / "first", durable=True, throwaway=False)
    second = Server(folder / "second", durable=True, throwaway=False)
    with embedded.running(first.folder) as url:
        migrations.upgrade(url, ROOT / "migrations", lambda _: None)
        process = start_standby(first, second)
        try:
            names = "alter system set synchronous_standby_names = '*'"
            run(url, names, "select pg_reload_conf()")
            synchronous = "select 1 from pg_stat_replication where sync_state = 'sync'"
            wait_until(lambda: run(url, synchronous))
            hosts = quote(f"{first.sockets},{second.sockets}", "")
            client = await start(
                database__url=f"postgresql://catalogue@/catalogue?host={hosts}&port=5432"
                "&target_session_attrs=read-write"
            )
            acknowledged: list[str] = []
            stop = asyncio.Event()

            async def write(number: int) -> None:
                for turn in range(1_000_000):
                    title = f"{number} {turn}"
                    response = await client.post("/v1/movies", json={**MOANA, "title": title})
                    assert response.status in {201, 503}
                    if response.status == 201:
                        acknowledged.append(title)
                    if stop.is_set():
                        return

            writers = [asyncio.create_task(write(number)) for number in range(8)]
            await until(lambda: len(acknowledged) > 100)
            postmaster = int((first.data / "postmaster.pid").read_text().split()[0])
            backends = [pid for (pid,) in run(url, "select pid from pg_stat_activity")]
            for pid in [postmaster, *backends]:
                with suppress(ProcessLookupError):
                    os.kill(int(str(pid)), signal.SIGKILL)
            before = len(acknowledged)
            run(second.url(), "select pg_promote()")
            async with asyncio.timeout(PROMOTED_MAX_S):
                await until(lambda: len(acknowledged) > before + 10)
            stop.set()
            await asyncio.gather(*writers)
            kept = {title for (title,) in run(second.url(), "select title from movies")}
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()

    assert set(acknowledged) <= kept
