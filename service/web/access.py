"""Decides whether a request may use its route, by its token (RFC 6750) or without one.

Only routes with a scope ask. They ask before they look at anything else of the request.
"""

from functools import wraps

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from service.access.clients import Clients, Scope
from service.access.tokens import EXPECTED_TOKEN
from service.config import Access
from service.errors import Forbidden, MalformedHeader, Unauthorized
from service.tracing import WAITING_CLIENTS
from service.web.request_cycle.access_log import CLIENT_ID
from service.web.request_cycle.client_address import CLIENT

EXPECTED_HEADER = f"expected Authorization: Bearer and {EXPECTED_TOKEN}"


class AccessControl:
    """Lets requests pass that have the scope of their route."""

    def __init__(self, settings: Access, clients: Clients) -> None:
        self.anonymous = Scope[settings.anonymous.upper()]  # of requests without a token
        self._clients = clients

    def require(self, scope: Scope, handler: Handler) -> Handler:
        """Return the handler, for requests with this scope only.

        For others it raises `Unauthorized`, `Forbidden`, or `MalformedHeader` with two headers; and
        `Unavailable` if the database does not tell whom the token belongs to.
        """

        @wraps(handler)
        async def handle(request: web.Request) -> web.StreamResponse:
            WAITING_CLIENTS.set((request[CLIENT],))
            token = self._read_token(request)
            if token is not None:
                client = await self._clients.find(token)
                request[CLIENT_ID] = client.id
                WAITING_CLIENTS.set((str(client.id),))
                if client.scope < scope:
                    raise Forbidden(scope.name.lower())
            elif self.anonymous < scope:
                raise Unauthorized(EXPECTED_HEADER, is_token_sent=False)
            return await handler(request)

        return handle

    def _read_token(self, request: web.Request) -> str | None:
        """Return what may be a token; None if the request is anonymous."""
        sent = request.headers.getall(hdrs.AUTHORIZATION, None)
        if sent is None:
            return None
        if len(sent) > 1:
            raise MalformedHeader("expected one Authorization header, found more")
        scheme, _, token = sent[0].partition(" ")
        if scheme.lower() == "bearer":
            return token.strip(" ")
        if self.anonymous < Scope.WRITE:
            raise Unauthorized(EXPECTED_HEADER, is_token_sent=False)
        return None
