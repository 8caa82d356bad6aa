"""Tests errors of the parser, expectations, request ids, access lines, and who may listen."""

import asyncio
import json
import re
from itertools import product

import pytest
from aiohttp import web_protocol
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy
from conftest import AWAY, Client, Connect, Start
from support import Capture, Logs, Patch
from wire import exchange, send_raw

from service.config import Access
from service.serving import warn_if_anyone_can_write

NOT_HTTP = (
    b"NONSENSE\r\n\r\n",
    b"FOO /v1/movies HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v1/movies/1 HTTP/1.1\r\nBad Header: a\r\nHost: a\r\n\r\n",
    b"GET /v1/movies/1 HTTP/1.1\r\nHost: a\r\nX: \x01\r\n\r\n",
    b"GET /v1/movies/1 HTTP/1.1\r\nHost: a\r\nnocolon\r\n\r\n",
    b"GET /v1/movies/1 HTTP/1.1\r\n\r\n",
    b"GET /v1/movies/1 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 9000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
    b"GET /v1/movies/1 HTTP/9.9\r\nHost: a\r\n\r\n",
    b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
    b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
    b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
)


async def test_errors_of_the_http_parser_have_the_one_shape(client: Client) -> None:
    """Invalid HTTP gets a 4xx problem in JSON, with a request id and no versions."""
    for sent in NOT_HTTP:
        status, headers, body = await exchange(client, sent)
        problem = json.loads(body)

        assert b"xxx" not in body
        assert 400 <= status < 500, sent
        assert headers["Content-Type"] == "application/problem+json", sent
        assert headers["Server"] == "movie-catalogue", sent
        assert problem["status"] == status, sent
        assert problem["request_id"] == headers["X-Request-Id"], sent


@pytest.mark.parametrize(
    ("parser", "error"),
    [
        (HttpRequestParser, "Invalid header value char"),
        (HttpRequestParserPy, "Invalid HTTP header"),  # where aiohttp has no compiled one
    ],
)
async def test_the_log_does_not_repeat_a_broken_line(
    client: Client, capsys: Capture, monkeypatch: Patch, parser: type, error: str
) -> None:
    """A header may have a password."""
    monkeypatch.setattr(web_protocol, "HttpRequestParser", parser)

    sent = b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret\0\r\n\r\n"
    _, _, body = await exchange(client, sent)

    out = capsys.readouterr().out
    assert f"error='{error}'" in out
    detail = f"the request is not valid HTTP: {error[0].lower()}{error[1:]}"
    assert json.loads(body)["detail"] == detail
    assert "secret" not in out


async def test_an_unknown_expectation_is_417(client: Client) -> None:
    """Expect allows only 100-continue, on every path (RFC 9110, 10.1.1)."""
    for path, expected in product((b"/v1/movies", b"/nowhere"), (b"magic", b"\xff")):
        status, headers, body = await exchange(
            client,
            b"POST %b HTTP/1.1\r\nHost: a\r\nExpect: %b\r\nContent-Length: 2\r\n\r\n{}"
            % (path, expected),
        )

        assert status == 417, (path, expected)
        assert json.loads(body)["request_id"] == headers["X-Request-Id"]
    # Expect is a list, so an empty one expects nothing (RFC 9110, 5.6.1.2).
    empty = b"GET /v1/healthcheck HTTP/1.1\r\nHost: a\r\nExpect: \r\n\r\n"
    assert (await exchange(client, empty))[0] == 200


async def test_a_valid_request_id_is_kept(client: Client) -> None:
    """The response has the client's X-Request-Id; one that is dangerous in a log is replaced."""
    valid = ("abc", "A-Z_0.9", "00-4bf92f-00f0-01", "a" * 128)
    invalid = ("", " ", "a b", "a" * 129, 'a"b', "é", "<script>", "a,b", "{}")
    for given in (*valid, *invalid):
        response = await client.get("/v1/healthcheck", headers={"X-Request-Id": given})

        request_id = response.headers["X-Request-Id"]
        assert request_id
        assert (request_id == given) == (given in valid), given


async def test_the_access_line_describes_request_and_response(
    client: Client, capsys: Capture
) -> None:
    """One line per request: id, client, method, route, status, duration, user agent."""
    headers = {"X-Request-Id": "mine", "User-Agent": "mine/1"}
    await client.get("/v1/movies/7?token=secret", headers=headers)

    lines = [line for line in capsys.readouterr().out.splitlines() if "request_id=mine" in line]
    assert len(lines) == 1
    for part in ("method=GET", "route=/v1/movies/{id}", "path=/v1/movies/7", "status=422"):
        assert part in lines[0]
    assert "client=127.0.0.1" in lines[0]
    assert "user_agent=mine/1" in lines[0]
    assert "duration_ms=" in lines[0]
    assert "secret" not in lines[0]


async def test_the_access_line_has_the_bytes_sent(
    client: Client, connect: Connect, capsys: Capture
) -> None:
    """The head and the body of the response, as they are on the wire."""
    for sent in (
        b"GET /v1 HTTP/1.1\r\nHost: a\r\n\r\n",  # a direct response
        b"GET /v1 HTTP/1.0\r\nHost: a\r\n\r\n",
        b"HEAD /v1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v1/openapi.json HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n",  # aiohttp's
        b"OPTIONS /v1/movies HTTP/1.1\r\nHost: a\r\n\r\n",
        b"NONSENSE\r\n\r\n",
    ):
        reader, writer = await connect(client)
        writer.write(sent.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        received = await asyncio.wait_for(reader.read(), 30)

        assert f"bytes={len(received)} " in f"{capsys.readouterr().out.strip()} ", sent


LOGGED: list[tuple[bytes, str]] = [  # the path and headers of a request, and a part of its line
    (b"/nowhere%20status=200%2F", "path='/nowhere%20status=200%2F' "),  # as it was sent
    (b"/" + b"x" * 8000, f"path=/{'x' * 255} "),
    (b"/v1 User-Agent: " + b"x" * 300, f"user_agent={'x' * 256} "),
    (b"/v1 User-Agent: caf\xc3\xa9\xc2\x9b", "user_agent=caf\\xe9\\x9b "),
    (b"/v1 User-Agent: a\tb", "user_agent='a\\tb' "),
    (b"/v1 User-Agent: a\xff", "user_agent=a\\udcff "),
    (b"/v1 User-Agent:", "user_agent= "),
]


async def test_clients_cannot_fill_or_forge_the_log(client: Client, capsys: Capture) -> None:
    """Paths are percent-encoded, user agents escaped, and both have at most 256 characters."""
    for sent, part in LOGGED:
        path, _, header = sent.partition(b" ")
        lines = header + b"\r\n" if header else b""
        await send_raw(client, b"GET %b HTTP/1.1\r\nHost: a\r\n%b\r\n" % (path, lines))

        logged = f"{capsys.readouterr().out.strip()} "
        assert part in logged
        assert "x" * 257 not in logged
        assert ("user_agent" in logged) == bool(header)


@pytest.mark.parametrize(
    ("level", "lines"), [("debug", ["debug", "debug", "info"]), ("info", ["info"]), ("warning", [])]
)
async def test_health_checks_are_lines_of_level_debug(
    start: Start, capsys: Capture, level: str, lines: list[str]
) -> None:
    """Platforms ask every few seconds. Other requests are lines of level info."""
    client = await start(log__level=level)
    for path in ("/v1/healthcheck", "/v1/healthcheck/ready", "/v1"):
        await client.get(path)

    assert re.findall(r"\[(\w+) *\] request ", capsys.readouterr().out) == lines


async def test_a_health_check_that_fails_is_a_line(start: Start, capsys: Capture) -> None:
    """The line has the reason of the failure, which clients do not see."""
    client = await start(database__url=AWAY)

    response = await client.get("/v1/healthcheck/ready")
    problem = await response.json()

    (line,) = [each for each in capsys.readouterr().out.splitlines() if "] request " in each]
    assert "[info     ]" in line
    assert "no database: Connection refused" in line
    assert problem["detail"] == "the service is temporarily unavailable; try again later"


LOOPBACK = [("127.8.8.8", 80), ("::1", 80, 0, 0), "/run/api.sock", b"\0api"]
NETWORKS = [("0.0.0.0", 80), ("10.0.0.7", 80), ("::", 80, 0, 0), ("fe80::1%lo", 80, 0, 1)]  # noqa: S104


@pytest.mark.parametrize("anonymous", ["write", "read"])
@pytest.mark.parametrize("address", [*LOOPBACK, *NETWORKS])
def test_only_networks_are_warned_of(logs: Logs, address: object, anonymous: str) -> None:
    """Also if the service listens on loopback, too; not if writes need a token."""
    warn_if_anyone_can_write(Access(anonymous=anonymous), [("127.0.0.1", 80), address])

    is_warned = address in NETWORKS and anonymous == "write"
    assert [line["event"] for line in logs] == ["anyone can write"] * is_warned
