"""Decides whether a request may use its route: by its token (RFC 6750), and by the rate limit.

Only routes with a scope are checked, before anything else of the request is read.
"""

from aiohttp import hdrs, web

from service.clients.clients import Client, Clients
from service.clients.limits import RateLimiter
from service.config import Access
from service.database.caller import Caller
from service.errors import Forbidden, MalformedHeader, Unauthorized
from service.web.bodies import MAX_BODY_BYTES
from service.web.route import Route, Scope

UNIT_BYTES = 65_536  # of a body; a part of a unit counts as one
MAX_BODY_UNITS = MAX_BODY_BYTES // UNIT_BYTES


class AccessControl:
    """Lets requests pass that have the scope of their route."""

    def __init__(self, settings: Access, clients: Clients, limits: RateLimiter) -> None:
        self.anonymous = Scope[settings.anonymous.upper()]  # of requests without a token
        self._clients = clients
        self._limits = limits

    def is_open(self, route: Route) -> bool:
        """Whether every request without a token may use the route."""
        return self.anonymous >= route.scope and (not route.scope or not self._limits.are_on)

    async def identify(self, request: web.Request, caller: Caller) -> tuple[Caller, Scope]:
        """Return the caller with its client, if it sent a token, and its scope.

        Raises `LimitReached`, `Unauthorized`, `MalformedHeader` with two headers, or `Unavailable`
        if the token cannot be looked up.
        """
        is_token_sent = hdrs.AUTHORIZATION in request.headers
        client = await self._find_client(request, caller) if is_token_sent else None
        if not client:
            return caller, self.anonymous
        sees_clients = client.scope >= Scope.WRITE
        return caller._replace(client_id=client.id, sees_clients=sees_clients), client.scope

    async def require(
        self, request: web.Request, route: Route, caller: Caller, scope: Scope
    ) -> None:
        """Require the scope and charge the units; `Forbidden`, `Unauthorized`, `LimitReached`."""
        if scope < route.scope:
            if caller.client_id is None:
                raise Unauthorized(is_token_sent=False)
            raise Forbidden(route.scope.name.lower())
        if self._limits.are_on:
            await self._limits.charge(caller, count_units(request, route.cost))

    async def charge_more(
        self, request: web.Request, caller: Caller, units: int, charged: int
    ) -> None:
        """Charge `units` minus what `require` has charged; `charged`: the cost of the route."""
        if self._limits.are_on:
            await self._limits.charge(caller, units, count_units(request, charged))

    async def _find_client(self, request: web.Request, caller: Caller) -> Client | None:
        """Return the client whose token the request has; None if it has none.

        A wrong token counts for the address, after it was looked up: nobody with a valid token is
        locked out, and nobody can use up the limit of the client whose id is in the token.
        """
        sent = request.headers.getall(hdrs.AUTHORIZATION)
        if len(sent) > 1:
            raise MalformedHeader("expected one Authorization header, found more")
        scheme, _, credentials = sent[0].replace("\t", " ").partition(" ")
        if scheme.lower() != "bearer":
            if self.anonymous < Scope.WRITE:
                raise Unauthorized(is_token_sent=False)
            return None
        token = credentials.strip(" ")
        try:
            return self._clients.get_known(token) or await self._clients.look_up(token, caller)
        except Unauthorized:
            if self._limits.are_on:
                await self._limits.charge(caller, 1)
            raise


def count_units(request: web.Request, cost: int) -> int:
    """Return the units of a request: `cost`, or more for a large body, before it is read.

    A body counts as the largest one if it is compressed or does not say how long it is.
    """
    if not request.body_exists:
        return cost
    is_plain = request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() == "identity"
    length = request.content_length if is_plain else None
    units = MAX_BODY_UNITS if length is None else -(-length // UNIT_BYTES)
    return max(cost, min(units, MAX_BODY_UNITS))
