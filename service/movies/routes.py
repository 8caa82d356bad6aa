"""The routes of the movies."""

from service.movies import reference
from service.movies.batches import Batches
from service.movies.handlers import Movies
from service.movies.lists import LIST_UNITS, Lists
from service.movies.restoring import Restores
from service.web.route import ID, Route, Scope

ALL = "/v1/movies"
BATCH = f"{ALL}/batch"
ONE = f"/v1/movies/{ID}"


def make_routes(movies: Movies, lists: Lists, batches: Batches, restores: Restores) -> list[Route]:
    """Return the routes."""
    return [
        Route("GET", ALL, lists.list, Scope.READ, reference.LIST_MOVIES, LIST_UNITS),
        Route("POST", ALL, movies.create, Scope.WRITE, reference.CREATE_MOVIE),
        Route("POST", BATCH, batches.create, Scope.WRITE, reference.CREATE_MOVIES),
        Route("PUT", BATCH, batches.put, Scope.WRITE, reference.PUT_MOVIES),
        Route("PATCH", BATCH, batches.update, Scope.WRITE, reference.UPDATE_MOVIES),
        Route("POST", f"{BATCH}/delete", batches.delete, Scope.WRITE, reference.DELETE_MOVIES),
        Route("GET", ONE, movies.show, Scope.READ, reference.SHOW_MOVIE),
        Route("PATCH", ONE, movies.update, Scope.WRITE, reference.UPDATE_MOVIE),
        Route("PUT", ONE, movies.replace, Scope.WRITE, reference.REPLACE_MOVIE),
        Route("DELETE", ONE, movies.delete, Scope.WRITE, reference.DELETE_MOVIE),
        Route("POST", f"{ONE}/restore", restores.restore, Scope.WRITE, reference.RESTORE_MOVIE),
    ]
