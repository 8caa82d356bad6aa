"""What the reference says of each route: `routes.py` names one of these for every route.

A parameter or a header more is one line here (a header nobody had yet, one more in `HEADERS`).
"""

from collections.abc import Mapping
from typing import Any

from service import __version__
from service.catalogue.paging import EXACT_TOTAL, NUMBERED_MOVIES
from service.catalogue.rules import MOVIE
from service.errors import (
    Invalid,
    KeyInUse,
    KeyReused,
    Malformed,
    MalformedHeader,
    MovieNotFound,
    PreconditionFailed,
    PreconditionRequired,
    WrongKey,
    WrongParameters,
)
from service.web.bodies import BodyTimedOut
from service.web.movies.handlers import LARGEST_ID
from service.web.movies.idempotency_keys import KEY, NAME
from service.web.movies.parameters import PARAMETERS
from service.web.problems import HTTP, PROBLEMS
from service.web.reference.document import Answer, Body, Operation, Parameter
from service.web.reference.handlers import FILES
from service.web.reference.schemas import (
    GENRES_ANSWER,
    HEALTH,
    MOVIE_ANSWER,
    MOVIES_ANSWER,
    READINESS,
)

MOVIES = "Movies"
HEALTHCHECKS = "Health"
REFERENCE = "Reference"

CASABLANCA: Mapping[str, Any] = {
    "title": "Casablanca",
    "year": 1942,
    "runtime": "102 mins",
    "genres": ["drama", "romance", "war"],
}
KEPT: Mapping[str, Any] = {
    "id": 7,
    **CASABLANCA,
    "version": 1,
    "created_at": "2026-01-05T09:00:00.000000Z",
    "updated_at": "2026-01-05T09:00:00.000000Z",
}
ID = Parameter(
    "id",
    "path",
    "The movie's id, in digits.",
    {
        "type": "integer",
        "format": "int64",
        "minimum": 1,
        "maximum": LARGEST_ID,
        "examples": [7],
    },
)
FILE = Parameter("file", "path", "The name of the file.", {"type": "string", "enum": sorted(FILES)})
IF_NONE_MATCH = Parameter(
    "If-None-Match",
    "header",
    "The `ETag` that the client has; 304 if it is still so.",
    {"type": "string"},
)
CONDITIONS = (
    Parameter(
        "If-Match",
        "header",
        "`ETag`s, or `*`: change the movie only if it still has one of them; else 412.",
        {"type": "string"},
    ),
    Parameter(
        "If-None-Match",
        "header",
        "`ETag`s, or `*`: change the movie only if it has none of them; else 412.",
        {"type": "string"},
    ),
    Parameter(
        "If-Unmodified-Since",
        "header",
        "A `Last-Modified`: as `If-Match`, but blind within a second. Not looked at beside that.",
        {"type": "string"},
    ),
)
IF_MODIFIED_SINCE = Parameter(
    "If-Modified-Since",
    "header",
    "A `Last-Modified`; 304 if nothing has changed since. Not looked at beside `If-None-Match`.",
    {"type": "string"},
)
REFUSALS = tuple(
    PROBLEMS[kind] for kind in (MalformedHeader, PreconditionFailed, PreconditionRequired)
)
TAGGED = ("ETag", "Cache-Control")
TAGGED_MOVIE = ("ETag", "Last-Modified", "Cache-Control")
KNOWN = Answer("The client has it already.", headers=TAGGED)
IDEMPOTENCY_KEY = Parameter(
    NAME,
    "header",
    "Makes it safe to send the request again: a text of your own, such as a UUID. In double quotes"
    " or without them, it is the same key.",
    {
        "type": "string",
        "pattern": f"^({KEY.pattern})$",
        "examples": ["8e03978e-40d5-43dd-bc93-6894a57f9324"],
    },
)
# What only a request with a key can meet.
OF_KEYS = (PROBLEMS[WrongKey], PROBLEMS[KeyInUse], PROBLEMS[KeyReused])
WHOLE_MOVIE = Body(MOVIE, {"a movie": CASABLANCA})
CHANGES = Body(
    type(MOVIE)(partial=True),
    {
        "another title": {"title": "Casablanca (restored)"},
        "two fields": {"year": 1943, "genres": ["war"]},
    },
    ("application/json", "application/merge-patch+json"),
)
# A query string that is not taken, or wrong.
IN_QUERIES = (PROBLEMS[WrongParameters],)
NOT_FOUND = (PROBLEMS[MovieNotFound], *IN_QUERIES)
# What only a request with a body can meet.
OF_BODIES = (PROBLEMS[Malformed], PROBLEMS[BodyTimedOut], PROBLEMS[Invalid])


def _movie(description: str, *, headers: tuple[str, ...] = (), **fields: Any) -> Answer:
    return Answer(description, MOVIE_ANSWER, {"movie": {**KEPT, **fields}}, headers)


def _file(description: str, media_type: str) -> Mapping[int, Answer]:
    return {
        200: Answer(description, {"type": "string"}, None, TAGGED, media_type),
        304: KNOWN,
    }


QUERY = tuple(
    Parameter(name, "query", f"{field.expected[0].upper()}{field.expected[1:]}.", field.schema)
    for name, field in PARAMETERS.items()
)

LIST_MOVIES = Operation(
    "list_movies",
    MOVIES,
    "Find movies",
    "A page of the movies that pass every filter. `title` finds words in any order, without regard"
    " to case and accents; `genres` wants all of them; ranges include both ends. `sort` with `-` is"
    " the exact reverse. Follow the cursors, or `Link`, from page to page: they cost the same at"
    " any depth, and no movie that stays is missed or seen twice. `page` takes numbers instead: of"
    f" all pages if at most {EXACT_TOTAL:,} movies match, otherwise of the first"
    f" {NUMBERED_MOVIES:,} movies. The total is exact up to {EXACT_TOTAL:,} and an estimate beyond;"
    " a cursor keeps the total of its first page.",
    {
        200: Answer(
            "The page.",
            MOVIES_ANSWER,
            {
                "movies": [KEPT],
                "metadata": {
                    "page_size": 20,
                    "total_records": 1,
                    "total_is_estimate": False,
                    "next_cursor": None,
                    "previous_cursor": None,
                },
            },
            ("Link", *TAGGED),
        ),
        304: KNOWN,
    },
    (*QUERY, IF_NONE_MATCH),
    problems=(*IN_QUERIES, PROBLEMS[MalformedHeader]),
)
LIST_GENRES = Operation(
    "list_genres",
    MOVIES,
    "All genres",
    "Each with its number of movies, the most frequent first; 1,000 at most. A process counts them"
    " when asked, and keeps the answer for 100 times as long as the count took, at least 1 s: that"
    " is 1 s for a small catalogue and about a minute for 2 million movies. `as_of` tells its age.",
    {
        200: Answer(
            "The genres.",
            GENRES_ANSWER,
            {
                "genres": [{"genre": "drama", "movies": 120}, {"genre": "war", "movies": 7}],
                "metadata": {"total_records": 2, "as_of": "2026-01-05T09:00:00.000000Z"},
            },
            TAGGED,
        ),
        304: KNOWN,
    },
    (IF_NONE_MATCH,),
    problems=(*IN_QUERIES, PROBLEMS[MalformedHeader]),
)
CREATE_MOVIE = Operation(
    "create_movie",
    MOVIES,
    "Add a movie",
    "The catalogue gives it an id and the version 1, and says in `Location` where it is. No"
    " `Content-Type` is demanded. With an `Idempotency-Key` it can be sent again when an answer got"
    " lost: for 24 hours the same key gets the answer of the first time, and adds no other movie."
    " Refusals are not remembered.",
    {
        201: _movie(
            "The movie as it is kept.", headers=("Location", "Idempotency-Replayed", *TAGGED_MOVIE)
        )
    },
    (IDEMPOTENCY_KEY,),
    WHOLE_MOVIE,
    (*OF_BODIES, *OF_KEYS, *IN_QUERIES),
)
SHOW_MOVIE = Operation(
    "show_movie",
    MOVIES,
    "Show a movie",
    "It has every change that was answered before this request came.",
    {200: _movie("The movie.", headers=TAGGED_MOVIE), 304: KNOWN},
    (ID, IF_NONE_MATCH, IF_MODIFIED_SINCE),
    problems=(*NOT_FOUND, PROBLEMS[MalformedHeader]),
)
UPDATE_MOVIE = Operation(
    "update_movie",
    MOVIES,
    "Change fields of a movie",
    "A JSON merge patch (RFC 7396): the fields sent change, all at once, and the others stay as"
    " they are. `null` is refused, as a movie has no field to spare. A patch that changes nothing"
    " keeps the version.",
    {
        200: _movie(
            "The movie with its changes.",
            headers=("Content-Location", *TAGGED_MOVIE),
            title="Casablanca (restored)",
            version=2,
        )
    },
    (ID, *CONDITIONS),
    CHANGES,
    (*NOT_FOUND, *OF_BODIES, *REFUSALS),
)
REPLACE_MOVIE = Operation(
    "replace_movie",
    MOVIES,
    "Replace a movie",
    "All fields are replaced. It creates nothing: the movie has to exist.",
    {
        200: _movie(
            "The movie as it is now.", headers=("Content-Location", *TAGGED_MOVIE), version=2
        )
    },
    (ID, *CONDITIONS),
    WHOLE_MOVIE,
    (*NOT_FOUND, *OF_BODIES, *REFUSALS),
)
DELETE_MOVIE = Operation(
    "delete_movie",
    MOVIES,
    "Delete a movie",
    "Answers with what was deleted. A second time it is not found.",
    {200: _movie("The movie that was deleted.")},
    (ID, *CONDITIONS),
    problems=(*NOT_FOUND, PROBLEMS[Invalid], *REFUSALS),
)
SHOW_HEALTH = Operation(
    "show_health",
    HEALTHCHECKS,
    "Is the process alive?",
    "For liveness probes. Asks nothing of the database, so that nobody restarts a process because"
    " its database is away.",
    {
        200: Answer(
            "It is.",
            HEALTH,
            {
                "status": "available",
                "system_info": {"environment": "production", "version": __version__},
            },
        )
    },
)
SHOW_READINESS = Operation(
    "show_readiness",
    HEALTHCHECKS,
    "Can it serve now?",
    "For readiness probes. 503 while the database is out of reach or behind on migrations, or the"
    " process is on its way out.",
    {200: Answer("It can.", READINESS, {"status": "ready"})},
)
SHOW_DOCUMENT = Operation(
    "show_document",
    REFERENCE,
    "This API in OpenAPI 3.1",
    "For tools: client generators, gateways, tests.",
    {
        200: Answer(
            "The document.",
            {"type": "object", "required": ["openapi", "info", "paths"]},
            None,
            ("ETag", "Cache-Control"),
        ),
        304: Answer("The client has it already.", headers=("ETag", "Cache-Control")),
    },
    (IF_NONE_MATCH,),
)
SHOW_PAGE = Operation(
    "show_page",
    REFERENCE,
    "This API for people",
    "The reference page, which renders the document and can try every request.",
    _file("The page.", "text/html"),
    (IF_NONE_MATCH,),
)
SHOW_FILE = Operation(
    "show_file",
    REFERENCE,
    "What the page is made of",
    "Its style, its script and its icon.",
    _file("The file.", "*/*"),
    (FILE, IF_NONE_MATCH),
    problems=(HTTP[404],),
)
