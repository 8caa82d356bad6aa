"""Tests request bodies: unreadable ones are 400, broken rules 422, and none is a 5xx."""

import asyncio
import gzip
import io
import json
import time
import zlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, tzinfo
from typing import Any, Self

import pytest
from conftest import MOANA, Client, Connect, Start
from odd_bodies import GOOD, LIMIT, TEXT, movie, odd_bodies, raw
from support import Capture, Execute, Patch, until
from wire import exchange

from service.database import MAX_INTEGER
from service.movies import rules
from service.movies.movie import FIELDS
from service.movies.rules import (
    MAX_EXTERNAL_ID_BYTES,
    MAX_GENRE_BYTES,
    MAX_GENRES,
    MAX_TITLE_BYTES,
    MIN_YEAR,
)
from service.web import bodies, server
from service.web.bodies import SMALL_BYTES

OWN = ("id", "version", "created_at", "updated_at")
GZIPPED = gzip.compress(TEXT.encode())


async def problem(client: Client, body: Any, **headers: str) -> dict[str, Any]:
    """Post a body that is refused and return the problem, with its status."""
    sent = io.BytesIO(body) if isinstance(body, bytes) else body
    response = await client.post("/v1/movies", data=sent, headers=headers)
    assert response.headers["Content-Type"] == "application/problem+json"
    refusal = json.loads(await response.read())
    assert refusal["status"] == response.status
    return dict(refusal)


async def test_every_odd_body_is_refused_as_json(client: Client, execute: Execute) -> None:
    """Each gets its 400 problem on POST and PUT, and no movie changes.

    The client can keep its connection if its body was read.
    """
    wrong = []
    for name, body in odd_bodies():
        for method, path in (("POST", "/v1/movies"), ("PUT", "/v1/movies/1")):
            response = await client.request(method, path, data=io.BytesIO(body))
            refusal = json.loads(await response.read())
            if (response.status, refusal["status"]) != (400, 400) or not refusal["detail"]:
                wrong.append((name, method, response.status, refusal))
            assert ("Connection" in response.headers) == (len(body) > LIMIT), name

    assert wrong == []
    assert execute("select count(*) from movies") == [(0,)]


CROWDED = (
    "the body is nested too deep or has too many values: expected at most 2000 colons and brackets"
    " and 20000 commas"
)
UNREADABLE = [
    (b"", "the body is empty; expected one JSON object"),
    (b"[]", "the body must be one JSON object"),
    (b'{"a": 1} x', "the body is not one JSON object: expected nothing more, at character 10"),
    (b'{"a" 1}', "the body is not one JSON object: expecting ':' delimiter, at character 6"),
    (b'{"a": NaN}', "NaN is not a JSON number"),
    (b'{"title": "\xff"}', "the body is not UTF-8 at byte 11"),
    (b"\xef\xbb\xbf{}", "the body starts with a byte order mark; expected UTF-8 without one"),
    (b'{"a": 1, "a": 2}', 'the field "a" is repeated'),
    (raw("year", "9" * 5000), "the body has a number that is too big"),
    (raw("year", "9" * 101), "the body has a number that is too big"),
    (b" " * (LIMIT + 1), "the body must be at most 1048576 bytes"),
]


async def test_an_unreadable_body_is_explained(client: Client) -> None:
    """A 400 names the mistake, its place and the expected form; no field can be named."""
    problems = [await problem(client, body) for body, _ in UNREADABLE]

    assert [each["detail"] for each in problems] == [detail for _, detail in UNREADABLE]
    assert {each["status"] for each in problems} == {400}
    assert all(each["type"].endswith("#malformed-body") for each in problems)
    assert not any("errors" in each for each in problems)


READ_ONLY = f'the field "{{}}" is read-only; clients send {", ".join(FIELDS)}'
UNKNOWN = f'unknown field "{{}}"; a movie has {", ".join(FIELDS)}'
LIKE_102 = 'must be of the form "<number> mins", like "102 mins"'
MISTYPED = [  # the field, its value, and what is wrong with it
    ("year", "1999", "must be an integer, found a string"),
    ("year", 1999.0, "must be an integer, found a decimal number"),
    ("year", True, "must be an integer, found a boolean"),
    ("title", ["x"], "must be a string, found an array"),
    ("runtime", 107, 'must be a string like "102 mins", found an integer'),
    ("runtime", "107", LIKE_102),
    ("genres", {"a": 1}, "must be an array of strings, found an object"),
]
ONE_MISTAKE = [  # the body, the detail, and pointer and detail of the only error
    *((movie(**{name: value}), f'"{name}" {text}', name, text) for name, value, text in MISTYPED),
    (
        movie(genres=["a", None]),
        '"genres/1" must be a string, found null',
        "genres/1",
        "must be a string, found null",
    ),
    *(
        (raw("year", f"{sign}{'9' * 19}"), '"year" is too big', "year", "is too big")
        for sign in ("", "-")
    ),
    *((movie(**{name: 1}), READ_ONLY.format(name), name, READ_ONLY.format(name)) for name in OWN),
    *(
        (movie(**{name: 1}), UNKNOWN.format(shown), pointer, UNKNOWN.format(shown))
        for name, shown, pointer in (
            ("titel", "titel", "titel"),
            ("a/b~c", "a/b~c", "a~1b~0c"),
            ("tïtle[]", "tïtle[]", "t%C3%AFtle%5B%5D"),
            ("x" * 101, "x" * 100 + "…", "x" * 100 + "%E2%80%A6"),
            ("\ud800", "\\ud800", "%5Cud800"),
        )
    ),
]


async def test_a_field_that_cannot_be_read_is_named(client: Client) -> None:
    """A 400 with one mistake says it in its detail, and in `errors` with a pointer to the field."""
    for body, detail, pointer, text in ONE_MISTAKE:
        refusal = await problem(client, body)
        assert (refusal["status"], refusal["detail"]) == (400, detail)
        assert refusal["type"].endswith("#malformed-body")
        assert refusal["errors"] == [{"pointer": f"#/{pointer}", "detail": text}]


REQUIRED = [(name, "is required") for name in MOANA]
COUNT = ("genres", f"must be 1 to {MAX_GENRES} genres")
EARLY = ("year", f"must be {MIN_YEAR} or later")
MANY_MISTAKES = [  # the body, its status, and all errors: what cannot be read comes first
    (b'{"movie": {}}', 400, [("movie", UNKNOWN.format("movie")), *REQUIRED]),
    (
        movie(id=7, titel="x", title=..., version=1, year="1999", runtime="107", genres=[]),
        400,
        [
            ("id", READ_ONLY.format("id")),
            ("titel", UNKNOWN.format("titel")),
            ("version", READ_ONLY.format("version")),
            ("year", "must be an integer, found a string"),
            ("runtime", LIKE_102),
            ("title", "is required"),
            COUNT,
        ],
    ),
    (
        movie(title=1, year=1.5, runtime=None, genres=[" ", 1, "a", "a", None, "b"]),
        400,
        [
            ("title", "must be a string, found an integer"),
            ("year", "must be an integer, found a decimal number"),
            ("genres/1", "must be a string, found an integer"),
            ("genres/4", "must be a string, found null"),
            ("runtime", "must not be null"),
            COUNT,
            ("genres/0", "must not be blank"),
            ("genres/3", "must not be repeated"),
        ],
    ),
    (
        movie(title="", year=1, genres=["a", "", "a", "b", "c", "d"]),
        422,
        [
            ("title", "must not be blank"),
            EARLY,
            COUNT,
            ("genres/1", "must not be blank"),
            ("genres/2", "must not be repeated"),
        ],
    ),
    (
        movie(title="\u200b\u3164\u2800", genres=["Drama", "drama ", "d\u00adRAMA", "\ufeff"]),
        422,
        [
            ("title", "must not be blank"),
            ("genres/1", "must not be repeated"),
            ("genres/2", "must not be repeated"),
            ("genres/3", "must not be blank"),
        ],
    ),
    (  # The same letters, composed or not, full-width or not.
        movie(genres=["Com\u00e9die", "Ｄｒａｍａ", "COME\u0301DIE", "drama", "\U0001d159"]),
        422,
        [
            ("genres/2", "must not be repeated"),
            ("genres/3", "must not be repeated"),
            ("genres/4", "must not be blank"),
        ],
    ),
]


async def test_all_mistakes_of_a_body_are_reported_at_once(client: Client) -> None:
    """Also broken rules beside fields that cannot be read; the detail is the first one's."""
    for body, status, expected in MANY_MISTAKES:
        refusal = await problem(client, body)
        found = [(error["pointer"], error["detail"]) for error in refusal["errors"]]
        assert (refusal["status"], found) == (status, [(f"#/{at}", text) for at, text in expected])
        assert refusal["detail"].endswith("see errors for more mistakes)") == (status == 400)
    assert (await problem(client, MANY_MISTAKES[1][0]))["detail"] == (
        READ_ONLY.format("id") + " (see errors for more mistakes)"
    )
    patch = await client.patch("/v1/movies/1", data=io.BytesIO(b'{"x": 1, "year": 1}'))
    assert [error["pointer"] for error in (await patch.json())["errors"]] == ["#/x", "#/year"]


async def test_the_errors_of_a_body_are_limited(client: Client) -> None:
    """Thousands of mistakes would take long to write; the status is right in any case."""
    unknown = b",".join(b'"%x": 0' % number for number in range(1900))
    for body, status, number in (
        (b"{" + unknown + b"}", 400, 104),
        (movie(genres=[""] * 19_000), 422, 200),
        (movie(genres=[0] * 19_000), 400, 101),
        (movie(genres=[""] * 19_000 + [0]), 400, 201),
    ):
        refusal = await problem(client, body)
        assert (refusal["status"], len(refusal["errors"])) == (status, number)


FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
NOT_A_FORM = "the body is not one JSON object: expecting value, at character 1"
A_FORM = "the body is a form ({}); expected one JSON object"
SENT_AS = [  # Content-Type, body and detail
    *(
        (FORM, body, A_FORM)
        for body in (b"title=Moana&year=2016", b"genres[]=a", b"t%C3%AFtle=%FF")
    ),
    (MULTIPART, b"--x\r\n\r\n\xff\r\n--x--\r\n", A_FORM),
    ("text/plain", b"title=Moana", NOT_A_FORM),
    # curl -d sends JSON as a form.
    (FORM, b"Moana", NOT_A_FORM),
    (FORM, b"", "the body is empty; expected one JSON object"),
    (
        FORM,
        b'{"title"="x"}',
        "the body is not one JSON object: expecting ':' delimiter, at character 9",
    ),
    (FORM, b'["a=b"]', "the body must be one JSON object"),
    (FORM, b'\xef\xbb\xbf{"a": "="}', "the body starts with a byte order mark"),
]


async def test_a_form_is_named(client: Client) -> None:
    """Its type and what is expected instead; a mistake in JSON that is sent as a form, too."""
    for content_type, body, detail in SENT_AS:
        sent = f"{content_type}; boundary=x" if content_type == MULTIPART else content_type
        refusal = await problem(client, body, **{"Content-Type": sent})
        assert refusal["status"] == 400
        assert refusal["detail"].startswith(detail.format(content_type)), body


THIS_YEAR = datetime.now(UTC).year

ODD = " \ufeffe\u0301É\tﬁ\r\n\x01\x7f\x85\u2028\\\"'\u202e\U0010ffff 💿\u00a0"  # stays as it is
LAST_GENRE = "é" * (MAX_GENRE_BYTES // 2)
ALLOWED: list[dict[str, Any]] = [
    *({"title": unit * (MAX_TITLE_BYTES // len(unit.encode()))} for unit in "xé💿"),
    *({"title": title} for title in (".", "\u200b.", ODD)),
    *({"year": year} for year in (MIN_YEAR, THIS_YEAR)),
    *({"runtime": f"{minutes} mins"} for minutes in (1, MAX_INTEGER)),
    *({"genres": genres} for genres in (["a"], ["a", "á", "a-", "b a"], [LAST_GENRE], [ODD])),
    {"genres": [str(number) for number in range(MAX_GENRES)]},
]
BEYOND: list[tuple[dict[str, Any], str]] = [
    (
        {"title": "é" * (MAX_TITLE_BYTES // 2) + "x"},
        f"must be at most {MAX_TITLE_BYTES} bytes of UTF-8",
    ),
    ({"title": "\0x"}, "must not contain a NUL character"),
    ({"year": MIN_YEAR - 1}, f"must be {MIN_YEAR} or later"),
    ({"year": THIS_YEAR + 1}, "must not be in the future"),
    *(
        ({"runtime": f"{minutes} mins"}, f"must be more than 0 and at most {MAX_INTEGER} mins")
        for minutes in (0, MAX_INTEGER + 1)
    ),
    *(
        ({"genres": genres}, f"must be 1 to {MAX_GENRES} genres")
        for genres in ([], [str(number) for number in range(MAX_GENRES + 1)])
    ),
]


async def test_the_limits_of_the_rules(client: Client) -> None:
    """The last allowed value is stored unchanged; the next one is a 422 of that field alone."""
    for fields in ALLOWED:
        response = await client.post("/v1/movies", json={**MOANA, **fields})
        assert response.status == 201, fields
        assert fields.items() <= (await response.json())["movie"].items()
    for fields, detail in BEYOND:
        refusal = await problem(client, json.dumps({**MOANA, **fields}).encode())
        assert refusal["status"] == 422, fields
        assert refusal["errors"] == [{"pointer": f"#/{name}", "detail": detail} for name in fields]
    long = await problem(client, movie(genres=["a", f"{LAST_GENRE}x"]))
    assert long["errors"] == [
        {"pointer": "#/genres/1", "detail": f"must be at most {MAX_GENRE_BYTES} bytes of UTF-8"}
    ]


HOSTILE = (" ", "\0", "\x01", "9", "\u00a0", "\ufdfa", "a" + "\u0300\u0323" * 8)


@pytest.mark.parametrize("unit", HOSTILE)
async def test_a_text_beyond_its_limit_is_only_measured(client: Client, unit: str) -> None:
    """Whatever is in it: normalizing marks in the wrong order takes seconds."""
    text = "".join(sorted(unit * (40_000 // len(unit.encode()))))
    fields = {"title": text, "genres": [text, text], "external_id": text}
    started = time.process_time()

    refusal = await problem(client, json.dumps({**MOANA, **fields}).encode())

    assert time.process_time() - started < 1
    assert {failure["pointer"]: failure["detail"] for failure in refusal["errors"]} == {
        "#/title": f"must be at most {MAX_TITLE_BYTES} bytes of UTF-8",
        "#/genres/0": f"must be at most {MAX_GENRE_BYTES} bytes of UTF-8",
        "#/genres/1": f"must be at most {MAX_GENRE_BYTES} bytes of UTF-8",
        "#/external_id": f"must be at most {MAX_EXTERNAL_ID_BYTES} bytes of UTF-8",
    }
    assert len(refusal["errors"]) == 4


def padded(size: int) -> bytes:
    """Return a valid movie in a body of exactly `size` bytes."""
    return TEXT.encode() + b" " * (size - len(TEXT))


async def chunks(body: bytes) -> AsyncIterator[bytes]:
    """Yield the body in chunks, so that it is sent without a Content-Length."""
    for start in range(0, len(body), 65_536):
        yield body[start : start + 65_536]


async def test_a_body_of_exactly_the_limit_is_read(client: Client) -> None:
    """1,048,576 bytes are accepted and one more is not, with Content-Length and without."""
    known = await client.post("/v1/movies", data=io.BytesIO(padded(LIMIT)))
    chunked = await client.post("/v1/movies", data=chunks(padded(LIMIT)))
    known_beyond = await problem(client, padded(LIMIT + 1))
    chunked_beyond = await problem(client, chunks(padded(LIMIT + 1)))

    assert (known.status, chunked.status) == (201, 201)
    assert (known_beyond["status"], chunked_beyond["status"]) == (400, 400)


REQUEST = "POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n"
REQUEST_100 = REQUEST.replace("Content", "Expect: 100-continue\r\nContent")


@pytest.mark.parametrize("head", [REQUEST.format(99_999_999_999), REQUEST_100.format(LIMIT + 1)])
async def test_a_large_content_length_is_refused_before_reading(
    start: Start, connect: Connect, monkeypatch: Patch, head: str
) -> None:
    """The response comes before a byte of the body; the connection ends with the client's.

    Otherwise, aiohttp would wait 10 s for the rest of the body, and delay a stop.
    """
    monkeypatch.setattr(server, "LINGERING_S", 0.1)
    client = await start()
    reader, writer = await connect(client)
    writer.write(head.encode())

    status = await asyncio.wait_for(reader.readline(), 4)
    writer.close()

    assert status == b"HTTP/1.1 400 Bad Request\r\n"
    await asyncio.wait_for(until(lambda: not client.server.handler.connections), 4)


async def test_a_body_that_fits_is_requested(client: Client, connect: Connect) -> None:
    """A client that sends Expect: 100-continue gets 100, and then its response."""
    reader, writer = await connect(client)
    writer.write(REQUEST_100.format(len(TEXT)).encode())
    told = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 4)

    writer.write(TEXT.encode())
    status = await asyncio.wait_for(reader.readline(), 4)

    assert told == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert status == b"HTTP/1.1 201 Created\r\n"


async def test_a_body_that_does_not_arrive_is_408(start: Start) -> None:
    """A body that stalls, or never begins, ends at the deadline; so does the connection."""
    client = await start(server__body_timeout=0.1)

    for part in (b"", b'{"title": "Mo'):
        status, headers, _ = await exchange(client, REQUEST.format(100).encode() + part)
        assert status == 408
        assert headers["Connection"] == "close"
        assert headers["Content-Type"] == "application/problem+json"


async def test_a_dripping_body_is_408(start: Start) -> None:
    """Single bytes do not extend the deadline."""
    client = await start(server__body_timeout=0.2)

    async def drip() -> AsyncIterator[bytes]:
        for byte in TEXT.encode():
            yield bytes([byte])
            await asyncio.sleep(0.02)

    refusal = await problem(client, drip())

    assert refusal["status"] == 408


async def test_a_client_that_goes_away_before_its_body_is_read_is_no_failure(
    client: Client, connect: Connect, capsys: Capture
) -> None:
    """Its second request begins when the connection has ended; the log has no traceback."""
    reader, writer = await connect(client)
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + REQUEST.format(100).encode() + b"{")
    writer.write_eof()
    await reader.read()
    writer.close()

    response = await client.post("/v1/movies", json=MOANA)

    assert response.status == 201
    assert "Traceback" not in capsys.readouterr().out


async def test_the_year_is_the_one_in_utc(client: Client, monkeypatch: Patch) -> None:
    """The time zone of the service has no effect."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls(2015 if tz is UTC else 2016, 12, 31, tzinfo=tz)

    monkeypatch.setattr(rules, "datetime", Clock)

    assert (await problem(client, movie(year=2016)))["status"] == 422
    assert (await client.post("/v1/movies", json={**MOANA, "year": 2015})).status == 201


async def test_a_broken_or_huge_compressed_body_is_400(client: Client) -> None:
    """Gzip that is broken or is larger than the limit when unpacked."""
    for packed, detail in (
        (b"no gzip", "not what its Content-Encoding"),
        (GZIPPED[:-12], "not what its Content-Encoding"),
        (GZIPPED + b"x", "not what its Content-Encoding"),
        (gzip.compress(b" " * (LIMIT + 1), 0), "at most 1048576 bytes"),
        (gzip.compress(b" " * 50_000_000), "at most 1048576 bytes"),
        (gzip.compress(b" " * (LIMIT + 1)), "at most 1048576 bytes"),
        (gzip.compress(b" " * LIMIT), "JSON"),
    ):
        refusal = await problem(client, packed, **{"Content-Encoding": "gzip"})
        assert refusal["status"] == 400
        assert detail in refusal["detail"]


async def test_the_content_type_of_a_body_is_ignored(client: Client) -> None:
    """A body is UTF-8 JSON whatever its Content-Type says."""
    body = json.dumps({**GOOD, "title": "Amélie"}, ensure_ascii=False).encode()

    for content_type in (
        *("application/json", "text/plain", "application/x-www-form-urlencoded", "nonsense"),
        *("application/json; charset=utf-16", "application/json; charset=klingon", ""),
    ):
        headers = {"Content-Type": content_type}
        response = await client.post("/v1/movies", data=body, headers=headers)
        assert response.status == 201, content_type
        assert (await response.json())["movie"]["title"] == "Amélie"


CROWDS = {
    "objects": b"[" + b"{}," * 300_000 + b"{}]",
    "arrays": b'{"a": [' + b"[]," * 300_000 + b"[]]}",
    "deep": b'{"a": [' + (b"[" * 800 + b"]" * 800 + b",") * 600 + b"1]}",
    "deeper": b'{"a":' * 200_000,
    "numbers": b'{"genres": [' + b"1e9," * 200_000 + b"1]}",
    "fields": b"{" + b",".join(b'"%x": 0' % number for number in range(80_000)) + b"}",
}


async def test_a_crowded_body_is_refused_before_it_is_read(client: Client) -> None:
    """Reading 1 MB of values would stop all other requests for 0.2 s."""
    for name, crowd in CROWDS.items():
        refusal = await problem(client, crowd)
        assert (refusal["status"], refusal["detail"]) == (400, CROWDED), name


async def test_what_is_no_crowd(client: Client) -> None:
    """A body below the limits has a precise detail; title and genres may consist of commas."""
    fields = b",".join(b'"%x": 0' % number for number in range(1900))
    genres = ["," * length for length in range(96, 101)]

    refusal = await problem(client, b"{" + fields + b', "76b": 1}')
    created = await client.post("/v1/movies", json={**MOANA, "title": "," * 500, "genres": genres})

    assert refusal["detail"] == 'the field "76b" is repeated'
    assert created.status == 201


async def test_content_codings(client: Client) -> None:
    """Those of RFC 9110, in any case, are decoded; others are refused."""
    plain = TEXT.encode()
    packed = {"deflate": zlib.compress(plain), "identity": plain}

    for coding in ("gzip", "deflate", "x-gzip", "GZIP", "identity"):
        response = await client.post(
            "/v1/movies",
            data=io.BytesIO(packed.get(coding, GZIPPED)),
            headers={"Content-Encoding": coding},
        )
        assert response.status == 201, coding
    for coding in ("nonsense", "br", "gzip, gzip", "GZIP;q=1"):
        refusal = await problem(client, plain, **{"Content-Encoding": coding})
        assert refusal["status"] == 400, coding
        assert "gzip" in refusal["detail"]


async def test_large_bodies_are_limited_together(
    client: Client, connect: Connect, monkeypatch: Patch
) -> None:
    """While one client sends a large body slowly, others get a 503; small bodies are read."""
    monkeypatch.setattr(bodies, "MAX_LARGE_BYTES", 2 * SMALL_BYTES)
    head = b"POST /v1/movies HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    large = head % 100_000 + b" " * 100_000
    small = head % len(TEXT) + TEXT.encode()
    _, writer = await connect(client)

    headers: dict[str, str] = {}

    async def is_refused() -> bool:
        nonlocal headers
        status, headers, _ = await exchange(client, large)
        return status == 503

    async def is_read() -> bool:
        return (await exchange(client, large))[0] == 400

    assert await is_read()
    writer.write(large.replace(b"100000", b"200000"))
    await until(is_refused)
    created, _, _ = await exchange(client, small)
    writer.close()
    await until(is_read)

    assert headers["Retry-After"] == "1"
    assert created == 201
