"""Tests GET /v1/movies: parameters, cursors, page numbers, metadata and links.

tests/movies/test_lists_model.py compares filters, orders, walks and totals with a model.
"""

import string
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg2.errors
import pytest
from conftest import MOANA, Client
from support import Execute, Patch, add_movies
from wire import exchange
from yarl import URL

from service.database import MAX_BIGINT, MAX_INTEGER
from service.database.listing import Place, SortKey
from service.movies import parameters
from service.movies.parameters import SORT_TYPES, Filter
from service.web import pages

MOVIES = [
    ("Amélie", 2001, 122, ["comedy", "romance"]),
    ("Casablanca", 1942, 102, ["drama", "romance", "war"]),
    ("Face/Off", 1997, 138, ["action"]),
    ("Spider-Man: Far from Home", 2019, 129, ["action", "sci-fi"]),
    ("Крылья", 1966, 85, ["drama"]),
    ("The Man from Nowhere", 2010, 119, ["action", "drama"]),
    ("Moana", 2016, 107, ["animation"]),
    ("8½", 1963, 138, ["drama"]),
]
INSERT = "insert into movies (title, year, runtime, genres) values (%s, %s, %s, %s)"


@pytest.fixture
def catalogue(execute: Execute) -> None:
    """Insert `MOVIES`, with ids from 1."""
    for movie in MOVIES:
        execute(INSERT, *movie)


async def listed(client: Client, **parameters: Any) -> dict[str, Any]:
    """Request a page and return its body."""
    response = await client.get("/v1/movies", params=parameters)
    assert response.status == 200, await response.text()
    return dict(await response.json())


def ids(page: dict[str, Any]) -> list[int]:
    """Return the ids of a page's movies."""
    return [movie["id"] for movie in page["movies"]]


async def titles(client: Client, **parameters: Any) -> list[str]:
    """Return the titles of a page."""
    return [movie["title"] for movie in (await listed(client, **parameters))["movies"]]


async def refused(client: Client, query: str) -> list[tuple[str, str]]:
    """Return the invalid parameters of a query string, each with its detail."""
    response = await client.get(URL(f"/v1/movies?{query}", encoded=True))
    body = await response.json()
    assert (response.status, body["status"]) == (422, 422)
    assert response.headers["Content-Type"] == "application/problem+json"
    return [(error["parameter"], error["detail"]) for error in body["errors"]]


async def test_a_page_is_movies_and_metadata(client: Client, execute: Execute) -> None:
    """Without parameters, it has the first twenty movies by id, and the total; or none."""
    empty = await listed(client, page=1)
    for movie in MOVIES:
        execute(INSERT, *movie)
    body = await listed(client)

    assert empty["movies"] == []
    assert (empty["metadata"]["total_records"], empty["metadata"]["last_page"]) == (0, 1)
    assert ids(body) == list(range(1, 9))
    assert body["movies"][0] == (await (await client.get("/v1/movies/1")).json())["movie"]
    assert body["metadata"] == {
        "page_size": 20,
        "total_records": 8,
        "total_is_estimate": False,
        "next_cursor": None,
        "previous_cursor": None,
    }


async def test_a_genre_is_found_whatever_its_characters(client: Client, execute: Execute) -> None:
    """A genre is compared as a whole."""
    for genre in ("it's", "a\\b", "x & y", "C:*", "r&b | soul", "日本"):
        execute(INSERT, genre, 2000, 1, [genre])

        for name in ("genres", "genres_any"):
            assert await titles(client, **{name: genre}) == [genre]
            assert await titles(client, **{name: genre + "z"}) == []


@pytest.fixture
def timed(execute: Execute) -> None:
    """Insert six movies: two of each created_at, three of each updated_at."""
    execute(
        "insert into movies (title, year, runtime, genres, created_at, updated_at)"
        " select 'x', 2000, 1, '{a}', '2026-01-05 09:00Z'::timestamptz + n / 2 * interval '1 us',"
        " '2026-01-05 09:00Z'::timestamptz - n % 2 * interval '1 hour'"
        " from generate_series(0, 5) as n"
    )


FOUND_BY_TIMES = {
    "created_at=2026-01-05T09:00:00Z": [1, 2],
    "created_at=2026-01-05t09:00:00.0z": [1, 2],
    "created_at=2026-01-05T10:30:00%2B01:30": [1, 2],
    "created_at=2026-01-04T21:00:00.000002-12:00": [5, 6],
    "created_at=2026-01-05T09:00:00.000001Z..": [3, 4, 5, 6],
    "created_at=..2026-01-05T09:00:00.000001Z": [1, 2, 3, 4],
    "created_at=2026-01-05T09:00:00.000001Z..2026-01-05T10:00:00.000002%2b01:00": [3, 4, 5, 6],
    "created_at=2026-01-05T09:00:00.000003Z..": [],
    "created_at=0001-01-01T00:00:00Z..9999-12-31T23:59:59.999999Z": [1, 2, 3, 4, 5, 6],
    "created_at=2026-01-05": [1, 2, 3, 4, 5, 6],
    "created_at=..2026-01-05": [1, 2, 3, 4, 5, 6],
    "created_at=2026-01-05..2026-01-05T09:00:00Z": [1, 2],
    "created_at=2026-01-06": [],
    "created_at=2026-01-06..": [],
    "created_at=..2026-01-04": [],
    "updated_at=2026-01-05T08:00:00Z": [2, 4, 6],
    "updated_at=2026-01-05T08:00:00.1Z..": [1, 3, 5],
    "updated_at=..2026-01-05T08:00:00Z": [2, 4, 6],
    "updated_at=2026-01-05T08:00:00Z&created_at=2026-01-05T09:00:00Z&year=2000": [2],
}


@pytest.mark.usefixtures("timed")
async def test_a_range_of_times_includes_both_ends(client: Client) -> None:
    """With Z or an offset, and a fraction of a second; a day alone is the whole day of UTC."""
    found = {
        query: ids(await listed(client, **URL(f"?{query}", encoded=True).query))
        for query in FOUND_BY_TIMES
    }

    assert found == FOUND_BY_TIMES


@pytest.mark.usefixtures("timed")
async def test_a_cursor_holds_for_the_same_times_in_another_form(client: Client) -> None:
    """The filter is the time, and not its text."""
    query = {"created_at": "2026-01-05T09:00:00Z..", "page_size": 5}
    cursor = (await listed(client, **query))["metadata"]["next_cursor"]

    query["created_at"] = "2026-01-05t10:00:00.0+01:00.."
    assert ids(await listed(client, cursor=cursor, **query)) == [6]


@pytest.mark.parametrize("sort", ["id", "-year", "created_at"])
@pytest.mark.usefixtures("catalogue")
async def test_a_page_whose_movies_are_gone_leads_back(
    client: Client, execute: Execute, sort: str
) -> None:
    """If all movies after a cursor are deleted, previous has the movie before it."""
    first = await listed(client, sort=sort, page_size=3)
    cursor = first["metadata"]["next_cursor"]
    kept = ids(first)
    execute("delete from movies where id <> all (%s)", kept)

    empty = await listed(client, sort=sort, page_size=3, cursor=cursor)
    way_back = empty["metadata"]["previous_cursor"]
    back = await listed(client, sort=sort, page_size=3, cursor=way_back)

    assert empty["movies"] == []
    assert empty["metadata"]["next_cursor"] is None
    assert empty["metadata"]["total_records"] == 3
    assert ids(back) == kept

    execute("delete from movies")
    nothing = (await listed(client, sort=sort, page_size=3, cursor=cursor))["metadata"]
    assert (nothing["next_cursor"], nothing["previous_cursor"]) == (None, None)


@pytest.mark.usefixtures("catalogue")
async def test_a_cursor_holds_for_its_filter_and_sort_alone(client: Client) -> None:
    """With another filter or sort, the cursor is refused."""
    cursor = (await listed(client, sort="year", page_size=2))["metadata"]["next_cursor"]

    filters = ["genres=drama", "title=x", "genres_any=drama", "year=1963", "year=1888,1999"]
    filters += [f"{name}=2026-01-05T09:00:00Z.." for name in ("created_at", "updated_at")]
    for query in ("sort=-year", "sort=id", *(f"sort=year&{name}" for name in filters)):
        [(parameter, detail)] = await refused(client, f"{query}&cursor={cursor}")
        assert parameter == "cursor"
        assert detail.startswith("was made for another path, filter or sort; must be a cursor")
    [(_, detail)] = await refused(client, f"sort=year&cursor={cursor[:-1]}")
    assert detail.startswith("is damaged; must be a cursor from the metadata of a response")


@pytest.mark.usefixtures("catalogue")
@pytest.mark.parametrize("sort", ["year", "-updated_at", "relevance"])
async def test_a_cursor_holds_in_a_release_with_one_more_filter(
    client: Client, monkeypatch: Patch, sort: str
) -> None:
    """While both releases run."""
    query = {"sort": sort, "page_size": 2, "year": "1900..,1890", "genres": "drama"}
    query |= {"created_at": "2020-01-05T09:00:00Z.."}
    cursor = (await listed(client, **query))["metadata"]["next_cursor"]
    before = await listed(client, **query, cursor=cursor)

    @dataclass(frozen=True)
    class Filter(parameters.Filter):
        country: str | None = None

    monkeypatch.setattr(parameters, "Filter", Filter)
    parameters.parse_list_query.cache_clear()

    assert await listed(client, **query, cursor=cursor) == before
    parameters.parse_list_query.cache_clear()


async def links(client: Client, url: str) -> dict[str, str]:
    """Return the targets in the Link header of a page, by rel."""
    response = await client.get(URL(url, encoded=True))
    assert response.status == 200
    return {
        rel: target[1:-1]
        for target, _, rel in (
            link.partition('; rel="') for link in response.headers["Link"].split('", ')
        )
        for rel in [rel.rstrip('"')]
    }


@pytest.mark.usefixtures("catalogue")
async def test_links_lead_to_the_pages_next_to_it(client: Client) -> None:
    """Link has first, prev and next, with all other parameters unchanged (RFC 8288)."""
    query = "/v1/movies?genres=drama&sort=-year&page_size=1"
    first = await links(client, query)
    second = await links(client, first["next"])

    assert first["first"] == query
    assert first.keys() == {"first", "next"}
    assert second.keys() == {"first", "prev", "next"}
    assert second["first"] == query
    back = await (await client.get(second["prev"])).json()
    assert ids(back) == [6]


@pytest.mark.usefixtures("catalogue")
async def test_links_by_number(client: Client) -> None:
    """A page with a number has links with numbers; past the end, it links back to the last."""
    second = await links(client, "/v1/movies?page=2&page_size=2")
    last = await links(client, "/v1/movies?page=4&page_size=2")
    past = await links(client, "/v1/movies?page=9&page_size=3")

    assert second["prev"] == "/v1/movies?page_size=2&page=1"
    assert second["next"] == "/v1/movies?page_size=2&page=3"
    assert last.keys() == past.keys() == {"first", "prev"}
    assert past["prev"] == "/v1/movies?page_size=3&page=3"


async def test_a_link_is_escaped_and_has_no_fragment(client: Client, execute: Execute) -> None:
    """A parameter of the client cannot end the link; browsers never send a fragment."""
    add_movies(execute, "a rel x", "a rel x")
    sent = b'GET /v1/movies?page_size=1&title=a%3E;rel="x"#part HTTP/1.1\r\nHost: a\r\n\r\n'

    _, headers, _ = await exchange(client, sent)

    first, following = headers["Link"].split(", ")
    assert first == '</v1/movies?page_size=1&title=a%3E%3Brel%3D%22x%22>; rel="first"'
    assert following.startswith("</v1/movies?page_size=1&title=a%3E%3Brel%3D%22x%22&cursor=")
    assert "#" not in following


@pytest.fixture
def many(execute: Execute) -> None:
    """Insert 10,001 movies of 2000 or later, 10,000 of them of 2001 or later."""
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select 'x', case n when 1 then 2000 else 2001 end, 1, '{a}'"
        " from generate_series(1, 10001) as n"
    )
    execute("vacuum analyze movies")


@pytest.mark.usefixtures("many")
async def test_which_pages_have_a_number(client: Client) -> None:
    """All of 10,000 movies, the first thousand of more: the last one links to a cursor then."""
    every = await listed(client, year="2001..", page=334, page_size=30)
    last = await listed(client, page=33, page_size=30)
    link = (await links(client, "/v1/movies?page=33&page_size=30"))["next"]
    onwards = await listed(client, **URL(link).query)
    refusals = await refused(client, "page=34&page_size=30")

    assert (every["metadata"]["total_records"], every["metadata"]["last_page"]) == (10_000, 334)
    assert ids(every) == list(range(9992, 10_002))
    assert every["metadata"]["next_cursor"] is None
    assert last["metadata"]["last_page"] == 33
    assert ids(last) == list(range(961, 991))
    assert "page" not in URL(link).query
    assert onwards["movies"][0]["id"] == 991
    assert refusals == [("page", "must be at most 33, as over 10000 movies match; use a cursor")]


@pytest.mark.usefixtures("many")
async def test_a_column_that_a_dba_adds_works_in_lists_of_any_size(
    client: Client, execute: Execute
) -> None:
    """The filter has it once, for few and many matches, as soon as the function is replaced."""
    execute("alter table movies add column hidden boolean not null default false")
    execute("update movies set hidden = true where id % 2 = 0 and id <= 100")
    execute("vacuum analyze movies")
    [(text,)] = execute("select pg_get_functiondef('movie_matches(movies, jsonb)'::regprocedure)")
    execute(text.replace("RETURN ", "RETURN not m.hidden and ", 1))

    few = await listed(client, year="2000", sort="-year")
    many = await listed(client, sort="-title", page_size=100)
    walked = await listed(
        client, sort="-title", page_size=100, cursor=many["metadata"]["next_cursor"]
    )
    every = await listed(client, sort="id", page_size=100)

    assert few["metadata"]["total_records"] == 1
    assert len({movie["id"] for movie in many["movies"] + walked["movies"]}) == 200
    assert ids(every)[:51] == [*range(1, 101, 2), 101]


async def test_a_column_of_a_dba_may_be_called_as_the_queries_call_the_table(
    client: Client, execute: Execute
) -> None:
    """Where they take the whole movie: lists, facets, suggestions, streams and writes."""
    execute("alter table movies add column m integer not null default 3")
    movie = {**MOANA, "external_id": "a:1"}
    writes: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/v1/movies", movie),
        ("PATCH", "/v1/movies/1", {"year": 2000}),
        ("PUT", "/v1/movies/batch", {"movies": [movie]}),
    ]
    for method, path, body in writes:
        assert (await client.request(method, path, json=body)).status in {200, 201}, path
    for query, sent in (
        ("?page_size=1&facets=year", "application/json"),
        ("?title=maona&year=2016", "application/json"),
        ("?sort=-year", "text/csv"),
    ):
        response = await client.get(f"/v1/movies{query}", headers={"Accept": sent})
        assert "Moana" in await response.text(), query


WRONG_TIMES = [
    *("", "..", "now", "today", "infinity", "1767603600", "2026-1-5", "2026-01-05T09:00Z"),
    *("2026-01-05T09:00:00", "2026-01-05%2009:00:00Z", "2026-01-05T09:00:00+01:00"),
    *("20260105T090000Z", "2026-W02-1T09:00:00Z", "2026-01-05T09:00:00,5Z", "26-01-05T09:00:00Z"),
    *("2026-01-05T09:00:00.Z", "2026-01-05T09:00:00.1234567Z", "2026-01-05T09:00:00%00Z"),
    *("2026-01-05T09:00:60Z", "2026-12-31T23:59:60Z", "2026-01-05T24:00:00Z"),
    *("2026-02-29T09:00:00Z", "2026-13-05T09:00:00Z", "2026-00-05T09:00:00Z"),
    *("2026-01-05T09:00:00-0100", "2026-01-05T09:00:00-01", "2026-01-05T09:00:00-01:00:00"),
    *("2026-01-05T09:00:00-24:00", "2026-01-05T09:00:00-01:60"),
    "2026-01-05T09:00:00%E2%88%9201:00",
    *("0000-01-01T00:00:00Z", "0001-01-01T00:00:00%2B00:01", "9999-12-31T23:59:59-00:01"),
    *("-0001-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "%D9%A2026-01-05T09:00:00Z"),
    *("2026-01-05T09:00:00Z...2026-01-05T09:00:00Z", "2026-01-05T09:00:00Z..x", "x..2026-01-05"),
    *("2026-01-05T09:00:00Z..2026-01-06T09:00:00Z..", "2026-01-05T09:00:00Z,2026-01-06T09:00:00Z"),
    *("2026-01-05T09:00:00Z%0A", "%202026-01-05T09:00:00Z", "2026-01-05T09:00:00Z..%20"),
]
WRONG_YEARS = [
    *(
        "x",
        "-1990",
        "..",
        "1990...1999",
        "1999..1990",
        "0199",
        "99999999999",
        "%D9%A1%D9%A9%D9%A9%D9%A9",
    ),
    *("1990,", "1990,,1991", "1990,+1991", "1990,2147483648", ",".join(["1990"] * 11)),
]
INVALID = [
    ("x=1", "x"),
    ("Title=a", "Title"),
    *((f"title={words}", "title") for words in ("", "%00", "a" * 501)),
    *((f"genres={genres}", "genres") for genres in ("", "a,,b", "a,b,c,d,e,f")),
    ("genres=a," + "%C3%A9" * 51, "genres"),
    *((f"genres_any={genres}", "genres_any") for genres in ("", "a,b,c,d,e,f")),
    *((f"year={year}", "year") for year in WRONG_YEARS),
    *((f"runtime={times}", "runtime") for times in (",".join(["90.."] * 11), "1.5", "90%20mins")),
    *((f"created_at={times}", "created_at") for times in WRONG_TIMES),
    ("updated_at=2026-02-30", "updated_at"),
    ("updated_at=2026-01-05Z", "updated_at"),
    ("updated_at=2026-01-06..2026-01-05", "updated_at"),
    ("updated_at=2026-01-05T09:00:01Z..2026-01-05T09:00:00Z", "updated_at"),
    *((f"sort={sort}", "sort") for sort in ("", "genres", "-relevance", "%2Dyear,id")),
    ("facets=title", "facets"),
    ("facets=", "facets"),
    ("page_size=101", "page_size"),
    ("page_size=ten", "page_size"),
    *((f"page={number}", "page") for number in ("0", "-1", "501", "1001&page_size=10")),
    ("page=1&cursor=x", "cursor"),
    *((f"cursor={cursor}", "cursor") for cursor in ("", "x", "=", "%C3%A9", "%00", "A" * 40)),
    ("sort=id&sort=id", "sort"),
    ("%ff=1", ""),
    ("title=%ff", ""),
]


async def test_an_invalid_parameter_is_named(client: Client) -> None:
    """A 422 names the parameter and the expected value."""
    refusals = {query: await refused(client, query) for query, _ in INVALID}

    assert [(query, name) for query, [(name, _)] in refusals.items()] == INVALID
    assert all(detail for [(_, detail)] in refusals.values())


EXPLAINED = [  # a query, its wrong parameter, and how its detail begins
    ("year=1999..1990", "year", "must not start after its end, found 1999..1990"),
    ("runtime=1,5..4", "runtime", "must not start after its end, found 5..4"),
    (
        "created_at=2026-01-05T09:00:00Z..2026-01-05T09:30:00%2B01:00",
        "created_at",
        "must not start after its end, found 2026-01-05T09:00:00Z..2026-01-05T09:30:00+01:00",
    ),
    (
        "updated_at=2026-01-05T09:00:00+01:00",
        "updated_at",
        "must be a time like 2026-01-05T09:00:00Z or 2026-01-05T10:30:00.123456+01:00 (RFC",
    ),
    (
        "created_at=0001-01-01T00:00:00%2B00:01",
        "created_at",
        "must be in the years 1 to 9999 of UTC, found 0001-01-01T00:00:00+00:01",
    ),
    ("year=x", "year", "must be years like 1990, 1990..1999, 1990.. or ..1999, or up to 10"),
    ("genres=a&genres=", "genres", "must be 1 to 5 genres, separated by commas or repeated, "),
    ("page=1&page=1", "page", "must be given once, as a number from 1 to "),
    ("sort=id&sort=id", "sort", "must be given once, as one of id, title, "),
]


async def test_a_refused_parameter_is_explained(client: Client) -> None:
    """It says what to send instead."""
    for query, name, detail in EXPLAINED:
        [(refused_name, found)] = await refused(client, query)

        assert refused_name == name
        assert found.startswith(detail)


@pytest.mark.parametrize(
    ("repeated", "with_commas"),
    [
        ("genres=a&genres=b", "genres=a,b"),
        ("genres_any=a,c&page_size=1&genres_any=b", "genres_any=a,c,b&page_size=1"),
        ("id=2&id=3&id=9", "id=2,3,9"),
    ],
)
async def test_an_array_may_be_repeated_parameters(
    client: Client, execute: Execute, repeated: str, with_commas: str
) -> None:
    """Clients that are generated from the OpenAPI document send it so; cursors are the same."""
    for genres in ("{a}", "{a,b}", "{b,a}"):
        execute(
            "insert into movies (title, year, runtime, genres) values ('x', 2000, 1, %s)", genres
        )

    found = await client.get(f"/v1/movies?{repeated}")
    page = await found.json()

    assert page == await (await client.get(f"/v1/movies?{with_commas}")).json()
    assert len(page["movies"]) == (1 if "page_size" in repeated else 2)
    assert found.headers["Link"].startswith(f"</v1/movies?{repeated}>")
    if "next" in found.links:
        following = await (await client.session.get(found.links["next"]["url"])).json()
        assert [movie["id"] for movie in following["movies"]] == [2]


async def test_a_filter_in_sql_needs_a_time_zone(execute: Execute) -> None:
    """Otherwise its meaning would depend on the time zone of the session, which DBAs can set."""
    assert execute("select zoned_time('2026-01-05T09:00:00+01:00') = '2026-01-05 08:00Z'") == [
        (True,)
    ]
    with pytest.raises(psycopg2.errors.RaiseException, match="expected a time with a time zone"):
        execute("select zoned_time('2026-01-05 09:00')")


async def test_all_invalid_parameters_are_reported_at_once(client: Client) -> None:
    """Each parameter is reported once."""
    assert [name for name, _ in await refused(client, "a=1&a=2&year=x&sort=y&sort=z")] == [
        *("a", "year", "sort")
    ]


HISTORY = "/v1/movies/1/changes"


async def test_the_errors_of_a_query_string_are_limited(client: Client) -> None:
    """To 100 unknown parameters, as in a body, and those that are known: 8 kB may have 2,700."""
    unknown = [f"{number:x}" for number in range(2000)]
    for path in ("/v1/movies", "/v1/movies/1", "/v1/genres", "/v1/changes", HISTORY):
        response = await client.get(f"{path}?{'&'.join([*unknown, 'year=x', 'limit=x'])}")
        errors = [each["parameter"] for each in (await response.json())["errors"]]

        known = {"/v1/movies": ["year"], "/v1/changes": ["limit"], HISTORY: ["limit"]}.get(path, [])
        assert (response.status, errors) == (422, unknown[:100] + known), path


FILTERS = Filter(title="moana")
KEYS = {"title": SortKey("Moana", 7), "-year": SortKey(2016, 7), "runtime": SortKey(107, 2**63 - 1)}
KEYS["created_at"] = SortKey(datetime(2026, 1, 5, 9, 0, 0, 1, tzinfo=UTC), 7)
KEYS["-updated_at"] = SortKey(datetime(1, 1, 1, tzinfo=UTC), 7)
KEYS["relevance"] = SortKey(5 * 10**10 - 2016, 7)


def encode(sort: str, key: Any, total: int = 8) -> str:
    """Make a cursor; `key` may be invalid."""
    return pages.encode_cursor(key, total, f"{sort} {FILTERS}", backwards=True)


def decode(cursor: str, sort: str) -> Place:
    """Return the place of a cursor."""
    field = sort.removeprefix("-")
    maximum = MAX_BIGINT if field in ("id", "relevance") else MAX_INTEGER
    return pages.decode_cursor(cursor, f"{sort} {FILTERS}", SORT_TYPES[field], maximum)


def is_valid(cursor: str, sort: str) -> bool:
    """Whether the cursor can be decoded."""
    try:
        decode(cursor, sort)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("sort", KEYS)
def test_a_cursor_returns_its_place(sort: str) -> None:
    """It contains key, direction and total."""
    place = decode(encode(sort, KEYS[sort]), sort)

    assert (place.key, place.backwards, place.total) == (KEYS[sort], True, 8)


@pytest.mark.parametrize("sort", KEYS)
def test_a_cursor_with_any_other_character_is_refused(sort: str) -> None:
    """Also if base64 decodes both to the same bytes, and if it is shortened or extended."""
    cursor = encode(sort, KEYS[sort])
    alphabet = string.ascii_letters + string.digits + "-_"
    changed = [cursor[:-1], cursor + "A", cursor + "=", cursor[:12], cursor * 2]
    changed += [cursor[:-1] + letter for letter in alphabet]
    for at in range(len(cursor)):
        changed += [cursor[:at] + letter + cursor[at + 1 :] for letter in "AB"]

    assert {other for other in changed if is_valid(other, sort)} == {cursor}


NO_TIMES = [
    *(1, None, "", "now", "infinity", "2026-01-05", "2026-01-05T09:00:00", "0000-01-05T09:00:00Z"),
    *("9999-12-31T24:00:00Z", "2026-02-30T09:00:00Z", "2026-01-05T09:00:00Z\0"),
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
]
FORGED: list[tuple[str, Any, Any]] = [
    *(("year", (year, 1), 8) for year in ("1990", True, 2**32)),
    *(("year", key, 8) for key in ((1990, 2**63), (1990, -1), (1990,))),
    *(("relevance", (rank, 1), 8) for rank in (2**63, "1")),
    *(("title", (title, 1), 8) for title in ("\0", 1)),
    *((sort, (time, 1), 8) for sort in ("created_at", "-updated_at") for time in NO_TIMES),
    ("id", (2**63, 1), 8),
    *(("id", (1, 1), total) for total in (0, 2**53, None)),
]


@pytest.mark.parametrize(("sort", "key", "total"), FORGED)
def test_a_forged_cursor_is_harmless(sort: str, key: Any, total: Any) -> None:
    """The digest is not secret; every value is checked before the database gets it."""
    assert not is_valid(encode(sort, key, total), sort)
