"""POST /v1/movies/batch: several movies in one request."""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from marshmallow import ValidationError

from service.database.store import Store
from service.errors import Failure, Invalid, Malformed
from service.movies.keys import BATCH_KEY, IdempotentCreates
from service.movies.movie import Movie, movie_json
from service.movies.rules import MOVIE
from service.web import problems
from service.web.bodies import BodyReader
from service.web.contexts import CONTEXT
from service.web.fields import JSONField, JSONObject, Values, load_fields
from service.web.headers import parse_key
from service.web.query_strings import reject_query_string
from service.web.responses import JSON_HEADERS, json_response
from service.web.route import Access

MAX_MOVIES = 100
MAX_FAILURES = 500  # of a batch; otherwise a response could have 2 MB
TURN_S = 0.0005  # of loading movies; then other requests have their turn
Loaded = Values | Malformed | Invalid  # a movie of a batch, or its error


def _check_number(movies: list[object]) -> None:
    if not 1 <= len(movies) <= MAX_MOVIES:
        raise ValidationError(f"must be 1 to {MAX_MOVIES} movies")


class MovieBatch(JSONObject):
    """A batch, of which each movie is loaded for itself."""

    called = "a batch"
    movies = JSONField(
        list,
        "an array of movies",
        _check_number,
        items={"$ref": "#/components/schemas/MovieInput"},  # apispec's name of `MOVIE`
        minItems=1,
        maxItems=MAX_MOVIES,
    )


BATCH = MovieBatch()


async def load_batch(body: Values, turn: asyncio.Lock, *, is_lenient: bool) -> list[Any]:
    """Return the fields of each movie; of a lenient batch, or the movie's error.

    Raises `Malformed` or `Invalid`, with the mistakes of the batch and of its movies.
    """
    errors: dict[str, Malformed | Invalid] = {}
    try:
        load_fields(BATCH, body)
    except (Malformed, Invalid) as error:
        if is_lenient or any(failure.field == "movies" for failure in error.failures):
            raise
        errors[""] = error
    loaded = await _load_movies(body["movies"], turn)
    if not is_lenient:
        errors |= {
            f"movies/{index}: ": movie
            for index, movie in enumerate(loaded)
            if not isinstance(movie, dict)
        }
        _raise_all(errors)
    return loaded


async def _load_movies(movies: list[object], turn: asyncio.Lock) -> list[Loaded]:
    """Return the fields of each movie, or its error; at most `MAX_FAILURES` in all.

    `turn`: of all batches; they load one after the other. 100 movies at once would delay all other
    requests, and several batches would add up.
    """
    loaded, more = list[Loaded](), MAX_FAILURES - len(movies)
    async with turn:
        until = 0.0
        for movie in movies:
            if time.monotonic() >= until:
                await asyncio.sleep(0)
                until = time.monotonic() + TURN_S
            try:
                loaded.append(load_fields(MOVIE, movie))
            except (Malformed, Invalid) as error:
                error.failures = error.failures[: 1 + more]  # at least the first one
                more -= len(error.failures) - 1
                loaded.append(error.with_traceback(None))  # its frame would keep all of them
    return loaded


def _raise_all(errors: Mapping[str, Malformed | Invalid]) -> None:
    """Raise the errors by their places as one, if there are any."""
    failures = [
        Failure(f"{place.removesuffix(': ')}/{at}".strip("/"), what)
        for place, error in errors.items()
        for at, what in error.failures
    ]
    for place, error in errors.items():
        if isinstance(error, Malformed):
            raise Malformed(f"{place}{error.mistake}", failures)
    if failures:
        raise Invalid(failures)


# A preference of the header Prefer (RFC 7240, 2 and 4.4); the first one counts.
HANDLING = re.compile(r"(?:^|[,\s])handling\s*=\s*\"?([a-z]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Batches:
    """The handler of batches."""

    store: Store[Movie]
    idempotent_creates: IdempotentCreates
    bodies: BodyReader
    access: Access
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # to load a movie

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Create all movies or none: 201; or each that can be: 207, if the client prefers that."""
        reject_query_string(request)
        key = parse_key(request)
        preference = HANDLING.search(",".join(request.headers.getall("Prefer", ())))
        is_lenient = preference is not None and preference[1].lower() == "lenient"
        body = await self.bodies.read_object(request)
        movies = await load_batch(body, self.turn, is_lenient=is_lenient)
        await self.access.charge_batch(request, len(movies))
        if not is_lenient:
            create_all = self.idempotent_creates.create_all
            created, replayed = await create_all(key, movies, request[CONTEXT])
            replay = {"Idempotency-Replayed": "true"} if replayed else {}
            payload = {"movies": [movie_json(movie) for movie in created]}
            return json_response(payload, JSON_HEADERS | replay, status=201)
        keys = [key and f"{BATCH_KEY}{key}\t{place}" for place in range(len(movies))]
        creates = (self._create_one(request, *each) for each in zip(keys, movies, strict=True))
        results, waits = zip(*await asyncio.gather(*creates), strict=True)
        headers = {**JSON_HEADERS, "Preference-Applied": "handling=lenient"}
        if wait := max(waits):
            headers["Retry-After"] = f"{wait}"
        return json_response({"results": results}, headers, status=207)

    async def _create_one(
        self, request: web.Request, key: str | None, loaded: Loaded
    ) -> tuple[dict[str, object], int]:
        """Return the result for one movie of a lenient batch, or for its error.

        Also in how many seconds a repeat may succeed; 0: there is nothing to repeat.
        """
        try:
            if isinstance(loaded, Exception):
                raise loaded  # noqa: TRY301 - handled as those of the database
            if key is None:
                movie, replayed = await self.store.create(loaded, request[CONTEXT]), False
            else:
                create = self.idempotent_creates.create
                movie, replayed = await create(key, loaded, request[CONTEXT])
        except Exception as error:  # noqa: BLE001 - an unexpected one is a 500 for this movie only
            problem = problems.describe(request, error)
            wait = getattr(error, "retry_after", None) or 0
            return {"status": problem["status"], "problem": problem}, wait
        result = {"status": 201, "movie": movie_json(movie)}
        return (result | {"replayed": True} if replayed else result), 0
