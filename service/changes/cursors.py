"""Cursors of the feed of changes, which lists send, too."""

import orjson

from service.changes.feed import Feed, FeedCursor
from service.context import RequestContext
from service.database import MAX_BIGINT
from service.web.pages import seal, unseal

CHANGES_CURSOR = "Changes-Cursor"  # the header with which a list says where the feed goes on


async def begin_copy(feed: Feed, context: RequestContext) -> dict[str, str]:
    """Return the header with which a copy of all movies begins; {} if the feed is off.

    Call it before the list is read: then the feed has every change that the list lacks.
    """
    cursor, min_transaction = await feed.find_end(context)
    context.require(min_transaction)
    return {CHANGES_CURSOR: encode_change(cursor)} if cursor else {}


def encode_change(cursor: FeedCursor) -> str:
    """Return the cursor as clients get it."""
    return seal(orjson.dumps([*cursor]))


def decode_change(text: str) -> FeedCursor:
    """Return the cursor of a client; `ValueError` if it is damaged, or of a list."""
    content = orjson.loads(unseal(text))
    if not isinstance(content, list) or [type(part) for part in content] != [str, int, int]:
        raise ValueError("not a cursor of the feed")
    cursor = FeedCursor._make(content)
    if cursor.transaction < 0 or not 0 <= cursor.change <= MAX_BIGINT:
        raise ValueError("out of range")
    return cursor
