"""The operations on single items of a resource: get, create, update, delete.

Requests for the same operation that arrive together share one statement (`batching.py`).
"""

import asyncio
import hashlib
import itertools
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast

import orjson

from service.config import Sharing
from service.context import RequestContext
from service.database.batching import Batcher, Rows, join_payloads, list_contexts
from service.database.query import Expected, Row
from service.database.statements import Statements
from service.errors import (
    CatalogueError,
    Contended,
    Failure,
    Invalid,
    NotFound,
    PreconditionFailed,
    RuleBroken,
    Taken,
    Unavailable,
)

Item = TypeVar("Item")
Result = TypeVar("Result")

LOCK_RETRY_S = 0.02  # while another session holds the lock of an item


@dataclass(frozen=True)
class Resource(Generic[Item]):
    """What the store of a resource needs to know.

    Its queries are `get_<table>(ids)`, `create_<table>(<table>)`,
    `update_<table>(updates, all_or_none)` and `delete_<table>(deletions, all_or_none)`. The name of
    a constraint is `<table>_<field>_<rule>`.

    `unique`: an optional field of text that no two items have in common, by its unique index
    `<table>_<unique>_unique`; then there are `find_<table>(<unique>s)` and
    `put_<table>(<table>, all_or_none)`, too.
    """

    noun: str  # for errors, such as movie
    table: str
    make: Callable[[Sequence[Any]], Item]  # from a row
    columns: Mapping[str, Hashable]  # their Python types; the first one is `id`
    fields: Sequence[str]  # that clients send
    unique: str = ""

    def expect_queries(self, *, updates: bool = True) -> dict[str, Expected]:
        """Return what the store expects of its queries."""
        changed = {"transaction": int, "locked": bool, "done": bool, **self.columns}
        created = {"transaction": int, "position": int, **self.columns}
        put = {"transaction": int, "position": int, "outcome": str, **self.columns}
        noun, table, unique = self.noun, self.table, self.unique
        write = partial(Expected, writes=True)
        both = {"all_or_none": False}
        expected = {
            f"get_{table}": Expected(self.columns, [{"ids": "{}"}], f"GET a {noun}"),
            f"create_{table}": write(created, [{table: "[]"}], f"POST a {noun}"),
            f"delete_{table}": write(changed, [{"deletions": "[]", **both}], f"DELETE a {noun}"),
        }
        if updates:
            used_by = f"PATCH and PUT a {noun}"
            expected[f"update_{table}"] = write(changed, [{"updates": "[]", **both}], used_by)
        if unique:
            used_by = f"GET {table} by {unique}"
            expected[f"find_{table}"] = Expected(self.columns, [{f"{unique}s": "[]"}], used_by)
            used_by = f"PUT {table} by {unique}"
            expected[f"put_{table}"] = write(put, [{table: "[]", **both}], used_by)
        return expected

    def to_invalid(self, broken: RuleBroken, field: str = "") -> Invalid:
        """Convert a violated constraint; `field`: else that of its name."""
        prefix = f"{self.table}_"
        named = [name for name in self.fields if broken.rule.startswith(f"{prefix}{name}_")]
        detail = f"breaks the rule {broken.rule}" if broken.rule else "is refused by the database"
        return Invalid([Failure(field or "".join(named), detail)])


class Condition(NamedTuple):
    """The conditions of an update or delete; checked under the lock of the item's row."""

    versions: list[int] | None = None  # the item's version is one of these
    other_than: list[int] | None = None  # and none of these
    unmodified_since: datetime | None = None  # and it has not changed since, to the second


ALWAYS = Condition()


class Change(NamedTuple):
    """A change of an item; `fields` is None for a deletion."""

    id: int
    fields: Mapping[str, object] | None
    condition: Condition = ALWAYS

    def encode(self) -> bytes:
        """Return it as the queries take it."""
        payload: dict[str, object] = {"id": self.id}
        if self.fields is not None:
            payload["fields"] = self.fields
        if self.condition is not ALWAYS:
            payload |= self.condition._asdict()
        return orjson.dumps(payload)


class NoneChanged(Exception):
    """Of several items, some could not be changed, so none was; `errors`: of these, by id."""

    def __init__(self, errors: Mapping[int, CatalogueError]) -> None:
        super().__init__()
        self.errors = errors


class Put(NamedTuple, Generic[Item]):
    """An item with a unique field, and what became of it."""

    outcome: str  # created, changed, equal, or taken: only to be created, and it was there
    item: Item


class NotChanged(Enum):
    """Why an existing item was not changed, or none was put."""

    CONDITION_FAILED = auto()
    LOCKED = auto()  # another session holds a lock; try again
    PREVENTED = auto()  # by a trigger of a DBA


Payloads = Mapping[int, bytes]  # each is named by its key in what a query returns


class Store(Generic[Item]):
    """Get, create, update and delete items; every method may raise `Unavailable`.

    What must stay true: a change sees the item and its conditions under the lock of its row, so of
    two changes, the later one is made on top of the earlier one, or refused. Of an item that is
    locked elsewhere, only its own changes wait; only those that set a unique value may wait for a
    transaction elsewhere that sets the same one, with the rows that share their statement.

    `reads`: the statements that get items.
    """

    def __init__(
        self,
        resource: Resource[Item],
        statements: Statements,
        sharing: Sharing,
        reads: Statements | None = None,
    ) -> None:
        self._resource = resource
        self._statements = statements
        self._reads = reads or statements
        self._positions = itertools.count()
        rows = statements.metrics.shared_statement_rows.labels
        self._get_query, self._create_query, self._update_query, self._delete_query = (
            f"{verb}_{resource.table}" for verb in ("get", "create", "update", "delete")
        )
        self._find_query, self._put_query = f"find_{resource.table}", f"put_{resource.table}"
        self._gets = Batcher(
            self._get, sharing, is_repeatable=True, rows_metric=rows(self._get_query)
        )
        self._creates = Batcher(self._create, sharing, rows_metric=rows(self._create_query))
        self._updates, self._deletes = (
            Batcher[Item | NotChanged](
                partial(self._change_several, query),
                sharing,
                exclusive=True,
                rows_metric=rows(query),
            )
            for query in (self._update_query, self._delete_query)
        )
        # Not those without a unique value: these never wait for another session.
        self._puts = Batcher[Put[Item]](
            self._put_several, sharing, exclusive=True, rows_metric=rows(self._put_query)
        )

    async def get(self, item_id: int, context: RequestContext | None = None) -> Item:
        """Return the item; raises `NotFound`. `context`: of the request, for logs."""
        item = await self._gets.submit(item_id, context=context)
        if item is None:
            raise NotFound(self._resource.noun)
        return item

    async def create(
        self, fields: Mapping[str, object], context: RequestContext | None = None
    ) -> Item:
        """Create an item from all of its fields.

        Raises `Invalid` if the database refuses it, `Taken` if another one has its unique value.
        """
        if self._resource.unique in fields:
            put = await self.put(fields, context, replace=False)
            if put.outcome == "taken":
                raise self._make_taken({self._resource.unique: put.item})
            return put.item
        position = next(self._positions)
        payload = orjson.dumps({"position": position, **fields})
        try:
            item = await self._creates.submit(position, payload, context)
        except RuleBroken as error:
            raise self._resource.to_invalid(error) from error
        if item is None:
            raise self._statements.report(self._create_query, "it returned no row for a new one")
        return item

    async def put(
        self,
        fields: Mapping[str, object],
        context: RequestContext | None = None,
        *,
        replace: bool = True,
    ) -> Put[Item]:
        """Create an item from all of its fields, or `replace` the one that has its unique value."""
        key, payload = self._encode_put(fields, replace=replace)
        return await self._put(partial(self._puts.submit, key, payload, context))

    async def put_all(
        self, items: Sequence[Mapping[str, object]], context: RequestContext
    ) -> list[Put[Item]]:
        """Put all items in one statement, or none; no two have the same unique value."""
        payloads = dict(self._encode_put(fields, replace=True) for fields in items)

        async def send() -> list[Put[Item]] | None:
            found = await self._write_puts(payloads, [context], all_or_none=True)
            return [found[key] for key in payloads] if len(found) == len(payloads) else None

        return await self._put(send)

    async def change(self, change: Change, context: RequestContext | None = None) -> Item:
        """Change or delete an item in one atomic statement, and return it.

        Raises `NotFound`, `PreconditionFailed`, `Taken`, or `Invalid` if the database refuses it.
        """
        batcher = self._deletes if change.fields is None else self._updates
        payload, give_up = change.encode(), 0.0
        try:
            while (
                result := await batcher.submit(change.id, payload, context)
            ) is NotChanged.LOCKED:
                give_up = give_up or time.monotonic() + self._statements.timeout
                if time.monotonic() > give_up:
                    raise Contended(f"{self._resource.noun} {change.id} is locked")
                await asyncio.sleep(LOCK_RETRY_S)
        except RuleBroken as error:
            raise await self.explain(error, {"": change.fields or {}}) from error
        if isinstance(result, NotChanged | None):
            query = self._delete_query if change.fields is None else self._update_query
            raise self._to_error(query, result)
        return result

    async def change_all(self, changes: Sequence[Change], context: RequestContext) -> list[Item]:
        """Change or delete all items in one statement, or none. No id occurs twice.

        Raises `NoneChanged`, or `RuleBroken`, which `explain` explains.
        """
        query = self._delete_query if changes[0].fields is None else self._update_query
        payloads = {change.id: change.encode() for change in changes}

        async def send() -> dict[int, Item | NotChanged] | None:
            found = await self._write_changes(query, payloads, [context], all_or_none=True)
            return None if NotChanged.LOCKED in found.values() else found

        found = await self._repeat(send)
        items = {key: found.get(key) for key in payloads}
        wrong = {n: each for n, each in items.items() if isinstance(each, NotChanged | None)}
        # `PREVENTED`: those that could be changed were not, because of the others.
        blamed = {n: each for n, each in wrong.items() if each is not NotChanged.PREVENTED}
        if errors := {n: self._to_error(query, each) for n, each in (blamed or wrong).items()}:
            raise NoneChanged(errors)
        return cast("list[Item]", [*items.values()])

    async def explain(
        self, error: RuleBroken, sent: Mapping[str, Mapping[str, object]], field: str = ""
    ) -> CatalogueError:
        """Return what to tell the client that `sent` these fields, each at its place in the body.

        `field`: the one that is wrong, if the constraint does not say.
        """
        unique = self._resource.unique
        if not self._is_of_unique(error):
            return self._resource.to_invalid(error, field)
        values = {at: fields[unique] for at, fields in sent.items() if unique in fields}
        found: Mapping[Any, Any] = await self.find([*values.values()], statements=self._statements)
        owners = {
            at: found[value]
            for at, value in values.items()
            if value in found and found[value].id != sent[at].get("id")  # not its own
        }
        places = {f"{at}/{unique}".strip("/"): owners.get(at) for at in values}
        taken = {place: owner for place, owner in places.items() if owner}
        if not places:  # a trigger has set the value
            return self._resource.to_invalid(error, field)
        return self._make_taken(taken or places)

    async def find(
        self,
        values: Sequence[object],
        waiting: Sequence[RequestContext] = (),
        statements: Statements | None = None,
    ) -> dict[object, Item]:
        """Return the items that have these unique values, by value."""
        unique = self._resource.unique
        sent = {f"{unique}s": orjson.dumps(values).decode()}
        rows = await (statements or self._reads).fetch(self._find_query, sent, waiting=waiting)
        items = [self._resource.make(row) for row in rows]
        return {getattr(item, unique): item for item in items}

    def _is_of_unique(self, error: RuleBroken) -> bool:
        return error.rule == f"{self._resource.table}_{self._resource.unique}_unique"

    def _make_taken(self, owners: Mapping[str, Any]) -> Taken:
        ids = {at: owner and owner.id for at, owner in owners.items()}
        return Taken(self._resource.noun, self._resource.unique, ids)

    def _encode_put(self, fields: Mapping[str, object], *, replace: bool) -> tuple[int, bytes]:
        """Return the number of the unique value, which also names its lock, and the payload."""
        value = str(fields[self._resource.unique]).encode()
        key = int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), signed=True)
        return key, orjson.dumps({"position": key, "replace": replace, **fields})

    async def _put(self, send: Callable[[], Awaitable[Result | None]]) -> Result:
        """Send, and again while another session creates the same item, or locks it."""

        async def attempt() -> Result | None:
            try:
                return await send()
            except RuleBroken as error:  # it was created since the statement began
                if self._is_of_unique(error):
                    return None
                raise self._resource.to_invalid(error) from error

        return await self._repeat(attempt)

    async def _repeat(self, send: Callable[[], Awaitable[Result | None]]) -> Result:
        """Send, and again while that has no result, because another session holds a lock."""
        give_up = time.monotonic() + self._statements.timeout
        while (result := await send()) is None:
            if time.monotonic() > give_up:
                raise Contended(f"another session holds the lock of a {self._resource.noun}")
            await asyncio.sleep(LOCK_RETRY_S)
        return result

    def _to_error(self, query: str, result: NotChanged | None) -> CatalogueError:
        """Return why an item was not changed."""
        if result is None:
            return NotFound(self._resource.noun)
        if result is NotChanged.PREVENTED:
            return self._statements.report(query, "no change: did a trigger prevent it?")
        return PreconditionFailed()

    async def _get(self, rows: Rows[Item]) -> dict[int, Item]:
        return await self.get_several([row.key for row in rows], list_contexts(rows))

    async def get_several(
        self, ids: Sequence[int], waiting: Sequence[RequestContext]
    ) -> dict[int, Item]:
        """Return the items that exist, by id, in one statement for the requests that wait."""
        try:
            # An array literal; the server parses it faster than `array[...]`.
            text = "{" + ",".join(map(str, ids)) + "}"
            fetched = await self._reads.fetch(self._get_query, {"ids": text}, waiting=waiting)
        except Contended as error:
            # A read waits only for a lock on the whole table, so do not retry rows one by one.
            raise Unavailable(str(error), error.refusal) from error
        self._statements.require_sent(self._get_query, [row[0] for row in fetched], ids)
        return {row[0]: self._resource.make(row) for row in fetched}

    async def _create(self, rows: Rows[Item]) -> dict[int, Item]:
        created = await self._write(self._create_query, self._resource.table, *_split(rows))
        return {position: self._resource.make(row) for _, position, *row in created}

    async def _put_several(self, rows: Rows[Put[Item]]) -> dict[int, Put[Item]]:
        return await self._write_puts(*_split(rows), all_or_none=False)

    async def _write_puts(
        self, payloads: Payloads, waiting: Sequence[RequestContext], *, all_or_none: bool
    ) -> dict[int, Put[Item]]:
        """Return the items that were put, by key."""
        query, table = self._put_query, self._resource.table
        rows = await self._write(query, table, payloads, waiting, all_or_none=all_or_none)
        return {
            key: Put(outcome, self._resource.make(row)) for _, key, outcome, *row in rows if outcome
        }

    async def _change_several(
        self, query: str, rows: Rows[Item | NotChanged]
    ) -> dict[int, Item | NotChanged]:
        return await self._write_changes(query, *_split(rows), all_or_none=False)

    async def _write_changes(
        self,
        query: str,
        payloads: Payloads,
        waiting: Sequence[RequestContext],
        *,
        all_or_none: bool,
    ) -> dict[int, Item | NotChanged]:
        """Return the changed or deleted items by id, or why they are not."""
        parameter = "updates" if query == self._update_query else "deletions"
        fetched = await self._write(query, parameter, payloads, waiting, all_or_none=all_or_none)
        results: dict[int, Item | NotChanged] = {}
        for _, is_locked, is_done, item_id, *fields in fetched:
            if is_locked:
                results[item_id] = NotChanged.LOCKED
            elif is_done:
                results[item_id] = self._resource.make([item_id, *fields])
            else:
                is_prevented = is_done is None
                reason = NotChanged.PREVENTED if is_prevented else NotChanged.CONDITION_FAILED
                results[item_id] = reason
        return results

    async def _write(
        self,
        query: str,
        parameter: str,
        payloads: Payloads,
        waiting: Sequence[RequestContext],
        **more: bool,
    ) -> list[Row]:
        """Run a write of these payloads, each of which is named by its key in the rows."""
        sent = {parameter: join_payloads(payloads.values()), **more}
        rows = await self._statements.fetch(
            query, sent, max_affected=len(payloads), waiting=waiting
        )
        column = 3 if query in (self._update_query, self._delete_query) else 1
        self._statements.require_sent(query, [row[column] for row in rows], payloads)
        return rows


def _split(rows: Rows[Any]) -> tuple[Payloads, list[RequestContext]]:
    """Return the payloads of shared rows by key, and the requests that wait for them."""
    return {row.key: row.payload for row in rows}, list_contexts(rows)
