"""The entity tag of a movie, and the conditions that a change of it depends on (RFC 9110, 13).

The tag is the movie's id and version, and the form of the response: it stands for the bytes of the
response. Another name or type of a field gives another form.
"""

import re

from aiohttp import hdrs, web

from service.database import MAX_INTEGER
from service.database.store import ALWAYS, Condition
from service.errors import PreconditionRequired
from service.movies.movie import FORM, Movie
from service.web.conditions import Tags, format_date, parse_required_date, parse_tags

MOVIE_TAG = re.compile(rf"([1-9][0-9]{{0,18}})-([1-9][0-9]{{0,9}}){FORM}")


def movie_headers(movie: Movie) -> dict[str, str]:
    """Return the headers of a response with this movie; caches must revalidate it."""
    return {
        "ETag": f'"{movie.id}-{movie.version}{FORM}"',
        "Last-Modified": format_date(movie.updated_at),
        "Cache-Control": "no-cache",
    }


def parse_preconditions(
    request: web.Request, movie_id: int, *, if_match_required: bool
) -> Condition:
    """Return the conditions for changing this movie.

    Raises `MalformedHeader`, or `PreconditionRequired` if a required If-Match is missing.
    """
    headers = request.headers
    if if_match_required and hdrs.IF_MATCH not in headers:
        raise PreconditionRequired
    if (
        hdrs.IF_MATCH not in headers
        and hdrs.IF_NONE_MATCH not in headers
        and hdrs.IF_UNMODIFIED_SINCE not in headers
    ):
        return ALWAYS
    match, none_match = parse_tags(request, hdrs.IF_MATCH), parse_tags(request, hdrs.IF_NONE_MATCH)
    is_dated = not match and hdrs.IF_UNMODIFIED_SINCE in headers  # If-Match comes first: 13.2.2
    since = parse_required_date(request, "If-Unmodified-Since") if is_dated else None
    if none_match and none_match.any:
        return Condition(versions=[])  # no movie may exist: of one that exists, no version is right
    return Condition(
        versions=_select_versions(match, movie_id, strong=True),
        other_than=_select_versions(none_match, movie_id, strong=False),
        unmodified_since=since,
    )


def _select_versions(found: Tags | None, movie_id: int, *, strong: bool) -> list[int] | None:
    """Return the versions in the tags of this movie; None if any version will do.

    A strong comparison ignores weak tags (RFC 9110, 8.8.3.2).
    """
    if not found or found.any:
        return None
    matches = [MOVIE_TAG.fullmatch(tag.opaque) for tag in found.tags if not (strong and tag.weak)]
    versions = [int(match[2]) for match in matches if match and int(match[1]) == movie_id]
    return [version for version in versions if version <= MAX_INTEGER]
