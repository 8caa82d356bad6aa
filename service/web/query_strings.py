"""Parses query strings as strictly as bodies: nothing unknown or empty, and only arrays repeated.

Reports all failures at once. Values are percent-encoded UTF-8, with `+` or `%20` for a space
(https://url.spec.whatwg.org/#application/x-www-form-urlencoded).
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast
from urllib.parse import parse_qsl

from aiohttp import web
from marshmallow import Schema, ValidationError
from marshmallow.fields import Field

from service.database import MAX_BIGINT, MAX_INTEGER
from service.errors import Failure, WrongParameters, quote
from service.web.fields import Values

MAX_PARAMETER_BYTES = 8000  # of a cursor; about the limit of a URL
DIGITS = "(0|[1-9][0-9]{0,9})"
NUMBER = re.compile(DIGITS)
NO_PARAMETERS = Schema()


class QueryParameter(Field[Any]):
    """A parameter whose text `parse` converts, or refuses with `ValueError` or `ValidationError`.

    `expected` is what errors and the reference say; `schema` is its JSON Schema.
    """

    def __init__(self, expected: str, parse: Callable[[str], object] = str, **schema: Any) -> None:
        super().__init__(error_messages={"invalid": f"must be {expected}"})
        self.expected = expected
        self.schema = schema
        self._parse = parse
        self._max_bytes = schema.get("maxLength", MAX_PARAMETER_BYTES)

    def _deserialize(self, value: str, *_: Any, **__: Any) -> object:
        # PostgreSQL does not store NUL.
        if "\0" in value or not 0 < len(value.encode()) <= self._max_bytes:
            raise self.make_error("invalid")
        try:
            return self._parse(value)
        except ValueError as error:
            raise self.make_error("invalid") from error


def number_parameter(
    maximum: int, minimum: int = 1, unit: str = "", **schema: Any
) -> QueryParameter:
    """Make a parameter that is a number of this unit, such as ` of seconds`."""
    return QueryParameter(
        f"a number{unit} from {minimum} to {maximum}",
        partial(parse_number, minimum=minimum, maximum=maximum),
        type="integer",
        minimum=minimum,
        maximum=maximum,
        **schema,
    )


def parse_number(text: str, minimum: int = 0, maximum: int = MAX_INTEGER) -> int:
    """Return the number, without leading zeros; `ValueError` if it is none in this range."""
    if not NUMBER.fullmatch(text) or not minimum <= int(text) <= maximum:
        raise ValueError("not a number in the range")
    return int(text)


def list_parameters(schema: Schema) -> Mapping[str, QueryParameter]:
    """Return the parameters of a schema, by name."""
    return cast("Mapping[str, QueryParameter]", schema.fields)


def reject_query_string(request: web.Request) -> None:
    """Raise `WrongParameters` if there is a query string, on paths without parameters."""
    if query := request.rel_url.raw_query_string:
        parse_query(query, NO_PARAMETERS)


def parse_id(request: web.Request) -> int:
    """Return the id in the path; `HTTPNotFound`, or `WrongParameters` for a query string."""
    if request.rel_url.raw_query_string:
        reject_query_string(request)
    found = int(request.match_info["id"])
    if found > MAX_BIGINT:
        raise web.HTTPNotFound  # as for every path without an id
    return found


def parse_query(query: str, schema: Schema) -> Values:
    """Return the values of the parameters that were sent; `WrongParameters`."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError as error:
        detail = "the query string is not percent-encoded UTF-8"
        raise WrongParameters([Failure("", detail)]) from error
    known = list_parameters(schema)
    texts, failures = dict[str, list[str]](), dict[str, str]()
    for name, text in pairs:
        texts.setdefault(name, []).append(text)
    for name, given in texts.items():
        if name not in known:
            names = ", ".join(known) or "none here"
            failures[name] = f"unknown parameter {quote(name)}; there are {names}"
        elif len(given) > 1 and known[name].schema["type"] != "array":
            failures[name] = f"must be given once, as {known[name].expected}"
    joined = {name: ",".join(given) for name, given in texts.items() if name not in failures}
    try:
        values = schema.load(joined)
    except ValidationError as error:
        failures |= {name: errors[0] for name, errors in error.messages_dict.items()}
    if failures:
        in_order = [name for name in texts if name in failures]
        raise WrongParameters([Failure(name, failures[name]) for name in in_order])
    return dict(values)
