"""A failover: the primary is killed, its synchronous standby is promoted, and writes go on."""

import asyncio
from pathlib import Path
from urllib.parse import quote

from conftest import MOANA, ROOT, Start
from psycopg2.extensions import parse_dsn
from servers import fetch, kill_postgres, run, standby
from support import until, wait_until

from service.database import embedded
from service.database.migrations import runner as migrations

PROMOTED_MAX_S = 10.0


async def test_writes_go_on_after_a_failover(start: Start, folder: Path) -> None:
    """Within 10 s of the promotion, and no acknowledged write is lost."""
    with embedded.running(folder / "first") as first:
        migrations.upgrade(first, ROOT / "migrations", lambda _: None)
        with standby(first, folder / "second") as second:
            synchronous = "alter system set synchronous_standby_names = '*'"
            run(first, synchronous, "select pg_reload_conf()")
            waits = "select count(*) from pg_stat_replication where sync_state = 'sync'"
            wait_until(lambda: fetch(first, waits))
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
            kill_postgres(first)
            before = len(acknowledged)
            run(second, "select pg_promote()")
            async with asyncio.timeout(PROMOTED_MAX_S):
                await until(lambda: len(acknowledged) > before + 10)
            stop.set()
            await asyncio.gather(*writers)
            kept = {title for (title,) in run(second, "select title from movies")}

    assert set(acknowledged) <= kept
