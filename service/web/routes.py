"""The whole surface, as one table under /v1.

HEAD works wherever GET does; OPTIONS and wrong methods are answered by the middlewares.
"""

from aiohttp import web

from service.web.handlers.genres import Genres
from service.web.handlers.health import Health
from service.web.handlers.movies import Movies
from service.web.requests import hold_continue

# Canonical ids only, so that a movie has one path; `\d` would take digits of other scripts.
MOVIE = "/v1/movies/{id:[1-9][0-9]{0,18}}"


def routes(health: Health, movies: Movies, genres: Genres) -> list[web.RouteDef]:
    """Every route and its handler."""
    table = [
        ("GET", "/v1/healthcheck", health.show),
        ("GET", "/v1/healthcheck/ready", health.ready),
        ("GET", "/v1/movies", movies.list),
        ("POST", "/v1/movies", movies.create),
        ("GET", MOVIE, movies.show),
        ("PATCH", MOVIE, movies.update),
        ("PUT", MOVIE, movies.replace),
        ("DELETE", MOVIE, movies.delete),
        ("GET", "/v1/genres", genres.list),
    ]
    return [
        web.route(method, path, handler, expect_handler=hold_continue)
        for method, path, handler in [*table, *(("HEAD", p, h) for m, p, h in table if m == "GET")]
    ]
