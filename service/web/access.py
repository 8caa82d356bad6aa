"""Decides whether a request may use its route, by its token (RFC 6750) or without one.

Only routes with a scope ask. They ask before they look at anything else of the request.
"""

from functools import wraps

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from service.access.clients import Clients, Scope
from service.access.limits import Limits
from service.config import Access
from service.errors import Forbidden, MalformedHeader, Unauthorized
from service.tracing import WAITING_CLIENTS
from service.web.limits import count_units, identify_requester
from service.web.request_cycle.access_log import CLIENT_ID
from service.web.request_cycle.client_address import CLIENT

EXPECTED_HEADER = "the request needs a token; expected Authorization: Bearer mc_..."


class AccessControl:
    """Lets requests pass that have the scope of their route."""

    def __init__(self, settings: Access, clients: Clients, limits: Limits) -> None:
        self.anonymous = Scope[settings.anonymous.upper()]  # of requests without a token
        self._clients = clients
        self._limits = limits

    def require(self, scope: Scope, handler: Handler, cost: int) -> Handler:
        """Return the handler, for requests with this scope that the rate limit lets pass.

        Each takes `cost` units, or more if its body is large. For others it raises `LimitReached`,
        `Unauthorized`, `Forbidden`, or `MalformedHeader` with two headers; and `Unavailable` if the
        database does not tell whom the token belongs to.
        """

        @wraps(handler)
        async def handle(request: web.Request) -> web.StreamResponse:
            WAITING_CLIENTS.set((request[CLIENT],))
            token = self._read_token(request)
            if token is not None:
                try:
                    client = await self._clients.find(token)
                except Unauthorized:
                    await self._charge_address(request)
                    raise
                request[CLIENT_ID] = client.id
                WAITING_CLIENTS.set((str(client.id),))
                if client.scope < scope:
                    raise Forbidden(scope.name.lower())
            elif self.anonymous < scope:
                raise Unauthorized(EXPECTED_HEADER, is_token_sent=False)
            if self._limits.has_rate:
                units = count_units(request, cost)
                await self._limits.charge(identify_requester(request), units)
            return await handler(request)

        return handle

    async def _charge_address(self, request: web.Request) -> None:
        """Charge a wrong token, after it was looked up: nobody with a valid one is locked out.

        The client whose id is in the token is not charged, as anybody could use up its limit.
        """
        if self._limits.has_rate:
            await self._limits.charge(identify_requester(request), 1)

    def _read_token(self, request: web.Request) -> str | None:
        """Return what may be a token; None if the request is anonymous."""
        sent = request.headers.getall(hdrs.AUTHORIZATION, None)
        if sent is None:
            return None
        if len(sent) > 1:
            raise MalformedHeader("expected one Authorization header, found more")
        scheme, _, token = sent[0].replace("\t", " ").partition(" ")
        if scheme.lower() == "bearer":
            return token.strip(" ")
        if self.anonymous < Scope.WRITE:
            raise Unauthorized(EXPECTED_HEADER, is_token_sent=False)
        return None
