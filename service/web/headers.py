"""Parses headers of requests: conditions, Accept-Encoding, Idempotency-Key, Catalogue-Position."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from aiohttp import hdrs, web
from multidict import istr

from service.database import MAX_BIGINT, MAX_INTEGER
from service.database.resource import ALWAYS, Condition
from service.errors import MalformedHeader, PreconditionRequired, WrongKey, quote

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
OF_RELEASE_BEFORE = 3  # the group of a tag's pattern
POSITION = istr("Catalogue-Position")  # a transaction that its sender has seen
POSITIONS = re.compile(r"[0-9]{1,19}(?:[ \t]*,[ \t]*[0-9]{1,19})*")
# The draft defines a string in double quotes (RFC 9651, 3.3.3); most clients send it without: `"a"`
# and `a` are the same key.
# https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/
HEADER_NAME = "Idempotency-Key"
# In quotes, where `\` precedes a quote or another `\`; or bare, without a quote at its start.
KEY_PATTERN = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\]){1,255})"|([!#-~](?:[ -~]{0,253}[!-~])?)')
_TOKEN = "[!#$%&'*+.^_`|~0-9a-z-]+"  # noqa: S105 - of RFC 9110, 5.6.2
_PARAMETER = rf'[ \t]*;[ \t]*(?!q=){_TOKEN}=(?:{_TOKEN}|"[^"]*")'  # only media types have some
_ACCEPTED = re.compile(
    rf"[ \t]*({_TOKEN}(/{_TOKEN})?)(?(2)(?:{_PARAMETER})*)[ \t]*"
    r"(?:;[ \t]*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)[ \t]*)?"
)
MAX_HEADER_BYTES = 32_768  # of all headers, as in nginx: aiohttp limits lines, not their sum


class Tag(NamedTuple):
    """An entity tag: what is between its quotes."""

    weak: bool
    opaque: str


class Tags(NamedTuple):
    """The value of If-Match or If-None-Match: `*`, or tags."""

    any: bool  # `*`: whatever the tag is
    tags: Sequence[Tag] = ()


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


def parse_required_date(request: web.Request, name: str, noun: str) -> datetime:
    """Return the date of a header that a change depends on (RFC 9110, 5.6.7).

    Raises `MalformedHeader` where RFC 9110, 13.1.4, would ignore the header, and make the change.
    """
    lines = request.headers.getall(name)
    date = parse_date(lines[0]) if len(lines) == 1 and HTTP_DATE.fullmatch(lines[0]) else None
    if not date:
        found = quote(", ".join(lines))
        raise MalformedHeader(f"{name} must be the Last-Modified of the {noun}, found {found}")
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


def parse_position(request: web.Request) -> int:
    """Return the highest transaction that the client has seen; raises `MalformedHeader`."""
    text = ",".join(request.headers.getall(POSITION))
    if POSITIONS.fullmatch(text) and (highest := max(map(int, text.split(",")))) <= MAX_BIGINT:
        return highest
    what = f"{POSITION} must be a number from an earlier response, or several, separated by commas"
    raise MalformedHeader(f"{what}; found {quote(text)}")


def parse_key(request: web.Request) -> str:
    """Return the key that was sent, without its quotes; `WrongKey`."""
    lines = request.headers.getall(HEADER_NAME)
    match = KEY_PATTERN.fullmatch(lines[0]) if len(lines) == 1 else None
    if not match:
        raise WrongKey
    quoted, bare = match.groups()
    return re.sub(r"\\(.)", r"\1", quoted) if quoted else bare


def prefers_gzip(accepted: str) -> bool:
    """Return whether `Accept-Encoding` prefers gzip, or has it at the quality of no compression."""
    qualities = parse_qualities(accepted)
    others = qualities.get("*", 0)
    quality = max(qualities.get("gzip", others), qualities.get("x-gzip", 0))  # RFC 9110, 8.4.1.3
    return quality > 0 and quality >= qualities.get("identity", others)


def parse_qualities(accepted: str) -> dict[str, float]:
    """Return the quality of each name (RFC 9110, 12.4.2); malformed elements are ignored."""
    matches = [_ACCEPTED.fullmatch(element) for element in accepted.lower().split(",")]
    return {match[1]: float(match[3] or 1) for match in matches if match}


def parse_preconditions(
    request: web.Request,
    noun: str,
    own_tag: re.Pattern[str],
    item_id: int,
    *,
    if_match_required: bool,
) -> Condition:
    """Return the conditions for changing this item (RFC 9110, 13.1).

    `own_tag`: matches the entity tags of such items, with id and version as groups; the third one
    is there only in a tag of the release before. Raises `MalformedHeader`, or
    `PreconditionRequired` if a required If-Match is missing.
    """
    headers = request.headers
    if if_match_required and hdrs.IF_MATCH not in headers:
        raise PreconditionRequired(noun)
    if (
        hdrs.IF_MATCH not in headers
        and hdrs.IF_NONE_MATCH not in headers
        and hdrs.IF_UNMODIFIED_SINCE not in headers
    ):
        return ALWAYS
    match, none_match = parse_tags(request, hdrs.IF_MATCH), parse_tags(request, hdrs.IF_NONE_MATCH)
    is_dated = not match and hdrs.IF_UNMODIFIED_SINCE in headers  # If-Match comes first: 13.2.2
    since = parse_required_date(request, "If-Unmodified-Since", noun) if is_dated else None
    if none_match and none_match.any:
        return Condition(versions=[])  # no item may exist: of one that exists, no version is right
    return Condition(
        versions=select_versions(match, own_tag, item_id, strong=True),
        other_than=select_versions(none_match, own_tag, item_id, strong=False),
        unmodified_since=since,
    )


def select_versions(
    found: Tags | None, own_tag: re.Pattern[str], item_id: int, *, strong: bool
) -> list[int] | None:
    """Return the versions in the tags of this item; None if any version will do.

    A strong comparison ignores weak tags (RFC 9110, 8.8.3.2). It is for If-Match, which asks for
    the state of the item: there, a tag of the release before will do. If-None-Match asks for the
    bytes of the response, which are others now.
    """
    if not found or found.any:
        return None
    matches = [own_tag.fullmatch(tag.opaque) for tag in found.tags if not (strong and tag.weak)]
    own = [match for match in matches if match and int(match[1]) == item_id]
    # `lastindex`: the last group; the third one is there only in a tag of the release before.
    versions = [int(match[2]) for match in own if strong or match.lastindex != OF_RELEASE_BEFORE]
    return [version for version in versions if version <= MAX_INTEGER]
