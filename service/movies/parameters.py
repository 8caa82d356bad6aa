"""The parameters of GET /v1/movies: filters, order and place of a list."""

import re
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache

from aiohttp import web
from marshmallow import Schema, ValidationError

from service.database import MAX_BIGINT, MAX_INTEGER
from service.database.listing import Place
from service.errors import Failure, WrongParameters
from service.movies.filters import SORT_TYPES, SORTS, Filter, Range
from service.movies.rules import (
    MAX_EXTERNAL_ID_BYTES,
    MAX_GENRE_BYTES,
    MAX_GENRES,
    MAX_TITLE_BYTES,
)
from service.movies.search_help import FACETS
from service.web.fields import BLANK, BLANKS, find_text_errors
from service.web.pages import (
    CURSOR,
    DEFAULT_PAGE_SIZE,
    MAX_PAGE_SIZE,
    PAGE,
    PAGE_SIZE,
    PageQuery,
    parse_place,
)
from service.web.query_strings import (
    DIGITS,
    QueryParameter,
    list_parameters,
    parse_number,
    parse_query,
)

MAX_RANGES = 10
MAX_CACHED_QUERIES = 1024  # query strings of lists; parsing one takes 0.1 ms
RANGE = rf"({DIGITS}(\.\.({DIGITS})?)?|\.\.{DIGITS})"
IDS = re.compile(rf"[1-9][0-9]{{0,18}}(,[1-9][0-9]{{0,18}}){{0,{MAX_PAGE_SIZE - 1}}}")
RANGES = re.compile(rf"{RANGE}(,{RANGE}){{0,{MAX_RANGES - 1}}}")
CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
# PostgreSQL stores microseconds, and no leap seconds.
OF_DAY = rf"[Tt]{CLOCK}:[0-5][0-9](\.[0-9]{{1,6}})?([Zz]|(\+|-){CLOCK})"
TIME = rf"[0-9]{{4}}(-[0-9]{{2}}){{2}}({OF_DAY})?"
TIMES = re.compile(rf"{TIME}(\.\.({TIME})?)?|\.\.{TIME}")


@dataclass(frozen=True)
class ListQuery(PageQuery):
    """The query of GET /v1/movies."""

    filter: Filter
    by: str = ""  # `id` or `external_id`: the movies with these `ids`, instead of all others
    ids: tuple[int, ...] | tuple[str, ...] = ()
    facets: tuple[str, ...] = ()

    @property
    def is_whole_list(self) -> bool:
        """Whether it is the first page of all movies.

        Not by number: after a deletion, page 2 begins one movie later, and that one is missed.
        """
        return self.filter == Filter() and not self.place.key and not self.page_number


def _genres(which: str, example: str) -> QueryParameter:
    return QueryParameter(
        f"1 to {MAX_GENRES} genres, separated by commas or repeated, of at most {MAX_GENRE_BYTES}"
        f" bytes each, {which} of which a movie must have",
        _parse_genres,
        type="array",
        items={
            "type": "string",
            "maxLength": MAX_GENRE_BYTES,
            "pattern": rf"^[^,\x00]*[^,{BLANK}][^,\x00]*$",
        },
        minItems=1,
        maxItems=MAX_GENRES,
        examples=[example.split(",")],
    )


def _ranges(unit: str, low: int, high: int) -> QueryParameter:
    return QueryParameter(
        f"{unit} like {low}, {low}..{high}, {low}.. or ..{high}, or up to {MAX_RANGES} of these,"
        " separated by commas",
        _parse_ranges,
        type="string",
        pattern=f"^{RANGES.pattern}$",
        examples=[f"{low}..{high}"],
    )


def _times() -> QueryParameter:
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


def _parse_genres(text: str) -> tuple[str, ...]:
    """Split at commas; blanks are part of a genre."""
    genres = tuple(text.split(","))
    if len(genres) > MAX_GENRES or not all(BLANKS.sub("", genre) for genre in genres):
        raise ValueError("too many genres, or a blank one")
    if any(len(genre.encode()) > MAX_GENRE_BYTES for genre in genres):
        raise ValueError("a genre that no movie can have")
    return genres


def _parse_ids(text: str) -> tuple[int, ...]:
    ids = tuple(map(int, text.split(","))) if IDS.fullmatch(text) else ()
    if not ids or max(ids) > MAX_BIGINT:
        raise ValueError("not ids")
    return ids


def _parse_external_ids(text: str) -> tuple[str, ...]:
    """Split at commas; blanks are part of an id."""
    ids = tuple(text.split(","))
    if len(ids) > MAX_PAGE_SIZE or any(
        find_text_errors(each, MAX_EXTERNAL_ID_BYTES) for each in ids
    ):
        raise ValueError("not external ids")
    return ids


def _parse_facets(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if not set(names) <= set(FACETS):
        raise ValueError("not facets")
    return names


def _name_sort(sort: str) -> str:
    """Return the name for generated clients, such as YEAR_DESC: they make none of `-`."""
    return f"{sort.removeprefix('-')}{'_desc' if sort.startswith('-') else ''}".upper()


class MoviesQuery(Schema):
    """The parameters of GET /v1/movies."""

    id = QueryParameter(
        f"1 to {MAX_PAGE_SIZE} ids, separated by commas or repeated; no other parameter",
        _parse_ids,
        type="array",
        items={"type": "integer", "format": "int64", "minimum": 1, "maximum": MAX_BIGINT},
        minItems=1,
        maxItems=MAX_PAGE_SIZE,  # no example: tools send the examples of all parameters at once
    )
    external_id = QueryParameter(
        f"1 to {MAX_PAGE_SIZE} external ids without commas, separated by commas or repeated; no"
        " other parameter",
        _parse_external_ids,
        type="array",
        items={"type": "string", "minLength": 1, "maxLength": MAX_EXTERNAL_ID_BYTES},
        minItems=1,
        maxItems=MAX_PAGE_SIZE,
    )
    title = QueryParameter(
        f"words of the title, or beginnings of words like `cas*`, at most {MAX_TITLE_BYTES} bytes",
        type="string",
        minLength=1,
        maxLength=MAX_TITLE_BYTES,
        pattern=r"^[^\x00]+$",
        examples=["cas*"],
    )
    genres = _genres("all", "drama,romance")
    genres_any = _genres("at least one", "comedy,family")
    year = _ranges("years", 1990, 1999)
    runtime = _ranges("minutes", 90, 120)
    created_at = _times()
    updated_at = _times()
    sort = QueryParameter(
        f"one of {', '.join(SORTS)}",
        lambda text: SORTS[SORTS.index(text)],
        type="string",
        enum=[*SORTS],
        **{"x-enum-varnames": [_name_sort(sort) for sort in SORTS]},
    )
    page_size, page, cursor = PAGE_SIZE, PAGE, CURSOR
    facets = QueryParameter(
        f"one or more of {', '.join(FACETS)}, separated by commas or repeated",
        _parse_facets,
        type="array",
        items={"type": "string", "enum": [*FACETS]},
        minItems=1,
        maxItems=len(FACETS),
    )


SCHEMA = MoviesQuery()
PARAMETERS = list_parameters(SCHEMA)
NO_PAGES = "must not be sent for NDJSON or CSV: a stream has all movies that match, and no pages"


def parse_list_query(request: web.Request, *, is_stream: bool = False) -> ListQuery:
    """Return the query of GET /v1/movies; `WrongParameters`."""
    return _parse_list(request.rel_url.raw_query_string, is_stream)


@lru_cache(MAX_CACHED_QUERIES)
def _parse_list(query: str, is_stream: bool) -> ListQuery:  # noqa: FBT001 - of a cached function
    values = parse_query(query, SCHEMA)
    for name in ("id", "external_id"):
        if ids := values.pop(name, ()):
            if values.get("page_size") == DEFAULT_PAGE_SIZE:  # generated clients send it
                del values["page_size"]
            if values:
                raise WrongParameters([Failure(name, f"must not be combined with {min(values)}")])
            return ListQuery(Filter(), "id", Place(), MAX_PAGE_SIZE, None, name, ids)
    if is_stream and (wrong := values.keys() & {"page_size", "page", "cursor", "facets"}):
        raise WrongParameters([Failure(name, NO_PAGES) for name in sorted(wrong)])
    names = {field.name for field in fields(Filter)} & values.keys()
    filters = Filter(**{name: values[name] for name in names})
    sort = values.get("sort", "relevance" if filters.title else "id")
    page_size = values.get("page_size", DEFAULT_PAGE_SIZE)
    field = sort.removeprefix("-")
    maximum = MAX_BIGINT if field in ("id", "relevance") else MAX_INTEGER
    place = parse_place(values, f"{sort} {filters}", SORT_TYPES[field], maximum)
    facets = values.get("facets", ())
    return ListQuery(filters, sort, place, page_size, values.get("page"), facets=facets)
