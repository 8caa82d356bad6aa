"""The handlers of single movies: each parses the request, calls the store and responds.

They raise errors; the middleware turns these into responses.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from wsgiref.handlers import format_date_time

from aiohttp import web

from service.database.store import Change, Store
from service.movies.keys import IdempotentCreates
from service.movies.movie import ENTITY_TAG, FORM, FORM_BEFORE, MOVIES, Movie, movie_json
from service.movies.rules import MOVIE, OPTIONAL
from service.web.bodies import BodyReader
from service.web.contexts import CONTEXT
from service.web.fields import load_fields
from service.web.headers import HEADER_NAME, parse_key, parse_preconditions
from service.web.query_strings import parse_id, reject_query_string
from service.web.responses import (
    JSON_HEADERS,
    DirectResponse,
    json_response,
    make_not_modified,
)

MOVIE_TAG = re.compile(rf"([1-9][0-9]{{0,18}})-([1-9][0-9]{{0,9}})(?:{FORM}|({FORM_BEFORE}))")


def movie_headers(movie: Movie) -> dict[str, str]:
    """Return the headers of a response with this movie; caches must revalidate it."""
    return {
        "Content-Type": "application/json",
        "ETag": ENTITY_TAG % (movie.id, movie.version),
        "Last-Modified": format_date_time(movie.updated_at.timestamp()),
        "Cache-Control": "no-cache",
    }


@dataclass(frozen=True)
class Movies:
    """Create, show, update, replace and delete movies."""

    store: Store[Movie]
    idempotent_creates: IdempotentCreates
    bodies: BodyReader
    require_if_match: bool

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Create a movie: 201; a key that was used before gets its first response again."""
        if request.rel_url.raw_query_string:
            reject_query_string(request)
        key = parse_key(request) if HEADER_NAME in request.headers else None
        fields = load_fields(MOVIE, await self.bodies.read_object(request))
        if key is None:
            movie, replayed = await self.store.create(fields, request[CONTEXT]), False
        else:
            movie, replayed = await self.idempotent_creates.create(key, fields, request[CONTEXT])
        headers = movie_headers(movie)
        headers["Location"] = f"/v1/movies/{movie.id}"
        if replayed:
            headers["Idempotency-Replayed"] = "true"
        return respond(movie, headers, status=201)

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Return the movie: 200, or 304 if the client has it."""
        movie = await self.store.get(parse_id(request), request[CONTEXT])
        headers = movie_headers(movie)
        return make_not_modified(request, headers) or respond(movie, headers)

    async def update(self, request: web.Request) -> web.StreamResponse:
        """Change only the fields that are sent (RFC 7396): 200 and the movie."""
        return await self._change(request, partial=True)

    async def replace(self, request: web.Request) -> web.StreamResponse:
        """Replace the movie; an optional field that is missing stays: 200 and the movie."""
        return await self._change(request, partial=OPTIONAL)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Delete the movie: 200 and the movie as it was."""
        movie_id = parse_id(request)
        condition = parse_preconditions(
            request, MOVIES.noun, MOVIE_TAG, movie_id, if_match_required=self.require_if_match
        )
        movie = await self.store.change(Change(movie_id, None, condition), request[CONTEXT])
        return respond(movie, JSON_HEADERS)

    async def _change(
        self, request: web.Request, *, partial: bool | Sequence[str]
    ) -> web.StreamResponse:
        movie_id = parse_id(request)
        changes = load_fields(MOVIE, await self.bodies.read_object(request), partial=partial)
        condition = parse_preconditions(
            request, MOVIES.noun, MOVIE_TAG, movie_id, if_match_required=self.require_if_match
        )
        movie = await self.store.change(Change(movie_id, changes, condition), request[CONTEXT])
        headers = movie_headers(movie)
        # The response is the current state of this path (RFC 9110, 8.7).
        headers["Content-Location"] = f"/v1/movies/{movie.id}"
        return respond(movie, headers)


def respond(movie: Movie, headers: Mapping[str, str], status: int = 200) -> DirectResponse:
    """Respond with a movie."""
    return json_response({"movie": movie_json(movie)}, headers, status)
