"""Random writes of all kinds by two processes and psql: any version that is kept can be restored.

JOBS is how many writes each of the workers makes.
"""

# ruff: noqa: S311 - nothing secret

import asyncio
import os
import random
from collections import defaultdict
from contextlib import suppress
from typing import Any

import psycopg2
from conftest import MOANA, Client, Start
from support import Execute

JOBS = int(os.environ.get("JOBS", "40"))
WORKERS, MOVIES = 4, 6
FIELDS = ("title", "year", "runtime", "genres", "external_id")
TWO_CHANGES = "begin; update movies set year = 1950 where id = {id};"
SQL = (
    "update movies set year = year + 1 where id = {id}",
    "update movies set title = 'sql', runtime = runtime + 1",
    f"{TWO_CHANGES} update movies set title = 't' where id = {{id}}; commit",
    f"{TWO_CHANGES} delete from movies where id = {{id}}; commit",
    "truncate movies",
    "select * from undo_changes((select max(transaction) from movie_changes))",
    """select * from restore_movies('[{{"id": {id}, "version": 1}}]')""",
)


class Model:
    """What each movie was in each version, from the responses and from a trigger of the test."""

    def __init__(self, execute: Execute, clients: list[Client]) -> None:
        self.execute, self.clients = execute, clients

    async def send(self, method: str, path: str, body: Any = None) -> None:
        """Send a request; if it restores a version, compare the movie with that version."""
        headers = {"Prefer": "handling=lenient"} if random.random() < 0.5 else {}
        client = random.choice(self.clients)
        response = await client.request(method, path, json=body, headers=headers)
        content = await response.json()
        assert response.status < 500, content
        if path.endswith("/restore") and "batch" not in path and response.status == 200:
            self.compare(content["movie"], (body or {}).get("version"))

    def compare(self, movie: dict[str, Any], version: int | None) -> None:
        """A restored movie is as it was in one of its states of that version."""
        sql = "select fields from states where id = %s and version = coalesce(%s, version)"
        states = [row[0] for row in self.execute(sql, movie["id"], version)]
        found = {name: movie.get(name) for name in FIELDS}
        found["runtime"] = int(str(found["runtime"]).removesuffix(" mins"))
        assert found in states, (movie, version)

    async def write(self) -> None:
        """Make a random write."""
        movie_id, version = random.randint(1, MOVIES), random.randint(1, 12)
        path = f"/v1/movies/{movie_id}"
        some = random.sample(range(1, MOVIES + 1), 3)
        name = f"a:{random.randrange(MOVIES)}"
        year = random.randint(1900, 1999)
        versioned = [{"id": n, "version": random.randint(1, 9)} for n in some]
        kind = random.randrange(9)
        if kind < 2:
            await self.send("POST", f"{path}/restore", {"version": version} if kind else None)
        elif kind == 2:
            await self.send("POST", "/v1/movies/batch/restore", {"movies": versioned})
        elif kind == 3:
            await self.send("PATCH", path, {"year": year, "external_id": name})
        elif kind == 4:
            changes = [{"id": n, "year": year} for n in some]
            await self.send("PATCH", "/v1/movies/batch", {"movies": changes})
        elif kind == 5:
            movies = [MOANA | {"external_id": name, "year": year}]
            await self.send("PUT", "/v1/movies/batch", {"movies": movies})
        elif kind == 6:
            await self.send("DELETE", path)
        else:
            with suppress(psycopg2.Error):  # an external id that another session has just set
                await asyncio.to_thread(self.execute, random.choice(SQL).format(id=movie_id))


async def test_the_history_tells_what_happened(start: Start, execute: Execute) -> None:
    """Walking back from the present gives each state that a trigger of the test has noted."""
    execute(
        "create table states (number bigint generated always as identity, id bigint,"
        " version integer, fields jsonb);"
        "create function note() returns trigger language plpgsql as $$ begin"
        " insert into states (id, version, fields) values (new.id, new.version,"
        " jsonb_build_object('title', new.title, 'year', new.year, 'runtime', new.runtime,"
        " 'genres', new.genres, 'external_id', new.external_id)); return null; end $$;"
        "create trigger note after insert or update on movies"
        " for each row execute function note()"
    )
    model = Model(execute, [await start(), await start()])
    for number in range(MOVIES):
        await model.send("POST", "/v1/movies", MOANA | {"external_id": f"a:{number}"})

    async def work() -> None:
        for _ in range(JOBS):
            await model.write()

    await asyncio.gather(*(work() for _ in range(WORKERS)))

    states = defaultdict[tuple[int, int], list[dict[str, Any]]](list)
    for movie_id, version, fields in execute("select id, version, fields from states"):
        states[movie_id, version].append(fields)
    changes = execute("select movie_id, version from movie_changes where kind <> 'deleted'")
    assert {*changes} == {*states}
    assert len(changes) == len({*changes})  # no version, so no entity tag, repeats
    for (movie_id, version), noted in states.items():
        ((fields, movie),) = execute(
            "select movie_fields_at(%s, m.version, %s), to_jsonb(m.*)"
            " from (select) as one left join movies as m on m.id = %s",
            movie_id, version, movie_id,
        )  # fmt: skip
        assert {n: ((movie or {}) | fields)[n] for n in FIELDS} == noted[-1], (movie_id, version)
