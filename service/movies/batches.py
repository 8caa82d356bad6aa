"""Batches: create, put, change, delete or restore several movies, all or each on its own."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from service.database import MAX_BIGINT
from service.database.resource import (
    ALWAYS,
    Condition,
    ItemChange,
    ItemPut,
    ItemRestore,
    Written,
)
from service.database.store import Store
from service.errors import PreconditionRequired, RuleBroken
from service.movies.entries import (
    CHANGES,
    CREATES,
    DELETIONS,
    MAX_MOVIES,
    PUTS,
    RESTORES,
    Kind,
    Loaded,
    load_batch,
)
from service.movies.handlers import MOVIE_TAG, REPLAYED
from service.movies.keys import BATCH_KEY, IdempotentCreates
from service.movies.movie import FIELDS, MOVIES, Movie, movie_json
from service.web import problems
from service.web.bodies import BodyReader
from service.web.context import CONTEXT
from service.web.fields import Values
from service.web.headers import HEADER_NAME, POSITION, Tags, parse_key, select_versions
from service.web.items import NO_HEADERS
from service.web.query_strings import reject_query_string
from service.web.responses import JSON_HEADERS, json_response
from service.web.route import Access

EntryResult = dict[str, object]  # of an entry of a lenient batch, or of a PUT
# A preference of the header Prefer (RFC 7240, 2 and 4.4); the first one counts.
HANDLING = re.compile(r"(?:^|[,\s])handling\s*=\s*\"?([a-z]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Batches:
    """The handlers of batches.

    All entries succeed, or none: 200 or 201. With `handling=lenient`, each succeeds or fails on its
    own: 207, with a result for each entry.
    """

    store: Store[Movie]
    idempotent_creates: IdempotentCreates
    bodies: BodyReader
    access: Access
    require_if_match: bool
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while a batch is loaded

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Create movies: 201."""
        caller = request[CONTEXT].caller
        key = parse_key(request) if HEADER_NAME in request.headers else None
        movies, is_lenient = await self._read(request, CREATES)
        if is_lenient:
            keys = [key and f"{BATCH_KEY}{key}\t{index}" for index in range(len(movies))]
            # Of equal external ids, the first one is created, also if its statement is sent again.
            turns = defaultdict[object, asyncio.Lock](asyncio.Lock)

            async def create_one(index: int, fields: Values) -> tuple[int, EntryResult]:
                async with turns[fields.get("external_id", index)]:
                    if own_key := keys[index]:
                        create = self.idempotent_creates.create
                        created, replayed = await create(own_key, fields, caller)
                    else:
                        created, replayed = await self.store.create(fields, caller), False
                result = _make_result(created) | ({"replayed": True} if replayed else {})
                return created.transaction, result

            return await _respond_to_each(request, movies, create_one)
        with _convert_broken_rule():
            created, replayed = await self.idempotent_creates.create_all(key, movies, caller)
        return _respond_to_all(created, REPLAYED if replayed else NO_HEADERS, 201)

    async def put(self, request: web.Request) -> web.StreamResponse:
        """Create the movies, or replace those that have their external ids: 200, with results."""
        movies, is_lenient = await self._read(request, PUTS)
        caller = request[CONTEXT].caller

        async def put_one(_: int, entry: Values) -> tuple[int, EntryResult]:
            written = await self.store.put(_make_put(entry), caller)
            return written.transaction, _make_result(written)

        if is_lenient:
            return await _respond_to_each(request, movies, put_one)
        with _convert_broken_rule():
            puts = await self.store.put_all([*map(_make_put, movies)], caller)
        return json_response({"results": [*map(_make_result, puts)]}, _make_headers(puts))

    async def update(self, request: web.Request) -> web.StreamResponse:
        """Change only the fields that are sent of each movie: 200."""
        return await self._change(request, CHANGES)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Delete the movies: 200, with the movies as they were."""
        return await self._change(request, DELETIONS)

    async def restore(self, request: web.Request) -> web.StreamResponse:
        """Give the movies the fields of their versions, or bring deleted ones back: 200."""
        entries, is_lenient = await self._read(request, RESTORES)
        caller = request[CONTEXT].caller

        def make_restore(entry: Values) -> ItemRestore:
            has_tag = "etag" in entry
            condition = self._get_condition(entry) if has_tag else ALWAYS
            needs_tag = self.require_if_match and not has_tag
            return ItemRestore(entry["id"], entry.get("version"), condition, has_tag, needs_tag)

        async def restore_one(_: int, entry: Values) -> tuple[int, EntryResult]:
            outcome, movie, transaction = await self.store.restore(make_restore(entry), caller)
            return transaction, {"status": 200, "outcome": outcome, "movie": movie_json(movie)}

        if is_lenient:
            return await _respond_to_each(request, entries, restore_one)
        restores = [make_restore(entry) for entry in entries]
        with _convert_broken_rule():
            return _respond_to_all(await self.store.restore_all(restores, caller))

    async def _change(self, request: web.Request, kind: Kind) -> web.StreamResponse:
        entries, is_lenient = await self._read(request, kind)
        caller = request[CONTEXT].caller

        def make_change(entry: Values) -> ItemChange:
            sent = {name: entry[name] for name in FIELDS if name in entry}
            fields = None if kind is DELETIONS else sent
            return ItemChange(entry["id"], fields, self._get_condition(entry))

        async def change_one(_: int, entry: Values) -> tuple[int, EntryResult]:
            changed = await self.store.change(make_change(entry), caller)
            return changed.transaction, _make_result(changed)

        if is_lenient:
            return await _respond_to_each(request, entries, change_one)
        changes = [make_change(entry) for entry in entries]
        with _convert_broken_rule():
            return _respond_to_all(await self.store.change_all(changes, caller))

    async def _read(self, request: web.Request, kind: Kind) -> tuple[list[Any], bool]:
        """Return the entries of a batch, and whether it is lenient."""
        reject_query_string(request)
        preference = HANDLING.search(",".join(request.headers.getall("Prefer", ())))
        is_lenient = preference is not None and preference[1].lower() == "lenient"
        body = await self.bodies.read_object(request)
        if isinstance(sent := body.get("movies"), list):  # invalid ones take as long as valid ones
            units = min(len(sent), MAX_MOVIES)
            await self.access.charge_more(request, request[CONTEXT].caller, units, 1)
        entries = await load_batch(body, self.loading, kind, is_lenient=is_lenient)
        return entries, is_lenient

    def _get_condition(self, entry: Values) -> Condition:
        """Return the condition of an entry; raises `PreconditionRequired`."""
        if tag := entry.get("etag"):
            tags = Tags(any=False, tags=[tag])
            return Condition(select_versions(tags, MOVIE_TAG, entry["id"], strong=True))
        if self.require_if_match:
            raise PreconditionRequired(MOVIES.noun)
        return ALWAYS


@contextmanager
def _convert_broken_rule() -> Iterator[None]:
    """Report a broken rule for the whole batch: PostgreSQL does not say which movie it refuses."""
    try:
        yield
    except RuleBroken as error:
        raise MOVIES.to_invalid(error, MOVIES.table) from error


def _make_put(entry: Values) -> ItemPut:
    if not (tag := entry.pop("etag", None)):
        return ItemPut(entry)
    match = MOVIE_TAG.fullmatch(tag.opaque)
    movie_id = min(int(match[1]), MAX_BIGINT) if match else 0
    versions = select_versions(Tags(any=False, tags=[tag]), MOVIE_TAG, movie_id, strong=True)
    return ItemPut(entry, id=movie_id, versions=versions)


def _make_result(written: Written[Movie]) -> EntryResult:
    status = 201 if written.outcome == "created" else 200
    return {"status": status, "outcome": written.outcome, "movie": movie_json(written.item)}


def _make_headers(written: Sequence[Written[Movie]]) -> dict[str, str]:
    """Return the headers of a strict batch, which is one transaction."""
    return {**JSON_HEADERS, POSITION: f"{written[0].transaction}"}


def _respond_to_all(
    written: Sequence[Written[Movie]], more: Mapping[str, str] = NO_HEADERS, status: int = 200
) -> web.StreamResponse:
    movies = [movie_json(each.item) for each in written]
    return json_response({"movies": movies}, {**_make_headers(written), **more}, status)


async def _respond_to_each(
    request: web.Request,
    entries: Sequence[Loaded],
    act: Callable[[int, Values], Awaitable[tuple[int, EntryResult]]],
) -> web.StreamResponse:
    """Respond with the results of a lenient batch; `act`: returns a transaction and a result."""
    wait = 0  # seconds after which a repeat may succeed
    last = 0  # transaction

    async def try_one(index: int, entry: Loaded) -> EntryResult:
        nonlocal wait, last
        try:
            if isinstance(entry, Exception):
                raise entry  # noqa: TRY301 - handled as those of the database
            transaction, result = await act(index, entry)
        except Exception as error:  # noqa: BLE001 - an unexpected one is a 500 for this entry only
            problem = problems.describe(request, error)
            wait = max(wait, getattr(error, "retry_after", None) or 0)
            transaction = getattr(error, "transaction", 0)
            result = {"status": problem["status"], "problem": problem}
        last = max(last, transaction)
        return result

    results = await asyncio.gather(*map(try_one, range(len(entries)), entries))
    headers = {**JSON_HEADERS, "Preference-Applied": "handling=lenient"}
    if wait:
        headers["Retry-After"] = f"{wait}"
    if last:
        headers[POSITION] = str(last)
    return json_response({"results": results}, headers, status=207)
