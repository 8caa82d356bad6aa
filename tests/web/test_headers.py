"""Tests the headers of every response, the limit of those of a request, and Idempotency-Key."""

import json
from collections.abc import Mapping

from conftest import MOANA, Client, Start
from hypothesis import given
from hypothesis import strategies as some
from jsonschema import Draft202012Validator  # type: ignore[import-untyped] # it has no types
from support import Execute
from wire import exchange

from service.web.headers import KEY_PATTERN, MAX_HEADER_BYTES

POLICY = "default-src 'none'; frame-ancestors 'none'"


async def answers(client: Client) -> list[Mapping[str, str]]:
    """Return the headers of a success, of errors, and of an error of the parser."""
    responses = [
        await client.get("/v1/healthcheck"),
        await client.post("/v1/movies", json=MOANA),
        await client.get("/v1/movies"),
        await client.get("/v1/movies/1"),
        await client.head("/v1/movies/1"),
        await client.post("/v1/movies", data=b"{"),
        await client.get("/v1/movies?page=0"),
        await client.get("/nowhere"),
        await client.put("/v1/movies"),
        await client.options("/v1/movies"),
    ]
    for response in responses[2], responses[3]:
        tag = {"If-None-Match": response.headers["ETag"]}
        responses.append(await client.get(response.url.path, headers=tag))
        assert responses[-1].status == 304
    sent = [
        b"NONSENSE\r\n\r\n",
        b"GET /v1/movies/1 HTTP/1.0\r\n\r\n",
        b"GET /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET /nowhere HTTP/1.1\r\nHost: a\r\nExpect: magic\r\n\r\n",
    ]
    others = [(await exchange(client, each))[1] for each in sent]
    return [*(response.headers for response in responses), *others]


async def test_every_response_is_safe_in_a_browser(client: Client) -> None:
    """No sniffing, scripts, frames or referrers; the software's name is hidden.

    Each has a request id of its own.
    """
    sent = await answers(client)
    assert len({headers["X-Request-Id"] for headers in sent}) == len(sent)
    for headers in sent:
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Security-Policy"] == POLICY
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Server"] == "movie-catalogue"
        assert headers["Cache-Control"]
        assert "Strict-Transport-Security" not in headers
        assert "Set-Cookie" not in headers


async def test_hsts_is_sent_where_it_is_configured(start: Start) -> None:
    """Every response has it, with the configured seconds."""
    client = await start(server__hsts=31536000)

    for headers in await answers(client):
        assert headers["Strict-Transport-Security"] == "max-age=31536000"


async def test_the_headers_of_a_request_are_limited(start: Start) -> None:
    """All together, before the token or another header is read; a line is limited by aiohttp."""
    client = await start(access__anonymous="none")
    lines = [(b"Host", b"a"), *[(b"If-None-Match", b'"",' * 2000)] * 5]
    lines.append((b"Cookie", b"x" * (MAX_HEADER_BYTES - sum(map(len, sum(lines, ()))) - 6)))

    for more, expected in ((b"", 401), (b"y", 400)):
        head = b"".join(b"%s: %s\r\n" % line for line in lines)
        sent = b"GET /v1/movies HTTP/1.1\r\n%s%s\r\n" % (head[:-2] + more, b"\r\n")
        status, _, body = await exchange(client, sent)

        assert status == expected
    assert json.loads(body)["detail"] == (
        "the request is not valid HTTP: the headers have more than 32768 bytes"
    )


# Valid keys, and their spelling.

PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))

UNQUOTED = (
    *("a", "8e03978e-40d5-43dd-bc93-6894a57f9324", r'a"b\c', "x" * 255, "!" + PRINTABLE + "~"),
    "'; drop table movies; --%(key)s :a",
)
KEYS = {
    **{key: key for key in UNQUOTED},
    '"a"': "a",
    " a b ": "a b",
    '" a b "': " a b ",
    '" "': " ",
    r'"a\"b\\c"': r'a"b\c',
    f'"{"x" * 255}"': "x" * 255,
    '"' + r"\"" * 255 + '"': '"' * 255,
}
NO_KEYS = [
    *("", " ", "x" * 256, f'"{"x" * 256}"', '""', '"', '"a', '"a"b', '"a";p=1', '"a", "b"'),
    *(r'"a\b"', "é", '"é"', "a\tb"),
]


async def test_a_key_is_stored_without_its_quotes(client: Client, execute: Execute) -> None:
    """Spaces around a key are not part of it, spaces in quotes are."""
    for sent, key in KEYS.items():
        execute("truncate idempotency_keys cascade")
        headers = {"Idempotency-Key": sent}
        response = await client.post("/v1/movies", json=MOANA, headers=headers)
        assert response.status == 201
        assert execute("select key from idempotency_keys") == [(key,)]


async def test_an_invalid_key_is_refused(client: Client, execute: Execute) -> None:
    """The 400 says what is expected; no movie is created. Of two keys, none can apply."""
    for keys in [*([key] for key in NO_KEYS), ["a", "a"]]:
        headers = [("Idempotency-Key", key) for key in keys]
        response = await client.post("/v1/movies", json=MOANA, headers=headers)
        problem = await response.json()
        assert response.status == 400, keys
        assert problem["type"].endswith("#wrong-idempotency-key")
        assert "1 to 255 printable ASCII characters" in problem["detail"]

    assert execute("select 1 from movies") == []


@given(some.text(some.characters(codec="ascii"), max_size=300) | some.text(PRINTABLE, max_size=8))
def test_the_reference_has_the_same_rule(text: str) -> None:
    """The OpenAPI document allows exactly the keys that the service accepts."""
    schema = {"type": "string", "pattern": f"^({KEY_PATTERN.pattern})$"}

    allowed = Draft202012Validator(schema).is_valid(text) and not text.endswith("\n")

    assert allowed == bool(KEY_PATTERN.fullmatch(text))
