"""Decides whether a request may use its route, by its token (RFC 6750) or without one.

Only routes with a scope ask. They ask before they look at anything else of the request.
"""

from functools import wraps

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from service.access.clients import Client, Clients, Scope
from service.access.limits import Limits, identify
from service.config import Access
from service.errors import Forbidden, MalformedHeader, Unauthorized
from service.tracing import WAITING_CLIENTS
from service.web.limits import count_units
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
            client = None
            if sent := request.headers.getall(hdrs.AUTHORIZATION, None):
                if len(sent) > 1:
                    raise MalformedHeader("expected one Authorization header, found more")
                client = self._clients.get_known(sent[0]) or await self._look_up(sent[0], request)
            if client:
                request[CLIENT_ID] = client.id
                if client.scope < scope:
                    raise Forbidden(scope.name.lower())
            elif self.anonymous < scope:
                raise Unauthorized(EXPECTED_HEADER, is_token_sent=False)
            WAITING_CLIENTS.set((str(client.id) if client else request[CLIENT],))
            if self._limits.has_rate:
                identity = identify(client.id if client else None, request[CLIENT])
                await self._limits.charge(identity, count_units(request, cost))
            return await handler(request)

        return handle

    async def _look_up(self, authorization: str, request: web.Request) -> Client | None:
        """Return the client whose token the header has; None if it has none.

        A wrong token counts for the address, after it was looked up: nobody with a valid token is
        locked out, and nobody can use up the limit of the client whose id is in the token.
        """
        scheme, _, token = authorization.replace("\t", " ").partition(" ")
        if scheme.lower() != "bearer":
            if self.anonymous < Scope.WRITE:
                raise Unauthorized(EXPECTED_HEADER, is_token_sent=False)
            return None
        WAITING_CLIENTS.set((request[CLIENT],))
        token = token.strip(" ")
        usual = f"Bearer {token}"  # or spellings of one client could push others out of the cache
        try:
            return self._clients.get_known(usual) or await self._clients.look_up(token, usual)
        except Unauthorized:
            if self._limits.has_rate:
                await self._limits.charge(identify(None, request[CLIENT]), 1)
            raise
