"""The reference of the movies: schemas of their responses, and the `Operation` of each route."""

from typing import Any

from marshmallow.fields import Integer, List, Nested, String

from service.database.paging import EXACT_TOTAL, NUMBERED_ITEMS
from service.errors import Invalid
from service.movies.batches import BATCH, MAX_MOVIES
from service.movies.parameters import PARAMETERS
from service.movies.rules import MOVIE, MovieInput, MovieOutput
from service.movies.streams import STREAMS
from service.web.problems import example_json
from service.web.reference.describe import (
    BIGINT,
    ID,
    IDEMPOTENCY_KEY,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    PRECONDITIONS,
    STRING,
    VALIDATORS,
    Problem,
    cursor_field,
    describe_body,
    describe_query,
    field,
    json_response,
    make_example,
    make_schema,
    parameter,
)
from service.web.route import Json, Operation

MOVIE_PATCH = MovieInput(partial=True)  # the body of PATCH
MovieResponse = make_schema("MovieResponse", movie=Nested(MovieOutput))
PageMetadata = make_schema(
    "PageMetadata",
    ("current_page", "last_page", "suggestions", "missing_ids"),
    page_size=field("the largest number of movies on a page", 20, minimum=1),
    total_records=field("the number of movies that match", 1, minimum=0),
    total_is_estimate=field(f"true if more than {EXACT_TOTAL:,}", example=False),
    next_cursor=cursor_field("next"),
    previous_cursor=cursor_field("previous"),
    current_page=field("only with the parameter `page`", 1, minimum=1),
    last_page=field("only with the parameter `page`", 1, minimum=1),
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
MovieList = make_schema(
    "MovieList", movies=List(Nested(MovieOutput)), metadata=Nested(PageMetadata)
)
MovieBatchResponse = make_schema("MovieBatchResponse", movies=List(Nested(MovieOutput)))
BatchResult = make_schema(
    "BatchResult",
    ("movie", "problem", "replayed"),
    status=field("what `POST /v1/movies` responds for this movie", 201),
    movie=Nested(MovieOutput),
    problem=Nested(Problem),
    replayed=field("true if an earlier request with the key created it", example=True),
)
BatchResults = make_schema("BatchResults", results=List(Nested(BatchResult)))

QUERY = describe_query(PARAMETERS)  # arrays as repeated parameters, the default of OpenAPI
LENIENT = "`handling=lenient` (RFC 7240): create each movie for itself."
PREFER = parameter("Prefer", "header", LENIENT, examples=["handling=lenient"])


def _movie_response(description: str, *headers: str, **changes: Any) -> Json:
    movie = make_example(MovieOutput()) | changes
    return json_response(description, MovieResponse, headers, movie=movie)


NEW_MOVIE = make_example(MOVIE)
WHOLE_MOVIE = describe_body(MOVIE, {"a movie": NEW_MOVIE}, "application/json")
MOVIES = describe_body(
    BATCH, {"two movies": {"movies": [NEW_MOVIE, NEW_MOVIE]}}, "application/json"
)
PATCH = describe_body(
    MOVIE_PATCH,
    {
        "another title": {"title": "Casablanca (restored)"},
        "two fields": {"year": 1943, "genres": ["war"]},
    },
    "application/json",
    "application/merge-patch+json",
)
_LIST_HEADERS = ("Link", "ETag", "Changes-Cursor", "Total-Records")
_PAGE = json_response("The page, or the stream.", MovieList, _LIST_HEADERS)
_PAGE["content"] |= {media_type: {"schema": STRING} for media_type in STREAMS}
LIST_MOVIES = Operation(
    "list_movies",
    "Find movies",
    "Returns a page of the movies that match all filters. `title` finds words in any order"
    " and ignores case and accents. Ranges include both ends. With `created_at` or"
    " `updated_at`, also sort by it: that is fastest. `-` before a `sort` field reverses the"
    " order. `relevance` sorts the shortest title first, then the newer year; it is the default"
    " with `title`. Otherwise the default is `id`.\n\n"
    "Follow the cursors, or the `Link` header, from page to page. A page by cursor takes the"
    " same time at any depth. While other movies are added or deleted, a movie that stays is"
    " neither skipped nor repeated. You can use `page` numbers instead. They reach all pages"
    f" if at most {EXACT_TOTAL:,} movies match; otherwise they reach the first"
    f" {NUMBERED_ITEMS:,} movies.\n\n"
    f"The total is exact up to {EXACT_TOTAL:,} and an estimate beyond that. A cursor keeps"
    " the total of its first page.\n\n"
    "If `Accept` prefers `application/x-ndjson` or `text/csv`, and names it, the response is a"
    " stream of all movies that match, from one snapshot: one in each line, and no pages."
    " If the stream breaks off, the connection is reset; `Total-Records` says how many movies"
    " a complete one has. It needs HTTP/1.1."
    " Movies by `id` have the same forms.",
    _PAGE,
    (*QUERY, IF_NONE_MATCH),
    problems=("upgrade-required",),
)
CREATE_MOVIE = Operation(
    "create_movie",
    "Add a movie",
    "Stores the movie with a new id and version 1; `Location` is its path. A `Content-Type`"
    " is not required. If you send an `Idempotency-Key`, you can repeat the request when a"
    " response is lost: for 24 hours, the same key gets the first response and adds no second"
    " movie. Error responses are not stored.",
    _movie_response("The new movie.", "Location", "Idempotency-Replayed", *VALIDATORS),
    (IDEMPOTENCY_KEY,),
    WHOLE_MOVIE,
    status=201,
)
CREATE_MOVIES = Operation(
    "create_movies",
    "Add several movies",
    f"Stores up to {MAX_MOVIES} movies in one step: all or, with an error, none. With `Prefer:"
    " handling=lenient`, each movie is created for itself: the response is a 207 with a result"
    " for each, in the order of the request, either with its movie or with its problem. An"
    " `Idempotency-Key` holds for the whole batch.",
    json_response("The new movies.", MovieBatchResponse, ("Idempotency-Replayed",)),
    (IDEMPOTENCY_KEY, PREFER),
    MOVIES,
    status=201,
    multi_status=json_response(
        "The results.",
        BatchResults,
        ("Preference-Applied", "Retry-After"),
        results=[
            {"status": 201, "movie": make_example(MovieOutput())},
            {"status": 422, "problem": example_json(Invalid.problem)},
        ],
    ),
)
SHOW_MOVIE = Operation(
    "show_movie",
    "Show a movie",
    "Returns the movie with every change that was acknowledged before this request arrived; if"
    " copies of the database serve reads, also send the `Catalogue-Position` of a change.",
    _movie_response("The movie.", *VALIDATORS),
    (ID, IF_NONE_MATCH, IF_MODIFIED_SINCE),
)
UPDATE_MOVIE = Operation(
    "update_movie",
    "Change fields of a movie",
    "A JSON merge patch (RFC 7396): changes only the fields that are sent, all at once."
    " `null` is refused, because no field of a movie can be removed. A patch that changes"
    " nothing does not increase the version.",
    _movie_response(
        "The changed movie.",
        "Content-Location",
        *VALIDATORS,
        title="Casablanca (restored)",
        version=2,
    ),
    (ID, *PRECONDITIONS),
    PATCH,
)
REPLACE_MOVIE = Operation(
    "replace_movie",
    "Replace a movie",
    "Replaces all fields of an existing movie. It does not create movies.",
    _movie_response("The changed movie.", "Content-Location", *VALIDATORS, version=2),
    (ID, *PRECONDITIONS),
    WHOLE_MOVIE,
)
DELETE_MOVIE = Operation(
    "delete_movie",
    "Delete a movie",
    "Deletes the movie and returns it. Deleting it again is answered 404.",
    _movie_response("The deleted movie."),
    (ID, *PRECONDITIONS),
    problems=("validation-failed",),
)
