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
    describe_body,
    describe_page,
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
PageMetadata = describe_page(
    "PageMetadata",
    suggestions=List(String(), metadata={"description": "titles, if `title` finds nothing"}),
    missing_ids=List(Integer(metadata=BIGINT), metadata={"description": "only with `id`"}),
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

LENIENT = "`handling=lenient` (RFC 7240): create each movie for itself."
PREFER = parameter("Prefer", "header", LENIENT, examples=["handling=lenient"])


def _movie_response(description: str, *headers: str, **changes: Any) -> Json:
    movie = make_example(MovieOutput()) | changes
    return json_response(description, MovieResponse, headers, movie=movie)


NEW_MOVIE = make_example(MOVIE)
WHOLE_MOVIE = describe_body(MOVIE, NEW_MOVIE)
MOVIES = describe_body(BATCH, {"movies": [NEW_MOVIE, NEW_MOVIE]})
PATCH = describe_body(MOVIE_PATCH, {"year": 1943}, "application/merge-patch+json")
_LIST_HEADERS = ("Link", "ETag", "Changes-Cursor", "Total-Records")
_PAGE = json_response("The page, or the stream.", MovieList, _LIST_HEADERS)
_PAGE["content"] |= {media_type: {"schema": STRING} for media_type in STREAMS}
LIST_MOVIES = Operation(
    "list_movies",
    "Find movies",
    "Returns a page of the movies that match all filters. `title` finds words in any order."
    " `relevance`, the default with `title`, sorts the shortest title first; otherwise the default"
    " is `id`, and `-` reverses an order.\n\n"
    "Follow the cursors, or the `Link` header, from page to page: a movie that stays is neither"
    f" skipped nor repeated. `page` numbers reach the first {NUMBERED_ITEMS:,} movies, and all"
    f" if at most {EXACT_TOTAL:,} match.\n\n"
    "If `Accept` prefers `application/x-ndjson` or `text/csv`, the response is a stream of all"
    " movies that match, one in each line; it needs HTTP/1.1. If it breaks off, the connection is"
    " reset.",
    _PAGE,
    (*describe_query(PARAMETERS), IF_NONE_MATCH),
    problems=("upgrade-required",),
)
CREATE_MOVIE = Operation(
    "create_movie",
    "Add a movie",
    "`Location` is the path of the new movie. With an `Idempotency-Key`, you can repeat the request"
    " when a response is lost: for 24 hours, the key gets the first response again.",
    _movie_response("The new movie.", "Location", "Idempotency-Replayed", *VALIDATORS),
    (IDEMPOTENCY_KEY,),
    WHOLE_MOVIE,
    status=201,
)
CREATE_MOVIES = Operation(
    "create_movies",
    "Add several movies",
    f"Stores up to {MAX_MOVIES} movies: all or, with an error, none. With `Prefer:"
    " handling=lenient`, the response is a 207 with the movie or the problem of each, in the order"
    " of the request.",
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
            {"status": 422, "problem": example_json(Invalid.problem, Invalid.detail)},
        ],
    ),
)
SHOW_MOVIE = Operation(
    "show_movie",
    "Show a movie",
    "Returns the movie with every change that was acknowledged before this request arrived.",
    _movie_response("The movie.", *VALIDATORS),
    (ID, IF_NONE_MATCH, IF_MODIFIED_SINCE),
)
UPDATE_MOVIE = Operation(
    "update_movie",
    "Change fields of a movie",
    "A JSON merge patch (RFC 7396): changes only the fields that are sent, all at once. A patch"
    " that changes nothing does not increase the version.",
    _movie_response("The changed movie.", "Content-Location", *VALIDATORS, version=2),
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
