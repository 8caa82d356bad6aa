"""Reads a query string as strictly as a body: nothing unknown, nothing twice, nothing empty.

All failures at once, each with its parameter and what that takes. Percent-encoded UTF-8, `+` or
`%20` for a blank (https://url.spec.whatwg.org/#application/x-www-form-urlencoded).
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from marshmallow import Schema, ValidationError
from marshmallow.fields import Field
from marshmallow.validate import OneOf

from service.catalogue.paging import ANY, EXACT_TOTAL, SORTS, Filter, Place, Range
from service.catalogue.rules import GENRES, TITLE_BYTES, quoted
from service.errors import Failure, WrongParameters
from service.web.movies import cursors

PAGE_SIZE = 20
LARGEST_PAGE_SIZE = 100
LARGEST_NUMBER = 2**31 - 1  # an integer of PostgreSQL
DIGITS = "(0|[1-9][0-9]{0,9})"
NUMBER = re.compile(DIGITS)


class Wanted(NamedTuple):
    """What a client asks of GET /v1/movies; `page` is None unless they ask for one."""

    filter: Filter
    sort: str
    place: Place
    size: int
    page: int | None


class Text(Field[str]):
    """Some text, of at most `limit` bytes.

    `expected` is what a refusal says, and `schema` (JSON Schema) what the reference says, here and
    in the fields below.
    """

    def __init__(self, expected: str, limit: int, **schema: Any) -> None:
        super().__init__()
        self.expected = f"{expected}, at most {limit} bytes"
        self.schema = {"type": "string", "minLength": 1, "maxLength": limit, **schema}
        self._limit = limit

    def _deserialize(self, value: str, attr: str | None, data: Any, **kwargs: Any) -> str:  # noqa: ARG002 - marshmallow's signature
        if not value or len(value.encode()) > self._limit:
            raise ValidationError("")
        return value


class Genres(Text):
    """Genres, with commas between; each is exactly what it is, blanks included."""

    def _deserialize(self, value: str, attr: str | None, data: Any, **kwargs: Any) -> Any:
        text = super()._deserialize(value, attr, data, **kwargs)
        genres = tuple(text.split(","))
        if len(genres) > GENRES or not all(genre.strip() for genre in genres):
            raise ValidationError("")
        return genres


class Number(Field[int]):
    """A whole number."""

    def __init__(self, least: int, most: int) -> None:
        super().__init__()
        self.expected = f"a number from {least} to {most}"
        self.schema = {"type": "integer", "minimum": least, "maximum": most}
        self._range = range(least, most + 1)

    def _deserialize(self, value: str, attr: str | None, data: Any, **kwargs: Any) -> int:  # noqa: ARG002 - marshmallow's signature
        if not NUMBER.fullmatch(value) or int(value) not in self._range:
            raise ValidationError("")
        return int(value)


class Span(Field[Range]):
    """One number, or two with `..` between, of which one may be missing."""

    def __init__(self, example: str, low: int, high: int) -> None:
        super().__init__()
        self.schema = {
            "type": "string",
            "pattern": rf"^({DIGITS}(\.\.({DIGITS})?)?|\.\.{DIGITS})$",
            "examples": [f"{low}..{high}"],
        }
        self.expected = f"{example} like {low}, {low}..{high}, {low}.. or ..{high}"

    def _deserialize(self, value: str, attr: str | None, data: Any, **kwargs: Any) -> Range:  # noqa: ARG002 - marshmallow's signature
        low, dots, high = value.partition("..")
        ends = [low, high] if dots else [low, low]
        if not any(ends) or not all(NUMBER.fullmatch(end) for end in ends if end):
            raise ValidationError("")
        span = Range(*(int(end) if end else None for end in ends))
        if max(span.low or 0, span.high or 0) > LARGEST_NUMBER:
            raise ValidationError("")
        if span.low is not None and span.high is not None and span.low > span.high:
            raise ValidationError("")
        return span


class Choice(Field[str]):
    """One of some words."""

    def __init__(self, choices: tuple[str, ...]) -> None:
        super().__init__(validate=OneOf(choices))
        self.expected = f"one of {', '.join(choices)}"
        self.schema = {"type": "string", "enum": [*choices]}


class MoviesQuery(Schema):
    """The parameters of GET /v1/movies."""

    title = Text(
        "words of the title, `cas*` for any word that begins so", TITLE_BYTES, examples=["cas*"]
    )
    genres = Genres(f"1 to {GENRES} genres with commas between", 8000, examples=["drama,romance"])
    year = Span("years", 1990, 1999)
    runtime = Span("minutes", 90, 120)
    sort = Choice(SORTS)
    page_size = Number(1, LARGEST_PAGE_SIZE)
    page = Number(1, LARGEST_NUMBER)
    cursor = Text("a cursor from the metadata of an answer with the same filters and sort", 8000)


PARAMETERS: Mapping[str, Any] = MoviesQuery().fields


def read_wanted(query: str) -> Wanted:
    """Read the query string of GET /v1/movies, as it was sent; `WrongParameters`."""
    values = _values(query, PARAMETERS)
    wanted = Filter(
        title=values.get("title"),
        genres=values.get("genres"),
        year=values.get("year", ANY),
        runtime=values.get("runtime", ANY),
    )
    sort, size = values.get("sort", "id"), values.get("page_size", PAGE_SIZE)
    page, place = values.get("page"), Place()
    if page and "cursor" in values:
        raise WrongParameters([Failure("cursor", "page says already where the page begins")])
    if page:
        if (page - 1) * size >= EXACT_TOTAL:
            last = -(-EXACT_TOTAL // size)
            raise WrongParameters([Failure("page", f"must be at most {last}; use a cursor")])
        place = Place(skip=(page - 1) * size)
    if "cursor" in values:
        try:
            place = cursors.decode(values["cursor"], wanted, sort)
        except ValueError as error:
            raise WrongParameters([_failure("cursor")]) from error
    return Wanted(wanted, sort, place, size, page)


def read_nothing(query: str) -> None:
    """Read the query string of a path that takes no parameters; `WrongParameters`."""
    if query:
        _values(query, {})


def _values(query: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError as error:
        detail = "the query string is not percent-encoded UTF-8"
        raise WrongParameters([Failure("", detail)]) from error
    values: dict[str, Any] = {}
    failures: list[Failure] = []
    times = Counter(name for name, _ in pairs)
    for name, text in pairs:
        if name not in fields:
            known = ", ".join(fields) or "none here"
            failures.append(Failure(name, f"unknown parameter {quoted(name)}; there are {known}"))
        elif "\0" in text:  # which PostgreSQL cannot take
            failures.append(_failure(name))
        elif times[name] > 1:
            failures.append(Failure(name, "must not be repeated"))
        else:
            try:
                values[name] = fields[name].deserialize(text)
            except ValidationError:
                failures.append(_failure(name))
    if failures:
        raise WrongParameters(list(dict.fromkeys(failures)))
    return values


def _failure(name: str) -> Failure:
    return Failure(name, f"must be {PARAMETERS[name].expected}")
