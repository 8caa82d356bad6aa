"""Tests which requests may use which route: every route with every kind of token in every mode."""

import asyncio
import json
from typing import NamedTuple

import pytest
from conftest import Client, Start
from multidict import CIMultiDict
from structlog.testing import capture_logs
from support import Execute, add_client, add_movies, bearer, get_app
from wire import exchange, send_raw

from service.clients.clients import make_token

MODES = ("write", "read", "none")

# Routes that everybody may use. Of the others, GET and HEAD need the scope `read`, and all other
# methods `write`: a new route needs no line here, unless it is an exception.
PUBLIC = {"/", "/v1", "/v1/healthcheck", "/v1/healthcheck/ready", "/v1/openapi.json"}
PUBLIC |= {"/v1/docs", "/v1/docs/{file}"}
FILLED = {"{id}": "8", "{file}": "reference.css"}  # in a path
MOVIE = "/v1/movies/{id}"

# By scope and mode: the response to each kind of token. `pass` is the handler's.
KINDS = """
               none    read write admin expired revoked rotated malformed foreign empty   basic two
"""
TABLE = """
public write   pass    pass pass  pass  pass    pass    pass    pass      pass    pass    pass  pass
public read    pass    pass pass  pass  pass    pass    pass    pass      pass    pass    pass  pass
public none    pass    pass pass  pass  pass    pass    pass    pass      pass    pass    pass  pass
read   write   pass    pass pass  pass  invalid invalid invalid invalid   invalid invalid pass  two
read   read    pass    pass pass  pass  invalid invalid invalid invalid   invalid invalid token two
read   none    token   pass pass  pass  invalid invalid invalid invalid   invalid invalid token two
write  write   pass    weak pass  pass  invalid invalid invalid invalid   invalid invalid pass  two
write  read    token   weak pass  pass  invalid invalid invalid invalid   invalid invalid token two
write  none    token   weak pass  pass  invalid invalid invalid invalid   invalid invalid token two
"""
EXPECTED = {
    (scope, mode): dict(zip(KINDS.split(), row, strict=True))
    for scope, mode, *row in map(str.split, TABLE.strip().splitlines())
}
REALM = 'Bearer realm="movie catalogue"'


class Response(NamedTuple):
    """What tells the responses apart."""

    status: int
    challenge: str | None = None


RESPONSES = {
    "token": Response(401, REALM),
    "invalid": Response(401, f'{REALM}, error="invalid_token"'),
    "weak": Response(403, f'{REALM}, error="insufficient_scope", scope="write"'),
    "two": Response(400),
}


def make_headers(execute: Execute) -> dict[str, list[list[str]]]:
    """Return the Authorization headers of each kind of token; there may be several examples."""
    read, write, admin = (add_client(execute, scope) for scope in ("read", "write", "admin"))
    past = "1999-12-31 UTC"
    rotated = add_client(execute, "admin")
    execute(
        "update clients set previous_token_hash = token_hash, previous_expires_at = %s,"
        " token_hash = repeat('0', 64) where id = %s",
        past,
        int(rotated.split("_")[1]),
    )
    malformed = ["x", write[:-1], f"{write}A", write[:-1] + chr(ord(write[-1]) ^ 1), f"{write}, x"]
    malformed += [f"mc_0_{write[5:]}", f"mc_٣_{write[5:]}", make_token(2**63), "A" * 8000]
    return {
        "none": [[]],
        "read": [[f"Bearer {read}"]],
        "write": [[f"{scheme} {write}"] for scheme in ("Bearer", "bearer", "bEaReR ", "Bearer\t")],
        "admin": [[f"Bearer {admin}"]],
        "expired": [[f"Bearer {add_client(execute, 'admin', expires=past)}"]],
        "revoked": [[f"Bearer {add_client(execute, 'admin', revoked=past)}"]],
        "rotated": [[f"Bearer {rotated}"]],
        "malformed": [[f"Bearer {token}"] for token in malformed],
        # The client exists here, too, or it does not.
        "foreign": [[f"Bearer {make_token(id_)}"] for id_ in (1, 4711, 2**63 - 1)],
        "empty": [["Bearer"], ["bearer"]],
        "basic": [["Basic QTpC"], ["Bearer2 x"], [""], [f"Token {write}"], [write], ["é"]],
        "two": [[f"Bearer {write}"] * 2, ["", "Basic QTpC"]],
    }


def list_routes(client: Client) -> list[tuple[str, str, str, str]]:
    """Return the method, the route, an example of its path, and the scope that it needs."""
    found = []
    for route in get_app(client).router.routes():
        assert route.resource
        path = name = route.resource.canonical
        for part, value in FILLED.items():
            path = path.replace(part, value)
        scope = "read" if route.method in ("GET", "HEAD") else "write"
        found.append((route.method, name, path, "public" if name in PUBLIC else scope))
    assert {name for _, name, _, _ in found} >= PUBLIC | {MOVIE}
    return found


@pytest.mark.parametrize("mode", MODES)
async def test_who_may_use_which_route(start: Start, execute: Execute, mode: str) -> None:
    """Status and challenge as in the table; problem documents have no part of the header.

    `pass` is what an administrator gets: neither 401 nor 403.
    """
    client = await start(access__anonymous=mode)
    kinds = make_headers(execute)
    wrong = []

    for method, route, path, scope in list_routes(client):
        admin = await client.request(method, path, headers={"Authorization": kinds["admin"][0][0]})
        assert admin.status in (200, 400, 404, 422), route
        for kind, examples in kinds.items():
            passed = Response(admin.status)
            expected = RESPONSES.get(EXPECTED[scope, mode][kind], passed)
            for values in examples if route == MOVIE else examples[:1]:
                headers = CIMultiDict([("Authorization", value) for value in values])
                response = await client.request(method, path, headers=headers)
                got = Response(response.status, response.headers.get("WWW-Authenticate"))
                if got != expected:
                    wrong.append((method, route, kind, values, got, expected))
                if method != "HEAD" and expected.status >= 400:
                    body = await response.text()
                    assert json.loads(body)["status"] == expected.status
                    assert not any(value in body for value in values if len(value) > 20)

    assert set(kinds) == set(KINDS.split())
    assert wrong == []


@pytest.mark.parametrize("mode", MODES)
async def test_what_is_no_route_ignores_tokens(start: Start, mode: str) -> None:
    """OPTIONS, other methods and unknown paths, also with two headers."""
    client = await start(access__anonymous=mode)

    for headers in ([], ["Bearer x"], ["Bearer x", "Bearer x"]):
        sent = CIMultiDict([("Authorization", value) for value in headers])
        for _, _, path, _ in list_routes(client):
            assert (await client.options(path, headers=sent)).status == 204
        assert (await client.put("/v1/movies", headers=sent)).status == 405
        assert (await client.get("/v2", headers=sent)).status == 404


CREATE = b"POST /v1/movies HTTP/1.1\r\n"
HEAD = b"Host: x\r\nAuthorization: Bearer x\r\n"

WITH_A_WRONG_TOKEN = [
    b"GET /v1/movies?page=-1&x=%ff HTTP/1.1\r\n" + HEAD + b"\r\n",
    b"GET /v1/movies/9999999999999999999 HTTP/1.1\r\n" + HEAD + b"\r\n",
    b"GET /v1/movies/1 HTTP/1.1\r\n" + HEAD + b"If-None-Match: x\r\n\r\n",
    b"DELETE /v1/movies/1 HTTP/1.1\r\n" + HEAD + b"If-Match: x\r\n\r\n",
    CREATE + HEAD + b"Idempotency-Key: \xff\r\n\r\n",
    CREATE + HEAD + b"Content-Length: 3\r\n\r\n{}}",
    CREATE + HEAD + b"Content-Length: 99999999999\r\n\r\n",
    CREATE + HEAD + b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n",
    b"PUT /v1/movies/1 HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n9\r\n",
    b"PATCH /v1/movies/1 HTTP/1.1\r\n" + HEAD + b"Content-Encoding: x\r\n\r\n",
]


async def test_a_wrong_token_is_told_before_anything_else(start: Start) -> None:
    """Query, preconditions, key and body are not looked at; a body is not waited for or invited."""
    client = await start(server__require_if_match=True)

    for sent in WITH_A_WRONG_TOKEN:
        status, headers, _ = await exchange(client, sent)
        assert status == 401, sent
        assert headers["WWW-Authenticate"] == f'{REALM}, error="invalid_token"', sent


HOSTILE = [
    b"Bearer secret-\xff\xfe",
    "Bearer secret-é٣".encode(),
    b"Bearer secret\x00",
    b"Bearer secret\x07\x7f",
    b"Bearer secret\r\n folded",
    b"Bearer secret" + b"t" * 20_000,
    b"secret" + b"t" * 8_000,
    b"secret-scheme secret-token",
    b"Bearer\tsecret",
    b"Bearer  mc_1_secret, Bearer secret",
    b'Bearer "secret", realm=secret',
    b"\xffsecret \xfesecret",
]


@pytest.mark.parametrize("mode", MODES)
async def test_hostile_headers_are_refused_and_not_repeated(start: Start, mode: str) -> None:
    """No 5xx; neither the response nor a line of the log has a part of the header."""
    client = await start(access__anonymous=mode)
    head = b"DELETE /v1/movies/1 HTTP/1.1\r\nHost: x\r\nAuthorization: %b\r\n\r\n"

    for value in HOSTILE:
        with capture_logs() as logged:
            answer = await send_raw(client, head % value)
        assert 400 <= int(answer.status_line.split()[1]) < 500, value
        assert logged
        assert "secret" not in f"{answer} {logged}"


async def test_a_url_that_cannot_be_read_is_not_repeated(client: Client) -> None:
    """It may have a password or a token, as the query string of any URL, which is not logged."""
    for url in ("http://a:secret@[", "http://a:99999/?access_token=secret"):
        with capture_logs() as logged:
            answer = await send_raw(client, f"GET {url} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert answer.status_line.split()[1] == "400"
        assert [line["event"] for line in logged] == ["request"]
        assert "secret" not in f"{answer} {logged}"


async def test_only_the_header_has_a_token(start: Start, execute: Execute) -> None:
    """Not the query string or a form (RFC 6750, 2.2 and 2.3), a cookie, a trailer or the URL."""
    client = await start(access__anonymous="none")
    token = add_client(execute, "admin")
    field = f"access_token={token}"
    trailer = f"0\r\nAuthorization: Bearer {token}\r\n\r\n".encode()

    statuses = [
        (await client.get(f"/v1/movies?{field}")).status,
        (await client.post("/v1/movies", data={"access_token": token})).status,
        (await client.get("/v1/movies", headers={"Cookie": field})).status,
        (await client.get("/v1/movies", headers={"Proxy-Authorization": f"Bearer {token}"})).status,
        (
            await exchange(
                client,
                b"POST /v1/movies HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                + trailer,
            )
        )[0],
    ]

    assert statuses == [401] * 5


async def test_the_access_line_has_the_verified_client(start: Start, execute: Execute) -> None:
    """Its id, also if its scope is too weak; an unverified token has none."""
    client = await start()
    add_movies(execute, "Moana")
    token = add_client(execute, "read")

    with capture_logs() as logged:
        await client.get("/v1/movies/1", headers=bearer(token))
        await client.delete("/v1/movies/1", headers=bearer(token))
        await client.delete("/v1/movies/1", headers=bearer(make_token(1)))
        await client.get("/v1", headers=bearer(token))

    lines = [line for line in logged if line["event"] == "request"]
    assert [(line["status"], line.get("client_id")) for line in lines] == [
        (200, 1), (403, 1), (401, None), (200, None),
    ]  # fmt: skip
    assert {line["client"] for line in lines} == {"127.0.0.1"}


async def test_slow_statements_name_their_clients(start: Start, execute: Execute) -> None:
    """The id of a verified client, otherwise the address; of shared statements all, of lists one.

    A lookup is its address's, as its token may be anybody's.
    """
    client = await start(log__slow_statement=1e-9)  # each statement is logged
    add_movies(execute, "Moana")
    tokens = [add_client(execute, "write") for _ in range(12)]
    for token in tokens:
        await client.get("/v1/movies/1", headers=bearer(token))

    with capture_logs() as logged:
        for path in ("/v1/movies?year=2000", "/v1/genres", "/v1/movies/1"):
            await client.get(path, headers=bearer(tokens[2]))
        await client.get("/v1/movies/1", headers=bearer(make_token(1)))
        await asyncio.gather(
            *(client.get("/v1/movies/1", headers=bearer(token)) for token in tokens * 10),
            client.get("/v1/movies/1"),
        )

    named = [
        (line["query"], line["clients"])
        for line in logged
        if line["event"] == "slow statement" and line["query"] != "mark_clients_used"
    ]
    listed = [("sort_movies", ["3"]), ("count_genres", ["3"]), ("get_movies", ["3"])]
    assert named[:3] == listed
    assert named[3] == ("get_clients", ["127.0.0.1"])
    shared = [clients for query, clients in named[4:] if query == "get_movies"]
    assert all(len(clients) == len(set(clients)) <= 10 for clients in shared)
    assert max(map(len, shared)) > 1
