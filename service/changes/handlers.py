"""/v1/changes: list, and wait for changes; /v1/movies/{id}/changes: the history of a movie."""

import asyncio
from dataclasses import dataclass
from functools import lru_cache

import orjson
from aiohttp import web
from marshmallow import Schema
from marshmallow.fields import List, Nested

from service.changes.feed import PAGE_CHANGES, ChangePage, ChangeRow, Feed, FeedCursor
from service.changes.waiting import LongPolls
from service.database import MAX_BIGINT
from service.database.caller import Caller
from service.database.listing import SortKey
from service.errors import CatalogueError, NotFound
from service.movies.movie import ENTITY_TAG, FIELDS, Movie, movie_json, parse_movie, previous_json
from service.movies.rules import MOVIE, MovieOutput, make_movie_example
from service.web.context import CONTEXT, ClientGone
from service.web.describe import (
    BIGINT,
    ID_PARAMETER,
    cursor_field,
    describe_json,
    describe_query,
    field,
    make_example,
    make_schema,
    time_field,
)
from service.web.middleware import RequestCycle
from service.web.pages import CURSOR, encode_cursor, parse_place, seal, unseal
from service.web.query_strings import (
    QueryParameter,
    list_parameters,
    number_parameter,
    parse_id,
    parse_query,
)
from service.web.responses import JSON_HEADERS, Content, LargeResponse, encode_json
from service.web.route import ID_IN_PATH, Access, Operation, Route, Scope

CHANGES_PATH = "/v1/changes"
HISTORY_PATH = f"/v1/movies/{ID_IN_PATH}/changes"
CHANGES_CURSOR = "Changes-Cursor"  # in a list: the cursor of the feed after it
MAX_WAIT_S = 20  # less than the 30 s after which platforms give up
MAX_CHANGES = 1000  # in a response
FEED_UNITS, CHANGES_OF_UNIT = 10, 20  # 1,000 take 22 to 63 times the CPU time of a movie
STOP_CHECK_S = 1.0  # a stop, or a client that is gone, is noticed after this time
NO_STORE = {"Cache-Control": "no-store"}
LIMIT = number_parameter(MAX_CHANGES, 1, " of changes", default=PAGE_CHANGES)


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
    limit = LIMIT


CHANGES_QUERY = ChangesQuery()
HISTORY_QUERY = Schema.from_dict({"cursor": CURSOR, "limit": LIMIT})()
PreviousFields = make_schema("PreviousFields", FIELDS, **MOVIE.fields)
ChangeClient = make_schema(
    "ChangeClient",
    ("id", "name", "login"),
    id=field("of the client whose token the request had", 7, **BIGINT),
    name=field("missing if the client is gone", "nightly-sync"),
    login=field("of a change in SQL; then there is no client", "postgres"),
)
ChangeSchema = make_schema(
    "Change",
    ("etag", "previous", "movie", "deleted_movie", "client"),
    kind=field("what happened", "updated", enum=["created", "updated", "deleted"]),
    id=field("the id of the movie", 7, **BIGINT),
    version=field("of the movie after the change; of a deleted one, its last", 2, minimum=1),
    changed_at=time_field("when the transaction of the change began"),
    etag=field("of the movie after the change; not of a deletion", ENTITY_TAG % (7, 2)),
    previous=Nested(PreviousFields, metadata={"description": "of an update: what it replaced"}),
    movie=Nested(MovieOutput, metadata={"description": "as it is now; missing if it is gone"}),
    deleted_movie=Nested(MovieOutput, metadata={"description": "of a deletion: as it was"}),
    client=Nested(ChangeClient, metadata={"description": "with a token of the scope `write`"}),
)
FeedMetadata = make_schema(
    "FeedMetadata",
    next_cursor=field("send it as `after`", "Xw3k6lsi"),
    as_of=time_field("every change that was committed before this time is in the feed"),
)
ChangeList = make_schema(
    "ChangeList", changes=List(Nested(ChangeSchema)), metadata=Nested(FeedMetadata)
)
HistoryMetadata = make_schema("HistoryMetadata", next_cursor=cursor_field("next"))
MovieHistory = make_schema(
    "MovieHistory", changes=List(Nested(ChangeSchema)), metadata=Nested(HistoryMetadata)
)
_MORE = {"etag": ENTITY_TAG % (7, 2), "client": {"id": 7, "name": "nightly-sync"}}
_PAST = make_example(ChangeSchema()) | _MORE | {"previous": {"year": 1943}}
LIST_CHANGES = Operation(
    "list_changes",
    "Get the changes",
    "Returns up to 100 changes of movies (`limit`: up to 1,000) after the cursor `after`, or the"
    " oldest that are kept. With `wait`, the response comes as soon as there is a change, or"
    " without changes after so many seconds.\n\n"
    "To keep a copy of the catalogue, get all movies, and begin with the `Changes-Cursor` of the"
    " first page. Then send each `next_cursor` as `after`.",
    describe_json("The changes.", ChangeList, changes=[_PAST | {"movie": make_movie_example(2)}]),
    describe_query(list_parameters(CHANGES_QUERY)),
    problems=("cursor-expired",),
)
SHOW_HISTORY = Operation(
    "list_movie_changes",
    "Get the history of a movie",
    "Returns up to 100 changes of the movie (`limit`: up to 1,000), the newest first, also if it is"
    " deleted. Each has what it replaced and, for a token of the scope `write`, whose it was.",
    describe_json("The changes.", MovieHistory, changes=[_PAST]),
    (ID_PARAMETER, *describe_query(list_parameters(HISTORY_QUERY))),
)


class FeedOff(CatalogueError):
    """This deployment has no feed."""

    problem = NotFound.problem
    detail = "nothing exists at this path: the operator has switched the feed of changes off"


@dataclass(frozen=True)
class Changes:
    """The handlers of the feed and of histories."""

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
        await self.access.charge_more(request, context.caller, limit // CHANGES_OF_UNIT, FEED_UNITS)
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
        return LargeResponse(_encode(page, with_client=context.caller.sees_clients), NO_STORE)

    async def show_history(self, request: web.Request) -> web.StreamResponse:
        """Return the changes of a movie, the newest first; caches must not keep clients."""
        caller, movie_id = request[CONTEXT].caller, parse_id(request, has_query=True)
        query = parse_query(request.rel_url.raw_query_string, HISTORY_QUERY)
        key = parse_place(query, request.path, int, 0).key
        limit, with_client = query.get("limit", PAGE_CHANGES), caller.sees_clients
        await self.access.charge_more(request, caller, limit // CHANGES_OF_UNIT, FEED_UNITS)
        rows = await self.feed.fetch_history(movie_id, key and key.id, limit + 1, caller)
        changes = [_change_json(row, None, with_client=with_client) for row in rows[:limit]]
        last = SortKey(0, rows[limit - 1].change) if len(rows) > limit else None
        next_cursor = last and encode_cursor(last, 1, request.path, backwards=False)
        body = encode_json({"changes": changes, "metadata": {"next_cursor": next_cursor}})
        return LargeResponse(Content(body, JSON_HEADERS), NO_STORE)


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
        return [Route("GET", path, _refuse, Scope.NONE) for path in (CHANGES_PATH, HISTORY_PATH)]
    return [
        Route("GET", CHANGES_PATH, changes.list, Scope.READ, LIST_CHANGES, FEED_UNITS),
        Route("GET", HISTORY_PATH, changes.show_history, Scope.READ, SHOW_HISTORY, FEED_UNITS),
    ]


@lru_cache(maxsize=8)  # requests that wait share pages, in each form
def _encode(page: ChangePage, *, with_client: bool) -> Content:
    changes = [_change_json(row, movie, with_client=with_client) for _, row, movie in page.changes]
    metadata = {"next_cursor": encode_change(page.next), "as_of": page.as_of}
    return Content(encode_json({"changes": changes, "metadata": metadata}), JSON_HEADERS)


def _change_json(row: ChangeRow, movie: Movie | None, *, with_client: bool) -> dict[str, object]:
    """Return the change with what it replaced, and `movie`, as it is now."""
    client = _drop_nulls({"id": row.client_id, "name": row.client_name, "login": row.login})
    change = {
        "kind": row.kind,
        "id": row.movie_id,
        "version": row.change_version,
        "changed_at": row.changed_at,
        "etag": ENTITY_TAG % (row.movie_id, row.change_version) if row.kind != "deleted" else None,
        "previous": row.previous and previous_json(row.previous),
        "movie": movie and movie_json(movie),
        "deleted_movie": row.deleted_movie and movie_json(parse_movie(row.deleted_movie)),
        "client": client if client and with_client else None,
    }
    return _drop_nulls(change)


def _drop_nulls(members: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in members.items() if value is not None}
