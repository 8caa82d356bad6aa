"""Tests conditional requests: ETags and preconditions (RFC 9110, 13)."""

from dataclasses import replace
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from conftest import MOANA, Client, Start
from structlog.testing import capture_logs
from support import Execute, add_movies, add_trigger, movie_tag

from service.errors import MalformedHeader, PreconditionRequired
from service.movies.handlers import MOVIE_TAG
from service.movies.movie import FORM_BEFORE, MOVIES
from service.web.headers import parse_preconditions

TAG = movie_tag()  # of a new movie 1
OTHERS_TAG = movie_tag(movie_id=2)
pytestmark = pytest.mark.usefixtures("tag")  # in each test, there is a movie 1
WRITES = {"PATCH": {"title": "Vaiana"}, "PUT": {**MOANA, "title": "Vaiana"}, "DELETE": None}


@pytest.fixture
async def tag(client: Client) -> str:
    """Create a movie with id 1 and return its tag."""
    response = await client.post("/v1/movies", json=MOANA)
    assert response.headers["Location"] == "/v1/movies/1"
    return response.headers["ETag"]


async def write(client: Client, method: str, **headers: str) -> Any:
    """Change movie 1 by this method, and return the response."""
    return await client.request(
        method,
        "/v1/movies/1",
        json=WRITES[method],
        headers={k.replace("_", "-"): v for k, v in headers.items()},
    )


async def test_a_trigger_that_drops_a_change_is_no_failed_condition(
    client: Client, execute: Execute
) -> None:
    """A client without a condition, or with one that holds, would not understand a 412."""
    add_trigger(execute, "return null;", "before update or delete")

    for method, query in (("PATCH", "update"), ("PUT", "update"), ("DELETE", "delete")):
        with capture_logs() as logged:
            plain = await write(client, method)
            starred = await write(client, method, If_Match="*")
            held = await write(client, method, If_Match=movie_tag(1))
            failed = await write(client, method, If_Match=movie_tag(9))

        statuses = [each.status for each in (plain, starred, held, failed)]
        assert statuses == [500, 500, 500, 412]
        reasons = {(line["query"], line["reason"]) for line in logged if "query" in line}
        assert reasons == {(f"{query}_movies", "nothing was written: did a trigger prevent it?")}


async def test_a_movie_has_one_tag_however_it_is_asked_for(client: Client, tag: str) -> None:
    """POST, GET and HEAD give the same tag; each change gives a new one, DELETE none."""
    got = await client.get("/v1/movies/1")
    head = await client.head("/v1/movies/1")
    patched = await write(client, "PATCH")
    again = await write(client, "PATCH")
    put = await client.put("/v1/movies/1", json=MOANA)

    assert tag == got.headers["ETag"] == head.headers["ETag"] == TAG
    assert patched.headers["ETag"] == again.headers["ETag"] == movie_tag(2)
    assert put.headers["ETag"] == movie_tag(3)
    assert put.headers["Content-Location"] == "/v1/movies/1"
    deleted = await write(client, "DELETE", If_Match=movie_tag(3))
    assert deleted.status == 200
    assert "ETag" not in deleted.headers


async def test_a_movie_says_when_it_changed_and_to_ask_again(
    client: Client, execute: Execute
) -> None:
    """Last-Modified is updated_at, to the second; caches have to revalidate."""
    execute("alter table movies disable trigger all")
    execute("update movies set updated_at = '2026-03-01 04:05:06.789+00'")

    response = await client.get("/v1/movies/1")

    assert response.headers["Last-Modified"] == "Sun, 01 Mar 2026 04:05:06 GMT"
    assert response.headers["Cache-Control"] == "no-cache"


NOT_MODIFIED = (TAG, f"W/{TAG}", "*", f'"x", {TAG}', f', "x" ,, W/{TAG} ,')
MODIFIED = (movie_tag(2), OTHERS_TAG, '""', '"1-1,"')
MALFORMED = (
    *("1-1", '"1-1', '"1-1" "1-2"', 'w/"1-1"', '*, "1-1"', "", ",", '"a" x'),
    # A regular expression could match spaces and commas in exponentially many ways.
    '"a"' + " ," * 3000 + " x",
)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_if_none_match_omits_a_known_movie(client: Client, method: str) -> None:
    """304 without a body, with the tag; lists and `*` are understood, weak or strong alike."""
    for field in NOT_MODIFIED + MODIFIED + MALFORMED:
        response = await client.request(method, "/v1/movies/1", headers={"If-None-Match": field})

        status = 304 if field in NOT_MODIFIED else 200 if field in MODIFIED else 400
        assert response.status == status, field
        if status == 304:
            assert await response.read() == b""
            assert response.headers["ETag"] == TAG
            assert response.headers["Cache-Control"] == "no-cache"
            assert "Content-Type" not in response.headers


async def test_if_modified_since(client: Client) -> None:
    """304 from the second of the last change on; anything but a date is ignored."""
    changed = parsedate_to_datetime((await client.get("/v1/movies/1")).headers["Last-Modified"])
    seconds = {
        format_datetime(changed + timedelta(seconds=offset), usegmt=True): status
        for offset, status in ((0, 304), (60, 304), (-60, 200))
    }

    for field, status in {**seconds, "yesterday": 200}.items():
        response = await client.get("/v1/movies/1", headers={"If-Modified-Since": field})
        beside = {"If-Modified-Since": field, "If-None-Match": '"x"'}
        assert response.status == status, field
        assert (await client.get("/v1/movies/1", headers=beside)).status == 200


@pytest.mark.parametrize("path", ["/v1/movies", "/v1/genres"])
async def test_lists_have_a_tag_of_their_content(client: Client, tag: str, path: str) -> None:
    """The same list has the same tag, another list another one."""
    first = await client.get(path)
    same = await client.get(path, headers={"If-None-Match": first.headers["ETag"]})
    other = await client.get("/v1/movies?sort=-id&page_size=7")

    assert same.status == 304
    assert same.headers["ETag"] == first.headers["ETag"]
    assert len({first.headers["ETag"], other.headers["ETag"], tag}) == 3
    await client.post("/v1/movies", json=MOANA)
    if path == "/v1/movies":
        etag = first.headers["ETag"]
        assert (await client.get(path, headers={"If-None-Match": etag})).status == 200


FALSE = (movie_tag(2), f"W/{TAG}", OTHERS_TAG, '""', '"1-01"', '"1-1-1"', movie_tag(99999999999999))
CONDITIONS = [
    *(("If-Match", field, 200) for field in (TAG, "*", f'"x", {TAG}', f"{movie_tag(7)},{TAG}")),
    *(("If-None-Match", field, 200) for field in (movie_tag(2), f'{OTHERS_TAG}, "x"')),
    *(("If-Match", field, 412) for field in FALSE),
    *(("If-None-Match", field, 412) for field in (TAG, f"W/{TAG}", "*")),
    *((name, field, 400) for name in ("If-Match", "If-None-Match") for field in MALFORMED),
]


@pytest.mark.parametrize("method", WRITES)
async def test_a_condition_decides_about_a_write(
    client: Client, execute: Execute, method: str
) -> None:
    """A false one is a 412; a malformed one a 400, as the write would otherwise be unconditional.

    A weak tag never matches in If-Match, but in If-None-Match.
    """
    slugs = {412: "precondition-failed", 400: "malformed-header"}
    for name, field, status in CONDITIONS:
        execute("truncate movies restart identity")
        add_movies(execute, "Moana")
        response = await write(client, method, **{name: field})
        assert response.status == status, (name, field)
        if status != 200:
            assert (await response.json())["type"] == f"/v1/docs#{slugs[status]}"
            assert execute("select title, version from movies") == [("Moana", 1)]


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
async def test_a_change_that_is_sent_again_succeeds(client: Client, method: str) -> None:
    """Its response was lost: the movie has the fields, one version further (RFC 9110, 13.1.1).

    Not with other fields, if the movie has changed since, or with another condition.
    """
    whole = (await (await client.get("/v1/movies/1")).json())["movie"]
    whole = {name: whole[name] for name in MOANA}

    async def change(year: int, **conditions: str) -> tuple[int, int]:
        headers = {name.replace("_", "-"): value for name, value in conditions.items()}
        body = {"year": year} if method == "PATCH" else whole | {"year": year}
        response = await client.request(method, "/v1/movies/1", json=body, headers=headers)
        return response.status, (await response.json()).get("movie", {}).get("version", 0)

    assert [await change(1999, If_Match=TAG) for _ in range(3)] == [(200, 2)] * 3
    assert await change(1998, If_Match=TAG) == (412, 0)
    assert await change(1999, If_Match=movie_tag(3)) == (412, 0)
    assert await change(1999, If_Match=TAG, If_None_Match=movie_tag(2)) == (412, 0)
    assert await change(1999, If_None_Match="*") == (412, 0)
    assert await change(1999, If_None_Match=movie_tag(2)) == (412, 0)
    assert await change(1999, If_Unmodified_Since="Sat, 01 Jan 2000 00:00:00 GMT") == (412, 0)
    assert await change(1998) == (200, 3)
    assert await change(1998, If_Match=TAG) == (412, 0)
    assert (await client.delete("/v1/movies/1", headers={"If-Match": movie_tag(2)})).status == 412


@pytest.mark.parametrize("method", [*WRITES, "BATCH"])
async def test_a_tag_of_the_release_before_matches_for_one_release(
    client: Client, method: str
) -> None:
    """It names the same version, while both releases run; but not the bytes of a response."""
    before, other = f'"1-1{FORM_BEFORE}"', '"1-1-0badf00d"'
    assert before not in {TAG, other}
    unchanged = await client.get("/v1/movies/1", headers={"If-None-Match": before})
    assert (unchanged.status, unchanged.headers["ETag"]) == (200, TAG)

    async def change(tag: str) -> int:
        if method != "BATCH":
            return int((await write(client, method, If_Match=tag)).status)
        body = {"movies": [{"id": 1, "etag": tag, "title": "Vaiana"}]}
        return (await client.patch("/v1/movies/batch", json=body)).status

    for tag in (other, f"W/{before}", f'"1-2{FORM_BEFORE}"', f'"2-1{FORM_BEFORE}"'):
        assert await change(tag) == 412, tag
    assert await change(before) == 200


async def test_if_none_match_of_a_write_does_not_know_a_tag_of_the_release_before(
    client: Client,
) -> None:
    """The bytes are others: it is another representation."""
    response = await write(client, "PATCH", If_None_Match=f'"1-1{FORM_BEFORE}"')

    assert response.status == 200


@pytest.mark.parametrize("method", WRITES)
async def test_if_unmodified_since(client: Client, method: str) -> None:
    """It is true from Last-Modified on; it is ignored when If-Match is sent."""
    before = "Sat, 01 Jan 2000 00:00:00 GMT"

    assert (await write(client, method, If_Unmodified_Since=before)).status == 412
    for match in (TAG, "*") if method != "DELETE" else ():
        both = {"If-Unmodified-Since": before, "If-Match": match}
        assert (await write(client, method, **both)).status == 200, match
    changed = (await client.get("/v1/movies/1")).headers["Last-Modified"]
    assert (await write(client, method, If_Unmodified_Since=changed)).status == 200


@pytest.mark.parametrize("method", WRITES)
async def test_if_unmodified_since_without_a_date_is_refused(client: Client, method: str) -> None:
    """RFC 9110 would ignore it, and the change would be made. It is still ignored with If-Match."""
    fields = [
        *("2001-01-01T00:00:00Z", "978307200", "", "Sat, 32 Jan 2000 00:00:00 GMT"),
        *("Wed, 01 Jan 2098 00:00:00 CEST", "Wed, 01 Jan 2098 00:00:00", "2098"),
        "Wed, 01 Jan 2098 00:00:00 GMT, Mon, 01 Jan 2001 00:00:00 GMT",
    ]
    for field in fields:
        response = await write(client, method, If_Unmodified_Since=field)
        problem = await response.json()
        assert (response.status, problem["type"]) == (400, "/v1/docs#malformed-header"), field
        assert "If-Unmodified-Since must be the Last-Modified of the movie" in problem["detail"]
    assert (await client.get("/v1/movies/1")).headers["ETag"] == TAG

    both = {"If-Unmodified-Since": "2001-01-01T00:00:00Z", "If-Match": TAG}
    assert (await write(client, method, **both)).status == 200


async def test_a_missing_movie_is_404_before_a_condition(client: Client) -> None:
    """Conditions are checked only for existing movies (RFC 9110, 13.2.1)."""
    await write(client, "DELETE")
    for method in WRITES:
        for header in ("If-Match", "If-None-Match"):
            assert (await write(client, method, **{header: "*"})).status == 404


async def test_an_invalid_body_is_reported_before_a_condition(client: Client) -> None:
    """A request that fails without the condition fails in the same way with it."""
    headers = {"If-Match": movie_tag(7)}

    for body, status in (({"year": "x"}, 400), ({"year": 3000}, 422)):
        response = await client.patch("/v1/movies/1", json=body, headers=headers)
        assert response.status == status


@pytest.mark.parametrize("method", WRITES)
async def test_a_deployment_may_require_if_match(start: Start, method: str) -> None:
    """Without it, a write is a 428. Creating does not need it."""
    client = await start(server__require_if_match=True)
    assert (await client.post("/v1/movies", json=MOANA)).status == 201

    without = await write(client, method)
    other = await write(client, method, If_None_Match='"x"')
    held = await write(client, method, If_Match=TAG)

    assert (without.status, other.status, held.status) == (428, 428, 200)
    assert (await without.json())["type"] == "/v1/docs#precondition-required"


async def test_any_version_that_a_movie_can_have_matches(client: Client, execute: Execute) -> None:
    """Up to the largest integer of PostgreSQL; larger ones match nothing."""
    execute("alter table movies disable trigger all")
    for version in (999_999_999, 1_000_000_000, 2_147_483_646):
        execute("update movies set version = %s", version)
        larger = f"{movie_tag(2147483648)}, {movie_tag(9999999999)}"
        assert (await write(client, "PATCH", If_Match=larger)).status == 412
        assert (
            await write(client, "PATCH", If_Match=f"{movie_tag(version)}, {larger}")
        ).status == 200
        assert (await write(client, "PATCH", If_None_Match=movie_tag(version))).status == 412


async def test_a_date_out_of_range_is_no_server_error(client: Client) -> None:
    """Offsets that PostgreSQL does not know, and years that Python does not."""
    for date in ("Fri, 20 Nov 2099 23:59:59 +1600", "Fri, 20 Nov 2099 23:59:59 -2359"):
        assert (await write(client, "PATCH", If_Unmodified_Since=date)).status == 200
    for date in ("Mon, 01 Jan 0001 00:00:00 +2359", "Fri, 31 Dec 9999 23:59:59 -2359"):
        assert (await write(client, "PATCH", If_Unmodified_Since=date)).status in (400, 412)


def test_errors_name_what_the_resource_has() -> None:
    """A resource of another noun has no errors about movies."""
    request = make_mocked_request("PATCH", "/", headers={"If-Unmodified-Since": "yesterday"})

    for required, error in ((True, PreconditionRequired), (False, MalformedHeader)):
        with pytest.raises(error, match="of the actor"):
            parse_preconditions(request, "actor", MOVIE_TAG, 7, if_match_required=required)
    actors = replace(MOVIES, noun="actor", table="actors")
    for outcome in ("missing", "failed", "taken"):
        assert "actor" in str(actors.refuse(1, outcome, 7))
        assert "movie" not in str(actors.refuse(1, outcome, 7))
