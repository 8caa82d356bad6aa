"""All routes in one table, each with its handler and its description in the reference.

HEAD works wherever GET does; the middlewares respond to OPTIONS and wrong methods.
"""

from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler

from service.access.clients import Scope
from service.web.access import AccessControl
from service.web.bodies import hold_continue
from service.web.genres import Genres
from service.web.health import Health
from service.web.index import show_index
from service.web.limits import GENRES_UNITS, LIST_UNITS
from service.web.movies.handlers import Movies
from service.web.reference import operations
from service.web.reference.document import Operation, build_document
from service.web.reference.handlers import Reference

# No leading zeros, so that a movie has one path; `\d` would match digits of other scripts.
MOVIE_PATH = "/v1/movies/{id:[1-9][0-9]{0,18}}"


class Route(NamedTuple):
    """A method of a path, its handler, its description in the reference, and who may use it."""

    method: str
    path: str
    handler: Handler
    operation: Operation
    scope: Scope = Scope.NONE  # NONE: everyone, whatever the settings say
    cost: int = 1  # in units of the rate limit; a large body takes more


def routes(
    access: AccessControl, health: Health, movies: Movies, genres: Genres, reference: Reference
) -> list[web.RouteDef]:
    """Return every route; give `reference` the OpenAPI document of them."""
    table = [
        Route("GET", "/", show_index, operations.SHOW_ROOT_INDEX),
        Route("GET", "/v1", show_index, operations.SHOW_INDEX),
        Route("GET", "/v1/healthcheck", health.show, operations.SHOW_HEALTH),
        Route("GET", "/v1/healthcheck/ready", health.ready, operations.SHOW_READINESS),
        Route("GET", "/v1/movies", movies.list, operations.LIST_MOVIES, Scope.READ, LIST_UNITS),
        Route("POST", "/v1/movies", movies.create, operations.CREATE_MOVIE, Scope.WRITE),
        Route("GET", MOVIE_PATH, movies.show, operations.SHOW_MOVIE, Scope.READ),
        Route("PATCH", MOVIE_PATH, movies.update, operations.UPDATE_MOVIE, Scope.WRITE),
        Route("PUT", MOVIE_PATH, movies.replace, operations.REPLACE_MOVIE, Scope.WRITE),
        Route("DELETE", MOVIE_PATH, movies.delete, operations.DELETE_MOVIE, Scope.WRITE),
        Route("GET", "/v1/genres", genres.list, operations.LIST_GENRES, Scope.READ, GENRES_UNITS),
        Route("GET", "/v1/openapi.json", reference.document, operations.SHOW_DOCUMENT),
        Route("GET", "/v1/docs", reference.page, operations.SHOW_PAGE),
        Route("GET", "/v1/docs/{file}", reference.file, operations.SHOW_FILE),
    ]
    described = [(route.method, route.path, route.operation, route.scope) for route in table]
    reference.publish(build_document(described, access.anonymous))
    heads = [route._replace(method="HEAD") for route in table if route.method == "GET"]
    return [
        web.route(
            route.method,
            route.path,
            access.require(route.scope, route.handler, route.cost)
            if route.scope
            else route.handler,
            expect_handler=hold_continue,
        )
        for route in [*table, *heads]
    ]
