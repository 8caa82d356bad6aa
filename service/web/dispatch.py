"""Which handler a request goes to: one for a movie by its path alone, any other through aiohttp.

aiohttp's router takes 3 % of a read, with which a movie's path can be told from all others at once.
It stays the one that knows every route, the wrong methods and the wrong paths.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from aiohttp import web

MOVIES = "/v1/movies"
MOVIE = f"{MOVIES}/{{id}}"
# Longer ones, of which some are none of a bigint, are looked at more closely.
ID_DIGITS = 18

# aiohttp's own type for this is not public.
Handler = Callable[[Any], Awaitable[web.StreamResponse]]


class Destination(NamedTuple):
    """A handler, and its path as it is in the table; None: not known yet."""

    handler: Handler
    route: str | None


class Dispatch:
    """Finds handlers among the routes of an application, whose own way of handling is given too."""

    def __init__(self, app: web.Application, application: Handler) -> None:
        self._any = Destination(application, None)
        self._movie = {
            route.method: Destination(route.handler, MOVIE)
            for route in app.router.routes()
            if route.resource and route.resource.canonical == MOVIE
        }

    def find(self, request: web.BaseRequest) -> Destination:
        """Return where the request goes."""
        parent, _, last = request.rel_url.raw_path.rpartition("/")
        is_movie = (
            parent == MOVIES
            and len(last) <= ID_DIGITS
            and last.isdecimal()
            and last.isascii()
            and last[0] != "0"
        )
        return self._movie.get(request.method, self._any) if is_movie else self._any


def route_of(request: web.Request) -> str | None:
    """The path as it is in the table; None for one that is not, or was not looked up."""
    try:
        resource = request.match_info.route.resource
    except (AssertionError, AttributeError):
        return None
    return resource.canonical if resource else None
