"""The routes of clients in one table, each with its handler, scope and name in the reference."""

from functools import partial

from service.changes.handlers import Changes, refuse
from service.genres import Genres
from service.movies.batches import Batches
from service.movies.handlers import Movies
from service.movies.lists import Lists
from service.web.health import Health
from service.web.index import show_index
from service.web.reference.handlers import Reference
from service.web.route import ID, Route, Scope

MOVIE_PATH = f"/v1/movies/{ID}"
# Of the rate limit, by CPU time: a movie by id takes 0.1 ms, a page of 20 movies 1.1 ms, 1,000
# genres 0.3 ms.
LIST_UNITS = 10
GENRES_UNITS = 3


def make_routes(  # noqa: PLR0913 - the handlers
    *,
    health: Health,
    lists: Lists,
    movies: Movies,
    batches: Batches,
    changes: Changes | None,
    genres: Genres,
    reference: Reference,
) -> list[Route]:
    """Return every route; `changes`: None if the feed is off."""
    routes = [
        Route("GET", "/", partial(show_index), Scope.NONE, "show_root_index"),
        Route("GET", "/v1", show_index, Scope.NONE, "show_index"),
        Route("GET", "/v1/healthcheck", health.show, Scope.NONE, "show_health"),
        Route("GET", "/v1/healthcheck/ready", health.ready, Scope.NONE, "show_readiness"),
        Route("GET", "/v1/movies", lists.list, Scope.READ, "list_movies", LIST_UNITS),
        Route("POST", "/v1/movies", movies.create, Scope.WRITE, "create_movie"),
        Route("POST", "/v1/movies/batch", batches.create, Scope.WRITE, "create_movies"),
        Route("GET", MOVIE_PATH, movies.show, Scope.READ, "show_movie"),
        Route("PATCH", MOVIE_PATH, movies.update, Scope.WRITE, "update_movie"),
        Route("PUT", MOVIE_PATH, movies.replace, Scope.WRITE, "replace_movie"),
        Route("DELETE", MOVIE_PATH, movies.delete, Scope.WRITE, "delete_movie"),
        Route("GET", "/v1/genres", genres.list, Scope.READ, "list_genres", GENRES_UNITS),
        Route("GET", "/v1/openapi.json", reference.document, Scope.NONE, "show_document"),
        Route("GET", "/v1/docs", reference.page, Scope.NONE, "show_page"),
        Route("GET", "/v1/docs/{file}", reference.file, Scope.NONE, "show_file"),
    ]
    if changes:
        routes.append(
            Route("GET", "/v1/changes", changes.list, Scope.READ, "list_changes", LIST_UNITS)
        )
    else:
        routes.append(Route("GET", "/v1/changes", refuse, Scope.NONE))
    return routes
