"""The handlers of /v1/movies: each parses the request, calls the catalogue and responds.

They raise the errors of the catalogue; the middleware turns these into responses.
"""

import asyncio
from typing import Any

from aiohttp import web

from service.catalogue.batches import BATCH, LENIENT_BATCH, load_movie
from service.catalogue.changes import Feed
from service.catalogue.idempotency import BATCH_KEY, IdempotentCreates
from service.catalogue.listing import Listing
from service.catalogue.movie import movie_json
from service.catalogue.movies import Catalogue
from service.catalogue.paging import Page
from service.catalogue.rules import MOVIE, load_fields
from service.catalogue.suggestions import Suggestions
from service.database import MAX_BIGINT
from service.web import problems
from service.web.access import AccessControl
from service.web.bodies import BodyReader
from service.web.conditions import is_not_modified, not_modified_headers
from service.web.movies.cursors import encode_change
from service.web.movies.idempotency_keys import HEADER_NAME, parse_key
from service.web.movies.pages import page_response
from service.web.movies.parameters import ListQuery, parse_list_query, reject_query_string
from service.web.movies.preconditions import movie_headers, parse_preconditions
from service.web.movies.preferences import prefers_lenient
from service.web.request_cycle.contexts import CONTEXT
from service.web.responses import JSON_TYPE, json_response, movie_response

CHANGES_CURSOR = "Changes-Cursor"  # of lists of all movies: where the feed of changes goes on


class Movies:
    """List, create (also in batches), show, update, replace and delete movies."""

    def __init__(  # noqa: PLR0913 - the parts that it calls
        self,
        catalogue: Catalogue,
        idempotent_creates: IdempotentCreates,
        listing: Listing,
        suggestions: Suggestions,
        bodies: BodyReader,
        *,
        feed: Feed | None,
        access: AccessControl,
        require_if_match: bool,
    ) -> None:
        self._catalogue = catalogue
        self._idempotent_creates = idempotent_creates
        self._listing = listing
        self._suggestions = suggestions
        self._feed = feed
        self._bodies = bodies
        self._access = access
        self._require_if_match = require_if_match

    async def list(self, request: web.Request) -> web.StreamResponse:
        """200 and a page of the movies that match the query string."""
        query = parse_list_query(request)
        if query.ids:
            return await self._list_ids(request, query)
        place = None
        if self._feed and query.is_whole_list:  # before the list: no change may be missed
            place = await self._feed.find_end(request[CONTEXT])
        page = await self._listing.fetch_page(
            query.filter, query.sort, query.place, query.page_size, request[CONTEXT]
        )
        more = {}
        if query.filter.title and not page.total:
            more["suggestions"] = await self._suggestions.find(query.filter, request[CONTEXT])
        response = page_response(request, query, page, more)
        if place:
            response.headers[CHANGES_CURSOR] = encode_change(place)
        return response

    async def _list_ids(self, request: web.Request, query: ListQuery) -> web.StreamResponse:
        """200 and the movies with these ids, in this order."""
        found = await self._catalogue.get_several(query.ids, [request[CONTEXT]])
        movies = [found[each] for each in query.ids if each in found]
        missing = [each for each in dict.fromkeys(query.ids) if each not in found]
        page = Page(movies, previous=None, next=None, total=len(movies))
        return page_response(request, query, page, {"missing_ids": missing})

    async def create(self, request: web.Request) -> web.StreamResponse:
        """201 and the new movie, or the first response to an earlier request with the same key."""
        if request.rel_url.raw_query_string:
            reject_query_string(request)
        key = parse_key(request) if HEADER_NAME in request.headers else None
        fields = load_fields(MOVIE, await self._bodies.read_object(request))
        replayed = False
        if key is None:
            movie = await self._catalogue.create(fields, request[CONTEXT])
        else:
            movie, replayed = await self._idempotent_creates.create(key, fields, request[CONTEXT])
        headers = movie_headers(movie)
        headers["Location"] = f"/v1/movies/{movie.id}"
        if replayed:
            headers["Idempotency-Replayed"] = "true"
        return movie_response(movie, headers, status=201)

    async def create_batch(self, request: web.Request) -> web.StreamResponse:
        """201 and all of the new movies; or 207 and a result for each, if the client prefers it."""
        reject_query_string(request)
        key, is_lenient = parse_key(request), prefers_lenient(request)
        schema = LENIENT_BATCH if is_lenient else BATCH
        movies = load_fields(schema, await self._bodies.read_object(request))["movies"]
        await self._access.charge_movies(request, len(movies))
        if not is_lenient:
            create_all = self._idempotent_creates.create_all
            created, replayed = await create_all(key, movies, request[CONTEXT])
            headers = JSON_TYPE | ({"Idempotency-Replayed": "true"} if replayed else {})
            payload: dict[str, Any] = {"movies": [movie_json(movie) for movie in created]}
            return json_response(payload, headers, status=201)
        keys = [key and f"{BATCH_KEY}{key}\t{place}" for place in range(len(movies))]
        creates = (self._create_one(request, *each) for each in zip(keys, movies, strict=True))
        results = await asyncio.gather(*creates)
        failed = sum("problem" in result for result in results)
        metadata = {"created": len(results) - failed, "failed": failed}
        headers = JSON_TYPE | {"Preference-Applied": "handling=lenient"}
        return json_response({"results": results, "metadata": metadata}, headers, status=207)

    async def _create_one(self, request: web.Request, key: str | None, sent: Any) -> dict[str, Any]:
        """Return the result for one movie of a lenient batch."""
        replayed = False
        try:
            if key is None:
                movie = await self._catalogue.create(load_movie(sent), request[CONTEXT])
            else:
                create = self._idempotent_creates.create
                movie, replayed = await create(key, load_movie(sent), request[CONTEXT])
        except Exception as error:  # noqa: BLE001 - an unexpected one is a 500 for this movie only
            problem = problems.describe(request, error)
            return {"status": problem["status"], "problem": problem}
        result = {"status": 201, "movie": movie_json(movie)}
        return result | {"replayed": True} if replayed else result

    async def show(self, request: web.Request) -> web.StreamResponse:
        """200 and the movie, or 304."""
        movie = await self._catalogue.get(_parse_target(request), request[CONTEXT])
        headers = movie_headers(movie)
        if is_not_modified(request, headers):
            return web.Response(status=304, headers=not_modified_headers(headers))
        return movie_response(movie, headers)

    async def update(self, request: web.Request) -> web.StreamResponse:
        """200 and the movie; only the fields that were sent have changed (RFC 7396)."""
        return await self._change(request, partial=True)

    async def replace(self, request: web.Request) -> web.StreamResponse:
        """200 and the movie; all of its fields were replaced."""
        return await self._change(request, partial=False)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """200 and the deleted movie."""
        movie_id = _parse_target(request)
        condition = parse_preconditions(request, movie_id, if_match_required=self._require_if_match)
        movie = await self._catalogue.delete(movie_id, condition, request[CONTEXT])
        return movie_response(movie, {"Cache-Control": "no-store"})

    async def _change(self, request: web.Request, *, partial: bool) -> web.StreamResponse:
        movie_id = _parse_target(request)
        fields = load_fields(MOVIE, await self._bodies.read_object(request), partial=partial)
        condition = parse_preconditions(request, movie_id, if_match_required=self._require_if_match)
        movie = await self._catalogue.update(movie_id, fields, condition, request[CONTEXT])
        headers = movie_headers(movie)
        # The response is the current state of this path (RFC 9110, 8.7).
        headers["Content-Location"] = f"/v1/movies/{movie.id}"
        return movie_response(movie, headers)


def _parse_target(request: web.Request) -> int:
    """Return the movie's id; `HTTPNotFound`, or `WrongParameters` for a query string."""
    if request.rel_url.raw_query_string:
        reject_query_string(request)
    movie_id = int(request.match_info["id"])
    if movie_id > MAX_BIGINT:
        raise web.HTTPNotFound  # as for every path without an id
    return movie_id
