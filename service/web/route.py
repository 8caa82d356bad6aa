"""A route: a method of a path, and who may use it."""

from enum import IntEnum
from typing import NamedTuple, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler

from service.context import RequestContext

# The id in a path. No leading zeros, so that an item has one path; `\d` would match digits of other
# scripts.
ID = "{id:[1-9][0-9]{0,18}}"


class Scope(IntEnum):
    """What a client may do; each scope includes the scopes above it."""

    NONE = 0
    READ = 1
    WRITE = 2
    ADMIN = 3


class Route(NamedTuple):
    """A method of a path, its own handler (no other route has it), and who may use it.

    Only routes with a name are in the reference.
    """

    method: str
    path: str  # in aiohttp's form
    handler: Handler
    scope: Scope  # NONE: public in every configuration
    name: str = ""  # the operationId, unique: client generators name methods after it
    cost: int = 1  # in units of the rate limit; a large body takes more
    is_open: bool = False  # set by `make_application`: a request without a token needs no check


class Access(Protocol):
    """Decides who may use a route."""

    def is_open(self, route: Route) -> bool:
        """Whether every request without a token may use the route."""

    async def require(self, request: web.Request, context: RequestContext, route: Route) -> None:
        """Raise a `CatalogueError` if this request may not use the route now."""
