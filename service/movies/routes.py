"""The routes of the movies, each with its `Operation`: its description in the reference."""

from typing import Any

from marshmallow import Schema
from marshmallow.fields import Integer, List, Nested, String
from marshmallow.validate import Length

from service.database.listing import EXACT_TOTAL, NUMBERED_ITEMS
from service.errors import Invalid
from service.movies.batches import Batches
from service.movies.entries import CHANGES, CREATES, DELETIONS, MAX_MOVIES, PUTS, RESTORES, Kind
from service.movies.exporting import STREAMS
from service.movies.handlers import Movies
from service.movies.lists import LIST_UNITS, Lists
from service.movies.movie import ENTITY_TAG
from service.movies.parameters import FACETS, PARAMETERS
from service.movies.restoring import VERSION, Restores
from service.movies.rules import MOVIE, MovieInput, MovieOutput, make_movie_example
from service.web.describe import (
    BIGINT,
    ID_PARAMETER,
    IDEMPOTENCY_KEY,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    PRECONDITIONS,
    VALIDATORS,
    ProblemSchema,
    describe_body,
    describe_json,
    describe_page,
    describe_query,
    field,
    make_example,
    make_schema,
    parameter,
)
from service.web.problems import make_document
from service.web.route import ID_IN_PATH, Json, Operation, Route, Scope

MOVIE_PATCH = MovieInput(partial=True)  # the body of PATCH
MovieResponse = make_schema("MovieResponse", movie=Nested(MovieOutput))
FacetValue = make_schema(
    "FacetValue",
    value=field("what the filter takes", "1990..1999"),
    movies=field("how many movies have it", 7, minimum=0),
)
Facet = make_schema(
    "Facet",
    is_estimate=field(f"true if more than {EXACT_TOTAL:,} movies match", example=False),
    values=List(Nested(FacetValue)),
)
Facets = make_schema("Facets", FACETS, **{name: Nested(Facet) for name in FACETS})
PageMetadata = describe_page(
    "PageMetadata",
    suggestions=List(String(), metadata={"description": "titles, if `title` finds nothing"}),
    suggested_movies=List(Nested(MovieOutput), metadata={"description": "those of `suggestions`"}),
    facets=Nested(Facets, metadata={"description": "only with the parameter `facets`"}),
    missing_ids=List(Integer(metadata=BIGINT), metadata={"description": "only with `id`"}),
    missing_external_ids=List(String(), metadata={"description": "only with `external_id`"}),
)
MovieList = make_schema(
    "MovieList", movies=List(Nested(MovieOutput)), metadata=Nested(PageMetadata)
)
BatchResult = make_schema(
    "BatchResult",
    ("outcome", "movie", "problem", "replayed"),
    status=field("what the request for this movie alone would respond", 201),
    outcome=field(
        "what became of the movie; `equal`: nothing, it has the fields already",
        "created",
        enum=["created", "changed", "equal", "deleted", "restored"],
    ),
    movie=Nested(MovieOutput),
    problem=Nested(ProblemSchema),
    replayed=field("true if an earlier request with the key created it", example=True),
)
MovieBatchResponse = make_schema(
    "MovieBatchResponse",
    ("movies", "results"),
    movies=List(Nested(MovieOutput), metadata={"description": "all of them, if it is not a 207"}),
    results=List(Nested(BatchResult), metadata={"description": "of each movie"}),
)

MOVIES_PATH = "/v1/movies"
BATCH_PATH = f"{MOVIES_PATH}/batch"
MOVIE_PATH = f"{MOVIES_PATH}/{ID_IN_PATH}"
LENIENT = "`handling=lenient` (RFC 7240): do each movie for itself."
PREFER = parameter("Prefer", "header", LENIENT, examples=["handling=lenient"])


def _describe_batch(name: str, kind: Kind, *examples: Json) -> Json:
    movies = List(Nested(kind.schema), required=True, validate=Length(1, MAX_MOVIES))
    schema = Schema.from_dict({"movies": movies}, name=name)
    return describe_body(schema(), {"movies": examples})


def _batch_response(description: str, *headers: str, **member: Any) -> Json:
    return describe_json(description, MovieBatchResponse, headers, **member)


def _lenient_response(more: str = "", /, **result: Any) -> Json:
    problem = make_document(Invalid.problem, Invalid.detail, BATCH_PATH + more)
    results = [result, {"status": Invalid.problem.status, "problem": problem}]
    return _batch_response("The results.", "Preference-Applied", "Retry-After", results=results)


def _movie_response(description: str, *headers: str, version: int = 1) -> Json:
    return describe_json(description, MovieResponse, headers, movie=make_movie_example(version))


NEW_MOVIE = make_example(MOVIE)
WHOLE_MOVIE = describe_body(MOVIE, NEW_MOVIE)
PATCH = describe_body(MOVIE_PATCH, {"year": 1942}, "application/merge-patch+json")
_LIST_HEADERS = ("Link", "ETag", "Changes-Cursor", "Total-Records")
_PAGE = describe_json("The page.", MovieList, _LIST_HEADERS)
# As further media types, generators would give the page no type.
_PAGE["x-streams"] = [*STREAMS]
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
    body=WHOLE_MOVIE,
    problems=("external-id-taken",),
    status=201,
)
_STORED, _PATCHED, _RESTORED = map(make_movie_example, (1, 2, 3))
_PUT = make_example(PUTS.schema)
_REPLACED = {"status": 200, "outcome": "changed", "movie": make_movie_example(2, **_PUT)}
_CHANGED = {"id": 7, "etag": ENTITY_TAG % (7, 1)}
_CHANGE_PROBLEMS = ("not-found", "precondition-failed", "precondition-required")
CREATE_MOVIES = Operation(
    "create_movies",
    "Add several movies",
    f"Stores up to {MAX_MOVIES} movies: all or, with an error, none. With `Prefer:"
    " handling=lenient`, the response is a 207 with the movie or the problem of each, in the order"
    " of the request.",
    _batch_response("The new movies.", "Idempotency-Replayed", movies=[_STORED]),
    (IDEMPOTENCY_KEY, PREFER),
    body=_describe_batch("MovieBatch", CREATES, NEW_MOVIE),
    problems=("external-id-taken",),
    status=201,
    multi_status=_lenient_response(status=201, outcome="created", movie=_STORED),
)
PUT_MOVIES = Operation(
    "put_movies",
    "Add or replace several movies",
    f"Takes up to {MAX_MOVIES} movies with their `external_id`: creates those that are not there"
    " (status 201 in `results`), replaces those that differ (200), and leaves the others as they"
    " are (200). With an `etag`, it only replaces the movie that has that one. All or, with an"
    " error, none; `Prefer: handling=lenient` as for POST. It can be repeated without a key.",
    _batch_response("The results.", results=[_REPLACED]),
    (PREFER,),
    body=_describe_batch("IdentifiedMovieBatch", PUTS, _PUT | {"etag": ENTITY_TAG % (7, 1)}),
    problems=("precondition-failed",),
    multi_status=_lenient_response(**_REPLACED),
)
UPDATE_MOVIES = Operation(
    "update_movies",
    "Change fields of several movies",
    f"Changes up to {MAX_MOVIES} movies, of each only the fields that are sent. With its `etag`, a"
    " movie is changed only if it has that one. All or, with an error, none; `Prefer:"
    " handling=lenient` as for POST.",
    _batch_response("The changed movies.", movies=[_PATCHED]),
    (PREFER,),
    body=_describe_batch("MovieChangeBatch", CHANGES, _CHANGED | {"year": 1942}),
    problems=(*_CHANGE_PROBLEMS, "external-id-taken"),
    multi_status=_lenient_response(status=200, outcome="changed", movie=_PATCHED),
)
DELETE_MOVIES = Operation(
    "delete_movies",
    "Delete several movies",
    f"Deletes up to {MAX_MOVIES} movies and returns them. With its `etag`, a movie is deleted only"
    " if it has that one. All or, with an error, none; `Prefer: handling=lenient` as for POST.",
    _batch_response("The deleted movies.", movies=[_STORED]),
    (PREFER,),
    body=_describe_batch("MovieDeletionBatch", DELETIONS, _CHANGED),
    problems=_CHANGE_PROBLEMS,
    multi_status=_lenient_response("/delete", status=200, outcome="deleted", movie=_STORED),
)
RESTORE_MOVIES = Operation(
    "restore_movies",
    "Restore several movies",
    f"Restores up to {MAX_MOVIES} movies, as one is restored. With its `etag`, a movie is restored"
    " only if it is there and has that one. All or, with an error, none; `Prefer: handling=lenient`"
    " as for POST.",
    _batch_response("The movies.", movies=[_RESTORED]),
    (PREFER,),
    body=_describe_batch("MovieRestoreBatch", RESTORES, {"id": 7, "version": 1}),
    problems=(*_CHANGE_PROBLEMS, "not-deleted", "external-id-taken", "not-kept"),
    multi_status=_lenient_response("/restore", status=200, outcome="changed", movie=_RESTORED),
)
RESTORE_MOVIE = Operation(
    "restore_movie",
    "Restore a movie",
    "The movie gets the fields that it had in `version`, as a new version; if it has them already,"
    " nothing is written. Without a `version`, a deleted movie comes back as it was, with its id"
    " and its `external_id`. The feed of changes keeps what this needs for some days.",
    _movie_response("The movie.", "Content-Location", *VALIDATORS, version=3),
    (ID_PARAMETER, *PRECONDITIONS),
    body=describe_body(VERSION, {"version": 1}) | {"required": False},
    problems=("not-deleted", "external-id-taken", "not-kept"),
)
SHOW_MOVIE = Operation(
    "show_movie",
    "Show a movie",
    "Returns the movie with every change that was acknowledged before this request arrived;"
    " from a replica, with those of the `Catalogue-Position` that is sent.",
    _movie_response("The movie.", *VALIDATORS),
    (ID_PARAMETER, IF_NONE_MATCH, IF_MODIFIED_SINCE),
)
UPDATE_MOVIE = Operation(
    "update_movie",
    "Change fields of a movie",
    "A JSON merge patch (RFC 7396): changes only the fields that are sent, all at once. A patch"
    " that changes nothing does not increase the version.",
    _movie_response("The changed movie.", "Content-Location", *VALIDATORS, version=2),
    (ID_PARAMETER, *PRECONDITIONS),
    body=PATCH,
    problems=("external-id-taken",),
)
REPLACE_MOVIE = Operation(
    "replace_movie",
    "Replace a movie",
    "Replaces the fields of an existing movie. An optional one that is missing stays, and null"
    " removes it. It does not create movies.",
    _movie_response("The changed movie.", "Content-Location", *VALIDATORS, version=2),
    (ID_PARAMETER, *PRECONDITIONS),
    body=WHOLE_MOVIE,
    problems=("external-id-taken",),
)
DELETE_MOVIE = Operation(
    "delete_movie",
    "Delete a movie",
    "Deletes the movie and returns it. Deleting it again is answered 404.",
    _movie_response("The deleted movie."),
    (ID_PARAMETER, *PRECONDITIONS),
    problems=("validation-failed",),
)


def make_routes(movies: Movies, lists: Lists, batches: Batches, restores: Restores) -> list[Route]:
    """Return the routes."""
    return [
        Route("GET", MOVIES_PATH, lists.list, Scope.READ, LIST_MOVIES, LIST_UNITS),
        Route("POST", MOVIES_PATH, movies.create, Scope.WRITE, CREATE_MOVIE),
        Route("POST", BATCH_PATH, batches.create, Scope.WRITE, CREATE_MOVIES),
        Route("PUT", BATCH_PATH, batches.put, Scope.WRITE, PUT_MOVIES),
        Route("PATCH", BATCH_PATH, batches.update, Scope.WRITE, UPDATE_MOVIES),
        Route("POST", f"{BATCH_PATH}/delete", batches.delete, Scope.WRITE, DELETE_MOVIES),
        Route("POST", f"{BATCH_PATH}/restore", batches.restore, Scope.WRITE, RESTORE_MOVIES),
        Route("GET", MOVIE_PATH, movies.show, Scope.READ, SHOW_MOVIE),
        Route("PATCH", MOVIE_PATH, movies.update, Scope.WRITE, UPDATE_MOVIE),
        Route("PUT", MOVIE_PATH, movies.replace, Scope.WRITE, REPLACE_MOVIE),
        Route("DELETE", MOVIE_PATH, movies.delete, Scope.WRITE, DELETE_MOVIE),
        Route("POST", f"{MOVIE_PATH}/restore", restores.restore, Scope.WRITE, RESTORE_MOVIE),
    ]
