"""POST /v1/movies/batch: several movies in one request."""

import asyncio
import re
from dataclasses import dataclass, field

from aiohttp import web

from service.database.store import Store
from service.movies.batch_fields import BATCH, LENIENT_BATCH, Loaded, load_movies
from service.movies.keys import BATCH_KEY, IdempotentCreates
from service.movies.movie import Movie, movie_json
from service.web import problems
from service.web.bodies import BodyReader
from service.web.contexts import CONTEXT
from service.web.fields import load_fields
from service.web.idempotency_keys import parse_key
from service.web.query_strings import reject_query_string
from service.web.responses import JSON_HEADERS, json_response
from service.web.route import Access

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
        if "movies" in body:
            body["movies"] = await load_movies(body["movies"], self.turn)
        movies = load_fields(LENIENT_BATCH if is_lenient else BATCH, body)["movies"]
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
