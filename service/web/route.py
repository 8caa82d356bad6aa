"""A route: a method of a path, who may use it, and its description for the reference."""

from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler

from service.database.caller import Caller

# The id in a path. No leading zeros, so that an item has one path; `\d` would match digits of other
# scripts.
ID_IN_PATH = "{id:[1-9][0-9]{0,18}}"


class Scope(IntEnum):
    """What a client may do; each scope includes the lower ones."""

    NONE = 0
    READ = 1
    WRITE = 2
    ADMIN = 3


Json = dict[str, Any]


class Operation(NamedTuple):
    """A route in the document, without its path, method and scope; code is in backticks."""

    name: str  # the operationId, unique: client generators name methods after it
    summary: str
    description: str
    response: Json  # of `status`; `IF_NONE_MATCH` among the parameters adds a 304
    parameters: tuple[Json, ...] = ()
    body: Json | None = None
    problems: tuple[str, ...] = ()  # more slugs; body, parameters and route imply the others
    status: int = 200  # of `response`
    multi_status: Json | None = None  # the other successful response, 207
    tag: str = "Movies"  # a group on the page


class Route(NamedTuple):
    """A method of a path, its handler, and who may use it.

    Only routes with an operation are in the reference.
    """

    method: str
    path: str  # in aiohttp's form
    handler: Handler
    scope: Scope  # NONE: public in every configuration
    operation: Operation | None = None
    cost: int = 1  # in units of the rate limit; a large body takes more
    is_open: bool = False  # set by `make_application`: a request without a token needs no check


class Access(Protocol):
    """Decides who may use a route."""

    def is_open(self, route: Route) -> bool:
        """Whether every request without a token may use the route."""

    async def identify(self, request: web.Request, caller: Caller) -> tuple[Caller, Scope]:
        """Return the caller with its client, and its scope; `CatalogueError` for a wrong token."""

    async def require(
        self, request: web.Request, route: Route, caller: Caller, scope: Scope
    ) -> None:
        """Raise a `CatalogueError` if a caller of this scope may not use the route now."""

    async def charge_more(
        self, request: web.Request, caller: Caller, units: int, charged: int
    ) -> None:
        """Charge `units` minus those `charged` for the route; raises as `require`."""
