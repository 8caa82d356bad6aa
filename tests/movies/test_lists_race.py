"""Races writers in other processes with lists: no list is older than its request.

RACE_LISTS is how many lists are read: 20,000 take about a minute.
"""

import asyncio
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import race_writer
from conftest import Client, Start
from link import opened
from metric_values import read_series
from support import Execute, add_movies, get_app, until

from service.web.middleware import CYCLE

LISTS = int(os.environ.get("RACE_LISTS", "600"))
WRITERS = 6  # each has a movie of its own, so that none waits for another one
CLIENTS = 12
PATHS = ("/v1/movies", "/v1/movies?sort=-id", "/v1/movies?genres=x", "/v1/movies?title=race")


@contextmanager
def writing(url: str, file: Path) -> Iterator[memoryview]:
    """Run writers; yield the versions of their movies that were committed."""
    file.write_bytes(bytes(8 * WRITERS))
    program = [sys.executable, race_writer.__file__, url]
    writers = [
        subprocess.Popen([*program, str(number + 1), str(file)]) for number in range(WRITERS)
    ]
    try:
        with file.open("r+b") as opened_file:
            yield memoryview(mmap.mmap(opened_file.fileno(), 0)).cast("q")
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()


async def read_lists(client: Client, committed: memoryview) -> list[str]:
    """Read lists; return which of them lack a version that was committed before."""
    old, numbers = list[str](), iter(range(LISTS))

    async def read() -> None:
        for number in numbers:
            path = PATHS[number % len(PATHS)]
            wanted = committed.tolist()
            response = await client.get(path)
            movies = (await response.json())["movies"]
            found = {movie["id"]: movie["version"] for movie in movies}
            old.extend(
                f"{path}: movie {movie_id} {found[movie_id]}, not {version}"
                for movie_id, version in enumerate(wanted, start=1)
                if found[movie_id] < version
            )

    await asyncio.gather(*(read() for _ in range(CLIENTS)))
    return old


async def test_no_list_is_older_than_its_request(
    start: Start, database: str, execute: Execute, tmp_path: Path
) -> None:
    """Also of transactions that end in another order than they began, or are rolled back.

    The network of the service is slow: results are nearly always on their way.
    """
    add_movies(execute, *["race"] * WRITERS)
    async with opened(database, delay_s=0.002) as link:
        client = await start(database__url=link.url, operations__token="race" * 8)
        with writing(database, tmp_path / "versions") as committed:
            await until(lambda: min(committed))
            old = await read_lists(client, committed)
        pages = read_series(get_app(client)[CYCLE].metrics)
        await client.close()

    assert old == []
    for source in ("memory", "database"):
        assert pages[f"list_pages_total{{source={source}}}"] > LISTS / 20
    assert pages["list_pages_ended_total"] > LISTS / 100
