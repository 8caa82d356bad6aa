"""The operations on single items of a resource: get, create, update, delete.

Requests for the same operation that arrive together share one statement (`batching.py`).
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import orjson

from service.config import Sharing
from service.context import RequestContext
from service.database.batching import Batcher, Rows, join_payloads, list_contexts
from service.database.query import Expected, Row
from service.database.statements import Statements
from service.errors import (
    Contended,
    Failure,
    Invalid,
    NotFound,
    PreconditionFailed,
    RuleBroken,
    Unavailable,
)

Item = TypeVar("Item")

LOCK_RETRY_S = 0.02  # while another session holds the lock of an item


@dataclass(frozen=True)
class Resource(Generic[Item]):
    """What the store of a resource needs to know.

    Its queries are `get_<table>(ids)`, `create_<table>(<table>)`, `update_<table>(updates)` and
    `delete_<table>(deletions)`. The name of a constraint is `<table>_<field>_<rule>`.
    """

    noun: str  # for errors, such as movie
    table: str
    make: Callable[[Sequence[Any]], Item]  # from a row
    columns: Mapping[str, Hashable]  # their Python types; the first one is `id`
    fields: Sequence[str]  # that clients send

    def expect_queries(self, *, updates: bool = True) -> dict[str, Expected]:
        """Return what the store expects of its queries."""
        changed = {"transaction": int, "locked": bool, "done": bool, **self.columns}
        created = {"transaction": int, "position": int, **self.columns}
        noun, table = self.noun, self.table
        update = Expected(changed, [{"updates": "[]"}], f"PATCH and PUT a {noun}", writes=True)
        return {
            f"get_{table}": Expected(self.columns, [{"ids": "{}"}], f"GET a {noun}"),
            f"create_{table}": Expected(created, [{table: "[]"}], f"POST a {noun}", writes=True),
            **({f"update_{table}": update} if updates else {}),
            f"delete_{table}": Expected(
                changed, [{"deletions": "[]"}], f"DELETE a {noun}", writes=True
            ),
        }

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


class NotChanged(Enum):
    """Why an existing item was not changed."""

    CONDITION_FAILED = auto()
    LOCKED = auto()  # another session holds the row's lock; try again
    PREVENTED = auto()  # by a trigger of a DBA


class Store(Generic[Item]):
    """Get, create, update and delete items; every method may raise `Unavailable`.

    What must stay true: a change sees the item and its conditions under the lock of its row, so of
    two changes, the later one is made on top of the earlier one, or refused; of an item that is
    locked elsewhere, only its own changes wait.

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
        self._gets = Batcher(
            self._get, sharing, is_repeatable=True, rows_metric=rows(self._get_query)
        )
        self._creates = Batcher(self._create, sharing, rows_metric=rows(self._create_query))
        self._updates, self._deletes = (
            Batcher[Item | NotChanged](
                partial(self._change_several, query, parameter),
                sharing,
                exclusive=True,
                rows_metric=rows(query),
            )
            for query, parameter in (
                (self._update_query, "updates"),
                (self._delete_query, "deletions"),
            )
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
        """Create an item from all of its fields; raises `Invalid` if the database refuses it."""
        position = next(self._positions)
        payload = orjson.dumps({"position": position, **fields})
        try:
            item = await self._creates.submit(position, payload, context)
        except RuleBroken as error:
            raise self._resource.to_invalid(error) from error
        if item is None:
            raise self._statements.report(self._create_query, "it returned no row for a new one")
        return item

    async def update(
        self,
        item_id: int,
        changes: Mapping[str, object],
        condition: Condition = ALWAYS,
        context: RequestContext | None = None,
    ) -> Item:
        """Change the given fields of the item, in one atomic statement.

        Raises `NotFound`, `PreconditionFailed` or `Invalid`.
        """
        conditions = {} if condition is ALWAYS else condition._asdict()
        payload = orjson.dumps({"id": item_id, "fields": changes, **conditions})
        return await self._change(self._update_query, item_id, payload, context)

    async def delete(
        self, item_id: int, condition: Condition = ALWAYS, context: RequestContext | None = None
    ) -> Item:
        """Delete the item and return it.

        Raises `NotFound`, `PreconditionFailed`, or `Invalid` if a foreign key refers to it.
        """
        payload = orjson.dumps({"id": item_id, **condition._asdict()})
        return await self._change(self._delete_query, item_id, payload, context)

    async def _change(
        self,
        query: str,
        item_id: int,
        payload: bytes,
        context: RequestContext | None,
    ) -> Item:
        """Submit the row, and again while another session holds the item's lock."""
        batcher = self._updates if query == self._update_query else self._deletes
        give_up = 0.0
        try:
            while (result := await batcher.submit(item_id, payload, context)) is NotChanged.LOCKED:
                give_up = give_up or time.monotonic() + self._statements.timeout
                if time.monotonic() > give_up:
                    raise Contended(f"{self._resource.noun} {item_id} is locked")
                await asyncio.sleep(LOCK_RETRY_S)
        except RuleBroken as error:
            raise self._resource.to_invalid(error) from error
        if result is None:
            raise NotFound(self._resource.noun)
        if result is NotChanged.PREVENTED:
            raise self._statements.report(query, "no change: did a trigger prevent it?")
        if isinstance(result, NotChanged):
            raise PreconditionFailed
        return result

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
        created = await self._write(self._create_query, self._resource.table, rows)
        self._statements.require_sent(
            self._create_query, [row[1] for row in created], [row.key for row in rows]
        )
        return {position: self._resource.make(row) for _, position, *row in created}

    async def _change_several(
        self, name: str, parameter: str, rows: Rows[Item | NotChanged]
    ) -> dict[int, Item | NotChanged]:
        fetched = await self._write(name, parameter, rows)
        ids = [row[3] for row in fetched]
        self._statements.require_sent(name, ids, [row.key for row in rows])
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

    async def _write(self, name: str, parameter: str, rows: Rows[Any]) -> list[Row]:
        """Run a write that is shared by the requests of these rows."""
        sent = {parameter: join_payloads(rows)}
        return await self._statements.fetch(
            name, sent, max_affected=len(rows), waiting=list_contexts(rows)
        )
