"""The fields that clients send and their rules, as marshmallow fields and a schema.

Input that cannot be read as a movie raises `Malformed` at once (400). A broken rule raises a
`ValidationError`; marshmallow collects all of them (422). If both apply, `Malformed` wins.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from marshmallow import Schema, ValidationError, missing
from marshmallow.fields import Field

from service.catalogue.movie import COLUMNS, FIELDS
from service.database import MAX_INTEGER
from service.errors import Failure, Invalid, Malformed

MIN_YEAR = 1888  # Roundhay Garden Scene
MAX_TITLE_BYTES = 500
MAX_GENRES = 5
MAX_GENRE_BYTES = 100
RUNTIME_PATTERN = re.compile(r"(-?(?:0|[1-9][0-9]*)) mins")
READ_ONLY = tuple(name for name in COLUMNS if name not in FIELDS)
MAX_DIGITS = 18  # a number with more may not fit a bigint
JSON_TYPES = {str: "string", int: "integer", list: "array"}


class JSONField(Field[Any]):
    """A value of exactly one JSON type; `shape` is the rest of its JSON Schema, for the reference.

    `convert` turns it into the value that is loaded, or raises a `ValueError` that says what the
    value must be.
    """

    def __init__(
        self,
        kind: type,
        expected: str,
        rule: Callable[[Any], Any] | None,
        shape: Mapping[str, Any],
        convert: Callable[[Any], Any] | None = None,
    ) -> None:
        metadata = {"type": JSON_TYPES[kind], **shape}
        super().__init__(
            required=True,
            error_messages={"required": "is required", "null": "must not be null"},
            metadata=metadata,
        )
        self._rule = rule
        self._kind = kind
        self._expected = expected
        self._convert = convert

    def deserialize(
        self,
        value: Any,
        attr: str | None = None,
        data: Any = None,  # noqa: ARG002 - marshmallow's signature
        **_: Any,
    ) -> Any:
        """Return the loaded value; overridden, as marshmallow's own method makes six more calls."""
        if value is missing:
            raise self.make_error("required")
        if value is None:
            raise self.make_error("null")
        if type(value) is not self._kind:
            raise Malformed(f'"{attr}" must be {self._expected}, found {_type_name(value)}')
        try:
            loaded = self._convert(value) if self._convert else value
        except ValueError as error:
            raise Malformed(f'"{attr}" {error}') from error
        if isinstance(loaded, int) and abs(loaded) >= 10**MAX_DIGITS:
            raise Malformed(f'the number in "{attr}" is too big')
        if self._rule:
            self._rule(loaded)
        return loaded


def read_movie(body: Mapping[str, Any], *, partial: bool = False) -> dict[str, Any]:
    """Return the movie's fields, `runtime` in minutes; `partial`: only the fields that were sent.

    Raises `Malformed` or `Invalid`.
    """
    if not body.keys().isdisjoint(READ_ONLY):
        read_only = next(name for name in READ_ONLY if name in body)
        raise Malformed(f'the field "{read_only}" is read-only; clients send {", ".join(FIELDS)}')
    return load_fields(MOVIE, body, partial=partial)


def load_fields(schema: Schema, row: Mapping[str, Any], *, partial: bool = False) -> dict[str, Any]:
    """Load the fields of a schema of this module; raises `Malformed` or `Invalid`."""
    for name in row:
        if name not in schema.fields:
            raise Malformed(f"unknown field {quote(name)}; a movie has {', '.join(schema.fields)}")
    fields: dict[str, Any] = {}
    failures: list[Failure] = []
    # Field by field, because `schema.load` costs a create 12 % more (decision 6).
    for name, field in schema.fields.items():
        if name in row or not partial:
            try:
                fields[name] = field.deserialize(row.get(name, missing), name, row)
            except ValidationError as error:
                failures += _flatten_messages(name, error.messages)
    if failures:
        raise Invalid(failures)
    return fields


def quote(text: str) -> str:
    """Quote the client's text for a message: at most 100 characters, and valid UTF-8."""
    shown = text if len(text) <= 100 else text[:100] + "…"  # noqa: PLR2004 - enough to recognize it
    return '"' + shown.encode("utf-8", "backslashreplace").decode() + '"'


def _flatten_messages(field: str, messages: Any) -> list[Failure]:
    """Flatten marshmallow's messages: `genres`, `{1: ["x"]}` becomes `Failure("genres/1", "x")`."""
    if isinstance(messages, str):
        return [Failure(field, messages)]
    if isinstance(messages, list):
        return [failure for message in messages for failure in _flatten_messages(field, message)]
    return [
        failure
        for key, below in messages.items()
        for failure in _flatten_messages(f"{field}/{key}" if field else str(key), below)
    ]


def _parse_runtime(text: str) -> int:
    match = RUNTIME_PATTERN.fullmatch(text)
    if not match:
        raise ValueError('must be of the form "<number> mins", like "102 mins"')
    # Enough digits to see that the number is too big: int() refuses more than 4,300.
    return int(match[1][: MAX_DIGITS + 2])


def _require_strings(genres: list[Any]) -> list[str]:
    for genre in genres:
        if type(genre) is not str:
            raise ValueError(f"must be an array of strings, found {_type_name(genre)} in it")
    return genres


def _check_title(title: str) -> None:
    if errors := _find_text_errors(title, MAX_TITLE_BYTES):
        raise ValidationError(errors)


def _check_year(year: int) -> None:
    if year < MIN_YEAR:
        raise ValidationError(f"must be {MIN_YEAR} or later")
    if year > datetime.now(UTC).year:
        raise ValidationError("must not be in the future")


def _check_runtime(minutes: int) -> None:
    if not 1 <= minutes <= MAX_INTEGER:
        raise ValidationError(f"must be more than 0 and at most {MAX_INTEGER} mins")


def _check_genres(genres: list[str]) -> None:
    if not 1 <= len(genres) <= MAX_GENRES:
        raise ValidationError(f"must be 1 to {MAX_GENRES} genres")
    errors: dict[Any, list[str]] = {}
    for index, genre in enumerate(genres):
        text_errors = _find_text_errors(genre, MAX_GENRE_BYTES)
        if genre in genres[:index]:
            text_errors.append("must not be repeated")
        if text_errors:
            errors[index] = text_errors
    if errors:
        raise ValidationError(errors)


def _find_text_errors(text: str, max_bytes: int) -> list[str]:
    """Find blank or too long text and characters that PostgreSQL cannot store."""
    errors = []
    if not text.strip():
        errors.append("must not be blank")
    if "\0" in text:
        errors.append("must not contain a NUL character")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        errors.append("must not contain a lone surrogate")
        size = len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        errors.append(f"must be at most {max_bytes} bytes of UTF-8")
    return errors


def _type_name(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    names = {float: "a decimal number", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "null")


# The dicts are JSON Schema for the reference; it counts characters where the rules count bytes.
MOVIE = Schema.from_dict(
    {
        "title": JSONField(
            str,
            "a string",
            _check_title,
            {
                "minLength": 1,
                "maxLength": MAX_TITLE_BYTES,
                "pattern": r"\S",
                "description": f"1 to {MAX_TITLE_BYTES} bytes of UTF-8, not blank; stored byte for"
                " byte",
                "examples": ["Casablanca"],
            },
        ),
        "year": JSONField(
            int,
            "an integer",
            _check_year,
            {
                "minimum": MIN_YEAR,
                "description": f"{MIN_YEAR} to this year (UTC)",
                "examples": [1942],
            },
        ),
        "runtime": JSONField(
            str,
            'a string like "102 mins"',
            _check_runtime,
            {
                "pattern": rf"^[1-9][0-9]{{0,{len(str(MAX_INTEGER)) - 1}}} mins$",
                "description": f"`<number> mins`; more than 0 and at most {MAX_INTEGER}",
                "examples": ["102 mins"],
            },
            _parse_runtime,
        ),
        "genres": JSONField(
            list,
            "an array of strings",
            _check_genres,
            {
                "items": {"type": "string", "minLength": 1, "maxLength": MAX_GENRE_BYTES},
                "minItems": 1,
                "maxItems": MAX_GENRES,
                "uniqueItems": True,
                "description": f"1 to {MAX_GENRES} different strings of 1 to {MAX_GENRE_BYTES}"
                " bytes of UTF-8, none blank",
                "examples": [["drama", "romance", "war"]],
            },
            _require_strings,
        ),
    },
    name="MovieInput",
)()
