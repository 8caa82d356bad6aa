"""The OpenAPI 3.1 document, made of the route table and the marshmallow schemas.

https://spec.openapis.org/oas/v3.1.0. What a route says of itself is an `Operation`, which
`routes.py` asks of every route; what all of them share is added here, once: the request id, the
problems that any request may meet, HEAD beside GET, and OPTIONS.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin
from marshmallow import Schema

from service import __version__
from service.errors import Unavailable
from service.web import problems
from service.web.problems import Problem
from service.web.reference.schemas import PROBLEM
from service.web.request_cycle.request_ids import WELL_FORMED

DESCRIPTION = """\
A catalogue of movies over JSON and HTTP. Bodies and answers are JSON in UTF-8. Every error is a \
problem (RFC 9457), whose `type` leads to what happened and how to mend it.

`HEAD` works wherever `GET` does, and `OPTIONS` tells the methods of a path; any other method is \
405 with `Allow`."""

# In the order of the page.
TAGS = {
    "Movies": "What the catalogue keeps.",
    "Health": "What probes and balancers ask.",
    "Reference": "What describes all of this.",
}


class Parameter(NamedTuple):
    """What a request may carry beside its body; `place` is path, query or header."""

    name: str
    place: str
    description: str
    schema: Mapping[str, Any]


class Body(NamedTuple):
    """What a request carries; `examples` are bodies by what they show."""

    schema: Schema
    examples: Mapping[str, Any]
    media_types: tuple[str, ...] = ("application/json",)


class Answer(NamedTuple):
    """What a request is answered; `headers` are names of `HEADERS`."""

    description: str
    schema: Schema | Mapping[str, Any] | None = None
    example: Any = None
    headers: tuple[str, ...] = ()
    media_type: str = "application/json"


class Operation(NamedTuple):
    """What the document says of one route; descriptions have code in backticks."""

    name: str  # unique: clients that are generated name a method so
    tag: str  # of `TAGS`
    summary: str
    description: str
    answers: Mapping[int, Answer]
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    problems: tuple[Problem, ...] = ()  # beside `ALWAYS`


# What any request may be answered.
ALWAYS = (
    problems.HTTP[400],
    problems.HTTP[417],
    problems.INTERNAL,
    problems.PROBLEMS[Unavailable],
)
REQUEST_ID = Parameter(
    "X-Request-Id",
    "header",
    f"Kept for the answer and the log if it matches `{WELL_FORMED.pattern}`; else another is made.",
    {"type": "string"},
)
# Every header that an answer may have to note: description and schema.
HEADERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "X-Request-Id": (
        "Under which the log has all about this request.",
        {"type": "string", "pattern": f"^{WELL_FORMED.pattern}$"},
    ),
    "Location": (
        "The path of what was created.",
        {"type": "string", "format": "uri-reference"},
    ),
    "Idempotency-Replayed": (
        "`true` where this is the answer to an earlier request with the same `Idempotency-Key`.",
        {"type": "string", "enum": ["true"]},
    ),
    "Link": (
        "The pages `first`, `prev` and `next`, as far as there are (RFC 8288).",
        {"type": "string"},
    ),
    "Allow": ("The methods that this path takes.", {"type": "string"}),
    "Retry-After": (
        "Seconds to wait before another try.",
        {"type": "integer", "minimum": 0},
    ),
    "ETag": ("Changes when what is answered does.", {"type": "string"}),
    "Last-Modified": ("When what is answered changed, to the second.", {"type": "string"}),
    "Content-Location": (
        "The path of what is answered, which is as it is there now.",
        {"type": "string", "format": "uri-reference"},
    ),
    "Cache-Control": ("How long the answer may be kept.", {"type": "string"}),
}
# An answer has all the headers that it lists, but for these.
OPTIONAL = {"Idempotency-Replayed"}
# On every response; the others of `request_cycle/headers.py` are not documented.
COMMON = ("Cache-Control", "X-Request-Id")
# Beside these, what a problem of this status comes with.
PROBLEM_HEADERS = {405: ("Allow",), 409: ("Retry-After",), 503: ("Retry-After",)}


def document(table: Iterable[tuple[str, str, Operation]]) -> dict[str, Any]:
    """Return the document for a table of method, path (as aiohttp takes it) and operation."""
    spec = APISpec(
        title="The movie catalogue",
        version=__version__,
        openapi_version="3.1.0",
        info={
            "summary": "A strict JSON-over-HTTP catalogue of movies",
            "description": DESCRIPTION,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        servers=[{"url": "/", "description": "where this document comes from"}],
        tags=[{"name": name, "description": what} for name, what in TAGS.items()],
        plugins=[MarshmallowPlugin(schema_name_resolver=_schema_name)],
    )
    for name, (description, schema) in HEADERS.items():
        described = {
            "description": description,
            "required": name not in OPTIONAL,
            "schema": dict(schema),
        }
        spec.components.header(name, described)
    spec.components.parameter(REQUEST_ID.name, REQUEST_ID.place, _parameter(REQUEST_ID))
    for kind in problems.KINDS.values():
        spec.components.example(kind.slug, {"summary": kind.title, "value": problems.example(kind)})
        spec.components.response(kind.slug, _problem([kind]))
    paths: dict[str, dict[str, Any]] = {}
    for method, path, operation in table:
        operations = paths.setdefault(re.sub(r"\{(\w+):[^/]*\}", r"{\1}", path), {})
        operations[method.lower()] = _operation(operation)
        if method == "GET":
            operations["head"] = _head(operation)
        operations["options"] = _options(operation)
    for path, operations in paths.items():
        spec.path(path, operations=operations)
    return spec.to_dict()


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": operation.description,
        "parameters": _parameters(operation.parameters),
        "responses": _answers(operation),
    }
    if operation.body:
        content = {
            "schema": operation.body.schema,
            "examples": {
                what: {"value": example} for what, example in operation.body.examples.items()
            },
        }
        described["requestBody"] = {
            "required": True,
            "content": dict.fromkeys(operation.body.media_types, content),
        }
    return described


def _head(get: Operation) -> dict[str, Any]:
    answers = _answers(get)
    for status, answer in answers.items():
        described = _problem([problems.KINDS[answer]]) if isinstance(answer, str) else answer
        answers[status] = {key: what for key, what in described.items() if key != "content"}
    return {
        "tags": [get.tag],
        "summary": f"{get.summary}: the head alone",
        "description": "Answers as `GET` does, without the body.",
        "parameters": _parameters(get.parameters),
        "responses": answers,
    }


def _options(other: Operation) -> dict[str, Any]:
    answer = Answer("The methods, in `Allow`.", headers=("Allow",))
    # Whatever has the form of the path; whether there is such a movie is not looked at.
    inside = [p._replace(schema={"type": "string"}) for p in other.parameters if p.place == "path"]
    kinds = (*ALWAYS, problems.NOT_FOUND) if inside else ALWAYS
    return {
        "tags": [other.tag],
        "summary": "The methods of this path",
        "description": "Asks nothing of the database.",
        "parameters": _parameters(inside),
        "responses": {"204": _answer(answer), **_problems(kinds)},
    }


def _parameters(parameters: Iterable[Parameter]) -> list[Any]:
    return [*map(_parameter, parameters), REQUEST_ID.name]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.description,
        "schema": dict(parameter.schema),
    }


def _answers(operation: Operation) -> dict[str, Any]:
    return {
        **{str(status): _answer(answer) for status, answer in operation.answers.items()},
        **_problems((*operation.problems, *ALWAYS)),
    }


def _answer(answer: Answer) -> dict[str, Any]:
    described: dict[str, Any] = {
        "description": answer.description,
        "headers": _headers(answer.headers),
    }
    if answer.schema is not None:
        content = {"schema": answer.schema}
        if answer.example is not None:
            content["example"] = answer.example
        described["content"] = {answer.media_type: content}
    return described


def _problems(kinds: Iterable[Problem]) -> dict[str, Any]:
    """By status; one alone is its name among the components, which apispec makes a reference."""
    answers: dict[str, list[Problem]] = {}
    for kind in sorted(kinds, key=lambda kind: kind.status):
        answers.setdefault(str(kind.status), []).append(kind)
    return {
        status: _problem(same) if len(same) > 1 else same[0].slug
        for status, same in answers.items()
    }


def _problem(kinds: list[Problem]) -> dict[str, Any]:
    """Describe the kinds of one status."""
    status = kinds[0].status
    return {
        "description": ", or ".join(kind.title for kind in kinds),
        "headers": _headers(PROBLEM_HEADERS.get(status, ())),
        "content": {
            problems.CONTENT_TYPE: {
                "schema": PROBLEM,
                "examples": {kind.slug: {"$ref": _ref("examples", kind.slug)} for kind in kinds},
            }
        },
    }


def _headers(names: Iterable[str]) -> dict[str, Any]:
    """Each is always there, but for those in `OPTIONAL`."""
    return {name: {"$ref": _ref("headers", name)} for name in (*names, *COMMON)}


def _ref(kind: str, name: str) -> str:
    return f"#/components/{kind}/{name}"


def _schema_name(schema: Any) -> str:
    return f"{type(schema).__name__}Changes" if schema.partial else type(schema).__name__
