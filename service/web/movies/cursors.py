"""Cursors: the position of a page and the total, as one opaque word for a URL.

A cursor is only valid for the filters and the sort order that it was made for: it has a digest of
these. A checksum detects truncation and typing errors. Neither is a secret: a client that forges a
cursor gets the page that it asks for.
"""

import base64
import hashlib
import zlib
from datetime import UTC, datetime
from typing import Any

import orjson

from service.catalogue import changes
from service.catalogue.movie import TYPES
from service.catalogue.paging import Filter, Place, SortKey
from service.database import MAX_BIGINT, MAX_INTEGER

CHECKSUM_BYTES, DIGEST_BYTES = 4, 8
CHANGES_CURSOR = "Changes-Cursor"  # the header with which a list says where the feed goes on


class OtherListError(ValueError):
    """The cursor was made for other filters or another sort."""


def encode(key: SortKey, total: int, filters: Filter, sort: str, *, backwards: bool) -> str:
    """Make the cursor of the page after the key, or before it if `backwards`."""
    return _seal(_digest(filters, sort) + orjson.dumps([backwards, total, *key]))


def decode(cursor: str, filters: Filter, sort: str) -> Place:
    """Return the place; `OtherListError`, or another `ValueError` if the cursor is damaged."""
    content = _unseal(cursor)
    if content[:DIGEST_BYTES] != _digest(filters, sort):
        raise OtherListError
    return _parse_place(orjson.loads(content[DIGEST_BYTES:]), sort)


def encode_change(place: changes.Place) -> str:
    """Make the cursor of a place in the feed of changes."""
    return _seal(orjson.dumps([*place]))


def decode_change(cursor: str) -> changes.Place:
    """Return the place in the feed; `ValueError` if the cursor is damaged, or of a list."""
    content = orjson.loads(_unseal(cursor))
    if not isinstance(content, list) or [type(part) for part in content] != [str, int, int]:
        raise ValueError("not a place")
    place = changes.Place._make(content)
    if place.transaction < 0 or not 0 <= place.change <= MAX_BIGINT:
        raise ValueError("out of range")
    return place


def _seal(content: bytes) -> str:
    checksum = zlib.crc32(content).to_bytes(CHECKSUM_BYTES)
    return base64.urlsafe_b64encode(checksum + content).rstrip(b"=").decode()


def _unseal(cursor: str) -> bytes:
    padded = cursor.encode() + b"=" * (-len(cursor) % 4)
    content = base64.b64decode(padded, b"-_", validate=True)[CHECKSUM_BYTES:]
    if cursor != _seal(content):
        raise ValueError("damaged")
    return content


def _digest(filters: Filter, sort: str) -> bytes:
    return hashlib.blake2b(f"{sort} {filters}".encode(), digest_size=DIGEST_BYTES).digest()


def _parse_place(content: Any, sort: str) -> Place:
    """Check every value, so that no forged cursor causes an error in the database."""
    field = sort.removeprefix("-")
    kind = TYPES.get(field, int)  # relevance is a number
    types = [bool, int, str if kind is datetime else kind, int]
    if not isinstance(content, list) or [type(part) for part in content] != types:
        raise ValueError("not a place")
    backwards, total, value, movie_id = content
    # All JSON parsers read a total below 2^53 exactly (RFC 8259, 6).
    if not 0 <= movie_id <= MAX_BIGINT or not 0 < total < 2**53 or "\0" in str(value):
        raise ValueError("out of range")
    maximum = MAX_BIGINT if field in ("id", "relevance") else MAX_INTEGER
    if kind is int and abs(value) > maximum:
        raise ValueError("out of range")
    if kind is datetime:
        value = datetime.fromisoformat(value)
        if value.tzinfo != UTC:
            raise ValueError("not in UTC")
    return Place(key=SortKey(value, movie_id), backwards=backwards, total=total)
