"""The schemas of responses and bodies, for the reference only.

`responses.py` builds the responses without them; the tests compare the two.
"""

from copy import copy
from typing import Any

from marshmallow import Schema
from marshmallow.fields import Field, Integer, List, Nested, String

from service import __version__
from service.database.paging import EXACT_TOTAL
from service.movies.rules import MOVIE, MovieInput
from service.web import index
from service.web.problems import REFERENCE

BIGINT = {"minimum": 1, "format": "int64"}  # or generators in some languages take 32 bits
MOVIE_PATCH = MovieInput(partial=True)  # the body of PATCH


def make_example(schema: Schema) -> dict[str, Any]:
    """Return an object with the examples of all required fields."""
    return {name: _get_example(field) for name, field in schema.fields.items() if field.required}


def _get_example(field: Field[Any]) -> Any:
    if isinstance(field, Nested):
        return make_example(field.schema)
    if isinstance(field, List):
        return [_get_example(field.inner)]
    return field.metadata.get("examples", [None])[0]


def _schema(title: str, optional: tuple[str, ...] = (), /, **fields: Field[Any]) -> type[Schema]:
    """Make a schema whose fields are always present, except those in `optional`."""
    copies = {name: copy(field) for name, field in fields.items()}
    for name, field in copies.items():
        field.required = name not in optional
    return Schema.from_dict(copies, name=title)


def _field(description: str, example: Any, **shape: Any) -> Field[Any]:
    """Make a field of the type of the example; `shape` is the rest of its JSON Schema."""
    metadata = {"description": description, "examples": [example], **shape}
    return Schema.TYPE_MAPPING[type(example)](metadata=metadata)


def _time(description: str, **shape: Any) -> Field[Any]:
    return _field(description, "2026-01-05T09:00:00.000000Z", format="date-time", **shape)


def _cursor(page: str) -> Field[Any]:
    text = f"the cursor of the {page} page; null if there is none"
    return String(allow_none=True, metadata={"description": text})


Movie = _schema(
    "Movie",
    id=_field("read-only; never used again for another movie", 7, **BIGINT, readOnly=True),
    **MOVIE.fields,
    version=_field("read-only; increases by 1 with every change", 1, minimum=1, readOnly=True),
    created_at=_time("read-only; RFC 3339, in UTC", readOnly=True),
    updated_at=_time("read-only; the time of the last change", readOnly=True),
)
MovieResponse = _schema("MovieResponse", movie=Nested(Movie))
PageMetadata = _schema(
    "PageMetadata",
    ("current_page", "last_page", "suggestions", "missing_ids"),
    page_size=_field("the largest number of movies on a page", 20, minimum=1),
    total_records=_field("the number of movies that match", 1, minimum=0),
    total_is_estimate=_field(f"true if more than {EXACT_TOTAL:,}", example=False),
    next_cursor=_cursor("next"),
    previous_cursor=_cursor("previous"),
    current_page=_field("only with the parameter `page`", 1, minimum=1),
    last_page=_field("only with the parameter `page`", 1, minimum=1),
    suggestions=List(
        String(),
        metadata={
            "description": "only if `title` finds nothing: up to five titles that come closest",
            "examples": [["Casablanca"]],
            "maxItems": 5,
        },
    ),
    missing_ids=List(
        Integer(metadata=BIGINT),
        metadata={"description": "only with `id`: those without a movie"},
    ),
)
MovieList = _schema("MovieList", movies=List(Nested(Movie)), metadata=Nested(PageMetadata))
Genre = _schema(
    "Genre",
    genre=_field("the name of the genre", "drama"),
    movies=_field("the number of movies of this genre", 120, minimum=1),
)
GenreMetadata = _schema(
    "GenreMetadata",
    total_records=_field("the number of all genres", 2, minimum=0),
    as_of=_time("every change before this time is counted"),
)
GenreList = _schema("GenreList", genres=List(Nested(Genre)), metadata=Nested(GenreMetadata))
Change = _schema(
    "Change",
    ("movie",),
    kind=_field("what happened", "updated", enum=["created", "updated", "deleted"]),
    id=_field("the id of the movie", 7, **BIGINT),
    version=_field("of the movie after the change; of a deleted one, its last", 2, minimum=1),
    changed_at=_time("when the transaction of the change began"),
    movie=Nested(Movie, metadata={"description": "as it is now; missing if it is gone"}),
)
FeedMetadata = _schema(
    "FeedMetadata",
    next_cursor=_field("send it as `after`", "Xw3k6lsi"),
    as_of=_time("every change that was committed before this time is in the feed"),
)
ChangeList = _schema("ChangeList", changes=List(Nested(Change)), metadata=Nested(FeedMetadata))
SystemInfo = _schema(
    "SystemInfo",
    ("commit",),
    environment=_field("the name of this deployment", "production"),
    version=_field("the version of the service", __version__),
    commit=_field("the commit that runs; missing if the deployment names none", "4a74d18"),
)
Health = _schema(
    "Health",
    status=_field("always `available`", "available", enum=["available"]),
    system_info=Nested(SystemInfo),
)
Readiness = _schema("Readiness", status=_field("always `ready`", "ready", enum=["ready"]))
Index = _schema(
    "Index",
    api=_field("the path of the movies", index.INDEX["api"]),
    reference=_field("the path of the reference page", index.INDEX["reference"]),
    openapi=_field("the path of the OpenAPI document", index.INDEX["openapi"]),
)
FieldError = _schema(
    "FieldError",
    ("pointer", "parameter"),
    pointer=_field("a JSON Pointer (RFC 6901) to the field; `#`: the whole body", "#/year"),
    parameter=_field("the query parameter, instead of a pointer", "year"),
    detail=_field("what is expected", "must not be in the future"),
)
Problem = _schema(
    "Problem",
    ("errors",),
    type=_field("a link to the description of the problem", f"{REFERENCE}#validation-failed"),
    title=_field("the kind of problem", "Validation failed"),
    status=_field("the HTTP status", 422, minimum=400, maximum=599),
    detail=_field("what was wrong and what is expected", 'unknown field "titel"'),
    instance=_field("the path of the request", "/v1/movies/7"),
    errors=List(
        Nested(FieldError), metadata={"description": "the failures of fields or parameters"}
    ),
    request_id=_field("the id of the request in the log", "5a1d8b0a7c9e4f21-5"),
)
MovieBatchResponse = _schema("MovieBatchResponse", movies=List(Nested(Movie)))
BatchResult = _schema(
    "BatchResult",
    ("movie", "problem", "replayed"),
    status=_field("what `POST /v1/movies` responds for this movie", 201),
    movie=Nested(Movie),
    problem=Nested(Problem),
    replayed=_field("true if an earlier request with the key created it", example=True),
)
BatchResults = _schema("BatchResults", results=List(Nested(BatchResult)))
