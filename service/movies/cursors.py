"""Cursors of lists: the place of a page and the total.

A cursor is only valid for the filters and the sort order that it was made for: it has a digest of
these.
"""

import hashlib
from datetime import UTC, datetime

import orjson

from service.database import MAX_BIGINT, MAX_INTEGER
from service.movies.movie import COLUMN_TYPES
from service.movies.paging import Filter, Place, SortKey
from service.web.seals import seal, unseal

DIGEST_BYTES = 8


class OtherListError(ValueError):
    """The cursor was made for other filters or another sort."""


def encode(key: SortKey, total: int, filters: Filter, sort: str, *, backwards: bool) -> str:
    """Make the cursor of the page after the key, or before it if `backwards`."""
    return seal(_digest(filters, sort) + orjson.dumps([backwards, total, *key]))


def decode(cursor: str, filters: Filter, sort: str) -> Place:
    """Return the place; `OtherListError`, or another `ValueError` if the cursor is damaged."""
    content = unseal(cursor)
    if content[:DIGEST_BYTES] != _digest(filters, sort):
        raise OtherListError
    return _parse_place(orjson.loads(content[DIGEST_BYTES:]), sort)


def _digest(filters: Filter, sort: str) -> bytes:
    return hashlib.blake2b(f"{sort} {filters}".encode(), digest_size=DIGEST_BYTES).digest()


def _parse_place(content: object, sort: str) -> Place:
    """Check every value, so that no forged cursor causes an error in the database."""
    field = sort.removeprefix("-")
    kind = COLUMN_TYPES.get(field, int)  # relevance is a number
    types = [bool, int, str if kind is datetime else kind, int]
    if not isinstance(content, list) or [type(part) for part in content] != types:
        raise ValueError("not a place")
    backwards, total, sent, movie_id = content
    # All JSON parsers read a total below 2^53 exactly (RFC 8259, 6).
    if not 0 <= movie_id <= MAX_BIGINT or not 0 < total < 2**53 or "\0" in str(sent):
        raise ValueError("out of range")
    maximum = MAX_BIGINT if field in ("id", "relevance") else MAX_INTEGER
    if kind is int and abs(sent) > maximum:
        raise ValueError("out of range")
    value = datetime.fromisoformat(sent) if kind is datetime else sent
    if isinstance(value, datetime) and value.tzinfo != UTC:
        raise ValueError("not in UTC")
    return Place(key=SortKey(value, movie_id), backwards=backwards, total=total)
