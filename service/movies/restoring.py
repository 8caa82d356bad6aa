"""Restores: a movie gets the fields that it had in a version, or a deleted one comes back."""

from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import hdrs, web

from service.database import MAX_INTEGER
from service.database.query import Expected
from service.database.resource import ItemRestore
from service.database.store import Store
from service.errors import ItemError, NotFound, PreconditionRequired, Problem
from service.movies.handlers import MOVIE_TAG, REPRESENTATION
from service.movies.movie import MOVIES, Movie
from service.web.bodies import BodyReader
from service.web.context import CONTEXT
from service.web.fields import JSONObject, load_fields, whole_number
from service.web.headers import parse_preconditions
from service.web.query_strings import parse_id

QUERIES: Mapping[str, Expected] = MOVIES.expect_restores()


class NotDeleted(ItemError):
    """The movie is there, and no version was sent."""

    problem = Problem("not-deleted", "Movie not deleted", 409)
    header_names = ("Catalogue-Position",)
    detail = "the movie is there: send the version that it is to have again"


class NotKept(ItemError):
    """The feed no longer has a change that is to be undone."""

    problem = Problem("not-kept", "Movie not kept", 410)
    header_names = ("Catalogue-Position",)
    detail = "that was too long ago: a change of the movie since then is not kept any more"


class UnknownVersion(ItemError):
    """The movie never had this version."""

    problem = NotFound.problem
    detail = "the movie has never had this version"


class NoUndo(ItemError):
    """Nothing is kept."""

    problem = NotFound.problem
    detail = "deleted movies and earlier versions are not kept, as the feed is off"


RESTORE_ERRORS: Mapping[str, type[ItemError]] = {
    "there": NotDeleted,
    "unknown": UnknownVersion,
    "cleared": NotKept,
    "off": NoUndo,
    "untagged": PreconditionRequired,
}


class VersionInput(JSONObject):
    """The version that a movie is to have again."""

    called = "a restore"
    version = whole_number(
        MAX_INTEGER,
        optional=True,
        nullable=False,  # a client has lost it
        format="int32",
        description="the movie gets its fields; without it, a deleted movie comes back as it was",
        examples=[1],
    )


VERSION = VersionInput()


@dataclass(frozen=True)
class Restores:
    """The handler."""

    store: Store[Movie]
    bodies: BodyReader
    require_if_match: bool

    async def restore(self, request: web.Request) -> web.StreamResponse:
        """Restore the movie: 200 and the movie."""
        movie_id = parse_id(request)
        body = await self.bodies.read_object(request, may_be_empty=True)
        version = load_fields(VERSION, body).get("version")
        condition = parse_preconditions(
            request, MOVIES.noun, MOVIE_TAG, movie_id, if_match_required=False
        )
        has_tag = hdrs.IF_MATCH in request.headers
        needs_tag = self.require_if_match and not has_tag
        restore = ItemRestore(movie_id, version, condition, has_tag, needs_tag)
        return REPRESENTATION.respond(await self.store.restore(restore, request[CONTEXT].caller))
