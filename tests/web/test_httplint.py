"""Checks responses of every kind with httplint, which knows the RFCs of HTTP.

https://github.com/mnot/httplint
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from conftest import MOANA, Client, Start
from httplint import HttpRequestLinter, HttpResponseLinter
from httplint.note import Note, levels
from support import Execute, add_client
from wire import send

PAGE = "https://pages.example"
HOST = "catalogue.example"
MOVIE = b'{"title": "Moana", "year": 2016, "runtime": "107 mins", "genres": ["animation"]}'
GZIP = ("Accept-Encoding: gzip",)
# Warnings that do not apply.
ALLOWED = {
    "HSTS_NO_SUBDOMAINS": "what else there is below the host's name is not for the service to say",
    "STATUS_BAD_REQUEST": "that the request was bad is what a 400 is there to tell",
}


@pytest.fixture
async def everything(start: Start) -> Client:
    """Return a client of a service with one movie that sends all optional headers."""
    client = await start(server__cors_origins=(PAGE,), server__hsts=31536000)
    await client.post("/v1/movies", json=MOANA)
    return client


async def notes(
    client: Client, method: str, path: str, lines: Iterable[str], body: bytes
) -> list[Note]:
    """Return httplint's notes on the response, as if it came through a TLS proxy."""
    lines = [f"Host: {HOST}", "User-Agent: tests", f"Content-Length: {len(body)}", *lines]
    head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""])
    started = time.time()
    answer = await send(client, head.encode() + body)

    request = HttpRequestLinter(start_time=started)
    request.process_request_topline(method.encode(), f"https://{HOST}{path}".encode(), b"1.1")
    request.process_headers([(name, value) for name, value in map(_pair, lines)])
    request.finish_content(complete=True)
    response = HttpResponseLinter(start_time=started)
    response.request = request
    response.base_uri = f"https://{HOST}{path}"
    response.is_head_response = method == "HEAD"
    version, status, phrase = answer.status_line.encode().split(b" ", 2)
    response.process_response_topline(version.removeprefix(b"HTTP/"), status, phrase)
    response.process_headers([(n.encode(), value.encode()) for n, value in answer.headers])
    response.feed_content(answer.body)
    response.finish_content(complete=True)
    return list(_with_parts(response.notes))


def _pair(line: str) -> tuple[bytes, bytes]:
    name, _, value = line.encode().partition(b": ")
    return name, value


def _with_parts(of: Iterable[Any]) -> Iterator[Note]:
    for note in of:
        yield note
        yield from _with_parts(note.subnotes)


PREFLIGHT = (
    f"Origin: {PAGE}",
    "Access-Control-Request-Method: PATCH",
    "Access-Control-Request-Headers: content-type,if-match",
)


@pytest.mark.parametrize(
    ("method", "path", "lines", "body"),
    [
        ("GET", "/v1/movies/1", (), b""),
        ("HEAD", "/v1/movies/1", (), b""),
        ("POST", "/v1/movies", ("Content-Type: application/json",), MOVIE),
        ("PATCH", "/v1/movies/1", (), b'{"year": 2015}'),
        ("PUT", "/v1/movies/1", (), MOVIE),
        ("DELETE", "/v1/movies/1", (), b""),
        ("GET", "/v1/movies?page_size=1", (), b""),
        ("GET", "/v1/movies", (f"Origin: {PAGE}",), b""),
        ("GET", "/v1/movies", ("Origin: https://stranger.example",), b""),
        ("GET", "/v1/genres", (), b""),
        ("GET", "/", (), b""),
        ("GET", "/v1/healthcheck", (), b""),
        ("GET", "/v1/healthcheck/ready", (), b""),
        ("GET", "/v1/docs", (), b""),
        ("GET", "/v1/docs/reference.js", (), b""),
        ("GET", "/v1/docs/reference.css", GZIP, b""),
        ("GET", "/v1/docs/icon.svg", (), b""),
        ("GET", "/v1/openapi.json", (), b""),
        ("GET", "/v1/openapi.json", GZIP, b""),
        ("HEAD", "/v1/openapi.json", GZIP, b""),
        ("GET", "/v1/openapi.json", ("If-None-Match: *",), b""),
        ("OPTIONS", "/v1/movies", (), b""),
        ("OPTIONS", "/v1/movies/1", PREFLIGHT, b""),
        ("GET", "/v1/movies/99", (), b""),
        ("GET", "/nowhere", (), b""),
        ("PUT", "/v1/movies", (), MOVIE),
        ("POST", "/v1/movies", (), b"{"),
        ("POST", "/v1/movies", (), b"{}"),
        ("GET", "/v1/movies?page=0", (), b""),
        ("POST", "/v1/movies", ("Expect: magic",), MOVIE),
        ("GET", "/v1/movies/1", ("Bad Header: a",), b""),
        ("GET", "/v1/movies/1", ("Authorization: Bearer x",), b""),
    ],
)
async def test_httplint_finds_nothing_wrong(
    everything: Client, method: str, path: str, lines: tuple[str, ...], body: bytes
) -> None:
    """There is no error, and no warning except those in ALLOWED."""
    found = await notes(everything, method, path, lines, body)

    wrong = [
        (type(note).__name__, note.subject, note.summary)
        for note in found
        if note.level in (levels.BAD, levels.WARN) and type(note).__name__ not in ALLOWED
    ]
    assert found
    assert wrong == []


async def test_httplint_finds_nothing_wrong_with_a_token(client: Client, execute: Execute) -> None:
    """200 and 403."""
    token = f"Authorization: Bearer {add_client(execute, 'read')}"

    for method, body in (("GET", b""), ("POST", MOVIE)):
        found = await notes(client, method, "/v1/movies", (token,), body)
        assert not {
            type(note).__name__ for note in found if note.level in (levels.BAD, levels.WARN)
        }


async def test_httplint_finds_nothing_wrong_with_a_503(start: Start) -> None:
    """For the 503, the database is unreachable."""
    client = await start(database__url="postgresql://nobody@127.0.0.1:9/nothing")

    found = await notes(client, "GET", "/v1/movies/1", (), b"")

    assert not {type(note).__name__ for note in found if note.level in (levels.BAD, levels.WARN)}
