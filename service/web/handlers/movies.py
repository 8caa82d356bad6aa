"""Movies: list, create, show, update, replace, delete."""

from aiohttp import web

from service.errors import MovieNotFound
from service.idempotency import OnceOnly
from service.listing import Listing
from service.movies import Catalogue
from service.web.keys import read_key
from service.web.pages import page_response
from service.web.parameters import read_wanted
from service.web.requests import BodyReader
from service.web.responses import movie_response
from service.web.schemas import read_movie

LARGEST_ID = 2**63 - 1  # a bigint of PostgreSQL


class Movies:
    """The handlers of /v1/movies; they raise the catalogue's errors, `middlewares.py` answers."""

    def __init__(
        self, catalogue: Catalogue, once_only: OnceOnly, listing: Listing, bodies: BodyReader
    ) -> None:
        self._catalogue = catalogue
        self._once_only = once_only
        self._listing = listing
        self._bodies = bodies

    async def list(self, request: web.Request) -> web.Response:
        """200 and a page of the movies that the query string asks for."""
        wanted = read_wanted(request.rel_url.raw_query_string)
        page = await self._listing.page(wanted.filter, wanted.sort, wanted.place, wanted.size)
        return page_response(request.rel_url, wanted, page)

    async def create(self, request: web.Request) -> web.Response:
        """201 and where the new movie is, or the same once more for a key that was sent before."""
        key = read_key(request)
        fields = read_movie(await self._bodies.read_object(request))
        replayed = False
        if key is None:
            movie = await self._catalogue.create(fields)
        else:
            movie, replayed = await self._once_only.create(key, fields)
        headers = {"Location": f"/v1/movies/{movie.id}"}
        if replayed:
            headers["Idempotency-Replayed"] = "true"
        return movie_response(movie, status=201, headers=headers)

    async def show(self, request: web.Request) -> web.Response:
        """200 and the movie."""
        return movie_response(await self._catalogue.get(_id(request)))

    async def update(self, request: web.Request) -> web.Response:
        """200 and the movie, of which only the fields sent have changed (RFC 7396)."""
        changes = read_movie(await self._bodies.read_object(request), partial=True)
        return movie_response(await self._catalogue.update(_id(request), changes))

    async def replace(self, request: web.Request) -> web.Response:
        """200 and the movie with all of its fields replaced."""
        fields = read_movie(await self._bodies.read_object(request))
        return movie_response(await self._catalogue.update(_id(request), fields))

    async def delete(self, request: web.Request) -> web.Response:
        """200 and the movie that was deleted."""
        return movie_response(await self._catalogue.delete(_id(request)))


def _id(request: web.Request) -> int:
    movie_id = int(request.match_info["id"])
    if movie_id > LARGEST_ID:
        raise MovieNotFound
    return movie_id
