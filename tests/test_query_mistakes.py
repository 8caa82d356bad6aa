"""Tests mistakes in queries that only requests show: a 500, and no data is lost."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from conftest import MOANA, ROOT, Client, Start
from structlog.testing import capture_logs
from support import Execute

from service import __version__


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Collect what is logged."""
    with capture_logs() as entries:
        yield entries


@pytest.fixture
def edited(start: Start, tmp_path: Path) -> Callable[..., Any]:
    """Start a service with `old` replaced by `new` in a file of its queries."""

    async def begin(old: str, new: str, file_name: str = "movies.sql", **settings: Any) -> Client:
        for name in ("queries", "migrations"):
            copytree(ROOT / name, tmp_path / name)
        file = tmp_path / "queries" / file_name
        text = file.read_text()
        assert text.count(old) == 1
        file.write_text(text.replace(old, new))
        return await start(root=tmp_path, **settings)

    return begin


Edited = Callable[..., Any]
INSERT_MORE = (
    "  from new as n\n  returning",
    "  from new as n union all select n.id + 9, 'x', 2000, 1, '{x}' from new as n\n  returning",
)
LOST: dict[str, tuple[str, ...]] = {
    "update": ("  where m.id = f.id\n    and (c.versions", "  where (c.versions"),
    "delete": ("  where m.id = f.id\n    and (d.versions", "  where (d.versions"),
    "insert": INSERT_MORE,
    "insert with a key": (*INSERT_MORE, "idempotency.sql"),
}


@pytest.mark.parametrize("method", ["PATCH", "PUT", "DELETE"])
async def test_a_write_that_lost_its_condition_changes_nothing(
    edited: Edited, execute: Execute, logged: list[Any], method: str
) -> None:
    """It would change all movies; the client gets a 500, and the log names query and file."""
    client = await edited(*LOST["delete" if method == "DELETE" else "update"])
    for _ in range(3):
        assert (await client.post("/v1/movies", json=MOANA)).status == 201
    before = execute("select m::text from movies as m order by id")

    response = await client.request(method, "/v1/movies/2", json={**MOANA, "year": 2000})

    assert response.status == 500
    assert (await response.json())["type"] == "/v1/docs#internal-error"
    assert execute("select m::text from movies as m order by id") == before
    (entry,) = [entry for entry in logged if entry["event"] == "statement failed"]
    assert "3 movies, but at most 1 were requested" in entry["reason"]
    assert entry["query"] == ("delete_movies" if method == "DELETE" else "update_movies")
    assert "/queries/movies.sql:" in f"/{entry['file']}"


@pytest.mark.parametrize("mistake", ["insert", "insert with a key"])
async def test_a_create_makes_one_movie(edited: Edited, execute: Execute, mistake: str) -> None:
    """A query that would insert more is refused."""
    client = await edited(*LOST[mistake])
    headers = {"Idempotency-Key": "a"} if "key" in mistake else {}

    response = await client.post("/v1/movies", json=MOANA, headers=headers)

    assert response.status == 500
    assert execute("select count(*) from movies") == [(0,)]


async def test_what_a_trigger_changes_is_not_limited(client: Client, execute: Execute) -> None:
    """Rows that triggers change do not count."""
    execute(
        "alter table movies add parent bigint references movies;"
        "create function follow() returns trigger language plpgsql as $$ begin"
        " update movies set year = new.year where parent = new.id; return null; end $$;"
        "create trigger follow after update on movies for each row execute function follow()"
    )
    for _ in range(3):
        await client.post("/v1/movies", json=MOANA)
    execute("update movies set parent = 1 where id > 1")

    response = await client.patch("/v1/movies/1", json={"year": 2000})

    assert response.status == 200
    assert execute("select year from movies") == [(2000,)] * 3


async def test_a_failed_shared_statement_is_logged_once(
    client: Client, execute: Execute, logged: list[Any]
) -> None:
    """The line of each of its requests has the reason; there is no traceback."""
    execute("alter table movies rename to films")

    responses = await asyncio.gather(*(client.get(f"/v1/movies/{n}") for n in range(1, 21)))

    assert {response.status for response in responses} == {500}
    ids = {response.headers["X-Request-Id"] for response in responses}
    statements = [entry for entry in logged if entry["event"] == "statement failed"]
    requests = [entry for entry in logged if entry["event"] == "request"]
    assert len(statements) < 5
    assert {entry["query"] for entry in statements} == {"get_movies"}
    assert 'relation "movies" does not exist' in statements[0]["reason"]
    assert {entry["request_id"] for entry in requests} == ids
    assert all('relation "movies" does not exist' in entry["reason"] for entry in requests)
    assert not any("exc_info" in entry for entry in logged)


@pytest.mark.parametrize(
    ("year", "reason"),
    [
        ("m.year / (m.year - 2016)", "division by zero"),
        ("2147483647 + (2017 - m.year)", "integer out of range"),  # 422 in a write
    ],
    ids=["division", "range"],
)
async def test_a_data_error_that_no_client_can_cause_is_a_500(
    edited: Edited, logged: list[Any], year: str, reason: str
) -> None:
    """It is a mistake in the query, so it is logged; other movies can be read."""
    client = await edited("select m.id, m.title, m.year,", f"select m.id, m.title, {year} as year,")
    for created in (2016, 2017):
        await client.post("/v1/movies", json=MOANA | {"year": created})

    ids = [2] * 10 + [1] + [2] * 10  # most of them share a statement
    responses = await asyncio.gather(*(client.get(f"/v1/movies/{n}") for n in ids))

    assert [response.status for response in responses] == [200] * 10 + [500] + [200] * 10
    entries = [entry for entry in logged if entry["event"] == "statement failed"]
    assert {entry["reason"] for entry in entries} == {reason}


async def test_an_error_of_a_dbas_trigger_is_logged(
    client: Client, execute: Execute, logged: list[Any]
) -> None:
    """The response says only that the database refused; the log has PostgreSQL's message.

    It does not have the detail, where PostgreSQL repeats values of the row.
    """
    execute(
        "create function no() returns trigger language plpgsql as"
        " $$ begin raise exception 'no sequels on Sundays' using detail = new.title; end $$;"
        " create trigger no before insert on movies for each row execute function no()"
    )

    response = await client.post("/v1/movies", json=MOANA)

    assert response.status == 422
    assert "Sundays" not in await response.text()
    (entry,) = [entry for entry in logged if entry["event"] == "refused by the database"]
    assert entry["query"] == "create_movies"
    assert entry["reason"] == "no sequels on Sundays"


async def test_each_connection_names_the_service_its_version_and_process(
    client: Client, execute: Execute
) -> None:
    """It is the application_name, which pg_stat_activity and the server's log show."""
    await client.get("/v1/movies/1")

    names = execute(
        "select distinct application_name from pg_stat_activity"
        " where datname = current_database() and query like '/* get_movies queries/movies.sql:%'"
    )
    assert names == [(f"movie-catalogue {__version__} {os.getpid()}",)]
