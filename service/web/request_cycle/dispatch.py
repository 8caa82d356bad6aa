"""Which handler a request goes to, past aiohttp's router where the path tells it at once.

The router takes 3 us for what a look into a table does. It stays the one that knows every route,
wrong methods and wrong paths: whatever is not in the table goes its way.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from aiohttp import web

MOVIES = "/v1/movies"
MOVIE = f"{MOVIES}/{{id}}"
# Longer ids, of which some are none of a bigint, are looked at more closely.
IS_MOVIE = re.compile(rf"{MOVIES}/[1-9][0-9]{{0,17}}").fullmatch

# aiohttp's own type for this is not public.
Handler = Callable[[Any], Awaitable[web.StreamResponse]]


class Destination(NamedTuple):
    """A handler, and its path as it is in the table; None: not known yet."""

    handler: Handler
    route: str | None


Methods = dict[str, Destination]


class Dispatch:
    """Finds handlers among the routes of an application, whose own way of handling is given too."""

    def __init__(self, app: web.Application, application: Handler) -> None:
        self._any = Destination(application, None)
        self._movie: Methods = {}
        self._plain: dict[str, Methods] = {}
        for route in app.router.routes():
            if not route.resource:
                continue
            path = route.resource.canonical
            if path == MOVIE:
                self._movie[route.method] = Destination(route.handler, path)
            elif isinstance(route.resource, web.PlainResource):
                self._plain.setdefault(path, {})[route.method] = Destination(route.handler, path)

    def find(self, request: web.BaseRequest) -> Destination:
        """Return where the request goes; the router knows more ways to write an id."""
        path = request.rel_url.raw_path
        methods = self._movie if IS_MOVIE(path) else self._plain.get(path)
        return methods.get(request.method, self._any) if methods else self._any


def route_of(request: web.Request) -> str | None:
    """The path as it is in the table; None for one that is not, or was not looked up."""
    try:
        resource = request.match_info.route.resource
    except (AssertionError, AttributeError):
        return None
    return resource.canonical if resource else None
