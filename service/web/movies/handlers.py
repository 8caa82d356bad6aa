"""Movies: list, create, show, update, replace, delete."""

from aiohttp import web

from service.catalogue.idempotency import OnceOnly
from service.catalogue.listing import Listing
from service.catalogue.movies import Catalogue
from service.catalogue.rules import read_movie
from service.errors import MovieNotFound
from service.web.bodies import BodyReader
from service.web.conditions import (
    condition,
    is_known,
    movie_headers,
    not_modified,
    unless_known,
)
from service.web.movies.idempotency_keys import read_key
from service.web.movies.pages import page_response
from service.web.movies.parameters import read_nothing, read_wanted
from service.web.responses import movie_response

LARGEST_ID = 2**63 - 1  # a bigint of PostgreSQL
DELETED = {"Cache-Control": "no-store"}


class Movies:
    """The handlers of /v1/movies; they raise the catalogue's errors, `middlewares.py` answers."""

    def __init__(
        self,
        catalogue: Catalogue,
        once_only: OnceOnly,
        listing: Listing,
        bodies: BodyReader,
        *,
        require_if_match: bool,
    ) -> None:
        self._catalogue = catalogue
        self._once_only = once_only
        self._listing = listing
        self._bodies = bodies
        self._require_if_match = require_if_match

    async def list(self, request: web.Request) -> web.Response:
        """200 and a page of the movies that the query string asks for."""
        wanted = read_wanted(request.rel_url.raw_query_string)
        page = await self._listing.page(wanted.filter, wanted.sort, wanted.place, wanted.size)
        return unless_known(request, page_response(request.rel_url, wanted, page))

    async def create(self, request: web.Request) -> web.Response:
        """201 and where the new movie is, or the same once more for a key that was sent before."""
        read_nothing(request.rel_url.raw_query_string)
        key = read_key(request)
        fields = read_movie(await self._bodies.read_object(request))
        replayed = False
        if key is None:
            movie = await self._catalogue.create(fields)
        else:
            movie, replayed = await self._once_only.create(key, fields)
        headers = {"Location": f"/v1/movies/{movie.id}", **movie_headers(movie)}
        if replayed:
            headers["Idempotency-Replayed"] = "true"
        return movie_response(movie, status=201, headers=headers)

    async def show(self, request: web.Request) -> web.StreamResponse:
        """200 and the movie, or 304."""
        read_nothing(request.rel_url.raw_query_string)
        movie = await self._catalogue.get(_id(request))
        headers = movie_headers(movie)
        if is_known(request, headers):
            return web.Response(status=304, headers=not_modified(headers))
        return movie_response(movie, headers=headers)

    async def update(self, request: web.Request) -> web.Response:
        """200 and the movie, of which only the fields sent have changed (RFC 7396)."""
        return await self._write(request, partial=True)

    async def replace(self, request: web.Request) -> web.Response:
        """200 and the movie with all of its fields replaced."""
        return await self._write(request, partial=False)

    async def _write(self, request: web.Request, *, partial: bool) -> web.Response:
        movie_id = _id(request)
        read_nothing(request.rel_url.raw_query_string)
        fields = read_movie(await self._bodies.read_object(request), partial=partial)
        depends_on = condition(request, movie_id, required=self._require_if_match)
        movie = await self._catalogue.update(movie_id, fields, depends_on)
        # What is answered is what is there now (RFC 9110, 8.7).
        headers = {"Content-Location": f"/v1/movies/{movie.id}", **movie_headers(movie)}
        return movie_response(movie, headers=headers)

    async def delete(self, request: web.Request) -> web.Response:
        """200 and the movie that was deleted."""
        movie_id = _id(request)
        read_nothing(request.rel_url.raw_query_string)
        depends_on = condition(request, movie_id, required=self._require_if_match)
        return movie_response(await self._catalogue.delete(movie_id, depends_on), headers=DELETED)


def _id(request: web.Request) -> int:
    movie_id = int(request.path.rpartition("/")[2])
    if movie_id > LARGEST_ID:
        raise MovieNotFound
    return movie_id
