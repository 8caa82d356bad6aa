"""The fields that clients send, and their rules."""

import re
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, ClassVar
from unicodedata import normalize

from marshmallow import ValidationError

from service.database import MAX_INTEGER
from service.movies.movie import ENTITY_TAG, READ_ONLY
from service.web.describe import BIGINT, field, make_example, make_schema, time_field
from service.web.fields import (
    BLANK,
    BLANKS,
    MAX_LISTED,
    TEXT,
    JSONField,
    JSONObject,
    Unreadable,
    find_text_errors,
    type_name,
)

MIN_YEAR = 1888  # Roundhay Garden Scene
MAX_TITLE_BYTES = 500
MAX_GENRES = 5
MAX_GENRE_BYTES = 100
MAX_EXTERNAL_ID_BYTES = 255
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
EXTERNAL_ID = rf"^[^{BLANK}]([^\x00-\x1f\x7f-\x9f]*[^{BLANK}])?$"  # for JSON Schema
RUNTIME_PATTERN = re.compile(r"(-?(?:0|[1-9][0-9]*+)) mins")


def _parse_runtime(text: str) -> int:
    match = RUNTIME_PATTERN.fullmatch(text)
    if not match:
        raise ValueError('must be of the form "<number> mins", like "102 mins"')
    # Enough digits to see that the number is too big: int() refuses more than 4,300.
    return int(match[1][:20])


def _check_title(text: str) -> None:
    if errors := find_text_errors(text, MAX_TITLE_BYTES):
        raise ValidationError(errors)


def _check_year(year: int) -> None:
    if year < MIN_YEAR:
        raise ValidationError(f"must be {MIN_YEAR} or later")
    if year > datetime.now(UTC).year:
        raise ValidationError("must not be in the future")


def _check_runtime(minutes: int) -> None:
    if not 1 <= minutes <= MAX_INTEGER:
        raise ValidationError(f"must be more than 0 and at most {MAX_INTEGER} mins")


def _check_genres(genres: list[Any]) -> None:
    wrong = [index for index, genre in enumerate(genres) if type(genre) is not str]
    errors: dict[int, list[str]] = {
        index: [Unreadable(f"must be a string, found {type_name(genres[index])}")]
        for index in wrong[:MAX_LISTED]
    }
    names: list[str] = []
    for index, genre in enumerate(genres[:MAX_LISTED]):
        if index in errors:
            continue
        found = find_text_errors(genre, MAX_GENRE_BYTES)
        if len(genre) <= MAX_GENRE_BYTES:  # `normalize` takes quadratic time
            name = normalize("NFKC", BLANKS.sub("", genre)).casefold()
            if name in names:
                found.append("must not be repeated")
            names.append(name)
        if found:
            errors[index] = found
    count = [] if 1 <= len(genres) <= MAX_GENRES else [f"must be 1 to {MAX_GENRES} genres"]
    if count or errors:
        raise ValidationError([*count, errors])


def find_external_id_errors(text: str) -> list[str]:
    """Find what no external id may have."""
    errors = find_text_errors(text, MAX_EXTERNAL_ID_BYTES)
    if len(text) > MAX_EXTERNAL_ID_BYTES:
        return errors
    if CONTROL_CHARACTER.search(text.replace("\0", "")):
        errors.append("must not contain a control character")
    if BLANKS.match(text[:1]) or BLANKS.match(text[-1:]):
        errors.append("must not begin or end with a blank")
    return errors


def _check_external_id(text: str) -> None:
    if errors := find_external_id_errors(text):
        raise ValidationError(errors)


def _external_id(*, optional: bool) -> JSONField:
    return JSONField(
        str,
        "a string",
        _check_external_id,
        optional=optional,
        minLength=1,
        maxLength=MAX_EXTERNAL_ID_BYTES,
        pattern=EXTERNAL_ID,
        description="the id in the system that the movie comes from, which no other movie has;"
        f" 1 to {MAX_EXTERNAL_ID_BYTES} bytes of UTF-8, without control characters, and without"
        " blanks at its ends",
        examples=["imdb:tt0034583"],
    )


class MovieInput(JSONObject):
    """A movie as clients send it; its JSON Schema counts characters where the rules count bytes."""

    called = "a movie"
    read_only: ClassVar[Collection[str]] = (*READ_ONLY, "etag")
    title = JSONField(
        str,
        "a string",
        _check_title,
        minLength=1,
        maxLength=MAX_TITLE_BYTES,
        pattern=TEXT,
        description=f"1 to {MAX_TITLE_BYTES} bytes of UTF-8, not blank; stored byte for byte",
        examples=["Casablanca"],
    )
    year = JSONField(
        int,
        "an integer",
        _check_year,
        minimum=MIN_YEAR,
        format="int32",
        description=f"{MIN_YEAR} to this year (UTC); digits only, not `1942.0`",
        examples=[1942],
    )
    runtime = JSONField(
        str,
        'a string like "102 mins"',
        _check_runtime,
        convert=_parse_runtime,
        pattern=rf"^[1-9][0-9]{{0,{len(str(MAX_INTEGER)) - 1}}} mins$",
        description=f"`<number> mins`; more than 0 and at most {MAX_INTEGER}",
        examples=["102 mins"],
    )
    genres = JSONField(
        list,
        "an array of strings",
        _check_genres,
        items={"type": "string", "maxLength": MAX_GENRE_BYTES, "pattern": TEXT},
        minItems=1,
        maxItems=MAX_GENRES,
        description=f"1 to {MAX_GENRES} strings of 1 to {MAX_GENRE_BYTES} bytes of UTF-8, none"
        " blank, which differ not only in case, blanks or Unicode form",
        examples=[["drama", "romance", "war"]],
    )
    external_id = _external_id(optional=True)


class IdentifiedMovieInput(MovieInput):
    """A movie that is found by its external id."""

    external_id = _external_id(optional=False)


MOVIE = MovieInput()
# The fields that /v1 did not have at first: a client that does not know one sends a PUT without it,
# which must not remove it.
OPTIONAL = MOVIE.optional
MovieOutput = make_schema(  # as responses have it
    "Movie",
    id=field("read-only; never used again for another movie", 7, **BIGINT),
    **MOVIE.fields,
    version=field("read-only; increases by 1 with every change", 1, minimum=1),
    created_at=time_field("read-only; RFC 3339, in UTC"),
    updated_at=time_field("read-only; the time of the last change"),
    etag=field("read-only; what `If-Match` takes", ENTITY_TAG % (7, 1)),
)


def make_movie_example(version: int = 1, **changes: Any) -> dict[str, Any]:
    """Return the example of a movie in responses, in this version."""
    values = {"version": version, "created_at": f"2026-01-0{6 - version}T09:00:00.000000Z"}
    values |= {"external_id": None, "etag": ENTITY_TAG % (7, version)}
    return make_example(MovieOutput()) | values | changes
