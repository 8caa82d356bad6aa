"""POST /v1/movies/{id}/restore: a deleted movie comes back as it was, from the feed of changes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count

from aiohttp import web

from service.database.caller import Caller
from service.database.query import Expected
from service.database.resending import MAX_LOSSES
from service.database.resource import DROPPED, Written
from service.database.statements import Statements
from service.database.store import Store
from service.errors import CatalogueError, Contended, NotFound, Problem, RuleBroken, Taken
from service.movies.handlers import REPRESENTATION
from service.movies.movie import COLUMN_TYPES, MOVIES, Movie
from service.web.context import CONTEXT
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
        [{"id": "0", "client": None}],
        "restore a movie",
        writes=True,
        own_tables=MOVIES.own_tables,
    )
}


class NotDeleted(CatalogueError):
    """The movie is there."""

    problem = Problem("not-deleted", "Movie not deleted", 409)
    header_names = ("Catalogue-Position",)
    detail = "the movie is there: only a deleted one can be restored"


class NotKept(CatalogueError):
    """The feed no longer has the deleted movie."""

    problem = Problem("not-kept", "Movie not kept", 410)
    header_names = ("Catalogue-Position",)
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
            restored = await self.store.resender.send(
                partial(self._restore, movie_id, request[CONTEXT].caller, count())
            )
        except RuleBroken as error:  # a row that it refers to may be gone
            raise MOVIES.to_invalid(error) from error
        return REPRESENTATION.respond(restored)

    async def _restore(
        self, movie_id: int, caller: Caller, attempts: Iterator[int]
    ) -> Written[Movie]:
        sent = {"id": str(movie_id), "client": caller.client_id}
        (
            (transaction, is_on, is_there, owner, is_kept, was_used, *row),
        ) = await self.statements.fetch(
            "restore_movie", sent, is_resent=True, max_affected=1, callers=[caller]
        )
        if row[0] is not None:
            return Written("restored", Movie._make(row), transaction)
        error: CatalogueError
        if is_there:
            error = NotDeleted()
        elif owner is not None:
            error = Taken(MOVIES.noun, MOVIES.unique, owner)
        elif not is_on:
            error = NoUndo()
        elif not is_kept:
            error = NotKept() if was_used else NotFound(MOVIES.noun)
        elif next(attempts) < MAX_LOSSES:  # another session has just created one with its ids
            error = Contended(f"other sessions restore movie {movie_id} in turn")
        else:
            error = self.statements.report("restore_movie", DROPPED)
        error.transaction = transaction
        raise error
