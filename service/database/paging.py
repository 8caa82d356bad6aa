"""The terms of a list: filters, sort orders, the place where a page begins, and the page."""

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, NamedTuple, Protocol, TypeVar

Item = TypeVar("Item")

EXACT_TOTAL = 10_000  # more matches are not counted: the total is an estimate
NUMBERED_ITEMS = 1_000  # page numbers reach so many items if more than EXACT_TOTAL match


class Filter(Protocol):
    """The conditions of a list."""

    def parameters(self) -> dict[str, object]:
        """Return the parameters of the queries."""


class Counted(NamedTuple):
    """How many items match, and about how many there are in the table."""

    matches: int
    items: int


class SortKey(NamedTuple):
    """An item's position in a sort order: the value of the sorted field, and the id for ties."""

    value: str | int | datetime
    id: int


@dataclass(frozen=True)
class Place:
    """Where a page begins: after `skip` items, or after `key` (`backwards`: before it).

    `total`: the number of matches, if an earlier page counted them.
    """

    skip: int = 0
    key: SortKey | None = None
    backwards: bool = False
    total: int | None = None


@dataclass(frozen=True)
class Page(Generic[Item]):
    """Items in order, the keys of the neighbouring pages (None: no such page), and the total."""

    items: list[Item]
    previous: SortKey | None
    next: SortKey | None
    total: int

    @property
    def total_is_estimate(self) -> bool:
        """Return whether the total is an estimate."""
        return self.total > EXACT_TOTAL

    def last_page(self, size: int) -> int:
        """Return the last page number, for pages of `size` items."""
        if not size:
            return 1
        if self.total_is_estimate:
            return NUMBERED_ITEMS // size
        return max(1, -(-self.total // size))
