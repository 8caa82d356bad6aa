"""Seals the content of a cursor as one opaque word for a URL.

A checksum detects truncation and typing errors. It is no secret: a client that forges a cursor gets
the place that it asks for.
"""

import base64
import zlib

CHECKSUM_BYTES = 4


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
