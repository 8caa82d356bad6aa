"""The fields that clients send, and their rules."""

import re
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, ClassVar
from unicodedata import normalize

from marshmallow import ValidationError
from marshmallow.validate import Range

from service.database import MAX_INTEGER
from service.errors import Failure, Invalid, Malformed
from service.movies.movie import READ_ONLY
from service.web.fields import MAX_DIGITS, MAX_LISTED, JSONField, JSONObject, type_name
from service.web.reference.describe import BIGINT, field, make_schema, time_field

MIN_YEAR = 1888  # Roundhay Garden Scene
MAX_TITLE_BYTES = 500
MAX_GENRES = 5
MAX_GENRE_BYTES = 100
BLANK = (  # White_Space, Cc, Default_Ignorable_Code_Point and the like: the same as in is_visible
    r"\x00-\x20\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f"
    r"\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffc"
)
BLANKS = re.compile(
    rf"[{BLANK}\U00013430-\U00013442\U00016fe4\U0001bca0-\U0001bca3\U0001d159"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
TEXT = rf"^[^\x00]*[^{BLANK}][^\x00]*$"  # for JSON Schema: not blank, no NUL
RUNTIME_PATTERN = re.compile(r"(-?(?:0|[1-9][0-9]*)) mins")


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
    if not 1 <= len(genres) <= MAX_GENRES:
        broken.append(Failure("genres", f"must be 1 to {MAX_GENRES} genres"))
    names: list[str] = []
    wrong: list[tuple[int, str]] = []  # index and type of those that are no strings
    for index, genre in enumerate(genres):
        if type(genre) is not str:  # `isinstance` takes longer
            wrong.append((index, type_name(genre)))
        elif index < MAX_LISTED:
            errors = _find_text_errors(genre, MAX_GENRE_BYTES)
            name = normalize("NFKC", BLANKS.sub("", genre)).casefold()
            if name in names:
                errors.append("must not be repeated")
            names.append(name)
            broken += [Failure(f"genres/{index}", error) for error in errors]
    if wrong:
        failures = [
            Failure(f"genres/{index}", f"must be a string, found {found}")
            for index, found in wrong[:MAX_LISTED]
        ]
        text = f'"genres" must be an array of strings, found {wrong[0][1]} in it'
        raise Malformed(text, failures + broken)
    if broken:
        raise Invalid(broken)


def _find_text_errors(text: str, max_bytes: int) -> list[str]:
    """Find blank or too long text and characters that PostgreSQL cannot store."""
    errors = []
    if not BLANKS.sub("", text):
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


class MovieInput(JSONObject):
    """A movie as clients send it.

    The dicts are JSON Schema for the reference; it counts characters where the rules count bytes.
    """

    called = "a movie"
    read_only: ClassVar[Collection[str]] = READ_ONLY
    title = JSONField(
        str,
        "a string",
        _check_title,
        {
            "minLength": 1,
            "maxLength": MAX_TITLE_BYTES,
            "pattern": TEXT,
            "description": f"1 to {MAX_TITLE_BYTES} bytes of UTF-8, not blank; stored byte for"
            " byte",
            "examples": ["Casablanca"],
        },
    )
    year = JSONField(
        int,
        "an integer",
        _check_year,
        {
            "minimum": MIN_YEAR,
            "format": "int32",
            "description": f"{MIN_YEAR} to this year (UTC); digits only, not `1942.0`",
            "examples": [1942],
        },
    )
    runtime = JSONField(
        str,
        'a string like "102 mins"',
        Range(1, MAX_INTEGER, error="must be more than 0 and at most {max} mins"),
        {
            "pattern": rf"^[1-9][0-9]{{0,{len(str(MAX_INTEGER)) - 1}}} mins$",
            "description": f"`<number> mins`; more than 0 and at most {MAX_INTEGER}",
            "examples": ["102 mins"],
        },
        _parse_runtime,
    )
    genres = JSONField(
        list,
        "an array of strings",
        _check_genres,
        {
            "items": {"type": "string", "maxLength": MAX_GENRE_BYTES, "pattern": TEXT},
            "minItems": 1,
            "maxItems": MAX_GENRES,
            "uniqueItems": True,
            "description": f"1 to {MAX_GENRES} strings of 1 to {MAX_GENRE_BYTES} bytes of"
            " UTF-8, none blank, which differ not only in case, blanks or Unicode form",
            "examples": [["drama", "romance", "war"]],
        },
    )


MOVIE = MovieInput()
OPTIONAL = tuple(name for name, field in MOVIE.fields.items() if not field.required)
MovieOutput = make_schema(  # as responses have it
    "Movie",
    id=field("read-only; never used again for another movie", 7, **BIGINT, readOnly=True),
    **MOVIE.fields,
    version=field("read-only; increases by 1 with every change", 1, minimum=1, readOnly=True),
    created_at=time_field("read-only; RFC 3339, in UTC", readOnly=True),
    updated_at=time_field("read-only; the time of the last change", readOnly=True),
)
