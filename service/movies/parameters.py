"""What a list of movies can be filtered and sorted by, and how its query string says that.

docs/decisions/0004-keyset-cursors.md.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any

from marshmallow import Schema

from service.database import MAX_BIGINT, MAX_INTEGER
from service.database.listing import Place, SortKey, filter_parameter, place_parameters
from service.database.query import Expected
from service.errors import Failure, WrongParameters
from service.movies.movie import COLUMN_TYPES
from service.movies.rules import (
    EXTERNAL_ID,
    MAX_EXTERNAL_ID_BYTES,
    MAX_GENRE_BYTES,
    MAX_GENRES,
    MAX_TITLE_BYTES,
    find_external_id_errors,
)
from service.web.fields import BLANK, find_text_errors
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
    QueryParameter,
    Range,
    list_parameters,
    parse_query,
    ranges_parameter,
    times_parameter,
)
from service.web.route import Json

FACETS = ("genres", "year", "runtime")
SORT_FIELDS = ("id", "title", "year", "runtime", "created_at", "updated_at")
SORTS = (*SORT_FIELDS, *(f"-{field}" for field in SORT_FIELDS), "relevance")
# For generated clients, which make no names of `-`.
SORT_NAMES = [re.sub("^-(.*)", r"\1_desc", sort).upper() for sort in SORTS]
SORT_TYPES = {**COLUMN_TYPES, "relevance": int}
MAX_CACHED_QUERIES = 1024  # query strings of lists; parsing one takes 0.1 ms
ID = re.compile("[1-9][0-9]{0,18}")
ANY = Range()


@dataclass(frozen=True)
class Filter:
    """The conditions of a list; None and an empty range match every movie."""

    title: str | None = None  # all of these words, in any order; `cas*` is a prefix
    genres: tuple[str, ...] | None = None  # all of these; none contains a comma
    genres_any: tuple[str, ...] | None = None  # at least one of these
    year: Range = ANY
    runtime: Range = ANY
    created_at: Range = ANY  # of times with a zone, as is updated_at
    updated_at: Range = ANY
    external_id_prefix: str | None = None  # compared byte for byte

    def as_json(self) -> dict[str, object]:
        """Return the members of the object that `movie_matches` takes, in queries/listing.sql."""
        members: dict[str, object] = {}
        for name, value in vars(self).items():
            if isinstance(value, Range):
                low, high, parts = value
                members |= {f"{name}_from": low, f"{name}_to": high, f"{name}s": parts}
            else:
                members[name] = ",".join(value) if isinstance(value, tuple) else value
        return {name: value for name, value in members.items() if value is not None}


EVERYTHING = filter_parameter(Filter().as_json())
_NONE = Range(2, 1, "{}")
_NEVER = Range(datetime(2, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC))
NOTHING = filter_parameter(
    Filter(
        title="a b*",
        genres=("a", "b"),
        genres_any=("a", "b"),
        year=_NONE,
        runtime=_NONE,
        created_at=_NEVER,
        updated_at=_NEVER,
        external_id_prefix="a",
    ).as_json()
)
_FIRST = place_parameters("id", Place(), 0)
_NEXT = place_parameters("-title", Place(key=SortKey("a", 1)), 0)
_PAGES = [{**NOTHING, **_NEXT}, {**EVERYTHING, **_FIRST}]
QUERIES: Mapping[str, Expected] = {
    "sort_movies": Expected(
        {"total": int, "in_table": int, **COLUMN_TYPES},
        [{**each, "most": "0"} for each in _PAGES],
        "listing movies: the total, and a page of few matches",
        in_order=True,
    ),
    "walk_movies": Expected(
        COLUMN_TYPES, _PAGES, "listing movies: a page of many matches, and streams", in_order=True
    ),
}


@dataclass(frozen=True)
class ListQuery(PageQuery):
    """The query of GET /v1/movies."""

    filter: Filter
    by: str = ""  # `id` or `external_id`: the movies with these `ids`, in place of a filter
    ids: tuple[int, ...] | tuple[str, ...] = ()
    facets: tuple[str, ...] = ()

    @property
    def is_whole_list(self) -> bool:
        """Whether it is the first page of all movies.

        Not by number: after a deletion, page 2 begins one movie later, and that one is missed.
        """
        return self.filter == Filter() and not self.place.key and not self.page_number


def _array(
    expected: str, parse_item: Callable[[str], object], maximum: int, items: Json, **schema: Any
) -> QueryParameter:
    """Make a parameter for 1 to `maximum` items, each of this JSON Schema.

    They are split at commas; blanks are part of an item.
    """

    def parse(text: str) -> tuple[object, ...]:
        texts = text.split(",")
        if len(texts) > maximum:
            raise ValueError("too many items")
        return tuple(map(parse_item, texts))

    expected = f"1 to {maximum} {expected}"
    limits = {"minItems": 1, "maxItems": maximum}
    return QueryParameter(expected, parse, type="array", items=items, **limits, **schema)


def _genres(which: str, example: str) -> QueryParameter:
    return _array(
        f"genres, separated by commas or repeated, of at most {MAX_GENRE_BYTES} bytes each,"
        f" {which} of which a movie must have",
        partial(_parse_text, partial(find_text_errors, max_bytes=MAX_GENRE_BYTES)),
        MAX_GENRES,
        {
            "type": "string",
            "maxLength": MAX_GENRE_BYTES,
            "pattern": rf"^[^,\x00]*[^,{BLANK}][^,\x00]*$",
        },
        examples=[example.split(",")],
    )


def _parse_text(find_errors: Callable[[str], list[str]], text: str) -> str:
    if find_errors(text):
        raise ValueError("no movie can have it")
    return text


def _parse_id(text: str) -> int:
    if not ID.fullmatch(text) or int(text) > MAX_BIGINT:
        raise ValueError("not an id")
    return int(text)


def _parse_facets(text: str) -> tuple[str, ...]:
    """Return each name once."""
    # `index` raises a ValueError if it is none.
    return tuple(dict.fromkeys(FACETS[FACETS.index(name)] for name in text.split(",")))


class MoviesQuery(Schema):
    """The parameters of GET /v1/movies."""

    # Without examples: tools send the examples of all parameters at once.
    id = _array(
        "ids, separated by commas or repeated; no other parameter",
        _parse_id,
        MAX_PAGE_SIZE,
        {"type": "integer", "format": "int64", "minimum": 1, "maximum": MAX_BIGINT},
    )
    external_id = _array(
        "external ids without commas, separated by commas or repeated; no other parameter",
        partial(_parse_text, find_external_id_errors),
        MAX_PAGE_SIZE,
        {"type": "string", "maxLength": MAX_EXTERNAL_ID_BYTES, "pattern": EXTERNAL_ID},
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
    year = ranges_parameter("years", 1990, 1999)
    runtime = ranges_parameter("minutes", 90, 120)
    created_at = times_parameter()
    updated_at = times_parameter()
    external_id_prefix = QueryParameter(
        f"the beginning of external ids, such as `imdb:`, 1 to {MAX_EXTERNAL_ID_BYTES} bytes",
        type="string",
        minLength=1,
        maxLength=MAX_EXTERNAL_ID_BYTES,
        pattern=r"^[^\x00]+$",
        examples=["imdb:"],
    )
    sort = QueryParameter(
        f"one of {', '.join(SORTS)}",
        lambda text: SORTS[SORTS.index(text)],
        type="string",
        enum=[*SORTS],
        **{"x-enum-varnames": SORT_NAMES},
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


@lru_cache(MAX_CACHED_QUERIES)
def parse_list_query(query: str, *, is_stream: bool = False) -> ListQuery:
    """Parse the query string of GET /v1/movies; `WrongParameters`."""
    values = parse_query(query, SCHEMA)
    for name in ("id", "external_id"):
        if ids := values.pop(name, ()):
            if values.get("page_size") == DEFAULT_PAGE_SIZE:  # generated clients send it
                del values["page_size"]
            if values:
                raise WrongParameters([Failure(name, f"must not be combined with {min(values)}")])
            return ListQuery("", "id", Place(), MAX_PAGE_SIZE, None, Filter(), by=name, ids=ids)
    if is_stream and (wrong := values.keys() & {"page_size", "page", "cursor", "facets"}):
        raise WrongParameters([Failure(name, NO_PAGES) for name in sorted(wrong)])
    names = {field.name for field in fields(Filter)} & values.keys()
    filters = Filter(**{name: values[name] for name in names})
    sort = values.get("sort", "relevance" if filters.title else "id")
    page_size = values.get("page_size", DEFAULT_PAGE_SIZE)
    field = sort.removeprefix("-")
    maximum = MAX_BIGINT if field in ("id", "relevance") else MAX_INTEGER
    terms = f"{sort} {filter_parameter(filters.as_json())}"  # cursors depend on this text
    place = parse_place(values, terms, SORT_TYPES[field], maximum)
    facets = values.get("facets", ())
    return ListQuery(terms, sort, place, page_size, values.get("page"), filters, facets=facets)
