"""Reads a batch: `{"movies": [...]}`, with up to 100 movies in one body."""

import asyncio
import time

from marshmallow import ValidationError

from service.errors import Failure, Invalid, Malformed
from service.movies.rules import MOVIE
from service.web.fields import JSONField, JSONObject, Values, load_fields, type_name

MAX_MOVIES = 100
ITEMS = {"$ref": "#/components/schemas/MovieInput"}  # apispec's name of `MOVIE`
MAX_FAILURES = 500  # of a batch; otherwise a response could have 2 MB
TURN_S = 0.0005  # of loading movies; then other requests have their turn
SHAPE = {"items": ITEMS, "minItems": 1, "maxItems": MAX_MOVIES}


Loaded = Values | Malformed | Invalid  # a movie of a batch, or its error


async def load_movies(values: object, turn: asyncio.Lock) -> object:
    """Return the fields of each movie or its error, for the schemas; anything else as it is.

    `turn`: of all batches; they load one after the other. 100 movies at once would delay all other
    requests, and several batches would add up. The errors have at most `MAX_FAILURES` in all.
    """
    if not isinstance(values, list) or len(values) > MAX_MOVIES:
        return values
    loaded, more = list[Loaded](), MAX_FAILURES - len(values)
    async with turn:
        until = 0.0
        for value in values:
            if time.monotonic() >= until:
                await asyncio.sleep(0)
                until = time.monotonic() + TURN_S
            try:
                loaded.append(_load_movie(value))
            except (Malformed, Invalid) as error:
                error.failures = error.failures[: 1 + more]  # at least the first one
                more -= len(error.failures) - 1
                loaded.append(error.with_traceback(None))  # its frame would keep all of them
    return loaded


def _load_movie(value: object) -> Values:
    if not isinstance(value, dict):
        what = f"must be an object, found {type_name(value)}"
        raise Malformed(f"a movie {what}", [Failure("", what)])
    return load_fields(MOVIE, value)


def _check_number(movies: list[Loaded]) -> list[Loaded]:
    if not 1 <= len(movies) <= MAX_MOVIES:
        raise ValidationError(f"must be 1 to {MAX_MOVIES} movies")
    return movies


def _require_all(movies: list[Loaded]) -> list[Loaded]:
    """Return the movies, or raise all of their errors as one."""
    errors = {
        f"movies/{index}": movie
        for index, movie in enumerate(_check_number(movies))
        if isinstance(movie, Malformed | Invalid)
    }
    failures = [
        Failure(f"{place}/{at}".rstrip("/"), what)
        for place, error in errors.items()
        for at, what in error.failures
    ]
    for place, error in errors.items():
        if isinstance(error, Malformed):
            raise Malformed(f"{place}: {error.mistake}", failures)
    if failures:
        raise Invalid(failures)
    return movies


class MovieBatch(JSONObject):
    """A batch of loaded movies, of which none is wrong."""

    called = "a batch"
    movies = JSONField(list, "an array of movies", None, SHAPE, _require_all)


class LenientBatch(JSONObject):
    """A batch of loaded movies and of the errors of others."""

    called = "a batch"
    movies = JSONField(list, "an array of movies", None, SHAPE, _check_number)


BATCH, LENIENT_BATCH = MovieBatch(), LenientBatch()
