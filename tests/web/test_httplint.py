"""Checks responses of every kind with httplint, which knows the RFCs of HTTP.

https://github.com/mnot/httplint
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any

from conftest import AWAY, MOANA, Client, Start
from httplint import HttpRequestLinter, HttpResponseLinter
from httplint.note import Note, levels
from support import Execute, add_client
from wire import send_raw

PAGE = "https://pages.example"
HOST = "catalogue.example"
MOVIE = b'{"title": "Moana", "year": 2016, "runtime": "107 mins", "genres": ["animation"]}'
BATCH = b'{"movies": [' + MOVIE + b"]}"
GZIP = ("Accept-Encoding: gzip",)
# Warnings that do not apply.
ALLOWED = {
    "CREATED_WITHOUT_LOCATION": "a batch creates several movies, and each of them has its id",
    "HSTS_NO_SUBDOMAINS": "what else there is below the host's name is not for the service to say",
    "STATUS_BAD_REQUEST": "that the request was bad is what a 400 is there to tell",
    "STORE_PUBLIC_UNNECESSARY": "people see at once which lists are private",
    "VARY_COMPLEX": "a list in a cache is not for other forms, tokens, positions or origins",
}


async def find_faults(
    client: Client, method: str, path: str, lines: Iterable[str] = (), body: bytes = b""
) -> list[str]:
    """Return httplint's complaints about the response, as if it came through a TLS proxy."""
    lines = [f"Host: {HOST}", "User-Agent: tests", f"Content-Length: {len(body)}", *lines]
    head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""])
    started = time.time()
    answer = await send_raw(client, head.encode() + body)

    request = HttpRequestLinter(start_time=started)
    request.process_request_topline(method.encode(), f"https://{HOST}{path}".encode(), b"1.1")
    request.process_headers([(name, value) for name, value in map(_pair, lines)])
    request.finish_content(complete=True)
    response = HttpResponseLinter(start_time=time.time())  # no movie was changed later
    response.request = request
    response.base_uri = f"https://{HOST}{path}"
    response.is_head_response = method == "HEAD"
    version, status, phrase = answer.status_line.encode().split(b" ", 2)
    response.process_response_topline(version.removeprefix(b"HTTP/"), status, phrase)
    response.process_headers([(n.encode(), value.encode()) for n, value in answer.headers])
    response.feed_content(answer.body)
    response.finish_content(complete=True)
    notes = list(_with_parts(response.notes))
    assert notes
    return [
        f"{method} {path}: {type(note).__name__}, {note.subject}, {note.summary}"
        for note in notes
        if note.level in (levels.BAD, levels.WARN) and type(note).__name__ not in ALLOWED
    ]


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


# Movie 1 exists, and is deleted at the end.
REQUESTS: list[tuple[Any, ...]] = [
    ("GET", "/v1/movies/1"),
    ("HEAD", "/v1/movies/1"),
    ("POST", "/v1/movies", ("Content-Type: application/json",), MOVIE),
    ("POST", "/v1/movies/batch", ("Idempotency-Key: a",), BATCH),
    ("POST", "/v1/movies/batch", ("Prefer: handling=lenient",), BATCH),
    ("PATCH", "/v1/movies/1", (), b'{"year": 2015}'),
    ("PUT", "/v1/movies/1", (), MOVIE),
    ("GET", "/v1/movies?page_size=1"),
    ("GET", "/v1/movies", (f"Origin: {PAGE}",)),
    ("GET", "/v1/movies", ("Origin: https://stranger.example",)),
    ("GET", "/v1/genres"),
    ("GET", "/"),
    ("GET", "/v1/healthcheck"),
    ("GET", "/v1/healthcheck/ready"),
    ("GET", "/v1/docs"),
    ("GET", "/v1/docs/reference.js"),
    ("GET", "/v1/docs/reference.css", GZIP),
    ("GET", "/v1/docs/icon.svg"),
    ("GET", "/v1/openapi.json"),
    ("GET", "/v1/openapi.json", GZIP),
    ("HEAD", "/v1/openapi.json", GZIP),
    ("GET", "/v1/openapi.json", ("If-None-Match: *",)),
    ("OPTIONS", "/v1/movies"),
    ("OPTIONS", "/v1/movies/1", PREFLIGHT),
    ("GET", "/v1/movies/99"),
    ("GET", "/nowhere"),
    ("PUT", "/v1/movies", (), MOVIE),
    ("POST", "/v1/movies", (), b"{"),
    ("POST", "/v1/movies", (), b"{}"),
    ("GET", "/v1/movies?page=0"),
    ("POST", "/v1/movies", ("Expect: magic",), MOVIE),
    ("GET", "/v1/movies/1", ("Bad Header: a",)),
    ("GET", "/v1/movies/1", ("Authorization: Bearer x",)),
    ("DELETE", "/v1/movies/1"),
]


async def test_httplint_finds_nothing_wrong(start: Start, execute: Execute) -> None:
    """There is no error, and no warning except those in ALLOWED."""
    client = await start(server__cors_origins=(PAGE,), server__hsts=31536000)
    await client.post("/v1/movies", json=MOANA)
    token = f"Authorization: Bearer {add_client(execute, 'read')}"
    with_token = [("GET", "/v1/movies", (token,)), ("POST", "/v1/movies", (token,), MOVIE)]
    cached = await start(server__cache_seconds=5, server__cors_origins=(PAGE,))
    lists = [
        ("GET", path, lines) for path in ("/v1/movies", "/v1/genres") for lines in ((), (token,))
    ]
    away = await start(database__url=AWAY)

    faults = [fault for each in REQUESTS + with_token for fault in await find_faults(client, *each)]
    faults += [fault for each in lists for fault in await find_faults(cached, *each)]
    faults += await find_faults(away, "GET", "/v1/movies/1")

    assert faults == []
