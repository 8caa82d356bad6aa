"""The operations on single items of a resource: get, create, update, delete.

Requests for the same operation that arrive together share one statement (`sharing.py`).
"""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Generic, cast

import orjson

from service.database.caller import NOBODY, Caller
from service.database.query import Row
from service.database.resending import Resender
from service.database.resource import (
    DROPPED,
    REFUSALS,
    Item,
    ItemChange,
    ItemPut,
    ItemRestore,
    Resource,
    Written,
)
from service.database.sharing import Rows, SharedStatements, join_ids, join_payloads, list_callers
from service.database.statements import Statements
from service.errors import (
    CatalogueError,
    Contended,
    ItemError,
    NotFound,
    RuleBroken,
    Unavailable,
)

NO_ERRORS: Mapping[str, type[ItemError]] = {}


class Store(Generic[Item]):
    """Get, create, update and delete items; every method may raise `Unavailable`.

    What must stay true: a change sees the item and its conditions under the lock of its row, so of
    two changes, the later one is made on top of the earlier one, or refused. A statement waits
    neither for an item that is locked elsewhere nor for a unique value that another request sets:
    only the rows with these are sent again, until `statement_timeout` has passed.

    `reads`: the statements that get items. `restore_errors`: of a resource whose items can be
    restored, by the outcomes of `restore_<table>` that no other query has.
    """

    def __init__(
        self,
        resource: Resource[Item],
        statements: Statements,
        reads: Statements | None = None,
        restore_errors: Mapping[str, type[ItemError]] = NO_ERRORS,
    ) -> None:
        self._resource = resource
        self._restore_errors = restore_errors
        self._statements = statements
        self._reads = reads or statements
        self._create_keys = itertools.count()
        unique_rule = f"{resource.table}_{resource.unique}_unique"
        self.resender = Resender(statements.timeout, unique_rule)
        rows = statements.metrics.shared_statement_rows.labels
        self._get_query, self._create_query, self._update_query, self._delete_query = (
            f"{verb}_{resource.table}" for verb in ("get", "create", "update", "delete")
        )
        self._find_query, self._put_query = f"find_{resource.table}", f"put_{resource.table}"
        self._parameters = {self._update_query: "updates", self._delete_query: "deletions"}
        if resource.unique:
            self._parameters[self._put_query] = resource.table
        self._restore_query = f"restore_{resource.table}"
        if restore_errors:
            self._parameters[self._restore_query] = "restores"
        self._gets = SharedStatements(
            self._get, is_repeatable=True, rows_metric=rows(self._get_query)
        )
        self._creates = SharedStatements[Written[Item]](
            self._create, rows_metric=rows(self._create_query)
        )
        self._writes = {
            query: SharedStatements[Written[Item]](
                partial(self._write, query), exclusive=True, rows_metric=rows(query)
            )
            for query in self._parameters
        }

    async def get(self, item_id: int, caller: Caller = NOBODY) -> Item:
        """Return the item; raises `NotFound`."""
        item = await self._gets.submit(item_id, caller=caller)
        if item is None:
            raise NotFound(self._resource.noun)
        return item

    async def create(self, fields: Mapping[str, object], caller: Caller = NOBODY) -> Written[Item]:
        """Create an item; `Invalid` if the database refuses it, `Taken` if its value exists."""
        if fields.get(self._resource.unique) is not None:
            return await self.put(ItemPut(fields, replace=False), caller)
        key = next(self._create_keys)
        payload = _encode_create(key, fields, caller)
        try:
            created = await self.resender.send(partial(self._creates.submit, key, payload, caller))
        except RuleBroken as error:
            raise self._resource.to_invalid(error) from error
        if created is None:
            raise self._report_unwritten(self._create_query)
        return created

    async def create_all(
        self, items: Sequence[Mapping[str, object]], caller: Caller
    ) -> list[Written[Item]]:
        """Create all items, of different unique values, or none; `NothingWritten`, `RuleBroken`."""
        if any(fields.get(self._resource.unique) is not None for fields in items):
            return await self.put_all([ItemPut(each, replace=False) for each in items], caller)
        payloads = {n: _encode_create(n, each, caller) for n, each in enumerate(items)}
        created = await self.resender.send(partial(self._send_creates, payloads, [caller]))
        if len(created) < len(items):
            raise self._report_unwritten(self._create_query)
        return [created[key] for key in payloads]

    async def put(self, item: ItemPut, caller: Caller = NOBODY) -> Written[Item]:
        """Create or replace an item; raises as `create` does, or `PreconditionFailed`."""
        key = hash(item.fields[self._resource.unique])  # so no statement has a value twice
        return await self._submit(self._put_query, key, item.encode(key, caller), caller)

    async def put_all(self, items: Sequence[ItemPut], caller: Caller) -> list[Written[Item]]:
        """Put all items, of different unique values, or none; `NothingWritten`, `RuleBroken`."""
        payloads = {n: each.encode(n, caller) for n, each in enumerate(items)}
        return await self._write_all(self._put_query, payloads, caller)

    async def change(self, change: ItemChange, caller: Caller = NOBODY) -> Written[Item]:
        """Change or delete an item; `NotFound`, `PreconditionFailed`, `Taken` or `Invalid`."""
        query = self._choose_query(change)
        return await self._submit(query, change.id, change.encode(caller), caller)

    async def change_all(
        self, changes: Sequence[ItemChange], caller: Caller
    ) -> list[Written[Item]]:
        """Change or delete all items, of different ids, or none; `NothingWritten`, `RuleBroken`."""
        payloads = {change.id: change.encode(caller) for change in changes}
        query = self._choose_query(changes[0])
        return await self._write_all(query, payloads, caller)

    async def restore(self, restore: ItemRestore, caller: Caller = NOBODY) -> Written[Item]:
        """Restore an item; raises as `change` does, or the error of its outcome."""
        return await self._submit(self._restore_query, restore.id, restore.encode(caller), caller)

    async def restore_all(
        self, restores: Sequence[ItemRestore], caller: Caller
    ) -> list[Written[Item]]:
        """Restore all items, of different ids, or none; `NothingWritten`, `RuleBroken`."""
        payloads = {restore.id: restore.encode(caller) for restore in restores}
        return await self._write_all(self._restore_query, payloads, caller)

    async def get_several(self, ids: Sequence[int], callers: Sequence[Caller]) -> dict[int, Item]:
        """Return the items that exist, by id, in one statement for all callers."""
        try:
            sent = {"ids": join_ids(ids)}
            fetched = await self._reads.fetch(self._get_query, sent, callers=callers)
        except Contended as error:
            # A read waits only for a lock on the whole table, so do not retry rows one by one.
            raise Unavailable(str(error), error.refusal) from error
        self._statements.require_sent(self._get_query, [row[0] for row in fetched], ids)
        return {row[0]: self._resource.make(row) for row in fetched}

    async def find(
        self, values: Sequence[object], callers: Sequence[Caller] = ()
    ) -> dict[object, Item]:
        """Return the items that have these unique values, by value."""
        unique = self._resource.unique
        sent = {f"{unique}s": orjson.dumps(values).decode()}
        rows = await self._reads.fetch(self._find_query, sent, callers=callers)
        items = [self._resource.make(row) for row in rows]
        return {getattr(item, unique): item for item in items}

    def _choose_query(self, change: ItemChange) -> str:
        return self._delete_query if change.fields is None else self._update_query

    async def _submit(self, query: str, key: int, payload: bytes, caller: Caller) -> Written[Item]:
        """Write with other requests, and return what became of the item."""
        try:
            written = await self.resender.send(
                partial(self._writes[query].submit, key, payload, caller)
            )
        except RuleBroken as error:
            raise self._resource.to_invalid(error) from error
        if written is None:
            raise self._report_unwritten(query)
        return written

    async def _write_all(
        self, query: str, payloads: Mapping[int, bytes], caller: Caller
    ) -> list[Written[Item]]:
        """Run one statement that writes all rows or none."""

        async def send() -> list[Written[Item] | None]:
            found = await self._send_writes(query, payloads, [caller], all_or_none=True)
            written = [found.get(key) for key in payloads]
            if refusal := self._resource.find_refusal(written):
                raise refusal
            return cast("list[Written[Item] | None]", written)

        results = await self.resender.send(send)
        if None in results:
            raise self._report_unwritten(query)
        return cast("list[Written[Item]]", results)

    async def _get(self, rows: Rows[Item]) -> dict[int, Item]:
        return await self.get_several([row.key for row in rows], list_callers(rows))

    async def _create(self, rows: Rows[Written[Item]]) -> dict[int, Written[Item]]:
        payloads = {row.key: row.payload for row in rows}
        return await self._send_creates(payloads, list_callers(rows))

    async def _send_creates(
        self, payloads: Mapping[int, bytes], callers: Sequence[Caller]
    ) -> dict[int, Written[Item]]:
        """Return the items that were created, by key."""
        query, sent = self._create_query, {self._resource.table: join_payloads(payloads.values())}
        created = await self._statements.fetch(
            query, sent, is_resent=True, max_affected=len(payloads), callers=callers
        )
        self._statements.require_sent(query, [row[1] for row in created], payloads)
        make = self._resource.make
        return {row[1]: Written("created", make(row[2:]), row[0]) for row in created}

    async def _write(
        self, query: str, rows: Rows[Written[Item]]
    ) -> dict[int, Written[Item] | CatalogueError | None]:
        payloads = {row.key: row.payload for row in rows}
        return await self._send_writes(query, payloads, list_callers(rows), all_or_none=False)

    async def _send_writes(
        self,
        query: str,
        payloads: Mapping[int, bytes],
        callers: Sequence[Caller],
        *,
        all_or_none: bool,
    ) -> dict[int, Written[Item] | CatalogueError | None]:
        """Return the results by key; None: another item, or a trigger, prevented the write."""
        sent = {
            self._parameters[query]: join_payloads(payloads.values()),
            "all_or_none": all_or_none,
        }
        rows = await self._statements.fetch(
            query, sent, is_resent=True, max_affected=len(payloads), callers=callers
        )
        self._statements.require_sent(query, [row[1] for row in rows], payloads)
        return {row[1]: self._read(query, row) for row in rows}

    def _read(self, query: str, row: Row) -> Written[Item] | CatalogueError | None:
        transaction, key, outcome, item_id, *_ = row
        if outcome in REFUSALS:
            changed_id = None if query == self._put_query else key
            return self._resource.refuse(transaction, outcome, item_id, changed_id)
        if outcome in self._restore_errors:
            error = self._restore_errors[outcome](self._resource.noun)
            error.transaction = transaction
            return error
        if item_id is None:
            return None
        return Written(outcome, self._resource.make(row[3:]), transaction)

    def _report_unwritten(self, query: str) -> CatalogueError:
        return self._statements.report(query, DROPPED)


def _encode_create(key: int, fields: Mapping[str, object], caller: Caller) -> bytes:
    return orjson.dumps({**fields, "position": key, "client": caller.client_id})
