"""Describes schemas, parameters, bodies and responses for the OpenAPI document.

Responses are built without these schemas; the tests compare the two.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any

from marshmallow import EXCLUDE, Schema
from marshmallow.fields import Field, List, Nested, String

from service.database import MAX_BIGINT
from service.database.listing import EXACT_TOTAL
from service.web.headers import ENTITY_TAGS, HEADER_NAME, KEY_PATTERN
from service.web.problems import REFERENCE
from service.web.query_strings import QueryParameter
from service.web.route import Json

STRING = {"type": "string"}
BIGINT = {"minimum": 1, "format": "int64"}  # or generators in some languages take 32 bits
VALIDATORS = ("ETag", "Last-Modified")  # RFC 9110, 8.8


def make_example(schema: Schema) -> dict[str, Any]:
    """Return an object with the examples of all required fields."""
    return {name: _get_example(field) for name, field in schema.fields.items() if field.required}


def _get_example(field: Field[Any]) -> Any:
    if isinstance(field, Nested):
        return make_example(field.schema)
    if isinstance(field, List):
        return [_get_example(field.inner)]
    return field.metadata.get("examples", [None])[0]


class ResponseSchema(Schema):
    """The base of schemas of responses: later versions may add fields."""

    class Meta:  # noqa: D106 - marshmallow's
        unknown = EXCLUDE


def make_schema(
    title: str, optional: tuple[str, ...] = (), /, **fields: Field[Any]
) -> type[Schema]:
    """Make a schema whose fields are always present, except those in `optional`."""
    copies = {name: copy(field) for name, field in fields.items()}
    for name, field in copies.items():
        field.required = name not in optional
    return ResponseSchema.from_dict(copies, name=title)


def field(description: str, example: Any, **shape: Any) -> Field[Any]:
    """Make a field of the type of the example; `shape` is the rest of its JSON Schema."""
    metadata = {"description": description, "examples": [example], **shape}
    return Schema.TYPE_MAPPING[type(example)](metadata=metadata)


def time_field(description: str, **shape: Any) -> Field[Any]:
    """Make a field that is a time."""
    return field(description, "2026-01-05T09:00:00.000000Z", format="date-time", **shape)


def cursor_field(page: str) -> Field[Any]:
    """Make a field that is the cursor of the `next` or `previous` page."""
    text = f"the cursor of the {page} page; null if there is none"
    return String(allow_none=True, metadata={"description": text})


def describe_page(title: str, **more: Field[Any]) -> type[Schema]:
    """Make the schema of a page's metadata; `more`: what only some pages have."""
    return make_schema(
        title,
        ("current_page", "last_page", *more),
        page_size=field("the largest number of items on a page", 20, minimum=0),
        total_records=field("the number of items that match", 1, minimum=0),
        total_is_estimate=field(f"true if more than {EXACT_TOTAL:,}", example=False),
        next_cursor=cursor_field("next"),
        previous_cursor=cursor_field("previous"),
        current_page=field("only with the parameter `page`", 1, minimum=1),
        last_page=field("only with the parameter `page`", 1, minimum=1),
        **more,
    )


def parameter(name: str, location: str, description: str, **shape: Any) -> Json:
    """Describe a path, query or header parameter: a string, or its JSON Schema is `shape`."""
    schema = STRING | shape
    style = {"style": "form", "explode": False} if schema["type"] == "array" else {}
    return {"name": name, "in": location, "description": description, "schema": schema, **style}


def response(description: str, headers: tuple[str, ...] = (), content: Json | None = None) -> Json:
    """Describe a response with these of `HEADERS`; `content` is by media type."""
    names = (*headers, "Cache-Control", "X-Request-Id")
    described: Json = {"description": description, "headers": {name: name for name in names}}
    return described | ({"content": content} if content else {})


def describe_json(
    description: str, schema: type[Schema], headers: tuple[str, ...] = (), **changes: Any
) -> Json:
    """Describe a response; its example has the examples of the fields, with these changes."""
    content = {"schema": schema, "example": make_example(schema()) | changes}
    return response(description, headers, {"application/json": content})


def describe_body(schema: Schema, example: Json, *media_types: str) -> Json:
    """Describe a required body, in JSON and of other media types."""
    content = {"schema": schema, "example": example}
    return {"required": True, "content": dict.fromkeys(("application/json", *media_types), content)}


def describe_query(fields: Mapping[str, QueryParameter]) -> tuple[Json, ...]:
    """Describe the parameters of a query; arrays have commas, though repeating works, too."""
    return tuple(
        parameter(
            name, "query", f"{field.expected[0].upper()}{field.expected[1:]}.", **field.schema
        )
        for name, field in fields.items()
    )


ETAGS = rf"^([ \t]*\*[ \t]*|{ENTITY_TAGS.pattern})$"
ID_SHAPE = {"type": "integer", **BIGINT, "maximum": MAX_BIGINT, "examples": [7]}
ID_PARAMETER = parameter("id", "path", "The id, in digits.", **ID_SHAPE)
IF_NONE_MATCH = parameter(
    "If-None-Match", "header", "The `ETag` that you have; 304 if it is current.", pattern=ETAGS
)
IDEMPOTENCY_KEY = parameter(
    HEADER_NAME,
    "header",
    "Makes retries safe. Any text that you choose, such as a UUID.",
    pattern=f"^({KEY_PATTERN.pattern})$",
    examples=["8e03978e-40d5-43dd-bc93-6894a57f9324"],
)
IF_MODIFIED_SINCE = parameter(
    "If-Modified-Since", "header", "A `Last-Modified`; 304 if it has not changed since."
)
PRECONDITIONS = (
    parameter("If-Match", "header", "412 if none of these `ETag`s is current.", pattern=ETAGS),
    parameter("If-None-Match", "header", "412 if one of these `ETag`s is current.", pattern=ETAGS),
    parameter("If-Unmodified-Since", "header", "A `Last-Modified`; 412 if it has changed since."),
)


FieldError = make_schema(
    "FieldError",
    ("pointer", "parameter"),
    pointer=field("a JSON Pointer (RFC 6901) to the field; `#`: the whole body", "#/year"),
    parameter=field("the query parameter, instead of a pointer", "year"),
    detail=field("what is expected", "must not be in the future"),
)
ProblemSchema = make_schema(
    "Problem",
    ("errors",),
    type=field("a link to the description of the problem", f"{REFERENCE}#validation-failed"),
    title=field("the kind of problem", "Validation failed"),
    status=field("the HTTP status", 422, minimum=400, maximum=599),
    detail=field("what was wrong and what is expected", 'unknown field "titel"'),
    instance=field("the path of the request", "/v1/movies/7"),
    errors=List(
        Nested(FieldError), metadata={"description": "the failures of fields or parameters"}
    ),
    request_id=field("the id of the request in the log", "5a1d8b0a7c9e4f21-5"),
)
