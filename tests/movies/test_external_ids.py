"""The external ids of movies: no two have the same one, and a sync finds movies by them."""

import asyncio
import json
from typing import Any

import pytest
from conftest import MOANA, ROOT, Client, Start
from support import Execute, add_movies, add_trigger, get_app, hold, movie_tag, until

from service.app import EXPECTED, POOL
from service.database import query_files, transactions
from service.movies.entries import MAX_MOVIES

MOVIES, BATCH = "/v1/movies", "/v1/movies/batch"
LENIENT = {"Prefer": "handling=lenient"}
INSERT = (
    "insert into movies (title, year, runtime, genres, external_id)"
    " values ('Held', 2000, 1, '{x}', 'a:1')"
)


def named(name: str | None, **fields: Any) -> dict[str, Any]:
    """Return a movie with this external id."""
    return MOANA | {"external_id": name} | fields


async def send(
    client: Client, method: str, path: str, body: Any, **headers: str
) -> tuple[int, dict[str, Any]]:
    """Send a request; return its status and body."""
    response = await client.request(method, path, json=body, headers=headers)
    return response.status, await response.json()


async def put(client: Client, *movies: dict[str, Any], **headers: str) -> list[Any]:
    """PUT a batch; return status, id and version of each entry."""
    _, body = await send(client, "PUT", BATCH, {"movies": movies}, **headers)
    return [
        (each["status"], each["movie"]["id"], each["movie"]["version"])
        if "movie" in each
        else each["problem"]["type"].partition("#")[2]
        for each in body["results"]
    ]


async def test_a_column_of_a_dba_may_have_a_type_without_null(
    client: Client, execute: Execute
) -> None:
    """It has a default, so that no request needs to know it."""
    execute("create domain stars as integer not null; alter table movies add own stars default 3")
    keyed = {"Idempotency-Key": "a"}

    statuses = [
        (await send(client, "POST", MOVIES, named("a:1")))[0],
        (await send(client, "PUT", BATCH, {"movies": [named("a:1", year=1999), named("a:2")]}))[0],
        *[(await send(client, "POST", MOVIES, named("a:3"), **keyed))[0] for _ in range(2)],
    ]

    assert statuses == [201, 200, 201, 201]


async def test_a_wrong_external_id_is_a_422_everywhere(client: Client) -> None:
    """It names the field and the rule; tests/movie_examples.py has what else is wrong."""
    add = await send(client, "POST", MOVIES, MOANA)
    assert add[0] == 201
    for name, rule in (
        ("x" * 256, "must be at most 255 bytes of UTF-8"),
        ("a:1 ", "must not begin or end with a blank"),
        ("\ufeffa:1", "must not begin or end with a blank"),
    ):
        for method, path, body, place in (
            ("POST", MOVIES, named(name), ""),
            ("PUT", "/v1/movies/1", named(name), ""),
            ("PATCH", "/v1/movies/1", {"external_id": name}, ""),
            ("POST", BATCH, {"movies": [named(name)]}, "movies/0/"),
            ("PUT", BATCH, {"movies": [named(name)]}, "movies/0/"),
            ("PATCH", BATCH, {"movies": [{"id": 1, "external_id": name}]}, "movies/0/"),
        ):
            status, problem = await send(client, method, path, body)
            expected = [{"pointer": f"#/{place}external_id", "detail": rule}]
            assert (status, problem["errors"]) == (422, expected), (method, path)
        assert (await send(client, "GET", f"{MOVIES}?external_id={name}", None))[0] == 422


async def test_a_taken_one_is_a_409_that_names_the_movie(client: Client) -> None:
    """Whatever the request is; nothing is created or changed."""
    await send(client, "POST", MOVIES, named("a:1"))
    await send(client, "POST", MOVIES, named("a:2"))
    requests: list[tuple[str, str, dict[str, Any], str, dict[str, str]]] = [
        ("POST", MOVIES, named("a:1"), "", {}),
        ("POST", MOVIES, named("a:1"), "", {"Idempotency-Key": "a"}),
        ("PATCH", "/v1/movies/2", {"external_id": "a:1"}, "", {}),
        ("PUT", "/v1/movies/2", named("a:1"), "", {}),
        ("POST", BATCH, {"movies": [named("a:3"), named("a:1")]}, "movies/1/", {}),
        ("POST", BATCH, {"movies": [named("a:1")]}, "movies/0/", {"Idempotency-Key": "b"}),
        ("PATCH", BATCH, {"movies": [{"id": 2, "external_id": "a:1"}]}, "movies/0/", {}),
    ]
    for method, path, body, place, headers in requests:
        response = await client.request(method, path, json=body, headers=headers)
        problem = await response.json()
        assert problem["type"] == "/v1/docs#external-id-taken", (method, path)
        assert (response.status, "Catalogue-Position" in response.headers) == (409, True)
        assert problem["errors"] == [
            {"pointer": f"#/{place}external_id", "detail": "the movie 1 has it"}
        ]
    _, body = await send(client, "GET", f"{MOVIES}?sort=id", None)
    assert [(each["external_id"], each["version"]) for each in body["movies"]] == [
        ("a:1", 1),
        ("a:2", 1),
    ]


async def test_an_entry_that_keeps_its_own_is_not_blamed(client: Client) -> None:
    """Only the one that takes another movie's."""
    await put(client, named("a:1"), named("a:2"), named("a:3"))
    entries = [{"id": 1, "external_id": "a:1", "year": 2001}, {"id": 2, "external_id": "a:3"}]
    _, problem = await send(client, "PATCH", BATCH, {"movies": entries})
    assert [each["pointer"] for each in problem["errors"]] == ["#/movies/1/external_id"]


async def test_a_batch_does_not_pass_one_on(client: Client) -> None:
    """In whatever order: take it away first."""
    await put(client, named("a:1"), named("a:2"))
    giving, taking = {"id": 1, "external_id": None}, {"id": 2, "external_id": "a:1"}
    for entries in ([giving, taking], [taking, giving]):
        status, problem = await send(client, "PATCH", BATCH, {"movies": entries})
        assert (status, problem["detail"]) == (409, "the movie 1 has this external_id")


async def test_a_trigger_that_drops_a_movie_is_an_error(client: Client, execute: Execute) -> None:
    """Nothing is tried again."""
    add_trigger(execute, "return null;")
    assert (await send(client, "POST", MOVIES, named("a:1")))[0] == 500
    assert (await send(client, "PUT", BATCH, {"movies": [named("a:1")]}))[0] == 500


async def test_in_a_lenient_batch_it_fails_its_entry_alone(client: Client) -> None:
    """Also if another entry of the same batch has it."""
    await send(client, "POST", MOVIES, named("a:1"))
    movies = [named("a:1"), named("a:2"), named("a:2"), MOANA]

    _, body = await send(client, "POST", BATCH, {"movies": movies}, **LENIENT)

    assert [each["status"] for each in body["results"]] == [409, 201, 409, 201]


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "a"}], ids=["no key", "key"])
async def test_of_equal_ones_in_a_lenient_batch_the_first_is_created(
    start: Start, execute: Execute, database: str, headers: dict[str, str]
) -> None:
    """Also if its statement waits for another session, and that of the later one does not."""
    client = await start(database__statement_timeout=6)
    held = [f"a:{number}" for number in range(4)]
    movies = [*map(named, held), named("b:1"), *[MOANA] * 57, named("b:1")]
    with hold(database, "; ".join(INSERT.replace("a:1", name) for name in held)):
        batch = send(client, "POST", BATCH, {"movies": movies}, **LENIENT, **headers)
        waiting = asyncio.create_task(batch)
        await until(lambda: execute("select 1 from movies where external_id = 'b:1'"))
    _, body = await waiting

    assert [each["status"] for each in body["results"]] == [201] * 62 + [409]


async def test_movies_are_found_in_the_order_of_the_request(client: Client) -> None:
    """One that is named twice comes twice; those that no movie has are named once."""
    for number in (1, 2):
        await send(client, "POST", MOVIES, named(f"a:{number}"))
    query = "?external_id=a:2,b&external_id=a:1&external_id=a:2&external_id=b"

    _, body = await send(client, "GET", f"{MOVIES}{query}", None)
    refused = [
        await send(client, "GET", f"{MOVIES}{wrong}", None)
        for wrong in ("?external_id=", "?external_id=a,,b", "?external_id=a&year=2000")
    ]
    many = await send(client, "GET", f"{MOVIES}?external_id={','.join('x' * 101)}", None)

    assert [each["external_id"] for each in body["movies"]] == ["a:2", "a:1", "a:2"]
    assert body["metadata"]["missing_external_ids"] == ["b"]
    assert [status for status, _ in (*refused, many)] == [422] * 4


@pytest.mark.parametrize("headers", [{}, LENIENT], ids=["strict", "lenient"])
async def test_put_creates_replaces_or_leaves(
    client: Client, execute: Execute, headers: dict[str, str]
) -> None:
    """An equal movie gets no version and no change in the feed, and its row is not written."""
    first = await put(client, named("a:1"), named("a:2"), **headers)
    rows = "select xmin::text, xmax::text from movies where external_id = 'a:1'"
    before, changes = execute(rows), execute("select count(*) from movie_changes")[0][0]

    again = await put(client, named("a:1"), named("a:2", year=2017), named("a:3"), **headers)

    assert [status for status, *_ in first] == [201, 201]
    assert again == [(200, 1, 1), (200, 2, 2), (201, again[2][1], 1)]
    assert execute(rows) == before
    assert execute("select count(*) from movie_changes") == [(changes + 2,)]


NO_TAG_OF_A_MOVIE = [
    f"W/{movie_tag()}",
    '"7"',
    f'"9{10**18}-1"',
    f'"{2**63 - 1}-1"',
    '"1-9999999999"',
]


async def test_put_with_a_tag_only_replaces_the_movie_that_has_it(client: Client) -> None:
    """Any other tag is a 412, and creates nothing; a movie that has the fields is equal."""
    await put(client, named("a:1"), named("a:2"), named("a:3"))
    await client.delete("/v1/movies/3")
    changed = named("a:1", year=1999)
    refused = [
        named("a:1", year=1990, etag=movie_tag()),  # it has another version by now
        named("a:2", year=1990, etag=movie_tag()),  # of another movie
        named("a:3", etag=movie_tag(1, 3)),  # deleted
        named("a:4", etag=movie_tag()),  # never there
    ]
    refused += [named("a:2", year=1990, etag=tag) for tag in NO_TAG_OF_A_MOVIE]

    first = await put(client, changed | {"etag": movie_tag()})
    again = await put(client, changed | {"etag": movie_tag()})
    for headers in ({}, LENIENT):
        for entry in refused:
            body = {"movies": [named("b:1"), entry] if not headers else [entry]}
            _, answer = await send(client, "PUT", BATCH, body, **headers)
            problem = answer if not headers else answer["results"][0]["problem"]
            assert problem["type"] == "/v1/docs#precondition-failed", entry
            assert headers or [each["pointer"] for each in answer["errors"]] == ["#/movies/1"]
    wrong = await send(client, "PUT", BATCH, {"movies": [named("a:1", etag=None)]})

    assert (first, again) == ([(200, 1, 2)], [(200, 1, 2)])
    assert (wrong[0], wrong[1]["errors"][0]["pointer"]) == (400, "#/movies/0/etag")
    _, found = await send(client, "GET", MOVIES, None)
    assert [(each["id"], each["version"]) for each in found["movies"]] == [(1, 2), (2, 1)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("update movies set year = 1990", "precondition-failed"),
        ("update movies set year = 1999", (200, 1, 2)),  # as this request, whose response was lost
        ("delete from movies", "precondition-failed"),
        ("update movies set external_id = 'b:1'", "precondition-failed"),
    ],
)
async def test_put_sees_what_another_session_commits_meanwhile(
    client: Client, execute: Execute, database: str, sql: str, expected: object
) -> None:
    """Its tag is compared under the lock of the row, and nothing is created."""
    await put(client, named("a:1"))
    entry = named("a:1", year=1999, etag=movie_tag())
    with hold(database, sql) as other:
        waiting = asyncio.create_task(put(client, entry, **LENIENT))
        for _ in range(3):
            await client.get("/v1/movies/1")
        assert not waiting.done()
        other.commit()

    assert await waiting == [expected]
    assert execute("select count(*) from movies where year = 1999 or version = 1") == [
        (int(expected != "precondition-failed"),)
    ]


async def test_of_several_writes_with_the_same_tag_one_succeeds(
    start: Start, execute: Execute
) -> None:
    """Puts, patches and deletions of a movie at once, in shared statements of two processes."""
    clients = [await start(), await start()]
    names = [f"a:{number}" for number in range(20)]
    created = await put(clients[0], *map(named, names))
    kinds = ("PUT", BATCH), ("PATCH", BATCH), ("POST", f"{BATCH}/delete")

    async def write(turn: int, movie_id: int, name: str) -> tuple[int, str]:
        (method, path), year = kinds[turn % 3], 1990 + turn
        entry: dict[str, Any] = {"id": movie_id, "year": year}
        if method != "PATCH":
            entry = named(name, year=year) if method == "PUT" else {"id": movie_id}
        body = {"movies": [entry | {"etag": movie_tag(1, movie_id)}]}
        _, answer = await send(clients[turn % 2], method, path, body, **LENIENT)
        (result,) = answer["results"]
        return result["status"], result.get("outcome", "")

    found = await asyncio.gather(
        *(
            write(turn, movie_id, name)
            for (_, movie_id, _), name in zip(created, names, strict=True)
            for turn in range(6)
        )
    )

    for number in range(20):
        results = found[6 * number : 6 * number + 6]
        assert [status for status, _ in results].count(200) == 1, results
        assert {status for status, _ in results} <= {200, 404, 412}
    left = execute("select count(*), coalesce(sum(version), 0) from movies")[0]
    changed = [outcome for status, outcome in found if status == 200].count("changed")
    assert left == (changed, 2 * changed)
    assert execute("select count(*) from movie_changes") == [(40,)]


LAST = chr(0x10FFFF)
PREFIXES = {
    "a:": ["a:1", "a:2", f"a:{LAST}{LAST}", "a:é", "a:_", "a:%!"],
    "a:1": ["a:1"],
    "a": ["a:1", "a:2", f"a:{LAST}{LAST}", "a:é", "a:_", "a:%!", "a"],
    "A": ["A:1"],
    "a:_": ["a:_"],
    "%": [],
    "a:%": ["a:%!"],
    "a:%!": ["a:%!"],
    f"a:{LAST}": [f"a:{LAST}{LAST}"],
    "a:é": ["a:é"],
    "a:e": [],
    "\\": ["\\:1"],
    "!": ["!_"],
    " ": [],
}


async def test_a_list_of_a_prefix_has_the_movies_whose_external_ids_begin_so(
    client: Client,
) -> None:
    """Byte for byte, without wildcards; pages, streams, facets and suggestions, too."""
    names = [*PREFIXES["a"], "A:1", "b:1", "\\:1", "!_", None]
    movies = [named(name, title=f"Love {number}", year=1990) for number, name in enumerate(names)]
    await send(client, "POST", BATCH, {"movies": movies})
    for prefix, expected in PREFIXES.items():
        query = {"external_id_prefix": prefix, "facets": "year", "page_size": "2"}
        page = await (await client.get(MOVIES, params=query)).json()
        found = page["movies"]
        while cursor := page["metadata"]["next_cursor"]:
            more = query | {"cursor": cursor}
            page = await (await client.get(MOVIES, params=more)).json()
            found += page["movies"]
        only = {"external_id_prefix": prefix}
        lines = await client.get(MOVIES, params=only, headers={"Accept": "application/x-ndjson"})
        streamed = [json.loads(line) for line in (await lines.text()).splitlines()]

        assert [each["external_id"] for each in found] == expected, prefix
        assert streamed == found
        values = page["metadata"]["facets"]["year"]["values"]
        assert [each["movies"] for each in values] == ([len(expected)] if expected else [])
    only = {"external_id_prefix": "b:", "title": "lvoe"}
    page = await (await client.get(MOVIES, params=only)).json()
    assert [each["external_id"] for each in page["metadata"]["suggested_movies"]] == ["b:1"]


async def test_a_wrong_prefix_is_a_422(client: Client) -> None:
    """Empty, too long, with NUL, given twice; and a cursor of another prefix."""
    await put(client, named("a:1"), named("a:2"))
    path = f"{MOVIES}?page_size=1&external_id_prefix="
    page = await (await client.get(f"{path}a")).json()
    cursor = page["metadata"]["next_cursor"]

    for wrong in (
        "",
        "a%00",
        "x" * 256,
        "%C3%A9" * 128,
        "a&external_id_prefix=a",
        f"b&cursor={cursor}",
    ):
        status, problem = await send(client, "GET", f"{path}{wrong}", None)
        assert status == 422, wrong
        if "cursor" not in wrong:
            assert "the beginning of external ids, such as `imdb:`, 1 to 255 bytes" in str(problem)
    assert (await send(client, "GET", f"{path}{'x' * 255}", None))[0] == 200


async def test_put_needs_different_external_ids(client: Client) -> None:
    """Otherwise it would depend on their order what is stored; also in a lenient batch."""
    for headers in ({}, LENIENT):
        twice = {"movies": [named("a:1"), named("a:2"), named("a:1", year=2017)]}
        status, problem = await send(client, "PUT", BATCH, twice, **headers)
        assert (status, problem["errors"][0]["pointer"]) == (422, "#/movies/2/external_id")
    status, problem = await send(client, "PUT", BATCH, {"movies": [MOANA, named(None)]})
    assert [each["detail"] for each in problem["errors"]] == ["is required", "must not be null"]
    too_many = {"movies": [named(f"a:{number}") for number in range(MAX_MOVIES + 1)]}
    assert (await send(client, "PUT", BATCH, too_many))[0] == 422


async def test_put_does_all_or_nothing(client: Client) -> None:
    """One wrong movie, and none is written; a lenient batch writes the others."""
    wrong = named("a:2", year=1)
    status, problem = await send(client, "PUT", BATCH, {"movies": [named("a:1"), wrong]})
    assert (status, problem["errors"][0]["pointer"]) == (422, "#/movies/1/year")
    assert (await send(client, "GET", MOVIES, None))[1]["movies"] == []
    assert await put(client, named("a:1"), wrong, **LENIENT) == [(201, 1, 1), "validation-failed"]


async def test_a_deleted_movie_whose_external_id_comes_again_is_a_new_one(client: Client) -> None:
    """It has another id."""
    await put(client, named("a:1"))
    await client.delete("/v1/movies/1")
    assert await put(client, named("a:1")) == [(201, 2, 1)]


@pytest.mark.parametrize("processes", [1, 2])
async def test_of_several_creates_with_the_same_one_one_succeeds(
    start: Start, processes: int
) -> None:
    """The others get a 409 that names it; creates and puts between them succeed."""
    clients = [await start() for _ in range(processes)]
    requests = []
    for number in range(60):
        client = clients[number % processes]
        requests += [
            send(client, "POST", MOVIES, named(f"a:{number // 6}")),
            send(client, "POST", MOVIES, MOANA),
            send(client, "PUT", BATCH, {"movies": [named(f"b:{number}")]}),
        ]

    found = await asyncio.gather(*requests)

    creates = [status for status, _ in found[::3]]
    assert sorted(creates) == [201] * 10 + [409] * 50
    assert {status for status, _ in found[1::3] + found[2::3]} == {201, 200}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_batches_with_the_same_ones_do_not_stop_each_other(
    start: Start, execute: Execute, method: str
) -> None:
    """In two processes, and in another order: one has them, and the others are told."""
    clients = [await start(), await start()]
    numbers = range(1, 21)
    for turn in range(5):
        names = [f"{turn}:{number}" for number in numbers]
        bodies = []
        for _ in range(6):
            add_movies(execute, *names)
            ids = [i for (i,) in execute("select id from movies order by id desc limit 20")]
            entries = [
                {"id": i, "external_id": name} if method == "PATCH" else named(name)
                for i, name in zip(ids, names, strict=True)
            ]
            bodies.append({"movies": entries})
            names.reverse()

        found = await asyncio.gather(
            *(send(clients[n % 2], method, BATCH, body) for n, body in enumerate(bodies))
        )

        statuses = sorted(status for status, _ in found)
        assert statuses == (
            [200] * 6 if method == "PUT" else [201 - (method == "PATCH")] + [409] * 5
        )


async def test_what_waits_for_another_session_leaves_connections(
    start: Start, database: str
) -> None:
    """Whatever waits for its external id: requests with others succeed. A DBA has inserted it."""
    client = await start(database__statement_timeout=2)
    await put(client, *(named(f"c:{number}") for number in range(8)))
    body = {"movies": [named("a:1"), named("a:2")]}
    with hold(database, INSERT) as other:
        waiting = [
            asyncio.create_task(send(client, *request))
            for number in range(8)
            for request in (
                ("PUT", BATCH, body),
                ("PATCH", f"{MOVIES}/{number + 1}", {"external_id": "a:1"}),
                ("POST", MOVIES, named("a:1")),
            )
        ]
        await until(lambda: get_app(client)[POOL].size > get_app(client)[POOL].idle)
        others = await asyncio.gather(
            *(send(client, "POST", MOVIES, MOANA) for _ in range(8)),
            *(send(client, "PUT", BATCH, {"movies": [named(f"b:{n}")]}) for n in range(8)),
        )
        assert not any(task.done() for task in waiting)
        other.commit()
    found = await asyncio.gather(*waiting)

    assert {status for status, _ in others} == {200, 201}
    assert [status for status, _ in found] == [200, 409, 409] * 8


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [("PUT", BATCH, LENIENT), ("PUT", BATCH, {}), ("POST", MOVIES, {"Idempotency-Key": "{}"})],
)
async def test_many_that_wait_do_not_delay_others(  # noqa: PLR0913, PLR0917 - the cases
    start: Start, execute: Execute, database: str, method: str, path: str, headers: dict[str, str]
) -> None:
    """An import has many external ids that clients put meanwhile."""
    client = await start()
    names = [f"a:{number}" for number in range(24)]
    add_movies(execute, "x")

    async def write(name: str) -> None:
        body = {"movies": [named(name)]} if path == BATCH else named(name)
        own = {key: value.format(name) for key, value in headers.items()}
        await send(client, method, path, body, **own)

    with hold(database, "; ".join(INSERT.replace("a:1", name) for name in names)):
        waiting = [asyncio.create_task(write(name)) for name in names]
        await until(lambda: get_app(client)[POOL].size > get_app(client)[POOL].idle)
        for number in range(4):
            await write(f"b:{number}")
            status, _ = await send(client, "PATCH", f"{MOVIES}/1", {"year": 2000 + number})
            assert status == 200
        assert not any(task.done() for task in waiting)  # so they took less than 3 s
        for task in waiting:
            task.cancel()


async def test_a_put_waits_for_a_locked_movie(
    start: Start, database: str, execute: Execute
) -> None:
    """Then it is on top of the change of the other session."""
    client = await start()
    await put(client, named("a:1"))
    change = "update movies set genres = '{held}' where external_id = 'a:1'"
    year = 2016
    for headers in ({}, LENIENT):
        with hold(database, change) as other:
            year += 1
            waiting = asyncio.create_task(put(client, named("a:1", year=year), **headers))
            assert await put(client, named("a:2", year=2016)) != []
            other.commit()
        assert (await waiting)[0][0] == 200
    assert execute("select year, genres from movies where external_id = 'a:1'") == [
        (2018, MOANA["genres"])
    ]


async def test_an_external_id_that_a_trigger_sets_is_a_422(
    client: Client, execute: Execute
) -> None:
    """No entry is to blame; the error names the rule."""
    await put(client, named("a:1"))
    add_movies(execute, "b")
    add_trigger(execute, "new.external_id := 'a:1'; return new;", "before update")
    status, problem = await send(client, "PATCH", "/v1/movies/2", {"year": 2001})
    assert (status, problem["errors"][0]["pointer"]) == (422, "#/external_id")


async def test_a_repeat_gets_the_movie_that_its_key_has_created(start: Start) -> None:
    """Also if two processes get it at once: it is not taken by another movie."""
    clients = [await start(), await start()]
    for number in range(40):
        body, key = named(f"a:{number}"), {"Idempotency-Key": f"{number}"}
        found = await asyncio.gather(
            *(send(client, "POST", MOVIES, body, **key) for client in clients * 2)
        )
        assert {status for status, _ in found} == {201}
        assert len({answer["movie"]["id"] for _, answer in found}) == 1


async def test_a_create_with_a_key_waits_for_its_external_id(start: Start, database: str) -> None:
    """Another request that sets it holds its lock; the key is not in use."""
    client = await start(database__statement_timeout=0.3)
    lock = "select pg_advisory_xact_lock(hashtextextended('a:1', 3))"
    with hold(database, lock):
        for path, body in ((MOVIES, named("a:1")), (BATCH, {"movies": [named("a:1")]})):
            status, problem = await send(client, "POST", path, body, **{"Idempotency-Key": "a"})
            assert (status, problem["type"]) == (503, "/v1/docs#unavailable")
    status, _ = await send(client, "POST", MOVIES, named("a:1"), **{"Idempotency-Key": "a"})
    assert status == 201


async def test_texts_of_keys_imports_and_external_ids_are_apart(
    start: Start, database: str
) -> None:
    """Equal ones do not wait for each other, as an import may take hours."""
    client = await start(database__statement_timeout=0.3)
    queries = query_files.load(ROOT / "queries", EXPECTED)
    movie = {"position": 0, "title": "Held", "year": 2000, "runtime": 1, "genres": ["x"]}
    request = {"request": 0, "fingerprint": "f", "is_batch": False, "movies": [movie]}
    with transactions.begin(database, queries) as other:
        other.run("reserve_movie_ids", {"highest": 2_000_000})
        other.run("put_imported_movies", {"movies": json.dumps([movie | {"external_id": "i"}])})
        other.run("create_movies_once", {"requests": json.dumps([request | {"key": "held"}])})
        for text in ("reserve_movie_ids", "put_imported_movies", "held"):
            keys = {} if text == "held" else {"Idempotency-Key": text}
            status, body = await send(client, "POST", MOVIES, named(text), **keys)
            assert status == 201, body
            path = f"{MOVIES}/{body['movie']['id']}"
            for name in (None, text):  # to take it away, and to set it
                status, body = await send(client, "PATCH", path, {"external_id": name})
                assert status == 200, body


async def test_what_has_waited_for_a_lock_takes_turns(start: Start, database: str) -> None:
    """Of many batches that wait for a locked table, one uses a connection."""
    client = await start(database__statement_timeout=3)
    body = {"movies": [MOANA]}
    with hold(database, "lock table movies"):
        waiting = [asyncio.create_task(send(client, "POST", BATCH, body)) for _ in range(12)]
        pool, used = get_app(client)[POOL], list[int]()
        while not any(task.done() for task in waiting):
            used.append(pool.size - pool.idle)
            await asyncio.sleep(0.005)
        await asyncio.gather(*waiting)
    assert max(used[len(used) // 2 :]) == 1
