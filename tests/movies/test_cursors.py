"""Tests cursors: valid are only the service's own, and only with their filters and sort."""

import string
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from service.database import MAX_BIGINT, MAX_INTEGER
from service.database.listing import Place, SortKey
from service.movies.parameters import SORT_TYPES, Filter
from service.web import pages

FILTERS = Filter(title="moana")
KEYS = {"title": SortKey("Moana", 7), "-year": SortKey(2016, 7), "runtime": SortKey(107, 2**63 - 1)}
KEYS["created_at"] = SortKey(datetime(2026, 1, 5, 9, 0, 0, 1, tzinfo=UTC), 7)
KEYS["-updated_at"] = SortKey(datetime(1, 1, 1, tzinfo=UTC), 7)
KEYS["relevance"] = SortKey(5 * 10**10 - 2016, 7)


def encode(sort: str, key: Any, total: int = 8) -> str:
    """Make a cursor; `key` may be invalid."""
    return pages.encode_cursor(key, total, f"{sort} {FILTERS}", backwards=True)


def decode(cursor: str, sort: str) -> Place:
    """Return the place of a cursor."""
    field = sort.removeprefix("-")
    maximum = MAX_BIGINT if field in ("id", "relevance") else MAX_INTEGER
    return pages.decode_cursor(cursor, f"{sort} {FILTERS}", SORT_TYPES[field], maximum)


def is_valid(cursor: str, sort: str) -> bool:
    """Whether the cursor can be decoded."""
    try:
        decode(cursor, sort)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("sort", KEYS)
def test_a_cursor_returns_its_place(sort: str) -> None:
    """It contains key, direction and total."""
    place = decode(encode(sort, KEYS[sort]), sort)

    assert (place.key, place.backwards, place.total) == (KEYS[sort], True, 8)


@pytest.mark.parametrize("sort", KEYS)
def test_a_cursor_with_any_other_character_is_refused(sort: str) -> None:
    """Also if base64 decodes both to the same bytes, and if it is shortened or extended."""
    cursor = encode(sort, KEYS[sort])
    alphabet = string.ascii_letters + string.digits + "-_"
    changed = [cursor[:-1], cursor + "A", cursor + "=", cursor[:12], cursor * 2]
    changed += [cursor[:-1] + letter for letter in alphabet]
    for at in range(len(cursor)):
        changed += [cursor[:at] + letter + cursor[at + 1 :] for letter in "AB"]

    assert {other for other in changed if is_valid(other, sort)} == {cursor}


NO_TIMES = [
    *(1, None, "", "now", "infinity", "2026-01-05", "2026-01-05T09:00:00", "0000-01-05T09:00:00Z"),
    *("9999-12-31T24:00:00Z", "2026-02-30T09:00:00Z", "2026-01-05T09:00:00Z\0"),
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
]
FORGED: list[tuple[str, Any, Any]] = [
    *(("year", (year, 1), 8) for year in ("1990", True, 2**32)),
    *(("year", key, 8) for key in ((1990, 2**63), (1990, -1), (1990,))),
    *(("relevance", (rank, 1), 8) for rank in (2**63, "1")),
    *(("title", (title, 1), 8) for title in ("\0", 1)),
    *((sort, (time, 1), 8) for sort in ("created_at", "-updated_at") for time in NO_TIMES),
    ("id", (2**63, 1), 8),
    *(("id", (1, 1), total) for total in (0, 2**53, None)),
]


@pytest.mark.parametrize(("sort", "key", "total"), FORGED)
def test_a_forged_cursor_is_harmless(sort: str, key: Any, total: Any) -> None:
    """The digest is not secret; every value is checked before the database gets it."""
    assert not is_valid(encode(sort, key, total), sort)
