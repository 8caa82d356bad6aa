"""The schemas of responses and bodies, for the reference only.

`responses.py` builds the responses without them; the tests compare the two.
"""

from typing import Any

from marshmallow import Schema
from marshmallow.fields import Boolean, DateTime, Field, Integer, List, Nested, String

from service.catalogue.paging import EXACT_TOTAL
from service.catalogue.rules import MOVIE
from service.web.problems import REFERENCE

MOVIE_PATCH = type(MOVIE)(partial=True)  # the body of PATCH


def _schema(name: str, *, optional: tuple[str, ...] = (), **fields: Field[Any]) -> type[Schema]:
    """Make a schema whose fields are always present, except those in `optional`."""
    for field_name, field in fields.items():
        field.required = field_name not in optional
    return Schema.from_dict(fields, name=name)


def _string(description: str, example: str, **metadata: Any) -> String:
    return String(metadata={"description": description, "examples": [example], **metadata})


def _integer(
    description: str, example: int, minimum: int, *, dump_only: bool = False, **metadata: Any
) -> Integer:
    described = {"description": description, "examples": [example], "minimum": minimum}
    return Integer(metadata={**described, **metadata}, dump_only=dump_only)


def _time(description: str, *, dump_only: bool = False) -> DateTime:
    example = "2026-01-05T09:00:00.000000Z"
    metadata = {"description": description, "examples": [example]}
    return DateTime(metadata=metadata, dump_only=dump_only)


def _cursor(page: str) -> String:
    text = f"the cursor of the {page} page; null if there is none"
    return String(allow_none=True, metadata={"description": text})


MOVIE_OUTPUT = _schema(
    "Movie",
    id=_integer("read-only; never used again for another movie", 7, 1, dump_only=True),
    title=MOVIE.fields["title"],
    year=MOVIE.fields["year"],
    runtime=MOVIE.fields["runtime"],
    genres=MOVIE.fields["genres"],
    version=_integer("read-only; increases by 1 with every change", 1, 1, dump_only=True),
    created_at=_time("read-only; RFC 3339, in UTC", dump_only=True),
    updated_at=_time("read-only; the time of the last change", dump_only=True),
)
MOVIE_RESPONSE = _schema("MovieResponse", movie=Nested(MOVIE_OUTPUT))
PAGE_METADATA = _schema(
    "PageMetadata",
    optional=("current_page", "last_page"),
    page_size=_integer("the largest number of movies on a page", 20, 1),
    total_records=_integer("the number of movies that match", 1, 0),
    total_is_estimate=Boolean(metadata={"description": f"true if more than {EXACT_TOTAL:,}"}),
    next_cursor=_cursor("next"),
    previous_cursor=_cursor("previous"),
    current_page=_integer("only with the parameter `page`", 1, 1),
    last_page=_integer("only with the parameter `page`", 1, 1),
)
MOVIE_LIST = _schema("MovieList", movies=List(Nested(MOVIE_OUTPUT)), metadata=Nested(PAGE_METADATA))
GENRE = _schema(
    "Genre",
    genre=_string("the name of the genre", "drama"),
    movies=_integer("the number of movies of this genre", 120, 1),
)
GENRE_METADATA = _schema(
    "GenreMetadata",
    total_records=_integer("the number of all genres", 2, 0),
    as_of=_time("every change before this time is counted"),
)
GENRE_LIST = _schema("GenreList", genres=List(Nested(GENRE)), metadata=Nested(GENRE_METADATA))
SYSTEM_INFO = _schema(
    "SystemInfo",
    environment=_string("the name of this deployment", "production"),
    version=_string("the version of the service", "1.0.0"),
)
HEALTH = _schema(
    "Health",
    status=_string("always `available`", "available", enum=["available"]),
    system_info=Nested(SYSTEM_INFO),
)
READINESS = _schema("Readiness", status=_string("always `ready`", "ready", enum=["ready"]))
INDEX = _schema(
    "Index",
    api=_string("the path of the movies", "/v1/movies"),
    reference=_string("the path of the reference page", "/v1/docs"),
    openapi=_string("the path of the OpenAPI document", "/v1/openapi.json"),
)
FIELD_ERROR = _schema(
    "FieldError",
    optional=("pointer", "parameter"),
    pointer=_string("a JSON Pointer (RFC 6901) to the field; `#`: the whole body", "#/year"),
    parameter=_string("the query parameter, instead of a pointer", "year"),
    detail=_string("what is expected", "must not be in the future"),
)
PROBLEM = _schema(
    "Problem",
    optional=("errors",),
    type=_string("a link to the description of the problem", f"{REFERENCE}#validation-failed"),
    title=_string("the kind of problem", "Validation failed"),
    status=_integer("the HTTP status", 422, 400, maximum=599),
    detail=_string("what was wrong and what is expected", 'unknown field "titel"'),
    instance=_string("the path of the request", "/v1/movies/7"),
    errors=List(
        Nested(FIELD_ERROR), metadata={"description": "the failures of fields or parameters"}
    ),
    request_id=_string("the id of the request in the log", "5a1d8b0a7c9e4f21-5"),
)
