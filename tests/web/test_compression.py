"""Tests compression: which responses, for which clients, and with which entity tags."""

import gzip
from typing import Any

import pytest
from conftest import Client
from support import Execute, add_movies
from wire import exchange

from service.web.headers import prefers_gzip

DOCUMENT = "/v1/openapi.json"
GZIP = {"Accept-Encoding": "gzip"}
PLAIN = {"Accept-Encoding": "identity"}


@pytest.fixture
def catalogue(execute: Execute) -> None:
    """Insert a hundred movies, a page of some 30 kB."""
    add_movies(execute, *(f"Movie {number}" for number in range(100)))


async def raw(client: Client, path: str, *lines: str, method: str = "GET") -> Any:
    """Return the response without decompression."""
    head = "".join(f"{line}\r\n" for line in (f"{method} {path} HTTP/1.1", "Host: a", *lines))
    return await exchange(client, head.encode() + b"\r\n")


@pytest.mark.usefixtures("catalogue")
async def test_a_page_of_movies_is_compressed(client: Client) -> None:
    """A client that accepts gzip gets the same page in fewer bytes."""
    path = "/v1/movies?page_size=100"
    _, plain, body = await raw(client, path)
    status, headers, compressed = await raw(client, path, "Accept-Encoding: gzip, deflate, br")

    assert status == 200
    assert headers["Content-Encoding"] == "gzip"
    assert headers["Content-Type"] == "application/json"
    assert gzip.decompress(compressed) == body
    assert len(compressed) < len(body) / 5
    assert "Content-Encoding" not in plain
    assert headers["Vary"] == plain["Vary"] == "Accept, Accept-Encoding"
    assert headers["ETag"] == plain["ETag"]
    assert headers["ETag"].startswith('W/"')


async def test_documents_are_compressed_and_small_responses_are_not(client: Client) -> None:
    """Documents unpack to the same bytes; a small response would not save a packet."""
    for path in (DOCUMENT, "/v1/docs", "/v1/docs/reference.js"):
        _, headers, compressed = await raw(client, path, "Accept-Encoding: gzip")
        _, _, body = await raw(client, path)
        assert headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(compressed) == body
    for path in ("/v1/movies", "/v1/genres", "/v1/healthcheck", "/nowhere"):
        _, headers, _ = await raw(client, path, "Accept-Encoding: gzip")
        assert "Content-Encoding" not in headers, path


async def test_a_movie_is_not_compressed_however_large(client: Client) -> None:
    """Its entity tag must stay strong for If-Match (RFC 9110, 13.1.1)."""
    movie = {"title": "a", "year": 2000, "runtime": "1 mins", "genres": ["a" * 2000]}
    await client.post("/v1/movies", json=movie)

    _, headers, _ = await raw(client, "/v1/movies/1", "Accept-Encoding: gzip")

    assert "Content-Encoding" not in headers
    assert not headers.get("ETag", "").startswith("W/")


@pytest.mark.usefixtures("catalogue")
async def test_head_has_the_headers_of_get(client: Client) -> None:
    """Content-Length is that of the compressed body."""
    lines = "Accept-Encoding: gzip", "X-Request-Id: same"

    for path in ("/v1/movies?page_size=100", DOCUMENT):
        _, got, _ = await raw(client, path, *lines)
        _, told, _ = await raw(client, path, *lines, method="HEAD")
        assert {**told, "Date": ""} == {**got, "Date": ""}
        assert told["Content-Encoding"] == "gzip"


async def test_a_304_has_the_tag_and_vary_of_the_200(client: Client) -> None:
    """Caches need them to select the stored response (RFC 9110, 15.4.5).

    The tag is the same, compressed or not, so it is weak (8.8.3.3).
    """
    full = await client.get(DOCUMENT, headers=GZIP)
    tag = full.headers["ETag"]
    assert tag.startswith('W/"')
    assert (await client.get(DOCUMENT, headers=PLAIN)).headers["ETag"] == tag
    for accepted in (GZIP, PLAIN):
        for known in (tag, tag.removeprefix("W/")):
            again = await client.get(DOCUMENT, headers={**accepted, "If-None-Match": known})

            assert again.status == 304
            for name in ("ETag", "Vary", "Cache-Control"):
                assert again.headers[name] == full.headers[name]
            assert "Content-Encoding" not in again.headers


PREFER_GZIP = (
    *("gzip", "GZip", "x-gzip", "br, zstd, gzip", "*", "gzip;q=0.001", "gzip ; q=1.0"),
    *("*;q=0, gzip", "identity;q=0, *", "gzip;q=0.5, identity;q=0"),
    *("gzip;q=0.5, identity;q=0.5", "br;q=1, gzip;q=0.2", ",,gzip,"),
)
PREFER_IDENTITY = (
    *("", "gzip;q=0", "gzip; q=0.000", "*;q=0", "gzip;q=0, *", "identity"),
    *("identity;q=0", "gzip;q=0.5, identity", "gzip;q=0.5, *", "gzip;q=2", "gzip;q=-1"),
    *("gzip;q=0.1234", "gzip;level=9", "not-gzip", "," * 8000),
)


def test_which_clients_prefer_gzip() -> None:
    """Names and qualities follow RFC 9110, 12.5.3."""
    assert [accepted for accepted in PREFER_GZIP if not prefers_gzip(accepted)] == []
    assert [accepted for accepted in PREFER_IDENTITY if prefers_gzip(accepted)] == []


async def test_the_header_may_refuse_everything_or_have_several_lines(client: Client) -> None:
    """The response is uncompressed instead of 406; several lines are one list (RFC 9110, 5.3)."""
    status, refused, _ = await raw(client, DOCUMENT, "Accept-Encoding: identity;q=0")
    _, several, _ = await raw(client, DOCUMENT, "Accept-Encoding: br", "Accept-Encoding: gzip")

    assert status == 200
    assert "Content-Encoding" not in refused
    assert several["Content-Encoding"] == "gzip"
