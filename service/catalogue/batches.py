"""Reads a batch: `{"movies": [...]}`, with up to 100 movies in one body."""

from typing import Any

from marshmallow import Schema, ValidationError

from service.catalogue.rules import MOVIE, JSONField, load_fields, type_name
from service.errors import Failure, Invalid, Malformed

MAX_MOVIES = 100
ITEMS = {"$ref": "#/components/schemas/MovieInput"}  # apispec's name of `MOVIE`
MAX_FAILURES = 500  # the movies behind so many are not read: a response could have 2 MB
SHAPE = {"items": ITEMS, "minItems": 1, "maxItems": MAX_MOVIES}


def load_movie(value: Any) -> dict[str, Any]:
    """Return the fields of one movie of a batch; raises `Malformed` or `Invalid`."""
    if not isinstance(value, dict):
        what = f"must be an object, found {type_name(value)}"
        raise Malformed(f"a movie {what}", [Failure("", what)])
    return load_fields(MOVIE, value)


def _check_number(values: list[Any]) -> list[Any]:
    if not 1 <= len(values) <= MAX_MOVIES:
        raise ValidationError(f"must be 1 to {MAX_MOVIES} movies")
    return values


def _load_all(values: list[Any]) -> list[dict[str, Any]]:
    """Load every movie; report the mistakes of all of them."""
    movies, failures, unreadable = list[dict[str, Any]](), list[Failure](), ""
    for index, value in enumerate(_check_number(values)):
        try:
            movies.append(load_movie(value))
        except (Malformed, Invalid) as error:
            place = f"movies/{index}"
            failures += [Failure(f"{place}/{at}".rstrip("/"), what) for at, what in error.failures]
            if isinstance(error, Malformed) and not unreadable:
                unreadable = f"{place}: {str(error).partition(' (see errors')[0]}"
            if len(failures) >= MAX_FAILURES:
                break
    if unreadable:
        raise Malformed(unreadable, failures)
    if failures:
        raise Invalid(failures)
    return movies


def _make_schema(load: Any) -> Schema:
    movies = JSONField(list, "an array of movies", None, SHAPE, load)
    return Schema.from_dict({"movies": movies}, name="MovieBatch")()


BATCH = _make_schema(_load_all)  # its movies are loaded together
LENIENT_BATCH = _make_schema(_check_number)  # its movies are for `load_movie`, one by one
