"""Tests shared statements over HTTP: clients notice no difference."""

import asyncio
from contextlib import closing
from typing import Any

import psycopg2
import pytest
from conftest import MOANA, Client, Start
from link import opened
from structlog.testing import capture_logs
from support import Execute, add_movies, count_deadlocks, movie_tag, set_for_database


async def test_creates_at_once_get_their_own_movies(client: Client) -> None:
    """300 creates that share statements: each gets the movie that it sent, with its own id."""
    titles = [f"Movie {number}" for number in range(300)]

    responses = await asyncio.gather(
        *(client.post("/v1/movies", json={**MOANA, "title": title}) for title in titles)
    )
    movies = [(await response.json())["movie"] for response in responses]

    assert [movie["title"] for movie in movies] == titles
    assert len({movie["id"] for movie in movies}) == 300
    for movie in movies[::30]:
        kept = await (await client.get(f"/v1/movies/{movie['id']}")).json()
        assert kept == {"movie": movie}


async def test_reads_at_once_get_their_own_movies(client: Client, execute: Execute) -> None:
    """Reads in random order, twice each, some of missing ids: each gets its own movie."""
    add_movies(execute, *[f"Movie {n}" for n in range(1, 101)])
    ids = [*range(100, 0, -1), *range(1, 121)]

    responses = await asyncio.gather(*(client.get(f"/v1/movies/{id_}") for id_ in ids))

    for id_, response in zip(ids, responses, strict=True):
        assert response.status == (200 if id_ <= 100 else 404)
        if response.status == 200:
            assert (await response.json())["movie"]["title"] == f"Movie {id_}"


async def test_a_write_is_seen_by_every_read_after_it(client: Client) -> None:
    """A read after the response to a change sees the change, even under load."""
    path = (await client.post("/v1/movies", json=MOANA)).headers["Location"]
    busy = True

    async def read() -> None:
        while busy:
            await client.get(path)

    readers = [asyncio.create_task(read()) for _ in range(20)]
    seen = []
    for year in range(1900, 1950):
        await client.patch(path, json={"year": year})
        seen.append((await (await client.get(path)).json())["movie"]["year"])
    busy = False
    await asyncio.gather(*readers)

    assert seen == list(range(1900, 1950))


async def test_a_write_is_seen_by_every_list_after_it(start: Start, database: str) -> None:
    """None of many requests for the same two lists gets a list that is older than the request.

    Another process writes, so the one that lists knows nothing of writes. Its network is slow:
    there are nearly always results on their way that are older than a request.
    """
    missed = []

    async def find(lists: Client, movie_id: int, query: str) -> dict[str, Any] | None:
        response = await lists.get(f"/v1/movies?page_size=40&{query}")
        movies = (await response.json())["movies"]
        return next((movie for movie in movies if movie["id"] == movie_id), None)

    async def write_and_list(writes: Client, lists: Client) -> None:
        movie = {**MOANA, "genres": ["hot"]}
        path = (await writes.post("/v1/movies", json=movie)).headers["Location"]
        for year in range(1900, 1920):
            created = (await (await writes.post("/v1/movies", json=MOANA)).json())["movie"]
            if await find(lists, created["id"], "sort=-id") != created:
                missed.append(created["id"])
            changed = (await (await writes.patch(path, json={"year": year})).json())["movie"]
            if await find(lists, changed["id"], "genres=hot") != changed:
                missed.append(changed["id"])

    async with opened(database, delay_s=0.005) as link:
        writes, lists = await start(), await start(database__url=link.url)
        await asyncio.gather(*(write_and_list(writes, lists) for _ in range(10)))
        await lists.close()

    assert missed == []


async def test_a_create_is_committed_before_its_response(client: Client, execute: Execute) -> None:
    """Each of many creates is visible to another connection when its response arrives."""

    async def create() -> bool:
        response = await client.post("/v1/movies", json=MOANA)
        id_ = response.headers["Location"].rpartition("/")[2]
        rows = await asyncio.to_thread(execute, "select 1 from movies where id = %s", int(id_))
        return len(rows) == 1

    assert all(await asyncio.gather(*(create() for _ in range(20))))


async def test_a_movie_that_breaks_a_rule_fails_alone(client: Client, execute: Execute) -> None:
    """One bad row in a statement of a hundred: 422 for its request and 201 for the others."""
    execute("alter table movies add constraint movies_year_no_1999 check (year <> 1999)")
    years = [1999 if number % 25 == 0 else 2000 for number in range(100)]

    responses = await asyncio.gather(
        *(client.post("/v1/movies", json={**MOANA, "year": year}) for year in years)
    )

    assert [response.status for response in responses] == [
        422 if year == 1999 else 201 for year in years
    ]
    assert execute("select count(*) from movies") == [(96,)]


async def test_a_movie_that_cannot_be_read_fails_alone(client: Client, execute: Execute) -> None:
    """A time that Python's datetime cannot hold: reads of other movies succeed."""
    add_movies(execute, *[f"Movie {n}" for n in range(1, 21)])
    execute("update movies set created_at = '20000-01-01' where id = 7")

    with capture_logs():  # a traceback on a terminal takes seconds
        responses = await asyncio.gather(*(client.get(f"/v1/movies/{id_}") for id_ in range(1, 21)))

    assert [response.status for response in responses] == [
        500 if id_ == 7 else 200 for id_ in range(1, 21)
    ]


@pytest.mark.parametrize("locked", [1, 8])
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_a_locked_row_delays_only_its_own_requests(
    start: Start, execute: Execute, database: str, method: str, locked: int
) -> None:
    """A DBA's open transaction on movies: 503 for these; other movies can be read and changed.

    Also if more movies are locked than statements may run. The 503 comes after `statement_timeout`.
    """
    client = await start(database__statement_timeout=1)
    add_movies(execute, *[f"Movie {n}" for n in range(1, 21)])
    with (
        closing(psycopg2.connect(database)) as dba,
        dba.cursor() as cursor,
        capture_logs() as logged,
    ):
        cursor.execute("update movies set year = 2001 where id <= %s", (locked,))
        responses = await asyncio.gather(
            *(
                client.request(method, f"/v1/movies/{id_}", json={"year": 2002})
                for id_ in range(1, 21)
            )
        )

    assert [response.status for response in responses] == [
        503 if id_ <= locked else 200 for id_ in range(1, 21)
    ]
    assert {line["reason"] for line in logged if "reason" in line} == {
        f"movie {id_} is locked" for id_ in range(1, locked + 1)
    }


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize(
    ("theirs", "status"),
    [
        ("select from movies where id = 1 for update", 200),
        ("update movies set year = 1999 where id = 1", 412),
        ("delete from movies where id = 1", 404),
    ],
)
async def test_a_change_waits_until_its_movie_is_free(  # noqa: PLR0913 - fixtures
    start: Start, execute: Execute, database: str, theirs: str, status: int, *, sharing: bool
) -> None:
    """The change applies to the movie as another transaction left it."""
    client = await start(sharing__enabled=sharing)
    await client.post("/v1/movies", json=MOANA)
    with closing(psycopg2.connect(database)) as dba:
        dba.cursor().execute(theirs)
        change = asyncio.create_task(
            client.patch("/v1/movies/1", json={"year": 2017}, headers={"If-Match": movie_tag()})
        )
        async with asyncio.timeout(5):
            while not execute(  # noqa: ASYNC110 - the database has no event for it
                "select 1 from pg_stat_activity"
                " where query like '%\"year\":2017%' and pid <> pg_backend_pid()"
            ):
                await asyncio.sleep(0.01)
        dba.commit()

    assert (await change).status == status


async def test_reads_of_a_locked_table_end_at_the_timeout(start: Start, database: str) -> None:
    """The timeout is no row's fault, so no row is sent again alone."""
    client = await start(database__statement_timeout=0.5)
    with closing(psycopg2.connect(database)) as dba, dba.cursor() as cursor:
        cursor.execute("lock table movies in access exclusive mode")
        with capture_logs() as logged:
            responses = await asyncio.gather(*(client.get(f"/v1/movies/{n}") for n in range(1, 91)))

    assert {response.status for response in responses} == {503}
    assert 0 < len([line for line in logged if line["event"] == "statement failed"]) < 45


async def test_a_movie_is_deleted_once(client: Client) -> None:
    """If many requests delete one movie at once, one of them gets it."""
    path = (await client.post("/v1/movies", json=MOANA)).headers["Location"]

    responses = await asyncio.gather(*(client.delete(path) for _ in range(30)))

    assert sorted(response.status for response in responses) == [200, *[404] * 29]


async def test_changes_of_one_movie_are_all_made(client: Client) -> None:
    """Many PATCHes of one movie at once: each makes its change, in some order."""
    path = (await client.post("/v1/movies", json=MOANA)).headers["Location"]

    responses = await asyncio.gather(
        *(client.patch(path, json={"year": 1900 + number}) for number in range(30))
    )
    versions = sorted([(await response.json())["movie"]["version"] for response in responses])

    assert versions == list(range(2, 32))


async def test_writers_on_two_services_do_not_lock_each_other_out(
    start: Start, execute: Execute
) -> None:
    """Two processes that change the same movies at once: all changes are made, and no deadlock."""
    set_for_database(execute, "deadlock_timeout = '1ms'")  # before lock_timeout ends them
    first, second = await start(), await start()
    add_movies(execute, *[f"Movie {n}" for n in range(1, 51)])

    responses = await asyncio.gather(
        *(
            client.patch(f"/v1/movies/{id_}", json={"year": 1900 + round_})
            for round_ in range(3)
            for client, ids in ((first, range(1, 51)), (second, range(50, 0, -1)))
            for id_ in ids
        )
    )

    assert {response.status for response in responses} == {200}
    assert count_deadlocks(execute) == 0


async def test_requests_share_statements(start: Start) -> None:
    """200 reads at once cost the database far fewer than 200 statements."""
    client = await start(log__slow_statement=1e-9)  # each statement is logged
    path = (await client.post("/v1/movies", json=MOANA)).headers["Location"]

    with capture_logs() as logged:
        await asyncio.gather(*(client.get(path) for _ in range(200)))

    assert 0 < len([line for line in logged if line.get("query") == "get_movies"]) < 100
