"""/v1/changes: list, and wait for changes."""

import asyncio
from dataclasses import dataclass
from functools import lru_cache

import orjson
from aiohttp import web
from marshmallow import Schema
from marshmallow.fields import List, Nested

from service.changes.feed import PAGE_CHANGES, Change, ChangePage, Feed, FeedCursor
from service.changes.waiting import LongPolls
from service.database import MAX_BIGINT
from service.database.caller import Caller
from service.errors import CatalogueError, NotFound
from service.movies.movie import movie_json
from service.movies.rules import MovieOutput
from service.web.context import CONTEXT, ClientGone
from service.web.describe import (
    BIGINT,
    describe_json,
    describe_query,
    field,
    make_example,
    make_schema,
    time_field,
)
from service.web.middleware import RequestCycle
from service.web.pages import seal, unseal
from service.web.query_strings import QueryParameter, list_parameters, number_parameter, parse_query
from service.web.responses import JSON_HEADERS, Content, LargeResponse, encode_json
from service.web.route import Access, Operation, Route, Scope

CHANGES_PATH = "/v1/changes"
CHANGES_CURSOR = "Changes-Cursor"  # in a list: the cursor of the feed after it
MAX_WAIT_S = 20  # less than the 30 s after which platforms give up
MAX_CHANGES = 1000  # in a response
FEED_UNITS, CHANGES_OF_UNIT = 10, 20  # 1,000 take 22 to 63 times the CPU time of a movie
STOP_CHECK_S = 1.0  # a stop, or a client that is gone, is noticed after this time


def encode_change(cursor: FeedCursor) -> str:
    """Return the cursor as clients get it."""
    return seal(orjson.dumps([*cursor]))


def decode_change(text: str) -> FeedCursor:
    """Return the cursor of a client; `ValueError` if it is damaged, or of a list."""
    content = orjson.loads(unseal(text))
    if not isinstance(content, list) or [type(part) for part in content] != [str, int, int]:
        raise ValueError("not a cursor of the feed")
    cursor = FeedCursor._make(content)
    if cursor.transaction < 0 or not 0 <= cursor.change <= MAX_BIGINT:
        raise ValueError("out of range")
    return cursor


class ChangesQuery(Schema):
    """The parameters of GET /v1/changes."""

    after = QueryParameter(
        "a cursor: next_cursor of the feed, or the header Changes-Cursor of a list",
        decode_change,
        type="string",
        minLength=1,
    )
    wait = number_parameter(MAX_WAIT_S, 0, " of seconds", default=0)
    limit = number_parameter(MAX_CHANGES, 1, " of changes", default=PAGE_CHANGES)


CHANGES_QUERY = ChangesQuery()
ChangeSchema = make_schema(
    "Change",
    ("movie", "deleted_movie"),
    kind=field("what happened", "updated", enum=["created", "updated", "deleted"]),
    id=field("the id of the movie", 7, **BIGINT),
    version=field("of the movie after the change; of a deleted one, its last", 2, minimum=1),
    changed_at=time_field("when the transaction of the change began"),
    movie=Nested(MovieOutput, metadata={"description": "as it is now; missing if it is gone"}),
    deleted_movie=Nested(MovieOutput, metadata={"description": "of a deletion: as it was"}),
)
FeedMetadata = make_schema(
    "FeedMetadata",
    next_cursor=field("send it as `after`", "Xw3k6lsi"),
    as_of=time_field("every change that was committed before this time is in the feed"),
)
ChangeList = make_schema(
    "ChangeList", changes=List(Nested(ChangeSchema)), metadata=Nested(FeedMetadata)
)
_CHANGE = make_example(ChangeSchema()) | {"movie": make_example(MovieOutput())}
LIST_CHANGES = Operation(
    "list_changes",
    "Get the changes",
    "Returns up to 100 changes of movies (`limit`: up to 1,000) after the cursor `after`, or the"
    " oldest that are kept. With `wait`, the response comes as soon as there is a change, or"
    " without changes after so many seconds.\n\n"
    "To keep a copy of the catalogue, get all movies, and begin with the `Changes-Cursor` of the"
    " first page. Then send each `next_cursor` as `after`.",
    describe_json("The changes.", ChangeList, changes=[_CHANGE]),
    describe_query(list_parameters(CHANGES_QUERY)),
    problems=("cursor-expired",),
)


class FeedOff(CatalogueError):
    """This deployment has no feed."""

    problem = NotFound.problem
    detail = "nothing exists at this path: the operator has switched the feed of changes off"


@dataclass(frozen=True)
class Changes:
    """The handler of /v1/changes."""

    feed: Feed
    waiting: LongPolls
    cycle: RequestCycle
    access: Access

    async def list(self, request: web.Request) -> web.StreamResponse:
        """Return the next changes; with `wait`, as soon as there is one."""
        context, loop = request[CONTEXT], asyncio.get_running_loop()
        query = parse_query(request.rel_url.raw_query_string, CHANGES_QUERY)
        after, seconds = query.get("after"), query.get("wait", 0)
        limit = query.get("limit", PAGE_CHANGES)
        units = limit // CHANGES_OF_UNIT
        await self.access.charge_more(request, context.caller, units, FEED_UNITS)
        end = loop.time() + seconds
        context.extend(seconds)
        page = await self.feed.fetch(after, context.caller, limit)
        while not page.changes and (left := end - loop.time()) > 0 and not self.cycle.is_draining:
            if request.transport is None:  # nobody waits: make room for others
                raise ClientGone
            news = await self.waiting.wait(page.next, min(left, STOP_CHECK_S))
            if news and len(news.changes) > limit:  # the page of all who wait
                news = await self.feed.fetch(page.next, context.caller, limit)
            page = news or page
        return LargeResponse(_encode(page), {"Cache-Control": "no-store"})


async def begin_copy(feed: Feed, caller: Caller) -> dict[str, str]:
    """Return the header with which a copy of all movies begins; {} if the feed is off.

    Call it before the list is read: then the feed has every change that the list lacks.
    """
    cursor = await feed.find_end(caller)
    return {CHANGES_CURSOR: encode_change(cursor)} if cursor else {}


async def _refuse(_: web.Request) -> web.StreamResponse:
    raise FeedOff


def make_routes(changes: Changes | None) -> list[Route]:
    """Return the routes; None: the feed is off."""
    if not changes:
        return [Route("GET", CHANGES_PATH, _refuse, Scope.NONE)]
    return [Route("GET", CHANGES_PATH, changes.list, Scope.READ, LIST_CHANGES, FEED_UNITS)]


@lru_cache(maxsize=8)  # requests that wait share pages
def _encode(page: ChangePage) -> Content:
    changes = [_change_json(change) for change in page.changes]
    metadata = {"next_cursor": encode_change(page.next), "as_of": page.as_of}
    return Content(encode_json({"changes": changes, "metadata": metadata}), JSON_HEADERS)


def _change_json(change: Change) -> dict[str, object]:
    """Return the change with the movie as it is now, and a deleted one as it was."""
    return {
        "kind": change.row.kind,
        "id": change.row.movie_id,
        "version": change.row.change_version,
        "changed_at": change.row.changed_at,
        **({"movie": movie_json(change.movie)} if change.movie else {}),
        **({"deleted_movie": movie_json(change.deleted_movie)} if change.deleted_movie else {}),
    }
