"""Cursors: where a page begins and how many movies pass, as one opaque word in a URL.

A cursor holds for the filter and the sort that it came with, and for no other: a digest of all
three is part of it, which also finds what was cut off or mistyped. It is no secret and protects
nothing: whoever makes one of their own gets the page that they ask for.
"""

import base64
import hashlib
from typing import Any

import orjson

from service.catalogue.paging import Filter, Key, Place

DIGEST = 8  # bytes
LARGEST_ID = 2**63 - 1  # a bigint of PostgreSQL
LARGEST_NUMBER = 2**31 - 1  # an integer


def encode(key: Key, total: int, wanted: Filter, sort: str, *, backwards: bool) -> str:
    """Make the cursor of the page, of `total` movies, next to a key: ahead or `backwards`."""
    content = orjson.dumps([backwards, total, *key])
    return _text(_digest(content, wanted, sort) + content)


def decode(cursor: str, wanted: Filter, sort: str) -> Place:
    """Return the place; `ValueError` if it is not a cursor of this filter and sort."""
    padded = cursor.encode() + b"=" * (-len(cursor) % 4)
    raw = base64.b64decode(padded, b"-_", validate=True)
    digest, content = raw[:DIGEST], raw[DIGEST:]
    if digest != _digest(content, wanted, sort) or cursor != _text(raw):
        raise ValueError("of another filter or sort, or damaged")
    return _place(orjson.loads(content), sort)


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _digest(content: bytes, wanted: Filter, sort: str) -> bytes:
    tie = hashlib.sha256(f"{sort} {wanted}".encode()).digest()
    return hashlib.blake2b(content, digest_size=DIGEST, key=tie).digest()


def _place(content: Any, sort: str) -> Place:
    """Nothing that the database could stumble over, whoever made the cursor."""
    field = sort.removeprefix("-")
    kind = str if field == "title" else int
    if not isinstance(content, list) or [type(part) for part in content] != [bool, int, kind, int]:
        raise ValueError("not a place")
    backwards, total, value, movie_id = content
    if not 0 <= movie_id <= LARGEST_ID or not 0 < total <= LARGEST_ID or "\0" in str(value):
        raise ValueError("out of range")
    if field != "title" and abs(value) > (LARGEST_ID if field == "id" else LARGEST_NUMBER):
        raise ValueError("out of range")
    return Place(key=Key(value, movie_id), backwards=backwards, total=total)
