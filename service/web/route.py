"""A route: a method of a path, and who may use it."""

from typing import NamedTuple

from aiohttp.typedefs import Handler

from service.clients.clients import Scope


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
