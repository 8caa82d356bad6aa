"""What the service answers, in marshmallow, for the reference alone: nothing is made of these.

`responses.py` builds the answers themselves; the tests hold the two together.
"""

from collections.abc import Mapping
from typing import Any

from marshmallow import Schema
from marshmallow.fields import DateTime, Field, Integer, List, Nested, String

from service.web.problems import REFERENCE
from service.web.schemas import MOVIE


def _object(name: str, members: Mapping[str, Field[Any]], *, optional: str = "") -> Schema:
    for key, member in members.items():
        member.required = key != optional
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
        "detail": _text("what is expected", "must not be in the future"),
    },
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
    optional="errors",
)
