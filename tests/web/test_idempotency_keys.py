"""Tests the Idempotency-Key header: valid keys, and their spelling."""

from conftest import MOANA, Client
from hypothesis import given
from hypothesis import strategies as some
from jsonschema import Draft202012Validator  # type: ignore[import-untyped] # it has no types
from support import Execute

from service.web.headers import KEY_PATTERN

PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))

SAME = (
    *("a", "8e03978e-40d5-43dd-bc93-6894a57f9324", r'a"b\c', "x" * 255, "!" + PRINTABLE + "~"),
    "'; drop table movies; --%(key)s :a",
)
VALID = {
    **{key: key for key in SAME},
    '"a"': "a",
    " a b ": "a b",
    '" a b "': " a b ",
    '" "': " ",
    r'"a\"b\\c"': r'a"b\c',
    f'"{"x" * 255}"': "x" * 255,
    '"' + r"\"" * 255 + '"': '"' * 255,
}
INVALID = [
    *("", " ", "x" * 256, f'"{"x" * 256}"', '""', '"', '"a', '"a"b', '"a";p=1', '"a", "b"'),
    *(r'"a\b"', "é", '"é"', "a\tb"),
]


async def test_a_key_is_stored_without_its_quotes(client: Client, execute: Execute) -> None:
    """Spaces around a key are not part of it, spaces in quotes are."""
    for sent, key in VALID.items():
        execute("truncate idempotency_keys cascade")
        headers = {"Idempotency-Key": sent}
        response = await client.post("/v1/movies", json=MOANA, headers=headers)
        assert response.status == 201
        assert execute("select key from idempotency_keys") == [(key,)]


async def test_an_invalid_key_is_refused(client: Client, execute: Execute) -> None:
    """The 400 says what is expected; no movie is created. Of two keys, none can apply."""
    for keys in [*([key] for key in INVALID), ["a", "a"]]:
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
