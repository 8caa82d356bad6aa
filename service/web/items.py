"""The handlers of single items: each parses the request, calls the store, and responds."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from wsgiref.handlers import format_date_time

from aiohttp import web

from service.database.resource import Condition, ItemChange, Resource, Written
from service.database.store import Store
from service.web.bodies import BodyReader
from service.web.context import CONTEXT
from service.web.fields import JSONObject, load_fields
from service.web.headers import POSITION, parse_preconditions
from service.web.query_strings import parse_id, reject_query_string
from service.web.responses import JSON_HEADERS, DirectResponse, json_response, make_not_modified

Item = TypeVar("Item")
NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True)
class Representation(Generic[Item]):
    """How clients see the items of a resource, which have `id`, `version` and `updated_at`.

    `path`: of all items. `fields`: that clients send. `to_json`: with the entity tag as `etag`.
    `tag_pattern`: of entity tags; `parse_preconditions` explains its groups.
    """

    resource: Resource[Item]
    path: str
    fields: JSONObject
    to_json: Callable[[Item], dict[str, object]]
    tag_pattern: re.Pattern[str]

    def make_headers(self, item: Any, content: dict[str, object]) -> dict[str, str]:
        """Return the headers of a response with this item; caches must revalidate it."""
        return {
            "Content-Type": "application/json",
            "ETag": f"{content['etag']}",
            "Last-Modified": format_date_time(item.updated_at.timestamp()),
            "Cache-Control": "no-cache",
        }

    def respond(
        self,
        written: Written[Any],
        location: str = "Content-Location",
        status: int = 200,
        more: Mapping[str, str] = NO_HEADERS,
    ) -> DirectResponse:
        """Return the item as it is now at its path; a new one has `Location` (RFC 9110, 8.7).

        `more`: further headers.
        """
        _, item, transaction = written
        content = self.to_json(item)
        headers = self.make_headers(item, content)
        headers[location] = f"{self.path}/{item.id}"
        headers[POSITION] = f"{transaction}"
        if more:
            headers.update(more)
        return json_response({self.resource.noun: content}, headers, status)


@dataclass(frozen=True)
class Items(Generic[Item]):
    """Create, show, update, replace and delete the items of a resource."""

    kind: Representation[Item]
    store: Store[Item]
    bodies: BodyReader
    require_if_match: bool

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Create an item: 201."""
        if request.rel_url.raw_query_string:
            reject_query_string(request)
        fields = load_fields(self.kind.fields, await self.bodies.read_object(request))
        created = await self.store.create(fields, request[CONTEXT].caller)
        return self.kind.respond(created, "Location", 201)

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Return the item: 200, or 304 if the client has it."""
        item = await self.store.get(parse_id(request), request[CONTEXT].caller)
        content = self.kind.to_json(item)
        headers = self.kind.make_headers(item, content)
        return make_not_modified(request, headers) or json_response(
            {self.kind.resource.noun: content}, headers
        )

    async def update(self, request: web.Request) -> web.StreamResponse:
        """Change only the fields that are sent (RFC 7396): 200 and the item."""
        return await self._change(request, partial=True)

    async def replace(self, request: web.Request) -> web.StreamResponse:
        """Replace the item; an optional field that is missing stays: 200 and the item."""
        return await self._change(request, partial=self.kind.fields.optional)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Delete the item: 200 and the item as it was."""
        item_id = parse_id(request)
        change = ItemChange(item_id, None, self._parse_condition(request, item_id))
        _, item, transaction = await self.store.change(change, request[CONTEXT].caller)
        headers = {**JSON_HEADERS, POSITION: f"{transaction}"}
        return json_response({self.kind.resource.noun: self.kind.to_json(item)}, headers)

    async def _change(
        self, request: web.Request, *, partial: bool | Sequence[str]
    ) -> web.StreamResponse:
        item_id = parse_id(request)
        body = await self.bodies.read_object(request)
        fields = load_fields(self.kind.fields, body, partial=partial)
        change = ItemChange(item_id, fields, self._parse_condition(request, item_id))
        return self.kind.respond(await self.store.change(change, request[CONTEXT].caller))

    def _parse_condition(self, request: web.Request, item_id: int) -> Condition:
        return parse_preconditions(
            request,
            self.kind.resource.noun,
            self.kind.tag_pattern,
            item_id,
            if_match_required=self.require_if_match,
        )
