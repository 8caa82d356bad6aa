"""Tests whole lists as a stream: NDJSON and CSV, from one snapshot, and what ends them."""

import asyncio
import gzip
import json
import socket
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientPayloadError, ClientSession
from aiohttp.test_utils import make_mocked_request
from conftest import AWAY, MOANA, Client, Start
from metric_values import TOKEN, read_metrics
from support import (
    WAIT_S,
    Capture,
    Environment,
    Execute,
    Patch,
    add_movies,
    get_app,
    hold,
    run_here,
    until,
)
from wire import exchange

from service.app import POOL
from service.database import streaming
from service.database.listing import Listing
from service.database.pool import Pool
from service.database.statements import Statements
from service.database.streaming import Chunks
from service.movies import exporting
from service.movies.exporting import STREAMS, choose_form
from service.movies.movie import COLUMNS
from service.web.middleware import CYCLE

NDJSON, CSV = "application/x-ndjson", "text/csv"
ODD = ("a,b", 'a"b', "[x", "a|b", "é🎬\n\u2028", " ")


class Steps:
    """Lets streams go on by one chunk at a time."""

    def __init__(self) -> None:
        self.sizes: list[int] = []  # of the lists
        self.places = asyncio.Semaphore(0)

    def go_on(self, times: int = 1000) -> None:
        """Let the streams send so many lists more."""
        for _ in range(times):
            self.places.release()


@pytest.fixture
def steps(monkeypatch: Patch) -> Steps:
    """Streams of two rows at a time that stop after the first list, until the test lets them go."""
    steps = Steps()
    stream = Listing.stream

    async def step(*given: Any) -> Chunks:
        async with aclosing(stream(*given)) as chunks:
            async for chunk in chunks:
                steps.sizes.append(len(chunk.rows))
                yield chunk
                await steps.places.acquire()

    monkeypatch.setattr(Listing, "stream", step)
    monkeypatch.setattr(streaming, "ROWS", 2)
    return steps


def get(client: Client, path: str = "/v1/movies", accept: str = NDJSON, **headers: str) -> Any:
    """Request a stream, without compression, which would hold back the first lines."""
    given = {"Accept": accept, "Accept-Encoding": "identity", **headers}
    return client.get(path, headers=given)


def server(client: Client) -> Any:
    """Return the client's service, conftest's `Service`."""
    return client.server


def pool(client: Client) -> Pool:
    """Return the pool of the client's service."""
    found: Pool = get_app(client)[POOL]
    return found


def in_flight(client: Client) -> int:
    """Return how many requests of the service have no response yet."""
    return int(get_app(client)[CYCLE].in_flight)


async def is_at_rest(client: Client) -> bool:
    """Return whether no request runs, and no connection is in use."""
    return in_flight(client) == 0 and pool(client).size == pool(client).idle


def add_long_movies(execute: Execute, count: int) -> None:
    """Insert movies whose lines are long, by their genres: long titles take longer to index."""
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select 'x' || n, 2000, 1, array(select letter || repeat('g', 99)"
        " from unnest('{a,b,c,d,e}'::text[]) as letter) from generate_series(1, %s) as n",
        count,
    )


def read_titles(text: str) -> list[str]:
    """Return the titles of a stream of NDJSON."""
    return [json.loads(line)["title"] for line in text.splitlines()]


@pytest.mark.parametrize("accept", [NDJSON, CSV])
async def test_a_stream_is_as_an_export(
    client: Client, execute: Execute, environment: Environment, tmp_path: Path, accept: str
) -> None:
    """Byte for byte, with several lists of rows, odd characters, ids, versions and times.

    So it can be imported, as tests/movies/test_exporting.py shows.
    """
    name = "all.ndjson" if accept == NDJSON else "all.csv"
    for title, genres in product(ODD, (["drama"], [*ODD[:5]])):
        sql = "insert into movies (title, year, runtime, genres) values (%s, 2000, 1, %s)"
        execute(sql, f"x{title}", genres)
    add_movies(execute, *(f"Movie {number}" for number in range(600)))
    execute("update movies set year = 2001 where id % 3 = 0")
    assert run_here(environment, "export", str(tmp_path / name))[0] == 0

    response = await get(client, accept=accept)

    assert response.status == 200
    assert response.headers["Content-Type"] == STREAMS[accept].media_type
    assert response.headers["Cache-Control"] == "no-store"
    assert "ETag" not in response.headers
    assert await response.read() == (tmp_path / name).read_bytes()


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("", ["b", "a", "ab c"]),
        ("?sort=-title", ["b", "ab c", "a"]),
        ("?title=a*", ["a", "ab c"]),  # by relevance
        ("?year=2001..&sort=-year", ["ab c", "a"]),
        ("?genres=y&runtime=..1", ["a"]),
        ("?title=none", []),
    ],
)
async def test_filters_and_sort_are_those_of_lists(
    client: Client, execute: Execute, query: str, titles: list[str]
) -> None:
    """In the same order as on the pages."""
    execute(
        "insert into movies (title, year, runtime, genres)"
        " values ('b', 2000, 1, '{x}'), ('a', 2001, 1, '{y}'), ('ab c', 2002, 2, '{y}')"
    )

    streamed = await (await get(client, f"/v1/movies{query}")).text()
    page = await (await client.get(f"/v1/movies{query}")).json()

    assert read_titles(streamed) == titles
    assert [json.loads(line) for line in streamed.splitlines()] == page["movies"]


async def test_a_movie_is_one_line_for_every_client(client: Client, execute: Execute) -> None:
    """Many clients also split at U+0085, U+2028 and U+2029, as `str.splitlines` does."""
    titles = ["a\u2028b", "é\u2029\u0085\\u2028", "c\v\f\x1c\x1d\x1e"]
    add_movies(execute, *titles)

    text = await (await get(client)).text()

    assert read_titles(text) == titles  # it calls `splitlines`
    assert "é" in text


async def test_an_empty_csv_has_its_head(client: Client) -> None:
    """So it can be imported, too."""
    response = await get(client, accept=CSV)

    assert await response.text() == ",".join(COLUMNS) + "\n"


JSON = "application/json"


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (NDJSON, NDJSON),
        (CSV, CSV),
        ("Text/CSV; header=present", CSV),
        ('text/csv;charset="utf-8" ; q=0.5', CSV),
        (f"{CSV};q=0.5, {NDJSON}", NDJSON),
        (f"{CSV}, {NDJSON};q=0.999", CSV),
        (f"{CSV}, {NDJSON}", NDJSON),
        # JSON is named: it is preferred at the same quality.
        (f"{CSV}, {JSON}", None),
        (f"{CSV}, {JSON};q=0.999", CSV),
        (f"{CSV};q=0.5, {JSON};q=0.501", None),
        (f"{CSV};q=0.5, {JSON};q=0.1, */*", CSV),
        (f"{CSV}, {JSON};q=0", CSV),
        (f"{CSV}, {JSON};charset=utf-8", None),
        # A wildcard stands for JSON: it is not preferred.
        (f"{CSV}, */*", CSV),
        (f"{CSV};q=0.999, */*", None),
        (f"{CSV};q=0.5, application/*;q=0.1, */*", CSV),
        (f"{NDJSON};q=0.5, application/*", None),
        (f"{CSV}, */*;q=0", CSV),
        # Nothing that can be streamed is named.
        *[(text, None) for text in ("", "*/*", "text/*", JSON, "application/*", "text/html, */*")],
        *[
            (text, None)
            for text in (f"{CSV};q=0", f"{CSV};q=0.000, {NDJSON};q=0", "application/xml")
        ],
        # Malformed elements are ignored.
        (f"{CSV};q=2, {NDJSON};q=0.1", NDJSON),
        *[(f"{CSV}{end}", None) for end in (";q=2", ";q=-1", ";q=0.1234", ";q=", ";x", " x", "/x")],
        *[(text, None) for text in ("csv", "text", "text/", ";", "q=1", "text /csv")],
        (f",,{CSV},, ,", CSV),
    ],
)
def test_accept_chooses_the_form(accept: str, chosen: str | None) -> None:
    """As RFC 9110, 12.5.1 says; an `Accept` that cannot be met gets JSON."""
    request = make_mocked_request("GET", "/v1/movies", headers={"Accept": accept})

    assert choose_form(request) == (STREAMS[chosen] if chosen else None)


async def test_without_a_stream_a_list_is_json_and_varies(client: Client) -> None:
    """Caches must know that `Accept` decides, also from a 304. Its lines are one list."""
    listed = await client.get("/v1/movies", headers={"Accept": "text/html"})
    tag = {"If-None-Match": listed.headers["ETag"]}
    same = await client.get("/v1/movies", headers=tag)
    streamed = await client.get("/v1/movies", headers=[("Accept", "text/html"), ("Accept", CSV)])
    head = await client.head("/v1/movies", headers={"Accept": CSV})

    assert (listed.content_type, same.status, streamed.content_type) == (JSON, 304, CSV)
    assert head.headers["Changes-Cursor"] == streamed.headers["Changes-Cursor"]
    for response in (listed, same, streamed, head):
        assert ", ".join(response.headers.getall("Vary")) == "Accept, Accept-Encoding"


async def test_a_stream_has_no_pages(client: Client) -> None:
    """Each parameter of pages is reported; other wrong parameters are as for lists."""
    paged = await get(client, "/v1/movies?page=1&page_size=5")
    cursor = await get(client, "/v1/movies?cursor=x")
    unknown = await get(client, "/v1/movies?yaer=2000")

    assert [paged.status, cursor.status, unknown.status] == [422, 422, 422]
    errors = (await paged.json())["errors"]
    assert [error["parameter"] for error in errors] == ["page", "page_size"]
    assert "has all movies that match, and no pages" in errors[0]["detail"]


async def test_head_has_the_headers_and_runs_no_query(start: Start) -> None:
    """Without a feed, it works without a database; the connection is usable afterwards."""
    client = await start(database__url=AWAY, changes__keep_days=0)
    accept = {"Accept": CSV, "Accept-Encoding": "gzip"}

    response = await client.head("/v1/movies", headers=accept)
    wrong = await client.head("/v1/movies?page=1", headers=accept)
    after = await client.get("/v1/healthcheck")

    assert (response.status, wrong.status, after.status) == (200, 422, 200)
    assert response.headers["Content-Type"] == "text/csv; charset=utf-8; header=present"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_stream_is_refused_for_http_1_0(client: Client, method: str) -> None:
    """There, the end of the connection ends the body: a cut would look like the end of the list."""
    head = f"{method} /v1/movies HTTP/1.0\r\nConnection: keep-alive\r\nAccept: {CSV}\r\n\r\n"
    page = "GET /v1/movies HTTP/1.0\r\nAccept: */*\r\n\r\n"

    status, headers, body = await exchange(client, head.encode())
    listed, *_ = await exchange(client, page.encode())

    assert (status, listed) == (426, 200)
    assert headers["Upgrade"] == "HTTP/1.1"
    assert headers["Connection"] == "Upgrade, close"
    assert headers["Content-Type"] == "application/problem+json"
    assert method == "HEAD" or "`proxy_http_version 1.1`" in json.loads(body)["detail"]


async def test_a_stream_is_compressed_if_the_client_prefers_it(
    client: Client, execute: Execute
) -> None:
    """With gzip, and complete to its last byte."""
    add_long_movies(execute, 600)

    plain = await get(client)
    headers = {"Accept": NDJSON, "Accept-Encoding": "gzip"}
    async with ClientSession(auto_decompress=False) as session:
        packed = await session.get(client.make_url("/v1/movies"), headers=headers)
        body = await packed.read()

    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert len(body) < 100_000
    assert gzip.decompress(body) == await plain.read()


async def test_a_stream_shows_one_snapshot_in_lists_of_rows(
    client: Client, execute: Execute, steps: Steps
) -> None:
    """Whatever others commit meanwhile; only one list of rows is fetched at a time."""
    add_movies(execute, *"abcde")

    response = await get(client)
    first = await response.content.readline()
    execute("delete from movies where title = 'c'")
    execute("update movies set title = 'changed' where title = 'd'")
    add_movies(execute, "f")
    sizes = [*steps.sizes]
    steps.go_on()
    rest = await response.text()

    assert read_titles(first.decode() + rest) == [*"abcde"]
    assert (sizes, steps.sizes) == ([2], [2, 2, 1])
    await until(partial(is_at_rest, client))
    assert pool(client).idle == 1  # the connection is used again


@pytest.mark.parametrize(("query", "total"), [("", "3"), ("?title=b", "1"), ("?title=none", "0")])
async def test_the_total_is_that_of_the_snapshot(
    start: Start, execute: Execute, monkeypatch: Patch, query: str, total: str
) -> None:
    """Whatever others commit around the count, so a client sees that nothing is missing."""
    client = await start(changes__keep_days=0)
    add_movies(execute, *"abc")
    run = Statements.run  # between the cursor, the count and the first movies

    async def run_and_add(statements: Any, pool: Any, sent: Any, held: Any) -> Any:
        step = sent.execution
        declare, is_first, count = step.statement.rpartition("; select ")
        if is_first:
            begin = step._replace(statement=f"{declare}; select")
            await run(statements, pool, sent._replace(execution=begin), held)
            add_movies(execute, "b")
            step = step._replace(preamble="", statement=f"select {count}")
        rows = await run(statements, pool, sent._replace(execution=step), held)
        add_movies(execute, "b")
        return rows

    monkeypatch.setattr(Statements, "run", run_and_add)

    response = await get(client, f"/v1/movies{query}")

    assert response.headers["Total-Records"] == total
    assert len(read_titles(await response.text())) == int(total)


async def test_a_stream_may_take_longer_than_other_requests(
    start: Start, execute: Execute, steps: Steps
) -> None:
    """`request_timeout` does not end it: another request reaches its own deadline meanwhile."""
    add_movies(execute, *"abc")
    client = await start(server__request_timeout=0.1)
    response = await get(client)

    with hold(server(client).settings.database.url, "lock movies in share mode"):
        late = await client.post("/v1/movies", json=MOANA)
    steps.go_on()

    assert late.status == 503
    assert read_titles(await response.text()) == [*"abc"]


async def test_a_stream_has_a_deadline_of_its_own(
    start: Start, execute: Execute, steps: Steps, monkeypatch: Patch, capsys: Capture
) -> None:
    """After it, the connection is reset, and the log says why."""
    monkeypatch.setattr(exporting, "MAX_STREAM_S", 0)
    add_movies(execute, *"abc")
    client = await start(server__request_timeout=0.1)
    response = await get(client)

    with pytest.raises(ClientPayloadError):
        await response.read()
    await until(partial(is_at_rest, client))

    assert steps.sizes == [2]
    assert "reason='the request took too long'" in capsys.readouterr().out


async def test_a_failure_after_the_head_breaks_the_response(
    client: Client, execute: Execute, steps: Steps, capsys: Capture
) -> None:
    """The client never gets an end; one line with its request id says why, and its bytes."""
    add_long_movies(execute, 5)  # two are longer than a problem document
    response = await get(client, **{"X-Request-Id": "the-stream"})
    sent = await response.content.readline() + await response.content.readline()

    execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where state = 'idle in transaction'"
    )
    steps.go_on()
    with pytest.raises(ClientPayloadError):
        await response.read()
    again = await get(client)

    assert (response.status, again.status) == (200, 200)
    assert len(read_titles(await again.text())) == 5
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "request_id=the-stream" in line]
    assert "status=503" in line
    assert "reason='walk_movies: " in line
    assert int(line.partition("bytes=")[2].split()[0]) > len(sent)
    assert out.count("statement lost") == 1


async def test_a_failure_before_the_head_is_a_problem(
    client: Client, execute: Execute, monkeypatch: Patch
) -> None:
    """As for lists: 503 with Retry-After."""
    monkeypatch.setattr(streaming, "TIMEOUT_S", 0.1)
    add_movies(execute, "a")

    with hold(server(client).settings.database.url, "lock movies"):
        late = await get(client)
    wrong = await get(client, "/v1/movies?title=%00")
    after = await get(client)

    assert (late.status, late.headers["Retry-After"]) == (503, "1")
    assert late.content_type == "application/problem+json"
    assert (wrong.status, after.status) == (422, 200)
    assert pool(client).size == 1


async def request_without_reading(client: Client) -> socket.socket:
    """Send a request for a stream, and read nothing."""
    unread = socket.socket()
    unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    unread.settimeout(0)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(unread, (client.host, client.port))
    await loop.sock_sendall(
        unread, f"GET /v1/movies HTTP/1.1\r\nHost: a\r\nAccept: {NDJSON}\r\n\r\n".encode()
    )
    return unread


async def read_all(connection: socket.socket) -> bytes:
    """Read to the end."""
    received = b""
    while data := await asyncio.get_running_loop().sock_recv(connection, 1_000_000):
        received += data
    return received


async def test_a_client_that_does_not_read_is_cut_off(
    client: Client, execute: Execute, monkeypatch: Patch, capsys: Capture
) -> None:
    """Without the last chunk; the connection of the pool is free again, without a transaction."""
    monkeypatch.setattr(exporting, "READ_TIMEOUT_S", 0.2)
    add_long_movies(execute, 20_000)  # more than the kernel buffers

    with await request_without_reading(client) as unread:
        await until(lambda: in_flight(client) == 1)
        await until(partial(is_at_rest, client))
        received = await read_all(unread)

    assert not received.endswith(b"0\r\n\r\n")
    assert pool(client).idle == 1
    assert execute("select 1 from pg_stat_activity where state = 'idle in transaction'") == []
    out = capsys.readouterr().out
    assert "status=499" in out
    assert "reason='the client does not read'" in out


async def test_a_client_that_goes_ends_its_stream(
    client: Client, execute: Execute, steps: Steps
) -> None:
    """At the next list of rows; its connection returns to the pool."""
    add_movies(execute, *"abcdefghij")
    response = await get(client)

    response.close()
    steps.go_on()
    await until(partial(is_at_rest, client))

    assert sum(steps.sizes) <= 10
    assert pool(client).idle == 1


async def test_a_client_that_goes_while_it_waits_for_its_place_runs_no_query(
    start: Start, execute: Execute, steps: Steps, capsys: Capture
) -> None:
    """Otherwise clients that come and go would take the places of others."""
    add_movies(execute, *"abc")
    client = await start(
        operations__token=TOKEN, server__max_streams=1, database__acquire_timeout=WAIT_S
    )
    running = await get(client)
    waiting = await request_without_reading(client)
    await until(lambda: read_metrics(client)["pool_waiting"] == 1)

    waiting.close()
    connections = server(client).runner.server.connections
    await until(lambda: any(each.transport is None for each in connections))
    steps.go_on()
    text = await running.text()
    await until(partial(is_at_rest, client))

    assert read_titles(text) == [*"abc"]
    assert steps.sizes == [2, 1]
    assert "status=499" in capsys.readouterr().out


@pytest.mark.parametrize("behind_s", [-1, 60])
async def test_a_client_that_reads_too_slowly_loses_its_place_to_one_that_waits(
    start: Start, execute: Execute, steps: Steps, monkeypatch: Patch, behind_s: float
) -> None:
    """Otherwise two slow clients would keep all others from streams for an hour.

    A client that is not far enough behind goes on; so does one for whose place nobody waits.
    """
    monkeypatch.setattr(streaming, "LAG_MAX_S", behind_s)
    add_movies(execute, *"abcdef")
    client = await start(
        operations__token=TOKEN, server__max_streams=1, database__acquire_timeout=WAIT_S
    )
    slow = await get(client)
    steps.go_on(1)  # nobody waits
    await until(lambda: len(steps.sizes) == 2)
    waiting = asyncio.create_task(get(client))
    await until(lambda: read_metrics(client)["pool_waiting"] == 1)

    steps.go_on()
    results = await asyncio.gather(slow.text(), return_exceptions=True)
    text = await (await waiting).text()
    await until(partial(is_at_rest, client))

    assert isinstance(results[0], ClientPayloadError) == (behind_s < 0)
    assert read_titles(text) == [*"abcdef"]
    status = "request_duration_seconds_count{method=GET,route=/v1/movies (stream),status=499}"
    assert (status in read_metrics(client)) == (behind_s < 0)


@pytest.mark.parametrize(
    ("limits", "at_once"), [((1, 10), 1), ((2, 10), 2), ((9, 10), 2), ((9, 3), 1)]
)
async def test_few_streams_run_at_once(
    start: Start, execute: Execute, steps: Steps, limits: tuple[int, int], at_once: int
) -> None:
    """Further ones get a 503 in time; pages are still served, and later streams, too."""
    add_movies(execute, *"abc")
    client = await start(
        server__max_streams=limits[0],
        database__max_open=limits[1],
        database__acquire_timeout=WAIT_S,
    )
    running = [await get(client) for _ in range(at_once)]

    settings = pool(client)._settings  # noqa: SLF001 - for one request only
    pool(client)._settings = replace(settings, acquire_timeout=0.1)  # noqa: SLF001 - as above
    refused = await get(client)
    pool(client)._settings = settings  # noqa: SLF001 - as above
    page = await client.get("/v1/movies")
    steps.go_on()
    texts = [await response.text() for response in running]
    later = await get(client)

    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert (page.status, later.status) == (200, 200)
    assert [read_titles(text) for text in texts] == [[*"abc"]] * at_once


async def test_a_stop_breaks_streams_that_take_too_long(
    start: Start, execute: Execute, steps: Steps
) -> None:
    """After `shutdown_timeout`; the client sees that the list is not complete."""
    add_movies(execute, *"abcde")
    client = await start(server__shutdown_timeout=0.1)
    response = await get(client)

    await server(client).runner.cleanup()
    with pytest.raises(ClientPayloadError):
        await response.read()

    assert steps.sizes == [2]
