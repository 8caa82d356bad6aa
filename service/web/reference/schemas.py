"""What the service answers, in marshmallow, for the reference alone: nothing is made of these.

`responses.py` builds the answers themselves; the tests hold the two together.
"""

from collections.abc import Mapping
from typing import Any

from marshmallow import Schema
from marshmallow.fields import Boolean, DateTime, Field, Integer, List, Nested, String

from service.catalogue.rules import MOVIE
from service.web.problems import REFERENCE


def _object(
    name: str, members: Mapping[str, Field[Any]], *, optional: tuple[str, ...] = ()
) -> Schema:
    for key, member in members.items():
        member.required = key not in optional
    return Schema.from_dict(dict(members), name=name)()


def _text(description: str, example: str) -> String:
    return String(metadata={"description": description, "examples": [example]})


def _time(description: str) -> DateTime:
    example = "2026-01-05T09:00:00.000000Z"
    return DateTime(metadata={"description": description, "examples": [example]})


KEPT_MOVIE = _object(
    "KeptMovie",
    {
        "id": Integer(metadata={"minimum": 1, "examples": [7], "description": "never given again"}),
        **MOVIE.fields,
        "version": Integer(
            metadata={"minimum": 1, "examples": [1], "description": "one more with every change"}
        ),
        "created_at": _time("RFC 3339, in UTC"),
        "updated_at": _time("when the version was raised"),
    },
)
MOVIE_ANSWER = _object("MovieAnswer", {"movie": Nested(KEPT_MOVIE)})

_CURSOR = "where the {} page begins; null: there is none"
_METADATA: Mapping[str, Field[Any]] = {
    "page_size": Integer(metadata={"examples": [20]}),
    "total_records": Integer(metadata={"minimum": 0, "examples": [1]}),
    "total_is_estimate": Boolean(metadata={"description": "beyond 10,000"}),
    "next_cursor": String(allow_none=True, metadata={"description": _CURSOR.format("next")}),
    "previous_cursor": String(
        allow_none=True, metadata={"description": _CURSOR.format("previous")}
    ),
    "current_page": Integer(metadata={"minimum": 1, "description": "with `page` alone"}),
    "last_page": Integer(metadata={"minimum": 1, "description": "with `page` alone"}),
}
MOVIES_ANSWER = _object(
    "MoviesAnswer",
    {
        "movies": List(Nested(KEPT_MOVIE)),
        "metadata": Nested(
            _object("PageMetadata", _METADATA, optional=("current_page", "last_page"))
        ),
    },
)
GENRE = _object(
    "Genre", {"genre": _text("the genre", "drama"), "movies": Integer(metadata={"minimum": 1})}
)
GENRES_METADATA = _object(
    "GenresMetadata",
    {
        "total_records": Integer(metadata={"minimum": 0, "description": "of all genres"}),
        "as_of": _time("every change before it is counted"),
    },
)
GENRES_ANSWER = _object(
    "GenresAnswer", {"genres": List(Nested(GENRE)), "metadata": Nested(GENRES_METADATA)}
)

SYSTEM_INFO = _object(
    "SystemInfo",
    {
        "environment": _text("what this deployment is called", "production"),
        "version": _text("the version of the service", "1.0.0"),
    },
)
HEALTH = _object(
    "Health",
    {
        "status": String(metadata={"enum": ["available"], "examples": ["available"]}),
        "system_info": Nested(SYSTEM_INFO),
    },
)
READINESS = _object(
    "Readiness", {"status": String(metadata={"enum": ["ready"], "examples": ["ready"]})}
)

BROKEN_RULE = _object(
    "BrokenRule",
    {
        "pointer": _text(
            "a JSON Pointer (RFC 6901) into what was sent; `#` for all of it", "#/year"
        ),
        "parameter": _text("of a query string, in place of the pointer", "year"),
        "detail": _text("what is expected", "must not be in the future"),
    },
    optional=("pointer", "parameter"),
)
PROBLEM = _object(
    "Problem",
    {
        "type": _text("where this kind of problem is described", f"{REFERENCE}#validation-failed"),
        "title": _text("the kind in words", "Validation failed"),
        "status": Integer(
            metadata={
                "minimum": 400,
                "maximum": 599,
                "examples": [422],
                "description": "the HTTP status",
            }
        ),
        "detail": _text("what was wrong here, and what is expected", 'unknown field "titel"'),
        "instance": _text("the path that was asked for", "/v1/movies/7"),
        "errors": List(
            Nested(BROKEN_RULE),
            metadata={"description": "the broken rules, where it is about rules"},
        ),
        "request_id": _text("under which the log has all about it", "5a1d8b0a7c9e4f21-5"),
    },
    optional=("errors",),
)
