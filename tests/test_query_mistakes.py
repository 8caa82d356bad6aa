"""Tests mistakes in queries that only requests show: a 500, and no data is lost."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import MOANA, Client, Start
from support import Execute, Logs, add_movies, add_trigger

from service import __version__
from service.movies.movie import FIELDS

Edited = Callable[..., Any]


@pytest.fixture
def edited(start: Start, checkout: Path) -> Edited:
    """Start a service with a query file in which `old` is replaced by `new`."""

    async def begin(file_name: str, old: str, new: str) -> Client:
        file = checkout / "queries" / file_name
        text = file.read_text()
        assert text.count(old) == 1
        file.write_text(text.replace(old, new))
        return await start(root=checkout)

    return begin


def get_failures(logs: Logs, query: str) -> set[str]:
    """Return the reasons of the failures of this query, which are logged with its file."""
    entries = [entry for entry in logs if entry["event"] == "statement failed"]
    assert {entry["query"] for entry in entries} <= {query}
    assert all("queries/" in entry["file"] for entry in entries)
    return {entry["reason"] for entry in entries}


FILES = {"count_genres": "genres.sql", "create_movies_once": "idempotency.sql"}
PATHS = {"POST": "/v1/movies", "BATCH": "/v1/movies/batch"}
UPDATED = "from named\n  cross join checked as k\n  where"
DELETED = "using named\n  cross join checked as k\n  where"
FIELDS_OF_NEW = ", ".join(f"n.{name}" for name in FIELDS)
ONE = f"select n.id, {FIELDS_OF_NEW}\n  from named\n  cross join new as n\n  returning"
ONCE = ONE.replace("returning", "order by n.request, n.position\n  returning")
MORE = ("n.id", "n.id + generate_series(0, 9, 9)")
TOO_MANY = "movies, but at most 1 were requested"
OTHERS = "it returned other movies than were sent"
NOTHING = "nothing was written: did a trigger prevent it?"
PUT = "d on d.id = coalesce(g.id, c.id)"
NEW = "k.position\nleft join created as c on c.id = n.id;"  # of create_movies_once
STRAY = "it returned an id or position that was not sent, or one twice"
PAGE = "order by c.transaction, c.id\n  limit :size"  # of get_changes
MISTAKES = [
    # A write that changes more movies than were sent.
    ("PATCH", "update_movies", f"{UPDATED} m.id = k.id", f"{UPDATED} true", TOO_MANY),
    ("DELETE", "delete_movies", f"{DELETED} m.id = k.id", f"{DELETED} true", TOO_MANY),
    ("POST", "create_movies", ONE, ONE.replace(*MORE), TOO_MANY),
    ("POST", "create_movies_once", ONCE, ONCE.replace(*MORE), TOO_MANY),
    # Other rows than were sent: clients would get the movies of others.
    (
        "GET",
        "get_movies",
        "an id that does not exist returns no row.\nselect m.id,",
        "an id that does not exist returns no row.\nselect m.id + 1 as id,",
        STRAY,
    ),
    ("GET", "get_movies", "where m.id = any", ", (values (1), (2)) as v where m.id = any", STRAY),
    (
        "POST",
        "create_movies_once",
        "as transaction, k.request,",
        "as transaction, k.request - 1 as request,",
        STRAY,
    ),
    (
        "PATCH",
        "update_movies",
        *(f"k.id{n} as number,\n  case when k.outcome = 'changed'" for n in ("", " - 1")),
        STRAY,
    ),
    (
        "DELETE",
        "delete_movies",
        *(f"k.id{n} as number, k.outcome, x" for n in ("", " - 1")),
        STRAY,
    ),
    # Batches.
    ("BATCH", "create_movies", "new as n on n.id = c.id;", "new as n on true;", STRAY),
    ("BATCH", "create_movies", "n.id = c.id;", "n.id = c.id and n.position = 1;", NOTHING),
    ("BATCH", "put_movies", PUT, "d on true", STRAY),
    ("BATCH", "put_movies", PUT, f"{PUT} where c.number = 1", NOTHING),
    ("BATCH", "create_movies_once", NEW, NEW.replace("c.id = n.id", "true"), OTHERS),
    ("BATCH", "create_movies_once", NEW, NEW.replace(";", " where k.position = 0;"), OTHERS),
    # No rows.
    ("POST", "create_movies", "new as n on n.id", "new as n on -n.id", NOTHING),
    ("GET", "count_genres", 'n.genre collate "C";', "n.genre limit 0;", "it returned no row"),
]


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_in_a_query_is_a_500(
    edited: Edited, execute: Execute, logs: Logs, mistake: tuple[str, str, str, str, str]
) -> None:
    """The log names query and file; no movie is changed that was not sent."""
    method, query, old, new, reason = mistake
    client = await edited(FILES.get(query, "movies.sql"), old, new)
    add_movies(execute, "A", "B", "C")
    others = "select m::text from movies as m where id in (1, 3)"
    before = execute(others)
    path = PATHS.get(method, "/v1/movies/2")
    path = "/v1/genres" if query == "count_genres" else path
    other = MOANA | ({"external_id": "a"} if query == "put_movies" else {})
    body = {"movies": [MOANA, other]} if method == "BATCH" else MOANA
    headers = {"Idempotency-Key": "a"} if query.endswith("_once") else {}

    response = await client.request(
        "POST" if method == "BATCH" else method, path, json=body, headers=headers
    )

    assert response.status == 500
    assert (await response.json())["type"] == "/v1/docs#internal-error"
    assert execute(others) == before
    (logged_reason,) = get_failures(logs, query)
    assert not any("exc_info" in each for each in logs)
    assert reason in logged_reason
    if reason == TOO_MANY:
        assert execute("select count(*) from movies") == [(3,)]


@pytest.mark.parametrize(
    ("year", "reason"),
    [
        ("m.year / (m.year - 2016)", "division by zero"),
        ("2147483647 + (2017 - m.year)", "integer out of range"),  # 422 in a write
    ],
    ids=["division", "range"],
)
async def test_a_data_error_that_no_client_can_cause_is_a_500(
    edited: Edited, logs: Logs, year: str, reason: str
) -> None:
    """It is a mistake in the query, so it is logged; other movies can be read."""
    old = "an id that does not exist returns no row.\nselect m.id, m.title, m.year,"
    client = await edited("movies.sql", old, old.replace("m.year", f"{year} as year"))
    for created in (2016, 2017):
        await client.post("/v1/movies", json=MOANA | {"year": created})

    ids = [2] * 10 + [1] + [2] * 10  # most of them share a statement
    responses = await asyncio.gather(*(client.get(f"/v1/movies/{n}") for n in ids))

    assert [response.status for response in responses] == [200] * 10 + [500] + [200] * 10
    assert get_failures(logs, "get_movies") == {reason}


async def test_an_error_of_a_dbas_trigger_is_logged(
    client: Client, execute: Execute, logs: Logs
) -> None:
    """The response says only that the database refused; the log has PostgreSQL's message.

    It does not have the detail, where PostgreSQL repeats values of the row.
    """
    add_trigger(execute, "raise exception 'no sequels on Sundays' using detail = new.title;")

    response = await client.post("/v1/movies", json=MOANA)

    assert response.status == 422
    assert "Sundays" not in await response.text()
    (entry,) = [entry for entry in logs if entry["event"] == "refused by the database"]
    assert entry["query"] == "create_movies"
    assert entry["reason"] == "no sequels on Sundays"


async def test_a_column_that_the_service_cannot_fill_is_a_500(
    client: Client, execute: Execute, logs: Logs
) -> None:
    """No client can send it, so it is no client's mistake."""
    execute("alter table movies add column director text not null")

    response = await client.post("/v1/movies", json=MOANA)

    assert response.status == 500
    assert get_failures(logs, "create_movies") == {
        'null value in column "director" of relation "movies" violates not-null constraint'
    }


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


@pytest.mark.parametrize("limit", ["least(:size, 2)", "greatest(:size, 1000)"])
async def test_a_feed_with_another_limit_loses_no_change(
    edited: Edited, execute: Execute, limit: str
) -> None:
    """The cursor is behind the last change that was sent, also for requests that wait."""
    client = await edited("changes.sql", PAGE, PAGE.replace(":size", limit))
    add_movies(execute, *map(str, range(7)))
    ids, parameters = list[int](), {"wait": "20"}
    while len(ids) < 7:
        page = await (await client.get("/v1/changes", params=parameters)).json()
        ids += [change["id"] for change in page["changes"]]
        parameters["after"] = page["metadata"]["next_cursor"]

    assert ids == [*range(1, 8)]


async def test_a_feed_that_returns_nothing_is_an_error(
    edited: Edited, execute: Execute, logs: Logs
) -> None:
    """Clients would wait for ever, and take their copy for complete."""
    client = await edited("changes.sql", PAGE, PAGE.replace(":size", "least(:size, 0)"))
    after = (await client.get("/v1/movies")).headers["Changes-Cursor"]
    add_movies(execute, "a")

    response = await client.get("/v1/changes", params={"after": after, "wait": "20"})

    assert response.status == 500
    assert get_failures(logs, "get_changes") == {"it returned none of the next changes"}
