"""Cursors: the position of a page and the total, as one opaque word for a URL.

A cursor is only valid for the filters and the sort order that it was made for: a digest of all
three is part of it, which also detects truncation and typing errors. It is not a secret. A client
that forges a cursor gets the page that it asks for.
"""

import base64
import hashlib
from typing import Any

import orjson

from service.catalogue.paging import Filter, Place, SortKey
from service.database import MAX_BIGINT, MAX_INTEGER

DIGEST_BYTES = 8


def encode(key: SortKey, total: int, filters: Filter, sort: str, *, backwards: bool) -> str:
    """Make the cursor of the page after the key, or before it if `backwards`."""
    content = orjson.dumps([backwards, total, *key])
    return _to_base64(_digest(content, filters, sort) + content)


def decode(cursor: str, filters: Filter, sort: str) -> Place:
    """Return the place; `ValueError` if it is not a cursor of these filters and this sort."""
    padded = cursor.encode() + b"=" * (-len(cursor) % 4)
    raw = base64.b64decode(padded, b"-_", validate=True)
    digest, content = raw[:DIGEST_BYTES], raw[DIGEST_BYTES:]
    if digest != _digest(content, filters, sort) or cursor != _to_base64(raw):
        raise ValueError("damaged, or made for another filter or sort")
    return _parse_place(orjson.loads(content), sort)


def _to_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _digest(content: bytes, filters: Filter, sort: str) -> bytes:
    key = hashlib.sha256(f"{sort} {filters}".encode()).digest()
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES, key=key).digest()


def _parse_place(content: Any, sort: str) -> Place:
    """Check every value, so that no forged cursor causes an error in the database."""
    field = sort.removeprefix("-")
    kind = str if field == "title" else int
    if not isinstance(content, list) or [type(part) for part in content] != [bool, int, kind, int]:
        raise ValueError("not a place")
    backwards, total, value, movie_id = content
    # All JSON parsers read a total below 2^53 exactly (RFC 8259, 6).
    if not 0 <= movie_id <= MAX_BIGINT or not 0 < total < 2**53 or "\0" in str(value):
        raise ValueError("out of range")
    if field != "title" and abs(value) > (MAX_BIGINT if field == "id" else MAX_INTEGER):
        raise ValueError("out of range")
    return Place(key=SortKey(value, movie_id), backwards=backwards, total=total)
