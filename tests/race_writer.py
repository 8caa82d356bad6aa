"""A process that changes movies at random, for tests: `race_writer.py URL MOVIE_ID FILE`.

FILE has the version of each movie as a number of eight bytes. A version is written there once its
commit has returned.
"""

import mmap
import random
import sys
import time
from contextlib import closing
from pathlib import Path

import psycopg2

HOLDS_S = (0, 0, 0.001, 0.01, 0.05, 2)  # for which a transaction stays open
PAUSE_S = 0.1  # at most, between two transactions
UPDATE = "update movies set runtime = runtime + 1 where id = %s returning version"


def write(url: str, movie_id: int, file: Path) -> None:
    """Change the movie until the process is killed; roll a quarter of the changes back."""
    chance = random.Random(movie_id)  # noqa: S311 - nothing secret
    with (
        file.open("r+b") as opened,
        mmap.mmap(opened.fileno(), 0) as memory,
        closing(psycopg2.connect(url)) as connection,
        connection.cursor() as cursor,
    ):
        versions = memoryview(memory).cast("q")
        while True:
            cursor.execute(UPDATE, [movie_id])
            ((version,),) = cursor.fetchall()
            time.sleep(chance.choice(HOLDS_S))
            if chance.random() < 0.25:
                connection.rollback()
            else:
                connection.commit()
                versions[movie_id - 1] = version
            time.sleep(chance.random() * PAUSE_S)


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
