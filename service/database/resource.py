"""What a store must know of its resource: table, fields and queries; and what a write returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from types import UnionType
from typing import Any, Generic, NamedTuple, TypeVar, cast, get_args, get_type_hints

import orjson

from service.database.caller import Caller
from service.database.query import Expected
from service.errors import (
    CatalogueError,
    Contended,
    Failure,
    Invalid,
    NotFound,
    PreconditionFailed,
    RuleBroken,
    Taken,
)

Item = TypeVar("Item")

# Outcomes of a write that was not made.
REFUSALS = frozenset(("missing", "failed", "taken", "locked"))
DROPPED = "nothing was written: did a trigger prevent it?"


class NothingWritten(CatalogueError):
    """Of several items, some could not be written, so none was; the problem is the first one's.

    `errors`: of these, by index. `name`: of the field that has the items.
    """

    def __init__(self, errors: Mapping[int, CatalogueError], name: str) -> None:
        first = next(iter(errors.values()))
        super().__init__(str(first))
        self.errors = errors
        self.problem, self.detail, self.transaction = first.problem, first.detail, first.transaction
        self.failures = [
            Failure(f"{name}/{index}/{failure.field}".rstrip("/"), failure.detail)
            for index, each in errors.items()
            for failure in each.failures or [Failure("", str(each) or each.detail)]
        ]


@dataclass(frozen=True)
class Resource(Generic[Item]):
    """The names and types of a resource.

    Its queries are `get_<table>(ids)`, `create_<table>(<table>)`,
    `update_<table>(updates, all_or_none)` and `delete_<table>(deletions, all_or_none)`. The name of
    a constraint is `<table>_<field>_<rule>`.

    `own_tables`: those that triggers of its table fill (`Expected`).
    `unique`: an optional text field with the unique index `<table>_<unique>_unique`; then there are
    `find_<table>(<unique>s)` and `put_<table>(<table>, all_or_none)`, too.
    """

    noun: str  # for errors, such as movie
    table: str
    row: type[Item]  # a NamedTuple of the columns with their types; the first one is `id`
    fields: Sequence[str]  # that clients send
    unique: str = ""
    own_tables: Sequence[str] = ()

    @cached_property
    def make(self) -> Callable[[Sequence[Any]], Item]:
        """Makes an item from a row."""
        return cast("Callable[[Sequence[Any]], Item]", self.row._make)  # type: ignore[attr-defined]

    @cached_property
    def columns(self) -> dict[str, type]:
        """The types of the columns; those of optional fields may be null."""
        hints = get_type_hints(self.row).items()
        return {n: get_args(h)[0] if isinstance(h, UnionType) else h for n, h in hints}

    def expect_queries(self) -> dict[str, Expected]:
        """Return what the store expects of its queries."""
        created = {"transaction": int, "position": int, **self.columns}
        written = {"transaction": int, "number": int, "outcome": str, **self.columns}
        noun, table, unique = self.noun, self.table, self.unique
        write = partial(Expected, writes=True, own_tables=self.own_tables)
        both = {"all_or_none": False}
        expected = {
            f"get_{table}": Expected(self.columns, [{"ids": "{}"}], f"GET a {noun}"),
            f"create_{table}": write(created, [{table: "[]"}], f"POST a {noun}"),
            f"delete_{table}": write(written, [{"deletions": "[]", **both}], f"DELETE a {noun}"),
            f"update_{table}": write(
                written, [{"updates": "[]", **both}], f"PATCH and PUT a {noun}"
            ),
        }
        if unique:
            used_by = f"GET {table} by {unique}"
            expected[f"find_{table}"] = Expected(self.columns, [{f"{unique}s": "[]"}], used_by)
            used_by = f"PUT {table} by {unique}"
            expected[f"put_{table}"] = write(written, [{table: "[]", **both}], used_by)
        return expected

    def expect_restores(self) -> dict[str, Expected]:
        """Return what the store expects of `restore_<table>(restores, all_or_none)`."""
        query = f"restore_{self.table}"
        written = self.expect_queries()[f"update_{self.table}"]
        samples = [{"restores": "[]", "all_or_none": False}]
        return {query: written._replace(samples=samples, used_by=f"restore a {self.noun}")}

    def refuse(
        self, transaction: int, outcome: str, item_id: int, changed_id: int | None = None
    ) -> CatalogueError:
        """Return the error of a refusal; `item_id`: of the other item; `changed_id`: of its own."""
        error = self._make_refusal(outcome, item_id, changed_id)
        error.transaction = transaction
        return error

    def _make_refusal(self, outcome: str, item_id: int, changed_id: int | None) -> CatalogueError:
        if outcome == "locked":
            what = (
                f"{self.noun} {changed_id}" if changed_id else f"the {self.unique} of a {self.noun}"
            )
            return Contended(f"{what} is locked")
        if outcome == "taken":
            return Taken(self.noun, self.unique, item_id)
        return NotFound(self.noun) if outcome == "missing" else PreconditionFailed(self.noun)

    def find_refusal(self, results: Sequence[object]) -> NothingWritten | Contended | None:
        """Return the error that says why nothing was written, or None if no result is an error.

        It is the first `Contended`, so that the client tries again; else `NothingWritten` with all
        the errors by their indexes.
        """
        errors = {n: each for n, each in enumerate(results) if isinstance(each, CatalogueError)}
        contended = (each for each in errors.values() if isinstance(each, Contended))
        return next(contended, NothingWritten(errors, self.table) if errors else None)

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


class ItemChange(NamedTuple):
    """An update of an item; `fields` is None for a deletion."""

    id: int
    fields: Mapping[str, object] | None
    condition: Condition = ALWAYS

    def encode(self, caller: Caller) -> bytes:
        """Return it as the queries take it."""
        payload: dict[str, object] = {"id": self.id, "client": caller.client_id}
        if self.fields is not None:
            payload["fields"] = self.fields
        if self.condition is not ALWAYS:
            payload |= self.condition._asdict()
        return orjson.dumps(payload)


class ItemRestore(NamedTuple):
    """An item that gets the fields of a version; without one, a deleted one comes back.

    `is_tagged`: only if it is there; `needs_tag`: refused if it is.
    """

    id: int
    version: int | None
    condition: Condition
    is_tagged: bool
    needs_tag: bool

    def encode(self, caller: Caller) -> bytes:
        """Return it as the query takes it."""
        payload = self._asdict() | self.condition._asdict() | {"client": caller.client_id}
        del payload["condition"]
        return orjson.dumps(payload)


class Written(NamedTuple, Generic[Item]):
    """An item, its outcome and its transaction.

    The outcome is created, changed, deleted, restored, or equal: nothing was written.
    """

    outcome: str
    item: Item
    transaction: int
