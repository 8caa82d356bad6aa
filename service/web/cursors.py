"""Cursors: opaque words of a URL, with a checksum against truncation and typing errors.

A cursor is no secret: a client that forges one gets the place that it asks for. The cursor of a
list is only valid for the filters and the sort order that it was made for: it has a digest of these
terms.
"""

import base64
import hashlib
import zlib
from datetime import UTC, datetime

import orjson

from service.database import MAX_BIGINT
from service.database.listing import Place, SortKey

CHECKSUM_BYTES = 4
DIGEST_BYTES = 8


def seal(content: bytes) -> str:
    """Make the word."""
    checksum = zlib.crc32(content).to_bytes(CHECKSUM_BYTES)
    return base64.urlsafe_b64encode(checksum + content).rstrip(b"=").decode()


def unseal(cursor: str) -> bytes:
    """Return the content of a word; `ValueError` if it is damaged."""
    padded = cursor.encode() + b"=" * (-len(cursor) % 4)
    content = base64.b64decode(padded, b"-_", validate=True)[CHECKSUM_BYTES:]
    if cursor != seal(content):
        raise ValueError("damaged")
    return content


class OtherListError(ValueError):
    """The cursor was made for other filters or another sort."""


def encode(key: SortKey, total: int, terms: str, *, backwards: bool) -> str:
    """Make the cursor of the page after the key, or before it if `backwards`."""
    return seal(_digest(terms) + orjson.dumps([backwards, total, *key]))


def decode(cursor: str, terms: str, kind: type, maximum: int) -> Place:
    """Return the place; `kind`: of the sort value, up to `maximum`.

    `OtherListError`, or another `ValueError` if the cursor is damaged.
    """
    content = unseal(cursor)
    if content[:DIGEST_BYTES] != _digest(terms):
        raise OtherListError
    return _parse_place(orjson.loads(content[DIGEST_BYTES:]), kind, maximum)


def _digest(terms: str) -> bytes:
    return hashlib.blake2b(terms.encode(), digest_size=DIGEST_BYTES).digest()


def _parse_place(content: object, kind: type, maximum: int) -> Place:
    """Check every value, so that no forged cursor causes an error in the database."""
    types = [bool, int, str if kind is datetime else kind, int]
    if not isinstance(content, list) or [type(part) for part in content] != types:
        raise ValueError("not a place")
    backwards, total, sent, item_id = content
    # All JSON parsers read a total below 2^53 exactly (RFC 8259, 6).
    if not 0 <= item_id <= MAX_BIGINT or not 0 < total < 2**53 or "\0" in str(sent):
        raise ValueError("out of range")
    if kind is int and abs(sent) > maximum:
        raise ValueError("out of range")
    value = datetime.fromisoformat(sent) if kind is datetime else sent
    if isinstance(value, datetime) and value.tzinfo != UTC:
        raise ValueError("not in UTC")
    return Place(key=SortKey(value, item_id), backwards=backwards, total=total)
