"""One keep-alive connection to the service."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import orjson

TIMEOUT = aiohttp.ClientTimeout(30)  # for a response; the service gives up after 10


class NoResponse(Exception):
    """No response came to a request, or it could not be sent."""


@dataclass(frozen=True)
class Response:
    """A response; names of headers in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Parse the body."""
        return orjson.loads(self.body)


class Connection:
    """One connection, which is opened when it is needed; `async with` closes it."""

    def __init__(self, url: str) -> None:
        connector = aiohttp.TCPConnector(limit=1)
        self._session = aiohttp.ClientSession(url, connector=connector, timeout=TIMEOUT)

    async def __aenter__(self) -> Self:
        """Return this connection."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self._session.close()

    async def request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Send a request; raises `NoResponse`."""
        try:
            async with self._session.request(method, path, json=body, headers=headers) as response:
                return Response(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NoResponse(f"{method} {path}: {error!r}") from error
