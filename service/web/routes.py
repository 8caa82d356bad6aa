"""All routes in one table, each with its handler and its description in the reference."""

from service.access.clients import Scope
from service.web.costs import GENRES_UNITS, LIST_UNITS
from service.web.genres import Genres
from service.web.health import Health
from service.web.index import show_index, show_root_index
from service.web.movies.handlers import Movies
from service.web.reference import operations
from service.web.reference.document import Operation, build_document
from service.web.reference.handlers import Reference
from service.web.request_cycle.cycle import Route

# No leading zeros, so that a movie has one path; `\d` would match digits of other scripts.
MOVIE_PATH = "/v1/movies/{id:[1-9][0-9]{0,18}}"


def make_routes(
    health: Health, movies: Movies, genres: Genres, reference: Reference, anonymous: Scope
) -> list[Route]:
    """Return every route; give `reference` the OpenAPI document of them."""
    table: list[tuple[Route, Operation]] = [
        (Route("GET", "/", show_root_index), operations.SHOW_ROOT_INDEX),
        (Route("GET", "/v1", show_index), operations.SHOW_INDEX),
        (Route("GET", "/v1/healthcheck", health.show), operations.SHOW_HEALTH),
        (Route("GET", "/v1/healthcheck/ready", health.ready), operations.SHOW_READINESS),
        (Route("GET", "/v1/movies", movies.list, Scope.READ, LIST_UNITS), operations.LIST_MOVIES),
        (Route("POST", "/v1/movies", movies.create, Scope.WRITE), operations.CREATE_MOVIE),
        (Route("GET", MOVIE_PATH, movies.show, Scope.READ), operations.SHOW_MOVIE),
        (Route("PATCH", MOVIE_PATH, movies.update, Scope.WRITE), operations.UPDATE_MOVIE),
        (Route("PUT", MOVIE_PATH, movies.replace, Scope.WRITE), operations.REPLACE_MOVIE),
        (Route("DELETE", MOVIE_PATH, movies.delete, Scope.WRITE), operations.DELETE_MOVIE),
        (Route("GET", "/v1/genres", genres.list, Scope.READ, GENRES_UNITS), operations.LIST_GENRES),
        (Route("GET", "/v1/openapi.json", reference.document), operations.SHOW_DOCUMENT),
        (Route("GET", "/v1/docs", reference.page), operations.SHOW_PAGE),
        (Route("GET", "/v1/docs/{file}", reference.file), operations.SHOW_FILE),
    ]
    described = [(route.method, route.path, operation, route.scope) for route, operation in table]
    reference.publish(build_document(described, anonymous))
    return [route for route, _ in table]
