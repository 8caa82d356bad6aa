"""Tests that each field of a movie passes through every way in and out.

A new field needs its examples in tests/movie_examples.py. If a query or a format loses the field, a
test here fails.
"""

import json
import re
from pathlib import Path
from types import UnionType
from typing import Any, get_type_hints

import pytest
from conftest import ROOT, Client
from import_file import import_file
from movie_examples import ONE, OTHER
from support import Execute

from service.app import EXPECTED
from service.database import query_files
from service.movies import exporting
from service.movies.movie import COLUMN_TYPES, COLUMNS, FIELDS, Movie
from service.movies.rules import MOVIE, OPTIONAL

NOTHING = dict.fromkeys(OPTIONAL)
REQUIRED = {name: value for name, value in ONE.items() if name not in OPTIONAL}
MOVIES = "/v1/movies"
BATCH = "/v1/movies/batch"
KEY = {"Idempotency-Key": "a"}
LENIENT = {"Prefer": "handling=lenient"}


def test_each_field_has_examples() -> None:
    """Two that differ, in the order of the columns; clients may send all that are not read-only."""
    assert [*ONE] == [*OTHER] == [*MOVIE.fields] == [*FIELDS]
    assert not [name for name in ONE if ONE[name] == OTHER[name]]


async def request_json(
    client: Client, method: str, path: str, body: Any = None, **headers: str
) -> Any:
    """Return the body of a successful response."""
    response = await client.request(method, path, json=body, headers=headers)
    assert response.status in (200, 201, 207), await response.text()
    return await response.json()


def values(movie: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that clients send; the movie must have the others, too."""
    assert [*movie] == [*COLUMNS, "etag"]
    return {name: movie[name] for name in ONE}


@pytest.mark.parametrize("body", [ONE, REQUIRED | NOTHING], ids=["all fields", "required fields"])
async def test_creates_keep_each_field(
    client: Client, execute: Execute, body: dict[str, Any]
) -> None:
    """Alone and in batches, with a key and without, and when the request is repeated."""
    batch = {"movies": [body, OTHER]}

    for headers in ({}, KEY):
        found = [await request_json(client, "POST", MOVIES, body, **headers)]
        if headers:
            found.append(await request_json(client, "POST", MOVIES, body, **headers))
        assert [values(each["movie"]) for each in found] == [body] * len(found)
        execute("delete from movies")  # no two have the same external id
        for prefer in ({}, LENIENT):
            sent = prefer | ({"Idempotency-Key": f"b{len(prefer)}"} if headers else {})
            for _ in range(1 + len(headers)):
                answer = await request_json(client, "POST", BATCH, batch, **sent)
                movies = answer.get("movies") or [each["movie"] for each in answer["results"]]
                assert [values(movie) for movie in movies] == [body, OTHER]
            execute("delete from movies")


@pytest.mark.parametrize("field", FIELDS)
async def test_another_value_of_a_field_is_another_request(
    client: Client, execute: Execute, field: str
) -> None:
    """The fingerprint that is stored with a key is of all fields."""
    for path, wrap in ((MOVIES, lambda body: body), (BATCH, lambda body: {"movies": [body]})):
        await request_json(client, "POST", path, wrap(ONE), **KEY)
        changed = wrap(ONE | {field: OTHER[field]})
        execute("delete from movies")
        response = await client.post(path, json=changed, headers=KEY)
        assert response.status == 422
        assert (await response.json())["type"].endswith("#idempotency-key-reused")


async def test_a_field_that_is_null_or_missing_is_the_same_request(client: Client) -> None:
    """So a key works on across the release that adds an optional field."""
    first = await request_json(client, "POST", MOVIES, REQUIRED, **KEY)
    repeated = await request_json(client, "POST", MOVIES, REQUIRED | NOTHING, **KEY)

    assert first == repeated


@pytest.mark.parametrize("field", FIELDS)
async def test_a_patch_changes_one_field(client: Client, field: str) -> None:
    """It keeps the others; the version and the tag change with each field."""
    created = await client.post(MOVIES, json=ONE)
    patched = await client.patch("/v1/movies/1", json={field: OTHER[field]})
    movie = (await patched.json())["movie"]

    assert values(movie) == ONE | {field: OTHER[field]}
    assert movie["version"] == 2
    assert patched.headers["ETag"] != created.headers["ETag"]
    assert (await request_json(client, "GET", "/v1/movies/1"))["movie"] == movie


@pytest.mark.parametrize("field", FIELDS)
async def test_null_removes_an_optional_field_only(client: Client, field: str) -> None:
    """PATCH is a merge patch (RFC 7396); null in a required field is a 422 in every body."""
    await request_json(client, "POST", MOVIES, ONE)
    patched = await client.patch("/v1/movies/1", json={field: None})
    kept = (await request_json(client, "GET", "/v1/movies/1"))["movie"]

    if field in OPTIONAL:
        assert values((await patched.json())["movie"]) == values(kept) == ONE | {field: None}
        return
    refused = [patched]
    refused.append(await client.put("/v1/movies/1", json=ONE | {field: None}))
    refused.append(await client.post(MOVIES, json=ONE | {field: None}))
    assert values(kept) == ONE
    for response in refused:
        assert response.status == 422
        assert (await response.json())["errors"] == [
            {"pointer": f"#/{field}", "detail": "must not be null"}
        ]


@pytest.mark.parametrize("field", [name for name in FIELDS if name != "external_id"])
async def test_puts_by_external_id_change_each_field(
    client: Client, database: str, tmp_path: Path, field: str
) -> None:
    """In a batch, and in an import that updates."""
    path = tmp_path / "a.ndjson"
    await request_json(client, "PUT", BATCH, {"movies": [ONE]})
    changed = ONE | {field: OTHER[field]}
    (result,) = (await request_json(client, "PUT", BATCH, {"movies": [changed]}))["results"]
    path.write_text(json.dumps(ONE))
    import_file(database, path, tmp_path / "rejects", update=True)

    assert values(result["movie"]) == changed
    movie = (await request_json(client, "GET", "/v1/movies/1"))["movie"]
    assert (values(movie), movie["version"]) == (ONE, 3)


async def test_a_put_keeps_the_optional_fields_that_it_does_not_have(client: Client) -> None:
    """A client of an earlier release does not know them; one that does removes them with null."""
    created = (await request_json(client, "POST", MOVIES, ONE))["movie"]
    changed = (await request_json(client, "PUT", "/v1/movies/1", OTHER))["movie"]
    earlier = (await request_json(client, "PUT", "/v1/movies/1", REQUIRED))["movie"]
    by_name = {"movies": [{"external_id": OTHER["external_id"], **REQUIRED}]}
    (result,) = (await request_json(client, "PUT", BATCH, by_name))["results"]
    without = (await request_json(client, "PUT", "/v1/movies/1", REQUIRED | NOTHING))["movie"]

    assert values(changed) == OTHER
    assert (changed["version"], changed["created_at"]) == (2, created["created_at"])
    assert values(earlier) == OTHER | REQUIRED
    assert result == {"status": 200, "outcome": "equal", "movie": earlier}
    assert values(without) == REQUIRED | NOTHING


@pytest.mark.parametrize("body", [ONE, REQUIRED | NOTHING], ids=["all fields", "required fields"])
async def test_reads_have_each_field(client: Client, body: dict[str, Any]) -> None:
    """By id, in lists that sort or walk, in streams and the feed, and when it is deleted."""
    await request_json(client, "POST", MOVIES, body)
    ndjson = {"Accept": "application/x-ndjson"}

    found = [(await request_json(client, "GET", "/v1/movies/1"))["movie"]]
    for query in ("", "?id=1", "?sort=-year", "?year=1888..", "?page=1"):
        found += (await request_json(client, "GET", f"{MOVIES}{query}"))["movies"]
    for query in ("", "?id=1"):
        found.append(
            await (await client.get(f"{MOVIES}{query}", headers=ndjson)).json(content_type=None)
        )
    found.append((await request_json(client, "GET", "/v1/changes"))["changes"][0]["movie"])
    found.append((await request_json(client, "DELETE", "/v1/movies/1"))["movie"])

    assert [values(movie) for movie in found] == [body] * 10


@pytest.mark.parametrize("kind", ["ndjson", "json", "csv"])
async def test_files_keep_each_field(
    client: Client, database: str, execute: Execute, tmp_path: Path, kind: str
) -> None:
    """A movie is imported as it was exported, also without its read-only fields."""
    movies = [ONE, OTHER, REQUIRED | NOTHING]
    await request_json(client, "POST", BATCH, {"movies": movies})
    queries = query_files.load(ROOT / "queries", EXPECTED)
    path, again = tmp_path / f"a.{kind}", tmp_path / f"b.{kind}"
    exporting.export_movies(database, queries, str(path), kind)
    exported = (await request_json(client, "GET", f"{MOVIES}?sort=id"))["movies"]

    execute("delete from movies")
    import_file(database, path, tmp_path / "rejects")
    assert (await request_json(client, "GET", f"{MOVIES}?sort=id"))["movies"] == exported
    if kind == "ndjson":
        own = [{name: each[name] for name in MOVIE.fields} for each in exported]
        execute("delete from movies")
        again.write_text("".join(json.dumps(each) + "\n" for each in own))
        import_file(database, again, tmp_path / "rejects")
        everything = (await request_json(client, "GET", f"{MOVIES}?sort=id"))["movies"]
        assert [values(each) for each in everything] == movies


async def test_the_reference_has_each_field(client: Client) -> None:
    """In bodies and in responses, with an example; an optional one may be null."""
    schemas = (await request_json(client, "GET", "/v1/openapi.json"))["components"]["schemas"]

    assert [*schemas["Movie"]["properties"]] == [*COLUMNS, "etag"]
    assert sorted(schemas["Movie"]["required"]) == sorted((*COLUMNS, "etag"))
    assert sorted(schemas["MovieInput"]["required"]) == sorted(REQUIRED)
    assert "required" not in schemas["MoviePatch"]
    for name in ("Movie", "MovieInput", "MoviePatch"):
        for field in FIELDS:
            described = schemas[name]["properties"][field]
            assert described["description"], field
            assert described["examples"], field
            assert ("null" in described["type"]) == (field in OPTIONAL), field


def test_clients_read_of_each_field() -> None:
    """docs/clients/contract.md says which ones are optional; the clients to copy have all."""
    text = (ROOT / "docs/clients/contract.md").read_text()
    in_python = (ROOT / "clients/movies.py").read_text()
    in_javascript = (ROOT / "clients/movies.mjs").read_text()
    for field in FIELDS:
        assert f"| `{field}` | {'optional' if field in OPTIONAL else 'yes'} |" in text
        assert f"\n    {field}: " in in_python
        assert (
            f"{field}{'?' if field in OPTIONAL else ''}: "
            in in_javascript.partition("MovieInput")[0]
        )


TEXTS = [  # the runtime is a number in a text
    name
    for name, field in MOVIE.fields.items()
    if "string" in field.metadata["type"] and name != "runtime"
]


@pytest.mark.parametrize("field", TEXTS)
async def test_each_text_has_a_rule_of_the_service(client: Client, field: str) -> None:
    """What PostgreSQL cannot store, or what the JSON Schema of the reference refuses, is a 422."""
    shape = MOVIE.fields[field].metadata
    longest = "X" * shape["maxLength"] if "maxLength" in shape else OTHER[field]
    assert re.search(shape["pattern"], longest)
    assert not re.search(shape["pattern"], " ")
    await request_json(client, "POST", MOVIES, ONE | {field: longest})
    for text in ("", f"{longest}X", " " * len(longest), "xx\0", "xx\ud800"):
        response = await client.post(MOVIES, data=json.dumps(ONE | {field: text}))
        errors = (await response.json())["errors"]

        assert (response.status, {each["pointer"] for each in errors}) == (422, {f"#/{field}"})
        assert "the rule" not in errors[0]["detail"], "only the database refuses it"


def test_each_optional_field_may_be_null(execute: Execute) -> None:
    """The columns, the hints of `Movie` and the rules say the same; no column has a default."""
    rows = execute(
        "select a.attname, a.attnotnull, d.adbin is not null and a.attname = any (%s)"
        " from pg_attribute as a"
        " left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum"
        " where a.attrelid = 'movies'::regclass and a.attnum > 0 and not a.attisdropped"
        " and a.attname = any (%s)",
        [*FIELDS],
        [*COLUMN_TYPES],
    )
    hints = get_type_hints(Movie)

    assert {name for name, is_required, _ in rows if not is_required} == set(OPTIONAL)
    assert {name for name in FIELDS if isinstance(hints[name], UnionType)} == set(OPTIONAL)
    assert not [name for name, _, has_default in rows if has_default]
