"""The fields that clients send and their rules, as marshmallow fields and a schema.

A field that cannot be read raises `Malformed` (400), a broken rule a `ValidationError` (422).
`load_fields` collects all of them. If both apply, the result is a `Malformed` with the rules.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from marshmallow import Schema, ValidationError, missing
from marshmallow.fields import Field
from marshmallow.validate import Range

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
MAX_LISTED = 100  # unknown fields, and genres that are checked: a body has 20,000 at most
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
        try:
            if type(value) is not self._kind:
                raise ValueError(  # noqa: TRY301 - handled as `convert`'s
                    f"must be {self._expected}, found {type_name(value)}"
                )
            loaded = self._convert(value) if self._convert else value
        except ValueError as error:
            raise Malformed(f'"{attr}" {error}', [Failure(str(attr), str(error))]) from error
        if isinstance(loaded, int) and abs(loaded) >= 10**MAX_DIGITS:
            failure = Failure(str(attr), "is too big")
            raise Malformed(f'the number in "{attr}" is too big', [failure])
        if self._rule:
            self._rule(loaded)
        return loaded


def load_fields(schema: Schema, row: Mapping[str, Any], *, partial: bool = False) -> dict[str, Any]:
    """Return the fields of a schema of this module, `runtime` in minutes.

    `partial`: only the fields that were sent. Raises `Malformed` or `Invalid`, with every mistake.
    """
    fields: dict[str, Any] = {}
    unreadable: list[Malformed] = []
    broken: list[Failure] = []
    for name in row:
        if name not in schema.fields and len(unreadable) < MAX_LISTED:
            unreadable.append(refuse_field(name, schema))
    # Field by field, because `schema.load` costs a create 12 % more (decision 6).
    for name, field in schema.fields.items():
        if name in row or not partial:
            try:
                fields[name] = field.deserialize(row.get(name, missing), name, row)
            except Malformed as error:
                unreadable.append(error)
            except ValidationError as error:
                broken += [Failure(name, text) for text in error.messages]
            except Invalid as error:
                broken += error.failures
    if unreadable:
        failures = [failure for error in unreadable for failure in error.failures] + broken
        more = " (see errors for more mistakes)" if len(failures) > 1 else ""
        raise Malformed(f"{unreadable[0]}{more}", failures)
    if broken:
        raise Invalid(broken)
    return fields


def refuse_field(name: str, schema: Schema) -> Malformed:
    """Return the error of a field that clients do not send: read-only or unknown."""
    called = "a batch" if schema.fields.keys().isdisjoint(FIELDS) else "a movie"
    text = f"unknown field {quote(name)}; {called} has {', '.join(schema.fields)}"
    if name in READ_ONLY and called == "a movie":
        text = f'the field "{name}" is read-only; clients send {", ".join(FIELDS)}'
    pointer = quote(name)[1:-1].replace("~", "~0").replace("/", "~1")
    return Malformed(text, [Failure(pointer, text)])


def quote(text: str) -> str:
    """Quote the client's text for a message: at most 100 characters, and valid UTF-8."""
    shown = text if len(text) <= 100 else text[:100] + "…"  # noqa: PLR2004 - enough to recognize it
    return '"' + shown.encode("utf-8", "backslashreplace").decode() + '"'


def _parse_runtime(text: str) -> int:
    match = RUNTIME_PATTERN.fullmatch(text)
    if not match:
        raise ValueError('must be of the form "<number> mins", like "102 mins"')
    # Enough digits to see that the number is too big: int() refuses more than 4,300.
    return int(match[1][: MAX_DIGITS + 2])


def _check_title(title: str) -> None:
    if errors := _find_text_errors(title, MAX_TITLE_BYTES):
        raise ValidationError(errors)


def _check_year(year: int) -> None:
    if year < MIN_YEAR:
        raise ValidationError(f"must be {MIN_YEAR} or later")
    if year > datetime.now(UTC).year:
        raise ValidationError("must not be in the future")


def _check_genres(genres: list[Any]) -> None:
    broken: list[Failure] = []
    wrong: list[Failure] = []
    if not 1 <= len(genres) <= MAX_GENRES:
        broken.append(Failure("genres", f"must be 1 to {MAX_GENRES} genres"))
    for index, genre in enumerate(genres):
        if type(genre) is not str:
            if len(wrong) < MAX_LISTED:
                what = f"must be a string, found {type_name(genre)}"
                wrong.append(Failure(f"genres/{index}", what))
        elif index < MAX_LISTED:
            errors = _find_text_errors(genre, MAX_GENRE_BYTES)
            if genre in genres[:index]:
                errors.append("must not be repeated")
            broken += [Failure(f"genres/{index}", error) for error in errors]
    if wrong:
        found = wrong[0].detail.partition("found ")[2]
        text = f'"genres" must be an array of strings, found {found} in it'
        raise Malformed(text, wrong + broken)
    if broken:
        raise Invalid(broken)


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


def type_name(value: Any) -> str:
    """Name the JSON type of a value for a message."""
    names: dict[type, str] = {bool: "a boolean", int: "an integer", float: "a decimal number"}
    names |= {str: "a string", list: "an array", dict: "an object"}
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
            Range(1, MAX_INTEGER, error="must be more than 0 and at most {max} mins"),
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
        ),
    },
    name="MovieInput",
)()
