"""POST /v1/movies/{id}/restore: a deleted movie comes back as it was, from the feed of changes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count

from aiohttp import web

from service.context import RequestContext
from service.database.query import Expected
from service.database.resending import MAX_LOSSES
from service.database.statements import Statements
from service.database.store import DROPPED, Store
from service.errors import CatalogueError, Contended, NotFound, Problem, RuleBroken, Taken
from service.movies.handlers import movie_headers, respond
from service.movies.movie import COLUMN_TYPES, MOVIES, Movie
from service.web.contexts import CONTEXT
from service.web.query_strings import parse_id

QUERIES: Mapping[str, Expected] = {
    "restore_movie": Expected(
        {
            "transaction": int,
            "is_on": bool,
            "is_there": bool,
            "owner": int,
            "is_kept": bool,
            "was_used": bool,
            **COLUMN_TYPES,
        },
        [{"id": "0"}],
        "restore a movie",
        writes=True,
    ),
}


class NotDeleted(CatalogueError):
    """The movie is there."""

    problem = Problem("not-deleted", "Movie not deleted", 409)
    detail = "the movie is there: only a deleted one can be restored"


class NotKept(CatalogueError):
    """The movie was deleted so long ago that the feed does not have it any more."""

    problem = Problem("not-kept", "Movie not kept", 410)
    detail = "the movie was deleted too long ago: it is not kept any more"


class NoUndo(CatalogueError):
    """Nothing is kept."""

    problem = NotFound.problem
    detail = "there is no movie with this id; deleted ones are not kept, as the feed is off"


@dataclass(frozen=True)
class Restores:
    """The handler."""

    store: Store[Movie]
    statements: Statements

    async def restore(self, request: web.Request) -> web.StreamResponse:
        """Restore the movie: 200 and the movie, with its id and a version more."""
        movie_id = parse_id(request)
        try:
            movie = await self.store.resender.send(
                partial(self._restore, movie_id, request[CONTEXT], count())
            )
        except RuleBroken as error:  # what it refers to may be gone
            raise MOVIES.to_invalid(error) from error
        headers = movie_headers(movie)
        headers["Content-Location"] = f"/v1/movies/{movie.id}"
        return respond(movie, headers)

    async def _restore(
        self, movie_id: int, context: RequestContext, attempts: Iterator[int]
    ) -> Movie:
        sent = {"id": str(movie_id)}
        ((_, is_on, is_there, owner, is_kept, was_used, *row),) = await self.statements.fetch(
            "restore_movie", sent, is_resent=True, max_affected=1, waiting=[context]
        )
        if row[0] is not None:
            return Movie._make(row)
        if is_there:
            raise NotDeleted
        if owner is not None:
            raise Taken(MOVIES.noun, MOVIES.unique, owner)
        if not is_on:
            raise NoUndo
        if not is_kept:
            raise NotKept if was_used else NotFound(MOVIES.noun)
        if next(attempts) < MAX_LOSSES:  # another session has just restored it, or its external id
            raise Contended(f"other sessions restore movie {movie_id} in turn")
        raise self.statements.report("restore_movie", DROPPED)
