"""A page of a list: its parameters, its JSON with metadata, and links to the pages around it.

Cursors are opaque words with a checksum against truncation and typing errors. They are no secret:
a client that forges one gets the place that it asks for.
"""

import base64
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson
from aiohttp import web
from yarl import URL

from service.database import MAX_BIGINT, MAX_INTEGER
from service.database.listing import EXACT_TOTAL, Page, Place, SortKey
from service.errors import Failure, WrongParameters
from service.web.fields import Values
from service.web.query_strings import MAX_PARAMETER_BYTES, QueryParameter, number_parameter
from service.web.responses import Content, encode_json, make_content

MAX_PAGE_SIZE = 100
PLACE = ("page", "cursor")  # the parameters that say where a page begins
DEFAULT_PAGE_SIZE = 20
CHECKSUM_BYTES = 4  # of a cursor
DIGEST_BYTES = 8  # of the terms of a list
# The parameters that choose a page, for the schemas of lists.
PAGE_SIZE = number_parameter(MAX_PAGE_SIZE, 0, default=DEFAULT_PAGE_SIZE)
PAGE = number_parameter(MAX_INTEGER)
CURSOR = QueryParameter(
    "a cursor from the metadata of a response with the same path, filters and sort",
    type="string",
    minLength=1,
    maxLength=MAX_PARAMETER_BYTES,
)


@dataclass(frozen=True)
class PageQuery:
    """The page that a client wants; `page_number` is None if the client sent none.

    `terms`: filters and sort order of the list, to which its cursors belong.
    """

    terms: str
    sort: str
    place: Place
    page_size: int
    page_number: int | None


class EncodedPage(NamedTuple):
    """A page as all clients get it that ask for it at the same time."""

    content: Content
    previous_cursor: str | None
    next_cursor: str | None
    last_page: int


def seal(content: bytes) -> str:
    """Make the word of a cursor."""
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
    """The cursor was made for another path, filter or sort."""


def encode_cursor(key: SortKey, total: int, terms: str, *, backwards: bool) -> str:
    """Make the cursor of the page after (`backwards`: before) the key, for these terms only."""
    digest = hashlib.blake2b(terms.encode(), digest_size=DIGEST_BYTES).digest()
    return seal(digest + orjson.dumps([backwards, total, *key]))


def decode_cursor(cursor: str, terms: str, kind: type, maximum: int) -> Place:
    """Return the place; `kind`: of the sort value, up to `maximum`.

    Checks every value, so that no forged cursor causes an error in the database. Raises
    `OtherListError`, or another `ValueError` if the cursor is damaged.
    """
    content = unseal(cursor)
    digest = hashlib.blake2b(terms.encode(), digest_size=DIGEST_BYTES).digest()
    if content[:DIGEST_BYTES] != digest:
        raise OtherListError
    place = orjson.loads(content[DIGEST_BYTES:])
    types = [bool, int, str if kind is datetime else kind, int]
    if not isinstance(place, list) or [type(part) for part in place] != types:
        raise ValueError("not a place")
    backwards, total, value, item_id = place
    # All JSON parsers read a total below 2^53 exactly (RFC 8259, 6).
    if not 0 <= item_id <= MAX_BIGINT or not 0 < total < 2**53 or "\0" in str(value):
        raise ValueError("out of range")
    if kind is int and abs(value) > maximum:
        raise ValueError("out of range")
    if kind is datetime:
        value = datetime.fromisoformat(value)
        if value.tzinfo != UTC:
            raise ValueError("not in UTC")
    return Place(key=SortKey(value, item_id), backwards=backwards, total=total)


def parse_place(values: Values, terms: str, kind: type, maximum: int) -> Place:
    """Return the place; `terms`: of the list; `kind`: of the sort value, up to `maximum`."""
    page, page_size = values.get("page"), values.get("page_size", DEFAULT_PAGE_SIZE)
    if page and "cursor" in values:
        raise WrongParameters([Failure("cursor", "must not be combined with page")])
    if page:
        if (page - 1) * page_size >= EXACT_TOTAL:
            last = -(-EXACT_TOTAL // page_size)
            raise WrongParameters([Failure("page", f"must be at most {last}; use a cursor")])
        return Place(skip=(page - 1) * page_size)
    if "cursor" not in values:
        return Place()
    try:
        return decode_cursor(values["cursor"], terms, kind, maximum)
    except ValueError as error:
        is_other = isinstance(error, OtherListError)
        what = "was made for another path, filter or sort" if is_other else "is damaged"
        detail = f"{what}; must be {CURSOR.expected}"
        raise WrongParameters([Failure("cursor", detail)]) from error


def encode_page(
    query: PageQuery,
    page: Page[Any],
    items: dict[str, object],
    more: Mapping[str, object],
    headers: Mapping[str, str] | None = None,
) -> EncodedPage:
    """Encode `{"movies": [...], "metadata": {...}}`; `items`: the first member.

    `more`: metadata that only some lists have. `headers`: those that all responses with this page
    have.
    """
    previous_cursor, next_cursor = (
        encode_cursor(key, page.total, query.terms, backwards=backwards) if key else None
        for key, backwards in ((page.previous, True), (page.next, False))
    )
    last_page = page.last_page(query.page_size)
    metadata: dict[str, object] = {
        "page_size": query.page_size,
        "total_records": page.total,
        "total_is_estimate": page.total_is_estimate,
        "next_cursor": next_cursor,
        "previous_cursor": previous_cursor,
    }
    if query.page_number:
        metadata |= {"current_page": query.page_number, "last_page": last_page}
    payload = {**items, "metadata": {**metadata, **more}}
    content = make_content(encode_json(payload), headers=headers)
    return EncodedPage(content, previous_cursor, next_cursor, last_page)


def make_link(
    request: web.Request, query: PageQuery, page: EncodedPage, only_first: Sequence[str] = ()
) -> str:
    """Return the header `Link` (RFC 8288), with the client's parameters.

    `only_first`: parameters for the whole list, which only the link to the first page keeps.
    """
    current, last_page = query.page_number or 1, page.last_page
    url = _remove_parameters(request.path_qs, PLACE)
    other = _remove_parameters(request.path_qs, [*PLACE, *only_first])
    links = {
        "first": url,
        "prev": _make_target(
            other, query, page.previous_cursor, min(current - 1, last_page), last_page
        ),
        "next": _make_target(other, query, page.next_cursor, current + 1, last_page),
    }
    return ", ".join([f'<{target}>; rel="{rel}"' for rel, target in links.items() if target])


def _make_target(
    url: str, query: PageQuery, cursor: str | None, number: int, last_page: int
) -> str | None:
    """Link by number if the client asked by number and numbers reach that far, else by cursor."""
    # A page after the last one is empty and has no cursor, so it links back by number.
    is_before = query.page_number is not None and 0 < number < query.page_number
    separator = "&" if "?" in url else "?"
    if query.page_number and (cursor or is_before) and number <= last_page:
        return f"{url}{separator}page={number}"
    return f"{url}{separator}cursor={cursor}" if cursor else None


def _remove_parameters(target: str, names: Sequence[str]) -> str:
    """Remove these parameters; and the fragment, which no request target has (RFC 9112, 3.2).

    yarl quotes the query anew, so that no value can end the link.
    """
    url = URL(target, encoded=True).with_fragment(None)
    pairs = [pair for pair in url.query.items() if pair[0] not in names]
    return str(url.with_query(pairs))
