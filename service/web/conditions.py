"""Conditional requests (RFC 9110, section 13): ETags, and what clients make requests depend on.

A movie's tag is its id and version, which the database raises with every change of it. Whoever
changes what an answer looks like has to change the tag too: it stands for the bytes of the answer.
"""

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import NamedTuple

from aiohttp import hdrs, web

from service.catalogue.movie import Movie
from service.catalogue.movies import ALWAYS, Condition
from service.catalogue.rules import quoted
from service.errors import MalformedHeader, PreconditionRequired
from service.web.request_cycle.compression import LargeResponse

# RFC 9110, 8.8.3; elements of a list may be empty (5.6.1.2). Possessive, or a few blanks and commas
# would take days.
TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\U0010ffff]*)"')
TAGS = re.compile(rf"[ \t,]*+{TAG.pattern}(?:[ \t]*+,[ \t]*+(?:{TAG.pattern})?+)*+[ \t]*+")
MOVIE_TAG = re.compile(r"([1-9][0-9]{0,18})-([1-9][0-9]{0,9})")
LONGEST = 8190  # characters of all lines of a header together: one line's limit in aiohttp
LARGEST_VERSION = 2**31 - 1  # an integer of PostgreSQL
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
TWO = [f"{number:02}" for number in range(60)]
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()  # noqa: SIM905 - as it is written


class Tag(NamedTuple):
    """An entity tag: what is between its quotes."""

    weak: bool
    opaque: str


def movie_headers(movie: Movie) -> dict[str, str]:
    """What a movie's answer carries: its tag and time, to be asked for again each time."""
    return {
        "ETag": f'"{movie.id}-{movie.version}"',
        "Last-Modified": http_date(movie.updated_at),
        "Cache-Control": "no-cache",
    }


def content_headers(body: bytes) -> dict[str, str]:
    """The same of an answer that has no version: its tag is a digest of it.

    Weak, as it may leave compressed or not; no change can depend on it.
    """
    return {
        "ETag": f'W/"{hashlib.blake2b(body, digest_size=16).hexdigest()}"',
        "Cache-Control": "no-cache",
    }


def http_date(moment: datetime) -> str:
    """A time in UTC as headers have it (RFC 9110, 5.6.7); strftime takes ten times as long."""
    hours, minutes, seconds = TWO[moment.hour], TWO[moment.minute], TWO[moment.second]
    return f"{_day(moment.date())} {hours}:{minutes}:{seconds} GMT"


@lru_cache(maxsize=1024)
def _day(day: date) -> str:
    return f"{DAYS[day.weekday()]}, {day.day:02} {MONTHS[day.month - 1]} {day.year:04}"


def is_known(request: web.Request, headers: Mapping[str, str]) -> bool:
    """Whether the client has the answer with these headers already: a GET or HEAD is then a 304.

    `MalformedHeader` where If-None-Match cannot be read. It goes before If-Modified-Since.
    """
    wanted = request.headers
    if hdrs.IF_NONE_MATCH not in wanted and hdrs.IF_MODIFIED_SINCE not in wanted:
        return False
    tags = _tags(request, "If-None-Match")
    if tags is not None:
        etag = headers["ETag"].removeprefix("W/")[1:-1]
        return not tags or any(tag.opaque == etag for tag in tags)  # strong or weak, 8.8.3.2
    since, changed = _since(wanted["If-Modified-Since"]), _since(headers.get("Last-Modified", ""))
    return bool(since and changed and changed <= since)


def not_modified(headers: Mapping[str, str]) -> dict[str, str]:
    """What a 304 keeps of these headers (RFC 9110, 15.4.5; RFC 9111, 4.3.4: it replaces others)."""
    kept = ("ETag", "Cache-Control", "Content-Security-Policy")
    return {name: headers[name] for name in kept if name in headers}


def unless_known(request: web.Request, response: LargeResponse) -> LargeResponse:
    """Return the answer, or 304 in its place."""
    if not is_known(request, response.headers):
        return response
    return LargeResponse(status=304, headers=not_modified(response.headers))


def condition(request: web.Request, movie_id: int, *, required: bool) -> Condition:
    """What a change of this movie depends on.

    Raises `MalformedHeader`, or `PreconditionRequired` where there is no If-Match.
    """
    if required and "If-Match" not in request.headers:
        raise PreconditionRequired
    match, none_match = _tags(request, "If-Match"), _tags(request, "If-None-Match")
    since = None
    if match is None:  # which goes before it, and is exact to more than a second
        since = _since(request.headers.get("If-Unmodified-Since", ""))
    if match is None and none_match is None and since is None:
        return ALWAYS
    versions = _versions(match, movie_id, strong=True) if match else None
    if none_match == []:
        versions = []  # `*`: no movie may be there, and one that is not is not found
    return Condition(
        versions=versions,
        other_than=_versions(none_match, movie_id, strong=False) if none_match else None,
        unmodified_since=since,
    )


def _tags(request: web.Request, name: str) -> list[Tag] | None:
    """The tags of a header; none of them for `*`, and None where it is not there."""
    if name not in request.headers:
        return None
    value = ", ".join(request.headers.getall(name))
    if value.strip(" \t") == "*":
        return []
    if len(value) > LONGEST or not TAGS.fullmatch(value):
        raise MalformedHeader(f'{name} must be * or tags like "7-1", found {quoted(value)}')
    return [Tag(bool(weak), opaque) for weak, opaque in TAG.findall(value)]


def _versions(tags: list[Tag], movie_id: int, *, strong: bool) -> list[int]:
    """Those of the tags that this movie can have had."""
    found = [MOVIE_TAG.fullmatch(tag.opaque) for tag in tags if not (strong and tag.weak)]
    versions = [int(match[2]) for match in found if match and int(match[1]) == movie_id]
    return [version for version in versions if version <= LARGEST_VERSION]


def _since(value: str) -> datetime | None:
    """A date; None for anything else, which is to be ignored (13.1.3, 13.1.4)."""
    try:
        date = parsedate_to_datetime(value)
        return date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, IndexError, OverflowError):
        return None
