"""A failover: the primary is killed, its synchronous standby is promoted, and writes go on."""

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import psycopg2
import pytest
from conftest import MOANA, ROOT, Start
from psycopg2.extensions import parse_dsn
from support import make_folder, until, wait_until

from service.database import embedded
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
    shutil.rmtree(folder)


@contextmanager
def standby(primary: str, folder: Path) -> Iterator[str]:
    """Copy the primary, run the copy as its synchronous standby, and yield the URL."""
    home = embedded.make_folder(folder)
    options = ("-d", primary, "-R", "--no-sync", "-c", "fast")
    embedded.run_program(home, "pg_basebackup", "-D", home / "data", *options)
    with embedded.running(folder) as url:
        run(primary, "alter system set synchronous_standby_names = '*'", "select pg_reload_conf()")
        synchronous = "select 1 from pg_stat_replication where sync_state = 'sync'"
        wait_until(lambda: run(primary, synchronous))
        yield url


async def test_writes_go_on_after_a_failover(start: Start, folder: Path) -> None:
    """Within 10 s of the promotion, and no acknowledged write is lost."""
    with embedded.running(folder / "first") as first:
        migrations.upgrade(first, ROOT / "migrations", lambda _: None)
        with standby(first, folder / "second") as second:
            hosts = ",".join(parse_dsn(url)["host"] for url in (first, second))
            client = await start(
                database__url=f"postgresql://catalogue@/catalogue?host={quote(hosts, '')}"
                "&port=5432&target_session_attrs=read-write"
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
            postmaster = int((folder / "first/data/postmaster.pid").read_text().split()[0])
            backends = [pid for (pid,) in run(first, "select pid from pg_stat_activity")]
            for pid in [postmaster, *backends]:
                with suppress(ProcessLookupError):
                    os.kill(int(str(pid)), signal.SIGKILL)
            before = len(acknowledged)
            run(second, "select pg_promote()")
            async with asyncio.timeout(PROMOTED_MAX_S):
                await until(lambda: len(acknowledged) > before + 10)
            stop.set()
            await asyncio.gather(*writers)
            kept = {title for (title,) in run(second, "select title from movies")}

    assert set(acknowledged) <= kept
