"""ops/nginx.conf: through nginx, clients see the service's responses, or a list of its cache."""

import asyncio
import json
import os
import re
import shutil
import socket
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import psycopg2
import pytest
from aiohttp import ClientSession
from conftest import MOANA, ROOT, Client, Connect, Start
from link import Link
from structlog.testing import capture_logs
from support import Execute, add_client, add_movies, movie_tag, until
from yarl import URL

from service.errors import Unavailable
from service.web.problems import CONTENT_TYPE, REFERENCE, find_problems

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
MAIN = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  gzip on;
  gzip_types application/json;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  {servers}
}}
"""
DEPLOY = (ROOT / "docs" / "operators" / "deploy.md").read_text()
LISTS = ("/v1/movies?sort=-id", "/v1/genres")
POSITION = {"Catalogue-Position": "4711"}

Proxy = Callable[..., AbstractAsyncContextManager[ClientSession]]

pytestmark = pytest.mark.skipif(not NGINX, reason="nginx is not installed")


class Seen(NamedTuple):
    """What a client sees of a list through nginx."""

    cache_status: str
    request_id: str
    body: bytes


@pytest.fixture
def proxy(tmp_path: Path) -> Proxy:
    """Start an nginx that compresses everything else, without TLS."""

    @asynccontextmanager
    async def run(
        client: Client, other: Client | None = None, *, more: str = ""
    ) -> AsyncIterator[ClientSession]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        text = (ROOT / "ops" / "nginx.conf").read_text()
        text = re.sub(r"^ *ssl_.*\n", "", text, flags=re.MULTILINE)
        text = text.replace("listen 443 ssl http2;", f"listen 127.0.0.1:{port};")
        for example, instance in (("8000", client), ("8001", other or client)):
            text = text.replace(f"server 127.0.0.1:{example}", f"server 127.0.0.1:{instance.port}")
        text = text.replace("  gzip off;\n", f"  gzip off;\n  {more}\n")
        text = text.replace("/var/cache/movie-catalogue", str(tmp_path / "cache"))
        text = text.replace("lock_timeout 200ms", "lock_timeout 60s")  # on a busy machine
        main = tmp_path / "nginx.conf"
        main.write_text(MAIN.format(folder=tmp_path, servers=text))
        log = str(tmp_path / "error.log")
        command = [str(NGINX), "-e", log, "-p", str(tmp_path), "-c", str(main)]
        process = await asyncio.create_subprocess_exec(*command, stderr=DEVNULL)
        try:
            await until(lambda: (tmp_path / "pid").exists() or process.returncode is not None)
            assert process.returncode is None, (tmp_path / "error.log").read_text()
            async with ClientSession(f"http://127.0.0.1:{port}") as session:
                yield session
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()

    return run


@pytest.fixture
async def proxied(client: Client, proxy: Proxy) -> AsyncIterator[ClientSession]:
    """Clients of an nginx before a service with the settings of config.toml."""
    async with proxy(client) as session:
        yield session


@pytest.fixture
async def cached(start: Start, proxy: Proxy) -> AsyncIterator[ClientSession]:
    """Clients of an nginx that keeps lists for a minute."""
    async with proxy(await start(server__cache_seconds=60)) as session:
        yield session


async def see(session: ClientSession, path: str, **headers: str) -> Seen:
    """Request a list; headers have _ instead of -."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with session.get(path, headers=named) as response:
        assert response.status == 200
        (request_id,) = response.headers.getall("X-Request-Id")
        status = response.headers["X-Cache-Status"]
        return Seen(status, request_id, await response.read())


async def create(session: ClientSession) -> None:
    """Create a movie."""
    async with session.post("/v1/movies", json=MOANA) as response:
        assert response.status == 201


async def test_entity_tags_stay_strong(proxied: ClientSession) -> None:
    """If it compressed movies, nginx would weaken their tags: If-Match never matches then."""
    created = await proxied.post("/v1/movies", json=MOANA)
    seen = await proxied.get(created.headers["Location"], headers={"Accept-Encoding": "gzip"})

    changed = await proxied.patch(
        created.headers["Location"],
        json={"title": "Vaiana"},
        headers={"If-Match": seen.headers["ETag"], "Accept-Encoding": "gzip"},
    )

    assert seen.headers["ETag"] == movie_tag()
    assert changed.status == 200


async def test_the_service_refuses_large_bodies_itself(proxied: ClientSession) -> None:
    """Clients get a problem document instead of nginx's page."""
    refused = await proxied.post("/v1/movies", data=BytesIO(b" " * (2**20 + 1)))

    assert (refused.status, refused.content_type) == (400, "application/problem+json")


async def test_links_of_a_long_search_pass(proxied: ClientSession) -> None:
    """Link repeats the query string: the head is larger than nginx's buffer usually is."""
    await create(proxied)
    query = "page=2&page_size=1&title=moana" + "%C2%A1" * 240

    async with proxied.get(f"/v1/movies?{query}") as response:
        assert response.status == 200
        assert len(response.headers["Link"]) > 2 * len(query)


@pytest.mark.parametrize("path", LISTS)
async def test_a_list_is_kept(cached: ClientSession, path: str) -> None:
    """The second request does not reach the service; HEAD and 304 come from the cache, too."""
    first = await see(cached, path)
    await create(cached)
    second = await see(cached, path)
    head = await cached.head(path)
    known = await cached.get(path, headers={"If-None-Match": head.headers["ETag"]})

    assert (first.cache_status, second.cache_status) == ("MISS", "HIT")
    assert second.body == first.body
    for response, status in ((head, 200), (known, 304)):
        assert (response.status, response.headers["X-Cache-Status"]) == (status, "HIT")


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("name", ["token", "position"])
async def test_a_token_or_a_position_passes_the_cache(
    cached: ClientSession, execute: Execute, path: str, name: str
) -> None:
    """These requests are neither answered from it nor kept."""
    token = {"Authorization": f"Bearer {add_client(execute, 'read')}"}
    headers = {"token": token, "position": POSITION}[name]

    first = await see(cached, path, **headers)
    stored = await see(cached, path)
    await create(cached)
    second = await see(cached, path, **headers)
    again = await see(cached, path)

    assert (first.cache_status, stored.cache_status) == ("BYPASS", "MISS")
    assert (second.cache_status, again.cache_status) == ("BYPASS", "HIT")
    assert again.body == stored.body
    if path != "/v1/genres":  # each process keeps their counts
        assert second.body != stored.body


@pytest.mark.parametrize(
    ("path", "headers"), [*((path, POSITION) for path in LISTS), ("/v1/movies?id=1", {})]
)
async def test_what_passes_the_cache_may_be_a_304(
    cached: ClientSession, path: str, headers: dict[str, str]
) -> None:
    """Also movies by id; where nginx caches, it sends no If-None-Match to the service."""
    tag = (await cached.head(path, headers=headers)).headers["ETag"]

    known = await cached.get(path, headers={**headers, "If-None-Match": tag})

    assert (known.status, known.headers["X-Cache-Status"]) == (304, "BYPASS")


async def test_a_reload_renews_a_kept_list(cached: ClientSession) -> None:
    """Browsers send one of these; the next requests get the new list."""
    for value in ("no-cache", "max-age=0"):
        old = await see(cached, LISTS[0])
        await create(cached)
        reloaded = await see(cached, LISTS[0], Cache_Control=value)
        after = await see(cached, LISTS[0])

        assert (reloaded.cache_status, after.cache_status) == ("BYPASS", "HIT")
        assert old.body != reloaded.body == after.body


async def test_every_client_has_a_request_id_of_its_own(cached: ClientSession) -> None:
    """A valid one of the client, or nginx's, also with an error; the service logs the same."""
    with capture_logs() as logged:
        first = await see(cached, LISTS[0], X_Request_Id="first")
        second = await see(cached, LISTS[0], X_Request_Id="second")
        third = await see(cached, LISTS[1], X_Request_Id="not valid")
        error = await cached.get("/v1/movies?page=0", headers={"X-Request-Id": "fourth"})

    assert (first.request_id, second.request_id) == ("first", "second")
    assert re.fullmatch("[0-9a-f]{32}", third.request_id)
    assert error.headers.getall("X-Request-Id") == ["fourth"]
    assert (await error.json())["request_id"] == "fourth"
    ids = [line["request_id"] for line in logged if line["event"] == "request"]
    assert ids == ["first", third.request_id, "fourth"]


async def test_forms_of_a_list_are_kept_apart(cached: ClientSession, execute: Execute) -> None:
    """JSON is not served to a client that wants CSV, nor gzip to one that cannot read it."""
    add_movies(execute, *(f"Movie {number}" for number in range(20)))
    found = []
    for accept in ("application/json", "text/csv"):
        for encoding in ("identity", "gzip"):
            headers = {"Accept": accept, "Accept-Encoding": encoding}
            for _ in range(2):
                async with cached.get("/v1/movies", headers=headers) as response:
                    compressed = response.headers.get("Content-Encoding", "identity")
                    status = response.headers["X-Cache-Status"]
                    found.append((response.content_type, compressed, status))

    assert found == [
        *(("application/json", "identity", status) for status in ("MISS", "HIT")),
        *(("application/json", "gzip", status) for status in ("MISS", "HIT")),
        *[("text/csv", "identity", "MISS")] * 2,
        *[("text/csv", "gzip", "MISS")] * 2,
    ]


async def test_a_list_is_renewed_while_clients_get_the_old_one(start: Start, proxy: Proxy) -> None:
    """After `cache_seconds`, one request in the background asks, with the entity tag: 304."""
    seen = []
    async with proxy(await start(server__cache_seconds=1)) as session:

        async def has(status: str) -> bool:
            seen.append(await see(session, LISTS[0]))
            return seen[-1].cache_status == status

        with capture_logs() as logged:
            assert await has("MISS")
            await until(lambda: has("STALE"))
            await until(lambda: has("HIT"))
            await create(session)
            await until(lambda: has("STALE"))
            await until(lambda: has("HIT"))

    statuses = [line["status"] for line in logged if line.get("route") == "/v1/movies"]
    assert statuses == [200, 304, 201, 200]
    assert seen[0].body != seen[-1].body
    assert len({each.body for each in seen}) == 2


async def test_old_lists_are_served_while_the_service_is_away(
    start: Start, proxy: Proxy, tmp_path: Path
) -> None:
    """Also after twice `cache_seconds`. A movie by id is not kept."""
    client = await start(server__cache_seconds=1)
    async with proxy(client) as session:
        first = await see(session, LISTS[0])
        await client.close()

        async def is_too_old() -> bool:
            """Whether a request, and not only one in the background, did not get through."""
            assert (await see(session, LISTS[0])).body == first.body
            failed = re.findall("connect.. failed.*", (tmp_path / "error.log").read_text())
            return any("subrequest" not in line for line in failed)

        await until(is_too_old)

        assert (await see(session, LISTS[0])).cache_status == "STALE"
        assert (await session.get("/v1/movies/1")).status == 503


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_without_the_service_errors_are_problems(
    client: Client, proxy: Proxy, method: str
) -> None:
    """As the service's own 503, but for `instance`: clients try again."""
    async with proxy(client) as session:
        await client.close()

        headers = {"X-Request-Id": "mine"}
        response = await session.request(method, "/v1/movies/7", headers=headers)

        assert (response.status, response.content_type) == (503, CONTENT_TYPE)
        assert response.headers["Retry-After"] == "1"
        assert response.headers["X-Request-Id"] == "mine"
        problem = Unavailable.problem
        assert await response.json() == {
            "type": f"{REFERENCE}#{problem.slug}",
            "title": problem.title,
            "status": problem.status,
            "detail": Unavailable.detail,
            "request_id": "mine",
        }


async def test_one_of_two_instances_is_enough(start: Start, proxy: Proxy) -> None:
    """While the other one refuses connections, nothing fails: no reads, and no writes."""
    first, second = await start(), await start()
    async with proxy(first, other=second) as session:
        await first.close()

        for _ in range(6):
            await create(session)
            async with session.get("/v1/movies") as response:
                assert response.status == 200


async def test_one_of_two_instances_reaches_the_database(
    start: Start, proxy: Proxy, link: Link
) -> None:
    """With the line of the docs, it gets the reads that the other one refuses.

    If none of them reaches it, the response is still a problem.
    """
    (line,) = re.findall(r"`(proxy_next_upstream .*?;)`", DEPLOY)
    first, second = await start(database__url=link.url), await start()
    async with proxy(first, other=second, more=line) as session:
        await create(session)
        await link.cut()
        for method in ("GET", "HEAD") * 6:
            async with session.request(method, "/v1/movies/1") as response:
                assert response.status == 200
        await second.close()
        async with session.get("/v1/movies/1") as response:
            assert (response.status, response.content_type) == (503, CONTENT_TYPE)
            assert response.headers["Retry-After"] == "1"


@pytest.mark.parametrize(
    ("request_head", "slug"),
    [
        (b"GET /v1/movies HTTP/1.1\r\n\r\n", "bad-request"),  # no Host
        (b"nonsense\r\n\r\n", "bad-request"),
        (b"GET /v1/movies?title=%s HTTP/1.1\r\nHost: a\r\n\r\n" % (b"a" * 9000), "bad-request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nCookie: %s\r\n\r\n" % (b"a" * 9000), "bad-request"),
        (
            b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: 2097153\r\n\r\n",
            "malformed-body",
        ),
    ],
    ids=["no host", "not HTTP", "long path", "long header", "large body"],
)
async def test_what_nginx_itself_refuses_is_a_problem(
    proxied: ClientSession, connect: Connect, request_head: bytes, slug: str
) -> None:
    """The service refuses the same with 400, too."""
    base = URL(str(proxied._base_url))  # noqa: SLF001 - it has no public name
    reader, writer = await connect(base)
    writer.write(request_head)
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")

    lines = head.lower().split("\r\n")
    assert lines[0].startswith("http/1.1 400 ")
    assert f"content-type: {CONTENT_TYPE}" in lines
    problem = json.loads(body)
    assert f"x-request-id: {problem['request_id']}" in lines
    kind = find_problems()[slug].problem
    assert problem["type"] == f"{REFERENCE}#{slug}"
    assert (problem["title"], problem["status"]) == (kind.title, kind.status)


async def test_of_many_requests_for_a_new_list_one_reaches_the_service(
    cached: ClientSession, database: str, execute: Execute
) -> None:
    """The others wait for its response."""
    blocked = "select 1 from pg_locks where relation = 'movies'::regclass and not granted"
    with closing(psycopg2.connect(database)) as connection, capture_logs() as logged:
        connection.cursor().execute("lock table movies")
        waiting = asyncio.gather(*(see(cached, LISTS[0]) for _ in range(10)))
        await until(lambda: execute(blocked))
        connection.rollback()
        seen = await waiting

    assert sorted(each.cache_status for each in seen) == ["HIT"] * 9 + ["MISS"]
    assert [line["event"] for line in logged] == ["request"]
