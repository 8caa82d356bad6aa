"""The `Operation` of each route, by the name of the route, for the reference.

A new parameter or header of a request is added here, a new header of responses in `document.py`.
"""

from collections.abc import Mapping
from typing import Any

from marshmallow import Schema

from service.changes.handlers import SCHEMA as CHANGES_SCHEMA
from service.database import MAX_BIGINT
from service.database.paging import EXACT_TOTAL, NUMBERED_ITEMS
from service.errors import Invalid
from service.movies.batch_fields import BATCH, MAX_MOVIES
from service.movies.parameters import PARAMETERS
from service.movies.rules import MOVIE
from service.movies.streams import STREAMS
from service.web.idempotency_keys import HEADER_NAME, KEY_PATTERN
from service.web.problems import example_json
from service.web.query_strings import QueryParameter, list_parameters
from service.web.reference import schemas
from service.web.reference.document import (
    ETAGS,
    IF_NONE_MATCH,
    STRING,
    Json,
    Operation,
    json_response,
    parameter,
    response,
)
from service.web.reference.handlers import FILES

ID = parameter(
    "id",
    "path",
    "The movie's id, in digits.",
    type="integer",
    format="int64",
    minimum=1,
    maximum=MAX_BIGINT,
    examples=[7],
)
FILE = parameter("file", "path", "The name of the file.", enum=sorted(FILES))
FILE_TYPES = [kind.partition(";")[0] for kind in FILES.values()]


def _describe_query(fields: Mapping[str, QueryParameter]) -> tuple[Json, ...]:
    return tuple(
        parameter(
            name, "query", f"{field.expected[0].upper()}{field.expected[1:]}.", **field.schema
        )
        for name, field in fields.items()
    )


QUERY = _describe_query(PARAMETERS)  # arrays as repeated parameters, the default of OpenAPI
IDEMPOTENCY_KEY = parameter(
    HEADER_NAME,
    "header",
    "Makes retries safe. Any text that you choose, such as a UUID. Double quotes around it are"
    " optional and not part of the key. The key belongs to the client whose token is sent; all"
    " clients without a token share theirs.",
    pattern=f"^({KEY_PATTERN.pattern})$",
    examples=["8e03978e-40d5-43dd-bc93-6894a57f9324"],
)
LENIENT = "`handling=lenient` (RFC 7240): create each movie for itself."
PREFER = parameter("Prefer", "header", LENIENT, examples=["handling=lenient"])
IF_MODIFIED_SINCE = parameter(
    "If-Modified-Since",
    "header",
    "A `Last-Modified`; 304 if the movie has not changed since. Ignored when `If-None-Match` is"
    " sent.",
)
PRECONDITIONS = (
    parameter(
        "If-Match",
        "header",
        "`ETag`s or `*`: change the movie only if one of them is its current one; otherwise 412.",
        pattern=ETAGS,
    ),
    parameter(
        "If-None-Match",
        "header",
        "`ETag`s or `*`: change the movie only if none of them is its current one; otherwise 412.",
        pattern=ETAGS,
    ),
    parameter(
        "If-Unmodified-Since",
        "header",
        "A `Last-Modified`: change the movie only if it has not changed since; otherwise 412."
        " One-second precision; ignored when `If-Match` is sent. What is no date is a 400.",
    ),
)


def _movie_response(description: str, *headers: str, **changes: Any) -> Json:
    movie = schemas.make_example(schemas.Movie()) | changes
    return json_response(description, schemas.MovieResponse, headers, movie=movie)


def _body(schema: Schema, examples: Json, *media_types: str) -> Json:
    """Describe a required body, with examples by name."""
    named = {name: {"value": example} for name, example in examples.items()}
    content = {"schema": schema, "examples": named}
    return {"required": True, "content": dict.fromkeys(media_types, content)}


NEW_MOVIE = schemas.make_example(MOVIE)
WHOLE_MOVIE = _body(MOVIE, {"a movie": NEW_MOVIE}, "application/json")
MOVIES = _body(BATCH, {"two movies": {"movies": [NEW_MOVIE, NEW_MOVIE]}}, "application/json")
PATCH = _body(
    schemas.MOVIE_PATCH,
    {
        "another title": {"title": "Casablanca (restored)"},
        "two fields": {"year": 1943, "genres": ["war"]},
    },
    "application/json",
    "application/merge-patch+json",
)
DOCUMENT = {"type": "object", "description": "An OpenAPI document."}
VALIDATORS = ("ETag", "Last-Modified")  # RFC 9110, 8.8
_LIST_HEADERS = ("Link", "ETag", "Changes-Cursor", "Total-Records")
_PAGE = json_response("The page, or the stream.", schemas.MovieList, _LIST_HEADERS)
_PAGE["content"] |= {media_type: {"schema": STRING} for media_type in STREAMS}
_CHANGE = schemas.make_example(schemas.Change()) | {"movie": schemas.make_example(schemas.Movie())}
OPERATIONS: Mapping[str, Operation] = {
    "list_movies": Operation(
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
    ),
    "list_genres": Operation(
        "List the genres",
        "Returns the genres with their numbers of movies, the most frequent first, at most"
        " 1,000; case and accents make no other genre. A process counts them on request and reuses"
        " the result for 100 times as long as the count took, but for at least 1 s: about a minute"
        " for 2 million movies.",
        json_response(
            "The genres.",
            schemas.GenreList,
            ("ETag",),
            genres=[{"genre": "drama", "movies": 120}, {"genre": "war", "movies": 7}],
        ),
        (IF_NONE_MATCH,),
    ),
    "list_changes": Operation(
        "Get the changes",
        "Returns up to 100 changes of movies (`limit`: up to 1,000) after the cursor `after`, in an"
        " order that never misses one; without `after`, the oldest that are kept. With `wait`, the"
        " response comes as soon as there is a change, or without changes after so many"
        " seconds.\n\n"
        "To keep a copy of the catalogue, get all movies with `GET /v1/movies`, and begin with the"
        " header `Changes-Cursor` of the first page. Then send each `next_cursor` as `after`.",
        json_response("The changes.", schemas.ChangeList, changes=[_CHANGE]),
        _describe_query(list_parameters(CHANGES_SCHEMA)),
        problems=("cursor-expired",),
    ),
    "create_movie": Operation(
        "Add a movie",
        "Stores the movie with a new id and version 1; `Location` is its path. A `Content-Type`"
        " is not required. If you send an `Idempotency-Key`, you can repeat the request when a"
        " response is lost: for 24 hours, the same key gets the first response and adds no second"
        " movie. Error responses are not stored.",
        _movie_response("The new movie.", "Location", "Idempotency-Replayed", *VALIDATORS),
        (IDEMPOTENCY_KEY,),
        WHOLE_MOVIE,
        status=201,
    ),
    "create_movies": Operation(
        "Add several movies",
        f"Stores up to {MAX_MOVIES} movies in one step: all or, with an error, none. With `Prefer:"
        " handling=lenient`, each movie is created for itself: the response is a 207 with a result"
        " for each, in the order of the request, either with its movie or with its problem. An"
        " `Idempotency-Key` holds for the whole batch.",
        json_response("The new movies.", schemas.MovieBatchResponse, ("Idempotency-Replayed",)),
        (IDEMPOTENCY_KEY, PREFER),
        MOVIES,
        status=201,
        multi_status=json_response(
            "The results.",
            schemas.BatchResults,
            ("Preference-Applied", "Retry-After"),
            results=[
                {"status": 201, "movie": schemas.make_example(schemas.Movie())},
                {"status": 422, "problem": example_json(Invalid.problem)},
            ],
        ),
    ),
    "show_movie": Operation(
        "Show a movie",
        "Returns the movie with every change that was acknowledged before this request arrived; if"
        " copies of the database serve reads, also send the `Catalogue-Position` of a change.",
        _movie_response("The movie.", *VALIDATORS),
        (ID, IF_NONE_MATCH, IF_MODIFIED_SINCE),
    ),
    "update_movie": Operation(
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
    ),
    "replace_movie": Operation(
        "Replace a movie",
        "Replaces all fields of an existing movie. It does not create movies.",
        _movie_response("The changed movie.", "Content-Location", *VALIDATORS, version=2),
        (ID, *PRECONDITIONS),
        WHOLE_MOVIE,
    ),
    "delete_movie": Operation(
        "Delete a movie",
        "Deletes the movie and returns it. Deleting it again is answered 404.",
        _movie_response("The deleted movie."),
        (ID, *PRECONDITIONS),
        problems=("validation-failed",),
    ),
    "show_health": Operation(
        "Check that the process is alive",
        "For liveness probes. Does not use the database, so that a process is not restarted because"
        " its database is unreachable.",
        json_response("The process is alive.", schemas.Health),
        tag="Health",
    ),
    "show_readiness": Operation(
        "Check that the process can serve requests",
        "For readiness probes. 503 while the database is unreachable, migrations are missing, or"
        " the process is shutting down.",
        json_response("The process can serve requests.", schemas.Readiness),
        tag="Health",
    ),
    **dict.fromkeys(
        ("show_index", "show_root_index"),
        Operation(
            "Find the API and its reference",
            "Returns the paths of the movies, the reference page and the OpenAPI document.",
            json_response("The paths.", schemas.Index),
            tag="Reference",
        ),
    ),
    "show_document": Operation(
        "Get this API in OpenAPI 3.1",
        "For tools such as client generators, gateways and tests.",
        response("The document.", ("ETag",), {"application/json": {"schema": DOCUMENT}}),
        (IF_NONE_MATCH,),
        tag="Reference",
    ),
    "show_page": Operation(
        "Show the reference page",
        "Shows the document to people, with a form to send each request.",
        response("The page.", ("ETag",), {"text/html": {"schema": STRING}}),
        (IF_NONE_MATCH,),
        tag="Reference",
    ),
    "show_file": Operation(
        "Get a file of the reference page",
        "Its style sheet, script or icon, or a client to copy.",
        response("The file.", ("ETag",), {key: {"schema": STRING} for key in FILE_TYPES}),
        (FILE, IF_NONE_MATCH),
        tag="Reference",
    ),
}
