"""Several movies in one request: GET /v1/movies?id=1,2,3, /v1/movies/batch and its deletions."""

import asyncio
import json
import time
from typing import Any

import pytest
from batches import BAD_YEAR, BATCH, DELETE, LENIENT, name, send_batch, titles
from conftest import MOANA, Client, Start
from structlog.testing import capture_logs
from support import (
    Execute,
    Logs,
    Patch,
    add_movies,
    add_trigger,
    hold,
    movie_tag,
    until,
)
from wire import exchange

from service.database import MAX_BIGINT
from service.database.store import Store
from service.errors import KeyInUse, Refusal, Unavailable
from service.movies import entries as loading
from service.movies.movie import FIELDS
from service.movies.rules import MIN_YEAR, MOVIE
from service.web.fields import load_fields

PATCHES = ("PATCH", BATCH), ("POST", DELETE)
COUNT = "select count(*) from movies"
TOO_EARLY = f"must be {MIN_YEAR} or later"


def errors(problem: dict[str, Any]) -> dict[str, str]:
    """Return the details by pointer or parameter."""
    return {
        error.get("pointer", error.get("parameter")): error["detail"] for error in problem["errors"]
    }


async def test_movies_by_id_come_in_the_order_of_the_request(
    client: Client, execute: Execute
) -> None:
    """Also twice; the missing ones are named once, and the page has the shape of every list."""
    add_movies(execute, "a", "b", "c")

    path = "/v1/movies?id=3,9,1,3,9,9223372036854775807"
    response = await client.get(path)
    page = await response.json()
    tag = response.headers["ETag"]
    again = await client.get(path, headers={"If-None-Match": tag})
    head = await client.head(path)

    assert titles(page["movies"]) == ["c", "a", "c"]
    assert page["metadata"] == {
        "page_size": 100,
        "total_records": 3,
        "total_is_estimate": False,
        "next_cursor": None,
        "previous_cursor": None,
        "missing_ids": [9, MAX_BIGINT],
    }
    assert page["movies"][1] == (await (await client.get("/v1/movies/1")).json())["movie"]
    assert response.headers["Link"].startswith("</v1/movies?id=3,9")
    assert (again.status, head.status, head.headers["ETag"]) == (304, 200, tag)


async def test_movies_by_id_come_as_csv_or_ndjson(start: Start, execute: Execute) -> None:
    """As in a stream, but also to HTTP/1.0: the response says how long it is. Or all as JSON."""
    add_movies(execute, "a", "b", "c")
    client, without_streams = await start(), await start(server__max_streams=0)
    csv, path = {"Accept": "text/csv"}, "/v1/movies?id=3&id=9&id=1"

    listed = await client.get(path, headers=csv)
    lines = await client.get(path, headers={"Accept": "application/x-ndjson"})
    tag = {"If-None-Match": listed.headers["ETag"]}
    same, other = await client.get(path, headers=csv | tag), await client.get(path, headers=tag)
    head = await client.head(path, headers=csv)
    wrong = await client.get(f"{path}&sort=id", headers=csv)
    _, _, old = await exchange(client, f"GET {path} HTTP/1.0\r\nAccept: text/csv\r\n\r\n".encode())
    off = await without_streams.get(path, headers=csv)

    assert listed.headers["Content-Type"] == head.headers["Content-Type"]
    assert listed.content_type == "text/csv"
    assert ", ".join(listed.headers.getall("Vary")) == "Accept, Accept-Encoding"
    assert [row[:3] for row in (await listed.text()).splitlines()] == ["id,", "3,c", "1,a"]
    assert titles([json.loads(line) for line in (await lines.text()).splitlines()]) == ["c", "a"]
    assert (same.status, other.status, wrong.status) == (304, 200, 422)
    assert old == await listed.read()
    assert off.content_type == "application/json"


async def test_a_hundred_movies_by_id_are_one_statement(start: Start, execute: Execute) -> None:
    """One more id is a 422."""
    client = await start(log__slow_statement=1e-9)  # each statement is logged
    add_movies(execute, *map(str, range(100)))
    ids = ",".join(map(str, range(1, 101)))

    with capture_logs() as logged:
        page = await (await client.get(f"/v1/movies?id={ids}")).json()
    more = await client.get(f"/v1/movies?id={ids},101")

    assert titles(page["movies"]) == [*map(str, range(100))]
    assert page["metadata"]["missing_ids"] == []
    assert [line["query"] for line in logged if "query" in line] == ["get_movies"]
    assert more.status == 422


WRONG_IDS = ["", "-", "0", "01", "-1", "%2B1", "1,+2", "a", "%D9%A3", "1.0", "%00", ",", "1,", ",1"]
WRONG_IDS += ["1,,2", "1;2", "1&id=", "1&id=x", "1" * 5000, str(MAX_BIGINT + 1)]


async def test_wrong_ids_are_named(client: Client) -> None:
    """422 with the parameter, and what is expected."""
    for ids in WRONG_IDS:
        response = await client.get(f"/v1/movies?id={ids}")
        problem = await response.json()

        assert response.status == 422, ids
        assert list(errors(problem)) == ["id"], ids
        assert "1 to 100 ids, separated by commas" in errors(problem)["id"]


async def test_ids_are_not_combined_with_anything(client: Client) -> None:
    """422."""
    for other in ("sort=id", "page_size=3", "page=1", "title=a", "genres_any=x", "year=1990"):
        response = await client.get(f"/v1/movies?{other}&id=1")

        assert response.status == 422
        expected = f"must not be combined with {other.partition('=')[0]}"
        assert errors(await response.json()) == {"id": expected}


async def test_a_batch_creates_all_movies_in_one_statement(start: Start, execute: Execute) -> None:
    """A hundred movies, also equal ones; the response has them in the order of the request."""
    client = await start(log__slow_statement=1e-9)  # each statement is logged
    sent = name(*(f"{number % 50}: é" for number in range(100)))

    with capture_logs() as logged:
        response = await client.post(BATCH, json={"movies": sent})
    body = await response.json()

    assert response.status == 201
    assert "Location" not in response.headers
    assert list(body) == ["movies"]
    assert titles(body["movies"]) == titles(sent)
    assert [line["query"] for line in logged if "query" in line] == ["create_movies"]
    assert body["movies"][7] == (await (await client.get("/v1/movies/8")).json())["movie"]
    assert execute(COUNT) == [(100,)]


async def test_a_hundred_of_the_largest_movies_fit(client: Client) -> None:
    """With titles and genres of the largest size, in escapes, and with an unusual layout."""
    genres = [letter * 100 for letter in "abcde"]
    sent = [{**MOANA, "title": "é" * 250, "genres": genres}] * 100

    response = await client.post(BATCH, data=json.dumps({"movies": sent}, indent=4))

    assert response.status == 201


async def test_every_mistake_of_a_batch_is_reported(client: Client, execute: Execute) -> None:
    """With its movie, and nothing is created; 422 if all movies can be read."""
    sent = [MOANA, {**MOANA, "year": 1800, "genres": ["a", "a"]}, MOANA, {"title": ""}]

    status, problem, _ = await send_batch(client, sent)

    assert (status, problem["type"]) == (422, "/v1/docs#validation-failed")
    assert problem["detail"] == "the request breaks a rule of the catalogue; see errors"
    assert errors(problem) == {
        "#/movies/1/year": TOO_EARLY,
        "#/movies/1/genres/1": "must not be repeated",
        "#/movies/3/title": "must not be blank",
        "#/movies/3/year": "is required",
        "#/movies/3/runtime": "is required",
        "#/movies/3/genres": "is required",
    }
    assert execute(COUNT) == [(0,)]


async def test_a_batch_that_cannot_be_read_is_a_400_with_every_mistake(client: Client) -> None:
    """Unknown fields of the batch and of movies, wrong types, and broken rules."""
    sent = [{**MOANA, "title": ""}, 7, {**MOANA, "year": "1"}, {**MOANA, "a/b~": 1}, None, []]

    response = await client.post(BATCH, json={"films": 1, "id": 2, "movies": sent})
    problem = await response.json()

    assert response.status == 400
    unknown = 'unknown field "films"; a batch has movies'
    assert problem["detail"] == f"{unknown} (see errors for more mistakes)"
    assert errors(problem) == {
        "#/films": unknown,
        "#/id": 'unknown field "id"; a batch has movies',
        "#/movies/0/title": "must not be blank",
        "#/movies/1": "must be an object, found an integer",
        "#/movies/2/year": "must be an integer, found a string",
        "#/movies/3/a~1b~0": f'unknown field "a/b~"; a movie has {", ".join(FIELDS)}',
        "#/movies/4": "must be an object, found null",
        "#/movies/5": "must be an object, found an array",
    }


async def test_the_detail_of_a_400_names_the_movie(client: Client) -> None:
    """The first one that cannot be read."""
    _, one, _ = await send_batch(client, [MOANA, {**MOANA, "year": "1"}])
    _, more, _ = await send_batch(client, [BAD_YEAR, {**MOANA, "year": "1", "genres": 2}])

    expected = 'movies/1: "year" must be an integer, found a string'
    assert one["detail"] == expected
    assert more["detail"] == f"{expected} (see errors for more mistakes)"


WHOLE: list[tuple[bytes, int, list[str]]] = [
    (b"[]", 400, []),
    (b"{}", 422, ["#/movies"]),
    (b'{"movies": null}', 422, ["#/movies"]),
    (b'{"movies": []}', 422, ["#/movies"]),
    (b'{"movies": {}}', 400, ["#/movies"]),
    (b'{"movies": "x"}', 400, ["#/movies"]),
    (json.dumps({"movies": [MOANA] * 101}).encode(), 422, ["#/movies"]),
    (json.dumps({"movies": [MOANA], "more": 1}).encode(), 400, ["#/more"]),
    (json.dumps(MOANA).encode(), 400, [*(f"#/{field}" for field in MOANA), "#/movies"]),
    (b'{"movies": [' + b"[" * 1999 + b"]" * 1999 + b"]}", 400, []),
    (b'{"movies": [' + b"{}," * 1900 + b"{}]}", 422, ["#/movies"]),
    (b'{"movies": [' + b"1," * 19_000 + b"1]}", 422, ["#/movies"]),
]


@pytest.mark.parametrize("headers", [{}, LENIENT], ids=["strict", "lenient"])
async def test_a_batch_reports_at_most_500_mistakes(
    client: Client, headers: dict[str, str]
) -> None:
    """At least one of each movie; otherwise the response to a small body could have megabytes."""
    sent = [{**MOANA, "genres": [" "] * 100}] * 49 + [BAD_YEAR]

    _, answer, body = await send_batch(client, sent, **headers)

    problems = [result["problem"] for result in answer.get("results", [{"problem": answer}])]
    reported = [error["pointer"] for problem in problems for error in problem["errors"]]
    assert len(reported) == 500
    assert reported[-1].endswith("/year")
    assert len(problems) == 1 or min(len(problem["errors"]) for problem in problems) == 1
    assert len(body) < 150_000


@pytest.mark.parametrize("headers", [{}, LENIENT], ids=["strict", "lenient"])
async def test_other_requests_have_their_turn_between_the_movies_of_batches(
    client: Client, monkeypatch: Patch, headers: dict[str, str]
) -> None:
    """However many batches there are; here, each movie takes as long as a turn may."""
    turn, turns = 0, list[int]()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def load(schema: Any, row: Any, **options: Any) -> Any:
        if schema is MOVIE:
            turns.append(turn)
        return load_fields(schema, row, **options)

    monkeypatch.setattr(loading, "load_fields", load)
    monkeypatch.setattr(loading, "SLICE_S", 0)
    counting = asyncio.create_task(count_turns())
    await asyncio.gather(*(send_batch(client, [BAD_YEAR] * 20, **headers) for _ in range(3)))
    counting.cancel()

    assert len(turns) == len(set(turns)) == 60


@pytest.mark.parametrize("headers", [{}, LENIENT], ids=["strict", "lenient"])
async def test_a_wrong_batch_fails_as_a_whole(
    client: Client, execute: Execute, headers: dict[str, str]
) -> None:
    """Also a lenient one, if it is no batch of 1 to 100 movies."""
    for body, status, pointers in WHOLE:
        response = await client.post(BATCH, data=body, headers=headers)
        problem = await response.json()

        assert response.status == status, body[:50]
        assert [error["pointer"] for error in problem.get("errors", [])] == pointers, body[:50]
        assert "Preference-Applied" not in response.headers
    assert execute(COUNT) == [(0,)]


async def test_a_rule_of_the_database_fails_the_whole_batch(
    client: Client, execute: Execute
) -> None:
    """It is named; PostgreSQL does not say which movie breaks it. The key stays unused."""
    execute("alter table movies add constraint movies_year_no_1999 check (year <> 1999)")
    sent = [MOANA, {**MOANA, "year": 1999}]

    for headers in ({}, {"idempotency_key": "a"}):
        status, problem, _ = await send_batch(client, sent, **headers)
        assert status == 422
        assert errors(problem) == {"#/movies": "breaks the rule movies_year_no_1999"}
    assert execute(COUNT) == [(0,)]
    assert execute("select * from idempotency_keys") == []


async def test_a_batch_waits_for_a_locked_table(
    client: Client, execute: Execute, database: str
) -> None:
    """As a single create does, until `statement_timeout`: no other request shares its statement."""
    waits = "select 1 from pg_locks where relation = 'movies'::regclass and not granted"
    with hold(database, "lock table movies in share mode") as other:
        sent = asyncio.create_task(send_batch(client, [MOANA] * 2))
        await until(lambda: asyncio.to_thread(execute, waits))
        # Longer than the lock_timeout of shared statements.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(sent), 0.5)
        other.rollback()
        status, _, _ = await sent

    assert status == 201


async def test_a_trigger_that_drops_a_movie_is_an_error(
    client: Client, execute: Execute, logs: Logs
) -> None:
    """The response would lack a movie; a key is not stored."""
    add_trigger(execute, "return case when new.year <> 2000 then new end;")

    for headers in ({}, {"idempotency_key": "a"}):
        status, _, _ = await send_batch(client, [MOANA, {**MOANA, "year": 2000}], **headers)
        assert status == 500
    failed = [line["query"] for line in logs if line["event"] == "statement failed"]
    assert failed == ["create_movies", "create_movies_once"]
    assert execute("select * from idempotency_keys") == []


async def test_a_lenient_batch_creates_each_movie_for_itself(
    client: Client, execute: Execute
) -> None:
    """In the order of the request: the movie, or the problem that a POST would get."""
    execute("alter table movies add constraint movies_year_no_1999 check (year <> 1999)")
    sent = [MOANA, BAD_YEAR, {**MOANA, "titel": "x"}, 7, {**MOANA, "year": 1999}, MOANA]

    response = await client.post(BATCH, json={"movies": sent}, headers=LENIENT)
    body = await response.json()
    single = await (await client.post("/v1/movies", json=BAD_YEAR)).json()

    assert (response.status, response.headers["Preference-Applied"]) == (207, "handling=lenient")
    results = body["results"]
    assert [result["status"] for result in results] == [201, 422, 400, 400, 422, 201]
    assert [sorted(result) for result in results[:2]] == [
        ["movie", "outcome", "status"],
        ["problem", "status"],
    ]
    movie = results[0]["movie"]
    assert movie == (await (await client.get(f"/v1/movies/{movie['id']}")).json())["movie"]
    assert results[1]["problem"] == {
        **single,
        "instance": BATCH,
        "request_id": response.headers["X-Request-Id"],
    }
    assert errors(results[2]["problem"]).keys() == {"#/titel"}
    assert errors(results[3]["problem"]) == {"#": "must be an object, found an integer"}
    assert errors(results[4]["problem"]) == {"#/year": "breaks the rule movies_year_no_1999"}
    assert execute(COUNT) == [(2,)]


PREFER: list[tuple[list[str], bool]] = [
    (["handling=lenient"], True),
    (["Handling = Lenient"], True),
    (['handling="lenient"'], True),
    (["respond-async, handling=lenient;x=y, wait=10"], True),
    (["respond-async", "handling=lenient"], True),
    (['a="x\\",y", handling=lenient'], True),
    (["handling=strict"], False),
    (["handling=strict, handling=lenient"], False),
    (["handling=lenient, handling=strict"], True),
    (["a;handling=lenient"], False),
    (["handling=lenientish"], False),
    (["handling"], False),
    (["lenient"], False),
    ([""], False),
    (['",,=;"' + "," * 500], False),
    (["\xff=\xe9"], False),
]


async def test_the_preference_is_read_as_rfc_7240_says(client: Client) -> None:
    """Regardless of case, in any line, with parameters and quotes; the first `handling` counts."""
    for lines, is_lenient in PREFER:
        headers = [("Prefer", line) for line in lines]

        response = await client.post(BATCH, json={"movies": [MOANA]}, headers=headers)

        assert response.status == (207 if is_lenient else 201), lines
        assert ("Preference-Applied" in response.headers) == is_lenient, lines


async def test_a_hostile_preference_is_read_at_once(client: Client) -> None:
    """Strings that do not end: each quotation mark must not search the rest of the header."""
    headers = [("Prefer", '"x' + '\\"' * 3900)] * 4
    started = time.monotonic()

    response = await client.post(BATCH, json={"movies": [MOANA]}, headers=headers)

    assert response.status == 201
    assert time.monotonic() - started < 3  # 0.02 s, or some 15 s if it searches again and again


async def test_failures_of_the_service_are_results_of_their_movies(
    client: Client, monkeypatch: Patch
) -> None:
    """An unexpected one is a 500 and logged, an overload a 503; the other movies are created."""
    create = Store.create

    async def fail(self: Any, fields: Any, context: Any) -> Any:
        if fields["title"] == "bug":
            raise ZeroDivisionError("secret")
        if fields["title"] == "busy":
            raise Unavailable("secret", Refusal.QUEUE_FULL)
        if fields["title"] == "in use":
            raise KeyInUse("a")
        return await create(self, fields, context)

    monkeypatch.setattr(Store, "create", fail)

    with capture_logs() as logged:
        status, body, raw = await send_batch(client, name("a", "bug", "busy", "b"), **LENIENT)
    for title in ("busy", "in use"):
        repeatable = await client.post(BATCH, json={"movies": name("a", title)}, headers=LENIENT)
        assert repeatable.headers["Retry-After"] == "1", title
    final = await client.post(BATCH, json={"movies": name("bug")}, headers=LENIENT)

    assert "Retry-After" not in final.headers
    assert status == 207
    assert [result["status"] for result in body["results"]] == [201, 500, 503, 201]
    assert b"secret" not in raw
    failed, line = logged
    assert (failed["event"], failed["path"]) == ("request failed", BATCH)
    assert isinstance(failed["exc_info"], ZeroDivisionError)
    assert (line["status"], line["reason"]) == (207, "secret")


# Changes and deletions.


async def test_a_batch_changes_all_movies(client: Client, execute: Execute) -> None:
    """Each only as it says; the response has them in the order of the request."""
    add_movies(execute, "a", "b", "c")
    entries = [
        {"id": 3, "etag": movie_tag(1, 3), "genres": ["y"]},
        {"id": 1, "year": 2001},
        {"id": 2},
    ]

    status, body, _ = await send_batch(client, entries, "PATCH", BATCH)

    assert status == 200
    assert [(m["id"], m["year"], m["genres"], m["version"]) for m in body["movies"]] == [
        (3, 2000, ["y"], 2),
        (1, 2001, ["x"], 2),
        (2, 2000, ["x"], 1),
    ]
    assert [m["etag"] for m in body["movies"]] == [
        movie_tag(version, movie_id) for movie_id, version in ((3, 2), (1, 2), (2, 1))
    ]


async def test_a_batch_deletes_all_movies(client: Client, execute: Execute) -> None:
    """The response has them as they were."""
    add_movies(execute, "a", "b", "c")
    status, body, _ = await send_batch(
        client, [{"id": 3, "etag": movie_tag(1, 3)}, {"id": 1}], "POST", DELETE
    )
    assert (status, [movie["title"] for movie in body["movies"]]) == (200, ["c", "a"])
    assert execute("select title from movies") == [("b",)]


@pytest.mark.parametrize(("method", "path"), PATCHES)
async def test_one_that_fails_stops_all(
    client: Client, execute: Execute, method: str, path: str
) -> None:
    """The errors name each entry that fails; the status is the first one's."""
    add_movies(execute, "a", "b", "c")
    change = {"genres": ["y"]} if method == "PATCH" else {}
    entries = [
        {"id": 1, **change},
        {"id": 2, "etag": movie_tag(9, 2), **change},
        {"id": 99, **change},
        {"id": 3, "etag": movie_tag(1, 1), **change},  # of another movie
    ]

    status, problem, _ = await send_batch(client, entries, method, path)
    lenient, body, _ = await send_batch(client, entries, method, path, **LENIENT)

    assert (status, problem["type"]) == (412, "/v1/docs#precondition-failed")
    assert [error["pointer"] for error in problem["errors"]] == [
        *("#/movies/1", "#/movies/2", "#/movies/3")
    ]
    assert (lenient, [each["status"] for each in body["results"]]) == (207, [200, 412, 404, 412])
    left = {"PATCH": [("a", 2), ("b", 1), ("c", 1)], "POST": [("b", 1), ("c", 1)]}
    assert execute("select title, version from movies order by id") == left[method]


async def test_results_say_what_became_of_each_movie(client: Client, execute: Execute) -> None:
    """`equal` exactly if its version stays: it has the fields, or a trigger undoes the change."""
    sent = {"id": 1, "etag": movie_tag(), "year": 1999}
    undo = "if new.year = 1990 then new.year := old.year; end if; return new;"
    add_trigger(execute, undo, "before update")
    key = {"idempotency_key": "a"}
    requests: list[tuple[str, str, dict[str, Any], dict[str, str], str]] = [
        ("POST", BATCH, MOANA | {"external_id": "a:1"}, key, "created"),
        ("POST", BATCH, MOANA | {"external_id": "a:1"}, key, "created"),
        ("PATCH", BATCH, sent, {}, "changed"),
        ("PATCH", BATCH, sent, {}, "equal"),
        ("PATCH", BATCH, {"id": 1, "genres": MOANA["genres"]}, {}, "equal"),
        ("PATCH", BATCH, {"id": 1}, {}, "equal"),
        ("PATCH", BATCH, {"id": 1, "year": 1990}, {}, "equal"),
        ("PUT", BATCH, MOANA | {"external_id": "a:1", "year": 1990}, {}, "equal"),
        ("PUT", BATCH, MOANA | {"external_id": "a:1"}, {}, "changed"),
        ("PUT", BATCH, MOANA | {"external_id": "a:2"}, {}, "created"),
        ("POST", DELETE, {"id": 1}, {}, "deleted"),
    ]
    changes = 0
    for method, path, entry, headers, expected in requests:
        _, body, _ = await send_batch(client, [entry], method, path, **LENIENT, **headers)
        (result,) = body["results"]
        assert result["outcome"] == expected, entry
        before, changes = changes, execute("select count(*) from movie_changes")[0][0]
        assert (changes > before) == (expected != "equal" and "replayed" not in result)
    [(written_by,)] = execute("select xmin::text from movies")
    await send_batch(client, [{"id": 2, "year": MOANA["year"]}], "PATCH", BATCH)
    assert execute("select xmin::text from movies") == [(written_by,)]


WRONG: list[tuple[list[dict[str, Any]], int, str]] = [
    ([{"id": 1}, {"id": 2}, {"id": 1}], 422, "#/movies/2/id"),
    ([{"id": 0}], 422, "#/movies/0/id"),
    ([{"id": "1"}], 400, "#/movies/0/id"),
    ([{}], 422, "#/movies/0/id"),
    ([{"id": 1, "etag": "1-1"}], 400, "#/movies/0/etag"),
    ([{"id": 1, "etag": f'"{99 * "1"}"'}], 400, "#/movies/0/etag"),
    ([{"id": 1, "etag": None}], 400, "#/movies/0/etag"),
    ([{"id": MAX_BIGINT}], 404, "#/movies/0"),
    ([{"id": 10**18}], 404, "#/movies/0"),
    ([{"id": MAX_BIGINT + 1}], 400, "#/movies/0/id"),
    ([{"id": -MAX_BIGINT}], 422, "#/movies/0/id"),
    ([{"id": 1, "version": 1}], 400, "#/movies/0/version"),
    ([], 422, "#/movies"),
    ([{"id": n} for n in range(1, 102)], 422, "#/movies"),
]


@pytest.mark.parametrize(("method", "path"), PATCHES)
async def test_a_wrong_batch_is_refused(
    client: Client, execute: Execute, method: str, path: str
) -> None:
    """With the place of its mistake."""
    add_movies(execute, "a", "b")
    for entries, status, pointer in WRONG:
        found, problem, _ = await send_batch(client, entries, method, path)
        assert (found, problem["errors"][0]["pointer"]) == (status, pointer)
    assert execute("select count(*) from movies where version = 1") == [(2,)]


async def test_a_rule_of_the_database_stops_all(client: Client, execute: Execute) -> None:
    """PostgreSQL does not say which movie it refuses."""
    add_movies(execute, "a", "b")
    execute("alter table movies add constraint movies_year_known check (year < 2010)")
    entries = [{"id": 1, "year": 2005}, {"id": 2, "year": 2015}]
    status, problem, _ = await send_batch(client, entries, "PATCH", BATCH)
    assert (status, problem["errors"][0]["pointer"]) == (422, "#/movies")
    assert execute("select count(*) from movies where version = 1") == [(2,)]


@pytest.mark.parametrize(("method", "path"), PATCHES)
async def test_a_batch_waits_for_locked_movies(
    start: Start, database: str, execute: Execute, method: str, path: str
) -> None:
    """Then it sees the change of the other session: its etag is an old one."""
    client = await start()
    add_movies(execute, "a", "b")
    change = {"year": 1999} if method == "PATCH" else {}
    entries = [{"id": 1, "etag": movie_tag(1, 1), **change}, {"id": 2}]
    with hold(database, "update movies set year = 2001 where id = 1") as other:
        waiting = asyncio.create_task(send_batch(client, entries, method, path))
        for _ in range(3):
            await client.get("/v1/movies/2")  # other requests go on
        assert not waiting.done()
        other.commit()

    status, problem, _ = await waiting

    assert (status, problem["errors"][0]["pointer"]) == (412, "#/movies/0")
    assert execute("select title, year from movies order by id") == [("a", 2001), ("b", 2000)]


async def test_a_deployment_may_require_etags(start: Start, execute: Execute) -> None:
    """As it requires If-Match of single changes; a put needs none."""
    client = await start(server__require_if_match=True)
    add_movies(execute, "a")
    for method, path in PATCHES:
        status, problem, _ = await send_batch(client, [{"id": 1}], method, path)
        assert (status, problem["type"]) == (428, "/v1/docs#precondition-required")
    movie = {"title": "a", "year": 2000, "runtime": "1 mins", "genres": ["x"], "external_id": "a"}
    assert (await send_batch(client, [movie], "PUT", BATCH))[0] == 200
