"""What a client may send, in marshmallow: bodies, and the Runtime field.

Two kinds of wrong are told apart by their type, not by message: what cannot be read as a movie
raises `Malformed` on the spot (400); a broken rule is a `ValidationError`, of which marshmallow
collects all (422). So where both hold, it is the former.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from marshmallow import Schema, ValidationError, missing
from marshmallow.fields import Field

from service.catalogue.movie import FIELDS
from service.errors import Failure, Invalid, Malformed

FIRST_YEAR = 1888  # Roundhay Garden Scene
TITLE_BYTES = 500
GENRES = 5
LONGEST_RUNTIME = 2**31 - 1  # an integer of PostgreSQL
RUNTIME = re.compile(r"(-?)(0|[1-9][0-9]*) mins")
DIGITS = 18  # any number of so many fits a bigint; more are too big for any field


class JSON(Field[Any]):
    """A value of exactly one JSON type; `shape` is that in JSON Schema, for the reference."""

    def __init__(
        self, kind: type, expected: str, rule: Callable[[Any], None], shape: Mapping[str, Any]
    ) -> None:
        super().__init__(required=True, error_messages={**MESSAGES}, metadata=shape)
        self._kind = kind
        self._expected = expected
        self._rule = rule

    def _validate(self, value: Any) -> None:
        self._rule(value)  # one each: marshmallow's list of validators costs a create 3 % more

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:  # noqa: ARG002 - marshmallow's signature
        if type(value) is not self._kind:
            raise Malformed(f'"{attr}" must be {self._expected}, found {_found(value)}')
        if isinstance(value, int) and abs(value) >= 10**DIGITS:
            raise Malformed(f'the number in "{attr}" is too big')
        return value


class Runtime(JSON):
    """Minutes, as the string `<number> mins`."""

    def __init__(self) -> None:
        super().__init__(str, 'a string like "102 mins"', _check_runtime, RUNTIME_SHAPE)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> int:
        text = super()._deserialize(value, attr, data, **kwargs)
        match = RUNTIME.fullmatch(text)
        if not match:
            raise Malformed(f'"{attr}" must be of the form "<number> mins", like "102 mins"')
        sign, digits = match.groups()
        if len(digits) > DIGITS:
            raise Malformed(f'the number in "{attr}" is too big')
        return int(sign + digits)


class Genres(JSON):
    """An array of strings."""

    def __init__(self) -> None:
        super().__init__(list, "an array of strings", _check_genres, GENRES_SHAPE)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[str]:
        genres: list[str] = super()._deserialize(value, attr, data, **kwargs)
        for genre in genres:
            if type(genre) is not str:
                raise Malformed(
                    f'"{attr}" must be an array of strings, found {_found(genre)} in it'
                )
        return genres


def read_movie(body: Mapping[str, Any], *, partial: bool = False) -> dict[str, Any]:
    """Return the movie's fields, `runtime` in minutes; `partial`: those that are there.

    Raises `Malformed` or `Invalid`.
    """
    for name in body:
        if name not in FIELDS:
            raise Malformed(f"unknown field {quoted(name)}; a movie has {', '.join(FIELDS)}")
    movie: dict[str, Any] = {}
    failures: list[Failure] = []
    # Field by field: what `MOVIE.load` does besides costs a create 7 % more.
    for name, field in MOVIE.fields.items():
        if name in body or not partial:
            try:
                movie[name] = field.deserialize(body.get(name, missing), name, body)
            except ValidationError as error:
                failures += _failures(name, error.messages)
    if failures:
        raise Invalid(failures)
    return movie


def quoted(text: str) -> str:
    """The client's own text as it may stand in an answer: short, and valid UTF-8."""
    shown = text if len(text) <= 100 else text[:100] + "…"  # noqa: PLR2004 - enough to know it by
    return '"' + shown.encode("utf-8", "backslashreplace").decode() + '"'


def _failures(field: str, messages: Any) -> list[Failure]:
    if isinstance(messages, str):
        return [Failure(field, messages)]
    if isinstance(messages, list):
        return [failure for message in messages for failure in _failures(field, message)]
    return [
        failure
        for key, below in messages.items()
        for failure in _failures(f"{field}/{key}" if field else str(key), below)
    ]


def _check_title(title: str) -> None:
    faults = _text_faults(title)
    if len(title.encode("utf-8", "surrogatepass")) > TITLE_BYTES:
        faults.append(f"must be at most {TITLE_BYTES} bytes of UTF-8")
    if faults:
        raise ValidationError(faults)


def _check_year(year: int) -> None:
    if year < FIRST_YEAR:
        raise ValidationError(f"must be {FIRST_YEAR} or later")
    if year > datetime.now(UTC).year:
        raise ValidationError("must not be in the future")


def _check_runtime(minutes: int) -> None:
    if not 0 < minutes <= LONGEST_RUNTIME:
        raise ValidationError(f"must be more than 0 and at most {LONGEST_RUNTIME} mins")


def _check_genres(genres: list[str]) -> None:
    if not 1 <= len(genres) <= GENRES:
        raise ValidationError(f"must be 1 to {GENRES} genres")
    faults: dict[Any, list[str]] = {}
    for index, genre in enumerate(genres):
        found = _text_faults(genre)
        if genre in genres[:index]:
            found.append("must not be repeated")
        if found:
            faults[index] = found
    if faults:
        raise ValidationError(faults)


def _text_faults(text: str) -> list[str]:
    """What PostgreSQL cannot store, and blank text."""
    if not text.strip():
        return ["must not be blank"]
    faults = []
    if "\0" in text:
        faults.append("must not contain a NUL character")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        faults.append("must not contain a lone surrogate")
    return faults


def _found(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    names = {float: "a decimal number", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "null")


MESSAGES = {"required": "is required", "null": "must not be null"}
# What JSON Schema can say of the rules above; it counts characters, where the rule counts bytes.
TITLE_SHAPE = {
    "type": "string",
    "minLength": 1,
    "maxLength": TITLE_BYTES,
    "pattern": r"\S",
    "description": f"1 to {TITLE_BYTES} bytes of UTF-8, not blank; kept byte for byte",
    "examples": ["Casablanca"],
}
YEAR_SHAPE = {
    "type": "integer",
    "minimum": FIRST_YEAR,
    "description": f"{FIRST_YEAR} to this year (UTC)",
    "examples": [1942],
}
RUNTIME_SHAPE = {
    "type": "string",
    "pattern": rf"^[1-9][0-9]{{0,{len(str(LONGEST_RUNTIME)) - 1}}} mins$",
    "description": f"`<number> mins`; more than 0 and at most {LONGEST_RUNTIME}",
    "examples": ["102 mins"],
}
GENRES_SHAPE = {
    "type": "array",
    "items": {"type": "string", "minLength": 1},
    "minItems": 1,
    "maxItems": GENRES,
    "uniqueItems": True,
    "description": f"1 to {GENRES} different strings, none blank",
    "examples": [["drama", "romance", "war"]],
}
MOVIE = Schema.from_dict(
    {
        "title": JSON(str, "a string", _check_title, TITLE_SHAPE),
        "year": JSON(int, "an integer", _check_year, YEAR_SHAPE),
        "runtime": Runtime(),
        "genres": Genres(),
    },
    name="MovieInput",
)()
