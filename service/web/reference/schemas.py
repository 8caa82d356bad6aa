"""The schemas of responses and bodies, for the reference only.

`responses.py` builds the responses without them; the tests compare the two. In the document, the
names are those of the classes without `Schema`.
"""

from typing import Any, ClassVar

from marshmallow import Schema
from marshmallow.fields import Boolean, DateTime, Field, Integer, List, Nested, String

from service.catalogue.paging import EXACT_TOTAL
from service.catalogue.rules import MOVIE
from service.web.problems import REFERENCE

MOVIE_PATCH = type(MOVIE)(partial=True)  # the body of PATCH


class ResponseSchema(Schema):
    """A schema whose fields are always present, except those in `optional`."""

    optional: ClassVar[tuple[str, ...]] = ()

    def on_bind_field(self, field_name: str, field_obj: Field[Any]) -> None:
        """Mark the field as required, or not."""
        field_obj.required = field_name not in self.optional


def _string(description: str, example: str, **metadata: Any) -> String:
    return String(metadata={"description": description, "examples": [example], **metadata})


def _integer(description: str, example: int, minimum: int, **options: Any) -> Integer:
    metadata = {"description": description, "examples": [example], "minimum": minimum}
    return Integer(metadata=metadata, **options)


def _time(description: str, **options: Any) -> DateTime:
    example = "2026-01-05T09:00:00.000000Z"
    return DateTime(metadata={"description": description, "examples": [example]}, **options)


def _cursor(page: str) -> String:
    text = f"the cursor of the {page} page; null if there is none"
    return String(allow_none=True, metadata={"description": text})


class MovieSchema(ResponseSchema):
    """A movie in a response; `dump_only` becomes `readOnly` in the document."""

    id = _integer("read-only; never used again for another movie", 7, 1, dump_only=True)
    title = MOVIE.fields["title"]
    year = MOVIE.fields["year"]
    runtime = MOVIE.fields["runtime"]
    genres = MOVIE.fields["genres"]
    version = _integer("read-only; increases by 1 with every change", 1, 1, dump_only=True)
    created_at = _time("read-only; RFC 3339, in UTC", dump_only=True)
    updated_at = _time("read-only; the time of the last change", dump_only=True)


class MovieResponseSchema(ResponseSchema):
    """The response with one movie."""

    movie = Nested(MovieSchema)


class PageMetadataSchema(ResponseSchema):
    """The metadata of a page of movies."""

    optional = ("current_page", "last_page")
    page_size = _integer("the largest number of movies on a page", 20, 1)
    total_records = _integer("the number of movies that match", 1, 0)
    total_is_estimate = Boolean(metadata={"description": f"true if more than {EXACT_TOTAL:,}"})
    next_cursor = _cursor("next")
    previous_cursor = _cursor("previous")
    current_page = _integer("only with the parameter `page`", 1, 1)
    last_page = _integer("only with the parameter `page`", 1, 1)


class MovieListSchema(ResponseSchema):
    """The response with a page of movies."""

    movies = List(Nested(MovieSchema))
    metadata = Nested(PageMetadataSchema)


class GenreSchema(ResponseSchema):
    """A genre and its number of movies."""

    genre = _string("the name of the genre", "drama")
    movies = _integer("the number of movies of this genre", 120, 1)


class GenreMetadataSchema(ResponseSchema):
    """The metadata of the list of genres."""

    total_records = _integer("the number of all genres", 2, 0)
    as_of = _time("every change before this time is counted")


class GenreListSchema(ResponseSchema):
    """The response with all genres."""

    genres = List(Nested(GenreSchema))
    metadata = Nested(GenreMetadataSchema)


class SystemInfoSchema(ResponseSchema):
    """What runs."""

    environment = _string("the name of this deployment", "production")
    version = _string("the version of the service", "1.0.0")


class HealthSchema(ResponseSchema):
    """The response of the liveness check."""

    status = _string("always `available`", "available", enum=["available"])
    system_info = Nested(SystemInfoSchema)


class ReadinessSchema(ResponseSchema):
    """The response of the readiness check."""

    status = _string("always `ready`", "ready", enum=["ready"])


class IndexSchema(ResponseSchema):
    """Where the API and its reference are."""

    api = _string("the path of the movies", "/v1/movies")
    reference = _string("the path of the reference page", "/v1/docs")
    openapi = _string("the path of the OpenAPI document", "/v1/openapi.json")


class FieldErrorSchema(ResponseSchema):
    """One failure of a request."""

    optional = ("pointer", "parameter")
    pointer = _string("a JSON Pointer (RFC 6901) to the field; `#`: the whole body", "#/year")
    parameter = _string("the query parameter, instead of a pointer", "year")
    detail = _string("what is expected", "must not be in the future")


class ProblemSchema(ResponseSchema):
    """The response to every error."""

    optional = ("errors",)
    type = _string("a link to the description of the problem", f"{REFERENCE}#validation-failed")
    title = _string("the kind of problem", "Validation failed")
    status = Integer(
        metadata={
            "description": "the HTTP status",
            "minimum": 400,
            "maximum": 599,
            "examples": [422],
        }
    )
    detail = _string("what was wrong and what is expected", 'unknown field "titel"')
    instance = _string("the path of the request", "/v1/movies/7")
    errors = List(
        Nested(FieldErrorSchema), metadata={"description": "the failures of fields or parameters"}
    )
    request_id = _string("the id of the request in the log", "5a1d8b0a7c9e4f21-5")
