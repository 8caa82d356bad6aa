"""The handlers of single movies: those of any item, and creates with an Idempotency-Key."""

import re
from dataclasses import dataclass

from aiohttp import web

from service.movies.keys import IdempotentCreates
from service.movies.movie import FORM, FORM_BEFORE, MOVIES, Movie, movie_json
from service.movies.rules import MOVIE
from service.web.context import CONTEXT
from service.web.fields import load_fields
from service.web.headers import HEADER_NAME, parse_key
from service.web.items import NO_HEADERS, Items, Representation
from service.web.query_strings import reject_query_string

REPLAYED = {"Idempotency-Replayed": "true"}
MOVIE_TAG = re.compile(rf"([1-9][0-9]{{0,18}})-([1-9][0-9]{{0,9}})(?:{FORM}|({FORM_BEFORE}))")
REPRESENTATION = Representation(
    MOVIES, path="/v1/movies", fields=MOVIE, to_json=movie_json, tag_pattern=MOVIE_TAG
)


@dataclass(frozen=True)
class Movies(Items[Movie]):
    """Create, show, update, replace and delete movies."""

    idempotent_creates: IdempotentCreates

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Create a movie: 201; a key that was used before gets its first response again."""
        if HEADER_NAME not in request.headers:
            return await super().create(request)
        reject_query_string(request)
        key = parse_key(request)
        fields = load_fields(MOVIE, await self.bodies.read_object(request))
        create = self.idempotent_creates.create
        created, is_replayed = await create(key, fields, request[CONTEXT].caller)
        more = REPLAYED if is_replayed else NO_HEADERS
        return self.kind.respond(created, "Location", 201, more)
