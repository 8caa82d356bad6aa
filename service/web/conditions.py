"""Entity tags and 304 responses (RFC 9110, section 13), for all resources."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from aiohttp import hdrs, web

from service.errors import MalformedHeader, quote

# RFC 9110, 8.8.3; elements of a list may be empty (5.6.1.2). What follows a tag matches in one way
# only: with two, a few blanks and commas would take days. The reference shows these patterns, so
# they have only what every language knows.
TAG = re.compile(r'(W/)?"([^\x00-\x20"\x7f]*)"')
ENTITY_TAGS = re.compile(rf"[ \t,]*{TAG.pattern}([ \t]*,[ \t,]*{TAG.pattern})*[ \t,]*")
# One of the three forms of RFC 9110, 5.6.7, or with a number as zone: these are never ambiguous.
HTTP_DATE = re.compile(
    r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d (?:GMT|[+-]\d{4})"
    r"|[A-Z][a-z]+day, \d\d-[A-Z][a-z]{2}-\d\d \d\d:\d\d:\d\d GMT"
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}",
    re.ASCII,
)


class Tag(NamedTuple):
    """An entity tag: what is between its quotes."""

    weak: bool
    opaque: str


class Tags(NamedTuple):
    """The value of If-Match or If-None-Match: `*`, or tags."""

    any: bool  # `*`: whatever the tag is
    tags: Sequence[Tag] = ()


def content_headers(body: bytes) -> dict[str, str]:
    """Return headers with a digest of the body as entity tag, for resources without a version.

    The tag is weak, because the response may be compressed or not.
    """
    return {
        "ETag": f'W/"{hashlib.blake2b(body, digest_size=16).hexdigest()}"',
        "Cache-Control": "no-cache",
    }


def is_not_modified(request: web.Request, headers: Mapping[str, str]) -> bool:
    """Whether the client already has the response with these headers.

    Raises `MalformedHeader` if If-None-Match cannot be read. With it, If-Modified-Since is ignored.
    """
    if hdrs.IF_NONE_MATCH not in request.headers and hdrs.IF_MODIFIED_SINCE not in request.headers:
        return False
    if known := parse_tags(request, hdrs.IF_NONE_MATCH):
        etag = headers["ETag"].removeprefix("W/")[1:-1]
        return known.any or any(tag.opaque == etag for tag in known.tags)  # weakly: 8.8.3.2
    since = parse_date(request.headers.get(hdrs.IF_MODIFIED_SINCE))
    changed = parse_date(headers.get("Last-Modified"))
    return since is not None and changed is not None and changed <= since


def not_modified_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that a 304 keeps (RFC 9110, 15.4.5)."""
    kept = ("ETag", "Cache-Control", "Content-Security-Policy", "Vary")
    return {name: headers[name] for name in kept if name in headers}


def parse_tags(request: web.Request, name: str) -> Tags | None:
    """Return the entity tags of a header; None if it was not sent. Raises `MalformedHeader`."""
    if name not in request.headers:
        return None
    value = ", ".join(request.headers.getall(name))
    if value.strip(" \t") == "*":
        return Tags(any=True)
    if not ENTITY_TAGS.fullmatch(value):
        raise MalformedHeader(f'{name} must be * or tags like "7-1", found {quote(value)}')
    return Tags(any=False, tags=[Tag(bool(weak), opaque) for weak, opaque in TAG.findall(value)])


def parse_required_date(request: web.Request, name: str) -> datetime:
    """Return the date of a header that a change depends on (RFC 9110, 5.6.7).

    Raises `MalformedHeader` where RFC 9110, 13.1.4, would ignore the header, and change the movie.
    """
    lines = request.headers.getall(name)
    date = parse_date(lines[0]) if len(lines) == 1 and HTTP_DATE.fullmatch(lines[0]) else None
    if not date:
        found = quote(", ".join(lines))
        raise MalformedHeader(f"{name} must be the Last-Modified of the movie, found {found}")
    return date


def parse_date(value: str | None) -> datetime | None:
    """Return the date of a header; None if it is not a date (RFC 9110, 13.1.3: ignore it)."""
    if not value:
        return None
    try:
        date = parsedate_to_datetime(value)
        return date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, IndexError, OverflowError):
        return None
