"""Parses query strings as strictly as bodies: nothing unknown or empty, and only arrays repeated.

Reports all failures at once; of unknown parameters, the first 100. Values are percent-encoded
UTF-8, with `+` or `%20` for a space
(https://url.spec.whatwg.org/#application/x-www-form-urlencoded).
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl

from aiohttp import web
from marshmallow import Schema, ValidationError
from marshmallow.fields import Field

from service.database import MAX_BIGINT, MAX_INTEGER
from service.errors import Failure, WrongParameters, quote
from service.web.fields import MAX_LISTED, Values

MAX_PARAMETER_BYTES = 8000  # of a cursor; about the limit of a URL
DIGITS = "(0|[1-9][0-9]{0,9})"
NUMBER = re.compile(DIGITS)
EMPTY_QUERY = Schema()
MAX_RANGES = 10
RANGE = rf"({DIGITS}(\.\.({DIGITS})?)?|\.\.{DIGITS})"
RANGES = re.compile(rf"{RANGE}(,{RANGE}){{0,{MAX_RANGES - 1}}}")
CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
# PostgreSQL stores microseconds, and no leap seconds.
OF_DAY = rf"[Tt]{CLOCK}:[0-5][0-9](\.[0-9]{{1,6}})?([Zz]|(\+|-){CLOCK})"
TIME = rf"[0-9]{{4}}(-[0-9]{{2}}){{2}}({OF_DAY})?"
TIMES = re.compile(rf"{TIME}(\.\.({TIME})?)?|\.\.{TIME}")


class Range(NamedTuple):
    """`low` to `high`, both included; None: no limit.

    `parts`: if only some parts of it match, these parts as an int8multirange of PostgreSQL.
    """

    low: int | datetime | None = None
    high: int | datetime | None = None
    parts: str | None = None


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


def ranges_parameter(unit: str, low: int, high: int) -> QueryParameter:
    """Make a parameter for ranges of numbers of this unit; `low` and `high` are its example."""
    return QueryParameter(
        f"{unit} like {low}, {low}..{high}, {low}.. or ..{high}, or up to {MAX_RANGES} of these,"
        " separated by commas",
        _parse_ranges,
        type="string",
        pattern=f"^{RANGES.pattern}$",
        examples=[f"{low}..{high}"],
    )


def _parse_ranges(text: str) -> Range:
    """Return the range from the first start to the last end; its parts, if there are several."""
    if not RANGES.fullmatch(text):
        raise ValueError("not ranges")
    parts = list[tuple[int, int]]()
    for part in text.split(","):
        low_text, dots, high_text = part.partition("..")
        low = parse_number(low_text or "0")
        high = parse_number((high_text or str(MAX_INTEGER)) if dots else low_text)
        if low > high:
            raise ValidationError(f"must not start after its end, found {part}")
        parts.append((low, high))
    low, high = min(low for low, _ in parts), max(high for _, high in parts)
    several = ",".join(f"[{low},{high}]" for low, high in parts) if len(parts) > 1 else None
    return Range(low or None, None if high == MAX_INTEGER else high, several and f"{{{several}}}")


def times_parameter() -> QueryParameter:
    """Make a parameter for a range of times."""
    start, end = "2026-01-05T09:00:00Z", "2026-01-05T10:30:00.123456+01:00"
    return QueryParameter(
        f"a time like {start} or {end} (RFC 3339; at most 6 decimals, as times are stored in"
        f" microseconds; in a URL, + is %2B), a day of UTC like {start[:10]}, or a range"
        " A..B, A.. or ..B of these",
        _parse_times,
        type="string",
        pattern=f"^({TIMES.pattern})$",
        examples=[f"{start}.."],
    )


def _parse_times(text: str) -> Range:
    if not TIMES.fullmatch(text):
        raise ValueError("not times")
    low_text, dots, high_text = text.partition("..")
    low = _parse_time(low_text, "T00:00:00Z")
    high = _parse_time(high_text if dots else low_text, "T23:59:59.999999Z")
    if low and high and low > high:
        raise ValidationError(f"must not start after its end, found {text}")
    return Range(low, high)


def _parse_time(text: str, of_day: str) -> datetime | None:
    """Return the time; of a day alone, its time `of_day`."""
    moment = text if re.search("[Tt]", text) else text + of_day
    try:
        return datetime.fromisoformat(moment.upper()).astimezone(UTC) if text else None
    except OverflowError as error:
        raise ValidationError(f"must be in the years 1 to 9999 of UTC, found {text}") from error


def list_parameters(schema: Schema) -> Mapping[str, QueryParameter]:
    """Return the parameters of a schema, by name."""
    return cast("Mapping[str, QueryParameter]", schema.fields)


def reject_query_string(request: web.Request) -> None:
    """Raise `WrongParameters` if there is a query string, on paths without parameters."""
    if query := request.rel_url.raw_query_string:
        parse_query(query, EMPTY_QUERY)


def parse_id(request: web.Request, *, has_query: bool = False) -> int:
    """Return the id; `HTTPNotFound`, or `WrongParameters` for a query (`has_query`: it may)."""
    if request.rel_url.raw_query_string and not has_query:
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
        if name not in known and len(failures) < MAX_LISTED:  # a URL may have 2,700
            names = ", ".join(known) or "none here"
            failures[name] = f"unknown parameter {quote(name)}; there are {names}"
        elif name in known and len(given) > 1 and known[name].schema["type"] != "array":
            failures[name] = f"must be given once, as {known[name].expected}"
    joined = {name: ",".join(texts[name]) for name in known.keys() & texts.keys() - failures.keys()}
    try:
        values = schema.load(joined)
    except ValidationError as error:
        failures |= {name: errors[0] for name, errors in error.messages_dict.items()}
    if failures:
        in_order = [name for name in texts if name in failures]
        raise WrongParameters([Failure(name, failures[name]) for name in in_order])
    return dict(values)
