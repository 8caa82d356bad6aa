"""POST /v1/movies/{id}/restore: a deleted movie comes back as it was, from the feed of changes."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from service.database.query import Expected
from service.database.statements import Statements
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
TRIES = 5  # while another session restores the movie, or takes its external id
RETRY_PAUSE_S = 0.05


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

    statements: Statements

    async def restore(self, request: web.Request) -> web.StreamResponse:
        """Restore the movie: 200 and the movie, with its id and a version more."""
        movie = await self._restore(request)
        headers = movie_headers(movie)
        headers["Content-Location"] = f"/v1/movies/{movie.id}"
        return respond(movie, headers)

    async def _restore(self, request: web.Request) -> Movie:
        movie_id = parse_id(request)
        for _ in range(TRIES):
            sent, waiting = {"id": str(movie_id)}, [request[CONTEXT]]
            try:
                rows = await self.statements.fetch(
                    "restore_movie", sent, max_affected=1, waiting=waiting
                )
            except RuleBroken as error:  # what it refers to may be gone
                raise MOVIES.to_invalid(error) from error
            ((_, is_on, is_there, owner, is_kept, was_used, *row),) = rows
            if row[0] is not None:
                return Movie._make(row)
            request[CONTEXT].transaction = 0  # nothing was written
            if is_there:
                raise NotDeleted
            if owner is not None:
                raise Taken("movie", "external_id", {"": owner})
            if not is_on:
                raise NoUndo
            if not is_kept:
                raise NotKept if was_used else NotFound("movie")
            await asyncio.sleep(RETRY_PAUSE_S)
        raise Contended(f"another session has the id or the external id of movie {movie_id}")
