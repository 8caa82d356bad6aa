"""Undo: deleted movies come back as they were, by the API and in SQL."""

import asyncio
from contextlib import closing
from typing import Any

import psycopg2
import pytest
from conftest import MOANA, Client, Start
from support import Execute, add_trigger, copy_pages, follow, hold, until

from service.movies.movie import FIELDS

DELETIONS = {
    "api": None,
    "psql": "delete from movies where id = 1",
    "truncate": "truncate movies",
    "cascade": "delete from studios",
}


async def add(client: Client, name: str | None = None) -> dict[str, Any]:
    """Create a movie and change it, so that its version is 2; return it."""
    created = await client.post("/v1/movies", json=MOANA | {"external_id": name})
    path = created.headers["Location"]
    changed = await client.patch(path, json={"year": 2017})
    movie: dict[str, Any] = (await changed.json())["movie"]
    return movie


async def restore(
    client: Client, movie_id: int, version: int | None = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    """Restore a movie; return the status and the movie or the problem."""
    body = {"version": version} if version else None
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = await client.post(f"/v1/movies/{movie_id}/restore", json=body, headers=named)
    body = await response.json()
    # Also with a 404, 409 or 410: a read with it shows why.
    assert ("Catalogue-Position" in response.headers) == (
        response.status in (200, 404, 409, 410, 412, 428)
    )
    return response.status, body.get("movie", body)


@pytest.mark.parametrize("way", DELETIONS)
async def test_a_deleted_movie_comes_back_as_it_was(
    client: Client, execute: Execute, way: str
) -> None:
    """Whoever deleted it; copies of the catalogue follow."""
    await add(client, "a:1")
    execute(
        "create table studios (id integer primary key); insert into studios values (1);"
        "alter table movies add column studio integer references studios on delete cascade;"
        "update movies set studio = 1"
    )
    movie = (await (await client.get("/v1/movies/1")).json())["movie"]
    copy, cursor = await copy_pages(client)
    if sql := DELETIONS[way]:
        execute(sql)
    else:
        await client.delete("/v1/movies/1")

    assert (await client.get("/v1/movies/1")).status == 404
    execute("insert into studios values (1) on conflict do nothing")
    status, restored = await restore(client, 1)

    assert status == 200
    assert execute("select studio from movies") == [(1,)]
    assert {name: restored[name] for name in FIELDS} == {name: movie[name] for name in FIELDS}
    assert (restored["id"], restored["version"]) == (1, 4)
    assert restored["created_at"] == movie["created_at"]
    assert restored["updated_at"] > movie["updated_at"]
    assert (await (await client.get("/v1/movies/1")).json())["movie"] == restored
    while (await follow(client, copy, cursor))[0]:
        _, cursor = await follow(client, copy, cursor)
    assert copy == {1: 4}


async def test_the_feed_shows_a_deleted_movie(client: Client) -> None:
    """As it was; also once it is there again."""
    movie = await add(client, "a:1")
    await client.delete("/v1/movies/1")
    first = (await (await client.get("/v1/changes")).json())["changes"][-1]
    await restore(client, 1)
    later = (await (await client.get("/v1/changes")).json())["changes"]

    assert first["deleted_movie"] == movie
    assert "movie" not in first
    assert [change["kind"] for change in later] == ["created", "updated", "deleted", "created"]
    assert later[2]["deleted_movie"] == movie
    assert later[2]["movie"] == later[3]["movie"]
    assert "deleted_movie" not in later[3]


async def test_why_a_movie_cannot_be_restored(client: Client, execute: Execute) -> None:
    """It never was; it is there; its external id is taken; it was cleared."""
    await add(client, "a:1")
    kinds = [await restore(client, 9), await restore(client, 1)]
    await client.delete("/v1/movies/1")
    await add(client, "a:1")
    kinds.append(await restore(client, 1))
    await client.delete("/v1/movies/2")
    execute("delete from movie_changes; update movie_feed set cleared_to = pg_current_xact_id()")
    kinds += [await restore(client, movie_id) for movie_id in (1, 2, 9)]

    assert [(status, problem["type"].partition("#")[2]) for status, problem in kinds] == [
        (404, "not-found"),
        (409, "not-deleted"),
        (409, "external-id-taken"),
        (410, "not-kept"),
        (410, "not-kept"),
        (404, "not-found"),
    ]
    assert "movie 2" in kinds[2][1]["detail"]


async def test_a_movie_that_a_rule_refuses_by_now_is_a_422(
    client: Client, execute: Execute
) -> None:
    """Such as one that refers to something that is gone."""
    await add(client)
    await client.delete("/v1/movies/1")
    execute("alter table movies add constraint movies_year_old check (year < 2000)")
    assert (await restore(client, 1))[0] == 422


@pytest.mark.parametrize(
    ("column", "was", "expected"),
    [
        ("integer not null default 3", None, 3),
        ("integer default 3", None, 3),
        ("integer not null default 1 + nextval('clients_id_seq')", None, 2),
        ("integer generated always as identity", None, 1),
        ("domain_of_a_dba", None, 3),
        ("integer generated always as (year / 2) stored", "text default 'no number'", 1008),
        ("text", "integer default 7", "7"),
        ("integer not null default 3", "integer", 3),  # null is not possible any more
        ("integer default 3", "integer", None),
    ],
)
async def test_columns_that_were_added_since_get_their_defaults(
    client: Client, execute: Execute, column: str, was: str | None, expected: object
) -> None:
    """As in every older movie; `was`: the column of this name when the movie was deleted."""
    execute("create domain domain_of_a_dba as integer not null default 3")
    await add(client)
    if was:
        execute(f"alter table movies add column restored {was}")
    await client.delete("/v1/movies/1")
    execute(
        "alter table movies drop column if exists restored;"
        f"alter table movies add column restored {column}"
    )

    assert (await restore(client, 1))[0] == 200
    assert execute("select restored from movies") == [(expected,)]


@pytest.mark.parametrize("sql", ["delete from movies", "truncate movies"])
async def test_a_column_may_have_any_name(client: Client, execute: Execute, sql: str) -> None:
    """Also that of an alias in the functions that keep deleted movies."""
    await add(client)
    execute("alter table movies add column o integer, add column m integer")
    execute("update movies set o = 3, m = 4")
    execute(sql)

    assert (await restore(client, 1))[0] == 200
    assert execute("select o, m from movies") == [(3, 4)]


async def test_a_movie_that_does_not_fit_any_more_fails_alone(
    client: Client, execute: Execute, database: str
) -> None:
    """In the API, it is a 422; in SQL, a notice says why, and the others are restored."""
    execute("alter table movies add column shelf text default '1'")
    for number in range(9):
        await add(client, f"a:{number}")
    execute("update movies set shelf = 'top' where id in (1, 4, 9)")
    ((mistake,),) = execute(
        "delete from movies; alter table movies alter shelf drop default;"
        "alter table movies alter shelf type integer using null;"
        "select max(transaction)::text from movie_changes"
    )
    status, problem = await restore(client, 4)
    with closing(psycopg2.connect(database)) as session, session.cursor() as cursor:
        cursor.execute("select * from undo_changes(%s)", [mistake])
        undone = cursor.fetchall()
        cursor.execute("select id from movies where shelf = 1 order by id")
        there = cursor.fetchall()

    assert (status, problem["errors"][0]["detail"]) == (422, "is refused by the database")
    reason = 'left: invalid input syntax for type integer: "top"'
    assert dict(undone) == {n: reason if n in (1, 4, 9) else "restored" for n in range(1, 10)}
    assert there == [(movie_id,) for movie_id in (2, 3, 5, 6, 7, 8)]


async def test_a_movie_that_was_imported_again_from_an_older_export_is_restored(
    client: Client, execute: Execute
) -> None:
    """As it was at its last deletion, though an earlier one had a higher version."""
    await add(client)
    await client.delete("/v1/movies/1")
    execute(
        "insert into movies (id, title, year, runtime, genres) overriding system value"
        " values (1, 'Moana', 2015, 107, '{animation}')"
    )
    await client.delete("/v1/movies/1")
    status, movie = await restore(client, 1)

    assert (status, movie["year"], movie["version"]) == (200, 2015, 3)  # no tag repeats


async def test_a_value_that_a_dba_made_unique_is_a_422(client: Client, execute: Execute) -> None:
    """If another movie has it by now."""
    await add(client)
    await client.delete("/v1/movies/1")
    execute("create unique index movies_title_unique on movies (title)")
    await add(client)
    status, problem = await restore(client, 1)
    detail = "breaks the rule movies_title_unique"

    assert (status, problem["errors"]) == (422, [{"pointer": "#/title", "detail": detail}])


async def test_without_a_feed_there_is_no_undo(client: Client, execute: Execute) -> None:
    """The 404 says why."""
    await add(client)
    execute("select switch_movie_feed(false)")
    await client.delete("/v1/movies/1")
    status, problem = await restore(client, 1)
    assert (status, "feed is off" in problem["detail"]) == (404, True)


async def test_dbas_undo_a_transaction(client: Client, execute: Execute) -> None:
    """Only what it deleted, and only what is not there again or deleted again since."""
    for number in range(6):
        await add(client, f"a:{number}")
    await client.delete("/v1/movies/1")
    execute("delete from movies where id in (2, 3, 4, 5)")
    ((mistake,),) = execute(
        "select transaction::text from movie_changes where kind = 'deleted' and movie_id = 2"
    )
    await restore(client, 3)
    await restore(client, 4)
    await client.delete("/v1/movies/4")
    await add(client, "a:4")  # that of movie 5

    undone = execute("select * from undo_changes(%s)", mistake)
    by_id = execute(
        "select number, outcome from"
        """ restore_movies('[{"id": 1}, {"id": 4}, {"id": 5}, {"id": 6}, {"id": 99}]')"""
    )

    left = "left: it was changed again"
    taken = "left: another movie has its external id"
    assert dict(undone) == {2: "restored", 3: left, 4: left, 5: taken}
    assert dict(by_id) == {1: "restored", 4: "restored", 5: "taken", 6: "there", 99: "missing"}


async def test_one_of_several_restores_succeeds(start: Start, execute: Execute) -> None:
    """Also in two processes, and beside creates with its external id: one movie has it."""
    clients = [await start() for _ in range(2)]
    for number in range(1, 11):
        await add(clients[0], f"a:{number}")
    execute("delete from movies")

    async def create(number: int) -> int:
        response = await clients[number % 2].post(
            "/v1/movies", json=MOANA | {"external_id": f"a:{number}"}
        )
        return response.status

    restores = [restore(client, n) for n in range(1, 11) for client in clients * 2]
    creates = [create(number) for number in range(6, 11)]
    found = await asyncio.gather(*restores, *creates)

    statuses = [status for status, _ in found[:40]]
    assert set(statuses) == {200, 409}
    assert statuses.count(200) + found[40:].count(201) == 10
    assert execute("select count(*), count(distinct external_id) from movies") == [(10, 10)]


async def test_a_dbas_open_restore_delays_only_its_movies(
    client: Client, execute: Execute, database: str
) -> None:
    """If the DBA deletes the movie again, the API restores what was deleted then."""
    for number in (1, 2):
        await add(client, f"a:{number}")
    execute("delete from movies")
    with hold(database, """select restore_movies('[{"id": 1}]')""") as other:
        assert (await restore(client, 2))[0] == 200
        waiting = asyncio.create_task(restore(client, 1))
        await until(
            lambda: execute("select 1 from pg_stat_activity where wait_event = 'transactionid'")
        )
        other.cursor().execute("delete from movies where id = 1")
        other.commit()
    status, movie = await waiting

    assert (status, movie["version"]) == (200, 4)


async def test_a_restore_that_a_trigger_prevents_is_a_500(client: Client, execute: Execute) -> None:
    """As a create, not a 503, which would ask the client to try again."""
    await add(client)
    await client.delete("/v1/movies/1")
    add_trigger(execute, "return null;")

    assert (await client.post("/v1/movies/1/restore")).status == 500


async def test_a_restore_beside_the_clearing_succeeds_or_is_a_410(
    client: Client, execute: Execute
) -> None:
    """Nothing in between."""
    for number in range(1, 31):
        await add(client, f"a:{number}")
    execute("delete from movies")

    async def clear() -> None:
        for _ in range(10):
            await asyncio.to_thread(
                execute,
                "with gone as (delete from movie_changes where (transaction, id) in (select"
                " transaction, id from movie_changes order by transaction, id limit 9) returning"
                " transaction) update movie_feed set cleared_to ="
                " greatest(cleared_to, (select max(transaction) from gone))",
            )

    clearing = asyncio.create_task(clear())
    found = await asyncio.gather(*(restore(client, n) for n in range(1, 31)))
    await clearing

    statuses = [status for status, _ in found]
    assert set(statuses) <= {200, 410}
    assert execute("select count(*) from movies") == [(statuses.count(200),)]


BATCH = "/v1/movies/batch/restore"
LENIENT = {"Prefer": "handling=lenient"}


async def restore_all(
    client: Client, *entries: dict[str, Any], headers: dict[str, str] | None = None
) -> tuple[int, list[tuple[int, str]] | dict[str, Any]]:
    """Restore a batch; return the status, and the result of each movie or the problem."""
    response = await client.post(BATCH, json={"movies": entries}, headers=headers)
    body = await response.json()
    results = [
        (each["status"], each.get("outcome") or each["problem"]["type"].partition("#")[2])
        for each in body.get("results", [])
    ]
    return response.status, results or body


async def test_a_movie_gets_the_fields_of_any_version(client: Client, execute: Execute) -> None:
    """Also those of a former life; a column of a DBA, too; what it has already is not written."""
    execute("alter table movies add column shelf integer default 1")
    first = await add(client, "a:1")
    execute("update movies set shelf = 2")
    await client.patch("/v1/movies/1", json={"title": "Vaiana", "external_id": None})
    _, changed = await restore(client, 1, 2)
    again = await restore(client, 1, 2, If_Match='"1-1"')
    execute(
        "alter table movies add column place text default 'here'; update movies set place = 'x'"
    )
    await client.delete("/v1/movies/1")
    _, restored = await restore(client, 1, 4)
    _, back = await restore(client, 1, 6)

    assert {name: changed[name] for name in FIELDS} == {name: first[name] for name in FIELDS}
    assert (changed["version"], again) == (5, (200, changed))
    assert (restored["title"], restored["external_id"], restored["version"]) == ("Vaiana", None, 7)
    assert restored["created_at"] == first["created_at"]
    assert (back["external_id"], back["version"]) == ("a:1", 8)
    assert execute("select shelf, place, version from movies") == [(1, "x", 8)]
    kinds = execute("select kind, version, login from movie_changes order by id")
    assert kinds[-3:] == [("deleted", 6, None), ("created", 7, None), ("updated", 8, None)]


async def test_a_restore_depends_on_the_tag(start: Start) -> None:
    """A deleted movie has none; only a movie that is there needs one."""
    client, strict = await start(), await start(server__require_if_match=True)
    tags = [(await add(client))["etag"]]
    statuses = [
        (await restore(each, 1, 1, **headers))[0]
        for each, headers in (
            (client, {"If_Match": '"1-1"'}),
            (strict, {}),
            (client, {"If_None_Match": "*"}),
            (client, {"If_Match": tags[0]}),
        )
    ]
    await client.delete("/v1/movies/1")
    gone = [
        (await restore(strict, 1, 1, **headers))[0]
        for headers in ({"If_Match": tags[0]}, {"If_Match": "*"}, {"If_None_Match": "*"})
    ]

    assert statuses == [412, 428, 412, 200]
    assert gone == [412, 412, 200]


async def test_why_a_version_cannot_be_restored(start: Start, execute: Execute) -> None:
    """Each with its status, alone and in a lenient batch; a strict one writes nothing."""
    client = await start()
    for number in range(1, 6):
        await add(client, f"a:{number}")
    await client.patch("/v1/movies/1", json={"external_id": "b"})
    await client.patch("/v1/movies/2", json={"external_id": "a:1"})
    execute("delete from movie_changes where movie_id = 3 and version = 2")
    execute("update movie_changes set previous = null where movie_id = 4")
    execute(
        "alter table movies add constraint movies_year_new check (year > 2016 or id <> 5) not valid"
    )
    versions = [(1, 2), (1, 4), (3, 1), (4, 1), (5, 1), (9, 1)]
    expected = [409, 404, 410, 410, 422, 404]
    alone = [(await restore(client, *each))[0] for each in versions]
    before = execute("select id, version from movies order by id")
    entries = [{"id": n, "version": version} for n, version in versions[1:]]
    _, results = await restore_all(client, *entries, headers=LENIENT)
    strict, problem = await restore_all(client, {"id": 2, "version": 2}, *entries)

    assert alone == expected
    assert isinstance(results, list)
    assert [status for status, _ in results] == expected[1:]
    assert (strict, len(problem["errors"])) == (404, 4)  # type: ignore[call-overload]
    assert execute("select id, version from movies order by id") == before


async def test_batches_restore_movies(client: Client, execute: Execute) -> None:
    """All or each for itself, in one statement; a repeated id is a 422."""
    for number in range(1, 5):
        await add(client, f"a:{number}")
    execute("delete from movies where id = 4")
    entries: list[dict[str, Any]] = [{"id": 1, "version": 1}, {"id": 4}, {"id": 2, "version": 2}]
    strict, body = await restore_all(client, *entries)
    lenient = await restore_all(
        client, *entries, {"id": 3, "version": 1, "etag": '"3-1"'}, {"id": 2}, headers=LENIENT
    )
    fixed = await restore_all(
        client, *entries, {"id": 3, "version": 1, "etag": '"3-1"'}, headers=LENIENT
    )
    repeated, _ = await restore_all(client, {"id": 1}, {"id": 1, "version": 1})
    bad = [
        (await client.post("/v1/movies/1/restore", data=sent)).status
        for sent in ('{"version": 0}', '{"version": null}', '{"version": "1"}', "[]", '{"v": 1}')
    ]

    movies = body["movies"]  # type: ignore[call-overload]
    assert (strict, [movie["version"] for movie in movies]) == (200, [3, 3, 2])
    assert (lenient[0], repeated) == (422, 422)
    assert fixed == (
        207,
        [(200, "equal"), (409, "not-deleted"), (200, "equal"), (412, "precondition-failed")],
    )
    assert bad == [422, 400, 400, 400, 400]
    assert (await client.post("/v1/movies/1/restore", data="{}")).status == 409


async def test_without_a_feed_no_version_is_restored(client: Client, execute: Execute) -> None:
    """Also of a movie that is there; it says so, and locks nothing."""
    await add(client)
    execute("select switch_movie_feed(false)")
    before = execute("select xmax::text from movies")
    status, problem = await restore(client, 1, 1)
    assert (status, "feed is off" in problem["detail"]) == (404, True)
    assert execute("select xmax::text from movies") == before


async def test_a_strict_batch_beside_puts_of_its_external_ids_writes_all_or_nothing(
    start: Start, execute: Execute
) -> None:
    """It is sent again; then another movie has the external id."""
    clients = [await start(), await start()]
    for turn in range(10):
        names = [f"{turn}:{n}" for n in range(5)]
        ids = [(await add(clients[0], name))["id"] for name in names]
        execute("delete from movies where id = any(%s)", ids)
        puts = {"movies": [MOANA | {"external_id": names[3]}]}
        (status, _), put = await asyncio.gather(
            restore_all(clients[0], *({"id": n} for n in ids)),
            clients[1].put("/v1/movies/batch", json=puts),
        )
        there = execute("select count(*) from movies where id = any(%s)", ids)
        assert (status, there, put.status) in [(200, [(5,)], 200), (409, [(0,)], 200)]


async def test_dbas_undo_what_a_client_did(client: Client, execute: Execute) -> None:
    """Everything of a client or login, in an order that works, but what others changed since."""
    for number in range(1, 6):
        await add(client, f"a:{number}")
    # Merges 2 into 1, creates a movie, changes 3 twice and all of them once more.
    execute(
        "begin; delete from movies where id = 2;"
        "update movies set external_id = 'a:2' where id = 1;"
        "insert into movies (title, year, runtime, genres) values ('new', 2000, 1, '{x}');"
        "update movies set year = 1999 where id = 3; update movies set runtime = 1; commit"
    )
    ((mistake,),) = execute("select max(transaction)::text from movie_changes")
    await client.patch("/v1/movies/4", json={"year": 2001})
    undone: dict[int, str] = dict(execute("select * from undo_changes(by_client => current_user)"))
    fields = execute("select id, year, runtime, external_id from movies order by id")
    with pytest.raises(psycopg2.errors.RaiseException, match="expected a transaction"):
        execute("select * from undo_changes()")

    left = "left: it was changed again"
    assert undone == {
        1: "changed", 2: "restored", 3: "changed", 4: left, 5: "changed", 6: "deleted"
    }  # fmt: skip
    assert fields == [
        (1, 2017, 107, "a:1"),
        (2, 2017, 107, "a:2"),
        (3, 2017, 107, "a:3"),
        (4, 2001, 1, "a:4"),
        (5, 2017, 107, "a:5"),
    ]
    assert set(dict(execute("select * from undo_changes(%s)", mistake)).values()) == {left}


async def test_dbas_undo_what_gave_movies_the_ids_of_others(
    client: Client, execute: Execute
) -> None:
    """All at once; those that wait for a movie that others have changed since are left."""
    for number in range(1, 8):
        await add(client, f"a:{number}")
    execute(
        "begin; update movies set external_id = external_id || 'x' where id < 7;"
        "update movies set external_id = 'a:' || case id when 3 then 1 else id + 1 end"
        " where id < 6; commit"
    )
    ((mistake,),) = execute("select max(transaction)::text from movie_changes")
    execute("update movies set external_id = 'a:4' where id = 7")
    undone: dict[int, str] = dict(execute("select * from undo_changes(%s)", mistake))

    changed = dict.fromkeys((1, 2, 3), "changed")
    left = dict.fromkeys((4, 5, 6), "left: another movie has its external id")
    assert undone == changed | left
    names = execute("select external_id from movies order by id")
    assert [name for (name,) in names] == ["a:1", "a:2", "a:3", "a:5", "a:6", "a:6x", "a:4"]


def test_dbas_undo_more_than_a_part(execute: Execute) -> None:
    """It writes 1,000 movies at once."""
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select 'Moana', 2016, 107, '{drama}' from generate_series(1, 1001)"
    )
    execute("update movies set year = 1999")
    ((mistake,),) = execute("select max(transaction)::text from movie_changes")
    undone = execute("select * from undo_changes(%s)", mistake)
    years = execute("select distinct year from movies")
    gone = execute("select * from undo_changes(by_client => current_user)")

    assert dict(undone) == dict.fromkeys(range(1, 1002), "changed")
    assert years == [(2016,)]
    assert dict(gone) == dict.fromkeys(range(1, 1002), "deleted")


def test_dbas_undo_creates_that_refer_to_each_other(execute: Execute) -> None:
    """The newest first: otherwise the end of the first one would change a movie of a later part."""
    execute("alter table movies add sequel_of bigint references movies on delete set null")
    execute(
        "begin; insert into movies (title, year, runtime, genres)"
        " select 'Moana', 2016, 107, '{drama}' from generate_series(1, 1001);"
        "update movies set sequel_of = 1 where id = 1001; commit"
    )
    ((mistake,),) = execute("select max(transaction)::text from movie_changes")
    undone = execute("select * from undo_changes(%s)", mistake)

    assert dict(undone) == dict.fromkeys(range(1, 1002), "deleted")


async def test_dbas_undo_says_if_a_trigger_prevents_the_end_of_a_merge(
    client: Client, execute: Execute
) -> None:
    """The movie waits until the other one no longer has its external id."""
    for number in range(1, 3):
        await add(client, f"a:{number}")
    execute(
        "begin; delete from movies where id = 1;"
        "update movies set external_id = 'a:1' where id = 2; commit"
    )
    ((mistake,),) = execute("select max(transaction)::text from movie_changes")
    add_trigger(execute, "return null;")
    undone = execute("select * from undo_changes(%s)", mistake)

    left = "left: not all movies that wait for an external id can be written"
    assert dict(undone) == {1: left, 2: "changed"}
    assert execute("select id, external_id from movies") == [(2, "a:2")]


def test_dbas_undo_reports_movies_whose_changes_are_cleared_meanwhile(execute: Execute) -> None:
    """Those of a later part."""
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select 'Moana', 2016, 107, '{drama}' from generate_series(1, 1001)"
    )
    execute("update movies set year = 1999")
    ((mistake,),) = execute("select max(transaction)::text from movie_changes")
    clear = "delete from movie_changes where movie_id = 1001"
    add_trigger(execute, f"if new.id = 1 then {clear}; end if; return null;", "after update")
    undone = execute("select * from undo_changes(%s)", mistake)

    changed = dict.fromkeys(range(1, 1001), "changed")
    assert dict(undone) == changed | {1001: "left: a change is not kept any more"}


async def test_dbas_undo_of_a_merge_leaves_a_movie_that_is_back(
    client: Client, execute: Execute
) -> None:
    """Its end, in which external ids are free, would overwrite it."""
    for number in range(1, 3):
        await add(client, f"a:{number}")
    execute(
        "begin; delete from movies where id = 1;"
        "update movies set external_id = 'a:1' where id = 2; commit"
    )
    ((mistake,),) = execute("select max(transaction)::text from movie_changes")
    add_trigger(
        execute,
        """if new.id = 2 then
        insert into movies (id, title, year, runtime, genres) overriding system value
        values (1, 'back', 2000, 1, '{drama}'); end if; return null;""",
        "after update",
    )
    undone = execute("select * from undo_changes(%s)", mistake)

    assert dict(undone) == {1: "left: another movie has its external id", 2: "changed"}
    assert execute("select title, external_id from movies where id = 1") == [("back", None)]


async def test_dbas_undo_skips_locked_movies(
    client: Client, execute: Execute, database: str
) -> None:
    """It says so; the undo is a change, too, and can be undone."""
    for _ in range(3):
        await add(client)
    execute("update movies set year = 1999")
    last = "select max(transaction)::text from movie_changes"
    ((mistake,),) = execute(last)
    with hold(database, "select from movies where id = 2 for update"):
        undone = execute("select * from undo_changes(%s)", mistake)
    ((undo,),) = execute(last)
    redone = execute("select * from undo_changes(%s)", undo)

    assert dict(undone) == {1: "changed", 2: "left: another session has locked it", 3: "changed"}
    assert dict(redone) == {1: "changed", 3: "changed"}
    assert execute("select distinct year from movies") == [(1999,)]
