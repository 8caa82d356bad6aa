"""Cursors of the feed of changes, which lists send, too."""

import orjson

from service.changes.feed import Feed, FeedPlace
from service.context import RequestContext
from service.database import MAX_BIGINT
from service.web.cursors import seal, unseal

CHANGES_CURSOR = "Changes-Cursor"  # the header with which a list says where the feed goes on


async def begin_copy(feed: Feed, context: RequestContext) -> dict[str, str]:
    """Return the header with which a copy of all movies begins; {} if the feed is off.

    Call it before the list is read: then the feed has every change that the list lacks.
    """
    place, min_transaction = await feed.find_end(context)
    context.require(min_transaction)
    return {CHANGES_CURSOR: encode_change(place)} if place else {}


def encode_change(place: FeedPlace) -> str:
    """Make the cursor of a place in the feed of changes."""
    return seal(orjson.dumps([*place]))


def decode_change(cursor: str) -> FeedPlace:
    """Return the place in the feed; `ValueError` if the cursor is damaged, or of a list."""
    content = orjson.loads(unseal(cursor))
    if not isinstance(content, list) or [type(part) for part in content] != [str, int, int]:
        raise ValueError("not a place")
    place = FeedPlace._make(content)
    if place.transaction < 0 or not 0 <= place.change <= MAX_BIGINT:
        raise ValueError("out of range")
    return place
