"""429: the rate limit of each client or address."""

import json
from typing import Any

import pytest
from aiohttp import ClientResponse
from conftest import MOANA, Client, Start
from limits.aio.storage import memory
from support import Execute, Patch, StoppedClock, add_client, bearer
from wire import exchange, send_raw

from service.clients.access import MAX_BODY_UNITS

RATE = {"limits__rate": 1, "limits__burst": 20}  # a window of 20 s
WRONG = bearer("mc_1_" + 43 * "A")
BATCH = "/v1/movies/batch"
COUNT = "select count(*) from movies"
NOON = 1_800_014_400.0  # 12:00 UTC; a window begins


@pytest.fixture(autouse=True)
def clock(monkeypatch: Patch) -> StoppedClock:
    """The clock of limits, which stands still at noon."""
    clock = StoppedClock(NOON)
    monkeypatch.setattr(memory, "time", clock)
    return clock


async def exhaust(client: Client, **headers: str) -> None:
    """Use up the rate limit."""
    while (await client.get("/v1/movies/1", headers=headers)).status != 429:
        pass


async def kind(response: ClientResponse) -> tuple[int, str]:
    """Return the status and the kind of problem."""
    return response.status, (await response.json())["type"].partition("#")[2]


async def test_the_response_says_what_the_limit_is_and_when_to_come_back(
    start: Start, clock: StoppedClock
) -> None:
    """In the detail and in the headers, which other responses do not have; then it succeeds."""
    client = await start(**RATE)
    before = await client.get("/v1/movies/1")
    await exhaust(client)

    response = await client.get("/v1/movies?page_size=no")
    problem = await response.json()

    assert await kind(response) == (429, "limit-reached")
    assert problem["detail"] == (
        "the limit is 1 units per second, and 20 at once; this request takes 10: try again in 30 s"
    )
    assert response.headers["Retry-After"] == "30"
    assert response.headers["RateLimit-Policy"] == '"rate";q=20;w=20'
    assert response.headers["RateLimit"] == '"rate";r=0;t=30'
    assert not {"RateLimit", "RateLimit-Policy", "Retry-After"} & before.headers.keys()
    clock.now += 30
    assert (await client.get("/v1/movies")).status == 200


def make_batch(
    movies: int, *, movie: dict[str, Any] = MOANA, blanks: int = 0, more: bytes = b""
) -> bytes:
    """Return the bytes of a request that creates so many movies."""
    body = json.dumps({"movies": [movie] * movies}).encode() + blanks * b" "
    head = b"POST /v1/movies/batch HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n" % len(body)
    return head + more + b"\r\n" + body


PATCH = b"PATCH /v1/movies/1 HTTP/1.1\r\nHost: a\r\n"
SHORT = b"Content-Length: 2\r\n\r\n{}"
UNITS: list[tuple[bytes, int]] = [
    (b"GET /v1/movies/1 HTTP/1.1\r\nHost: a\r\n\r\n", 1),
    (b"GET /v1/movies HTTP/1.1\r\nHost: a\r\n\r\n", 10),
    (b"HEAD /v1/movies HTTP/1.1\r\nHost: a\r\n\r\n", 10),
    (b"GET /v1/genres HTTP/1.1\r\nHost: a\r\n\r\n", 3),
    (PATCH + SHORT, 1),
    (PATCH + b"Content-Length: 70000\r\n\r\n" + 70_000 * b" ", 2),
    (PATCH + b"Content-Length: %d\r\n\r\n" % (1 << 20) + (1 << 20) * b" ", MAX_BODY_UNITS),
    # A body of unknown length counts as the largest, and a larger one than is allowed as well.
    (PATCH + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", MAX_BODY_UNITS),
    (PATCH + b"Content-Length: 9999999999\r\n\r\n", MAX_BODY_UNITS),
    # 12 KB of gzip can be 1 MB; what it is compressed with is not looked at.
    (PATCH + b"Content-Encoding: gzip\r\n" + SHORT, MAX_BODY_UNITS),
    (PATCH + b"Content-Encoding: x\r\n" + SHORT, MAX_BODY_UNITS),
    (PATCH + b"Content-Encoding: Identity\r\n" + SHORT, 1),
    # A unit for each movie, or those of the body, if they are more.
    (make_batch(1), 1),
    (make_batch(30), 30),
    (make_batch(2, blanks=200_000), 4),
    (make_batch(30, more=b"Prefer: handling=lenient\r\n"), 30),
    # Also if they are wrong.
    (make_batch(30, movie={}), 30),
    (make_batch(30, movie={}, more=b"Prefer: handling=lenient\r\n"), 30),
    (make_batch(101, movie={}), 100),
    (make_batch(0), 1),
    (make_batch(30, movie={}).replace(b"POST", b"PUT"), 30),
    (make_batch(30, movie={}).replace(b"POST", b"PATCH"), 30),
    (make_batch(30, movie={}).replace(b"batch", b"batch/delete"), 30),
    (make_batch(30).replace(b'movies"', b'Movies"'), 1),
    # By what is asked for.
    (b"GET /v1/changes HTTP/1.1\r\nHost: a\r\n\r\n", 10),
    (b"GET /v1/changes?limit=1&wait=0 HTTP/1.1\r\nHost: a\r\n\r\n", 10),
    (b"GET /v1/changes?limit=219 HTTP/1.1\r\nHost: a\r\n\r\n", 10),
    (b"HEAD /v1/changes?limit=1000 HTTP/1.1\r\nHost: a\r\n\r\n", 50),
    (b"GET /v1/changes?limit=1001 HTTP/1.1\r\nHost: a\r\n\r\n", 10),
]


async def test_lists_and_large_bodies_take_more_units(start: Start, clock: StoppedClock) -> None:
    """As docs/clients/contract.md says."""
    client = await start(limits__rate=1, limits__burst=100)

    for sent, units in UNITS:
        await send_raw(client, sent)
        left = 0
        while (await client.get("/v1/movies/1")).status != 429:
            left += 1
        assert left == 100 - units, sent[:100]
        clock.now += 1000  # all units are back


async def test_the_body_of_a_refused_request_is_not_read(start: Start) -> None:
    """The response comes although no byte of the body does."""
    client = await start(**RATE)
    await exhaust(client)

    status, headers, _ = await exchange(
        client,
        b"POST /v1/movies?wrong HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\nIf-Match: x\r\n\r\n",
    )

    assert (status, headers["Connection"]) == (429, "close")


async def test_wrong_tokens_use_up_the_limit_of_the_address(start: Start, execute: Execute) -> None:
    """Then they get a 429; the client whose id they have, and all valid tokens, do not notice."""
    client = await start(**RATE)
    token = bearer(add_client(execute, "read"))
    statuses = [(await client.get("/v1/movies/1", headers=WRONG)).status for _ in range(25)]

    after = [
        (await client.get("/v1/movies/1", headers=headers)).status for headers in (token, {}, WRONG)
    ]

    assert statuses == [401] * 20 + [429] * 5
    assert after == [404, 429, 429]


async def test_refusals_for_lack_of_rights_take_no_units(start: Start, execute: Execute) -> None:
    """401 without a token, and 403."""
    client = await start(access__anonymous="none", **RATE)
    token = bearer(add_client(execute, "read"))
    for headers in 30 * [token, {}]:
        await client.delete("/v1/movies/1", headers=headers)

    response = await client.get("/v1/movies/1", headers=token)

    assert response.status == 404


async def test_public_paths_have_no_limit(start: Start) -> None:
    """Health checks, the document, the page, OPTIONS and unknown paths."""
    client = await start(**RATE)
    await exhaust(client)

    paths = ("/v1/healthcheck", "/v1/healthcheck/ready", "/v1/openapi.json", "/v1/docs", "/", "/v1")
    statuses = [(await client.get(path)).status for path in paths]
    options = await client.options("/v1/movies")
    unknown = await client.get("/v1/unknown")
    wrong = await client.delete("/v1/movies")

    assert statuses == [200] * 6
    assert (options.status, unknown.status, wrong.status) == (204, 404, 405)


async def test_a_batch_over_the_limit_changes_nothing(
    start: Start, clock: StoppedClock, execute: Execute
) -> None:
    """The 429 says what the whole batch takes and when it succeeds, which is then so."""
    client = await start(limits__rate=1, limits__burst=60)
    await client.post(BATCH, json={"movies": [MOANA] * 31})

    for _ in range(3):  # each of these takes a unit
        response = await client.post(BATCH, json={"movies": [MOANA] * 30})
    detail = (await response.json())["detail"]
    created = execute(COUNT)
    clock.now += int(response.headers["Retry-After"])
    again = await client.post(BATCH, json={"movies": [MOANA] * 30})

    assert (response.status, created) == (429, [(31,)])
    assert "this request takes 30:" in detail
    assert (again.status, execute(COUNT)) == (201, [(61,)])


@pytest.mark.parametrize("burst", [1, 2, 20])
async def test_a_batch_larger_than_the_burst_takes_all_of_it(
    start: Start, clock: StoppedClock, burst: int
) -> None:
    """It succeeds once the whole burst is there.

    It may be refused twice: before its body is read, and again when the number of movies is known.
    """
    client = await start(limits__rate=1, limits__burst=burst)
    for _ in range(5):
        statuses = []
        while 201 not in statuses:
            response = await client.post(BATCH, json={"movies": [MOANA] * 100})
            statuses.append(response.status)
            clock.now += int(response.headers.get("Retry-After", "0"))
        assert statuses[:-1] in ([], [429], [429, 429])
