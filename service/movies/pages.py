"""A page of movies: its JSON, with metadata, and links to the pages around it."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from aiohttp import web
from yarl import URL

from service.movies import cursors
from service.movies.movie import movie_json
from service.movies.paging import Page
from service.movies.parameters import ListQuery
from service.web.compression import Content
from service.web.responses import encode_json, make_content


class EncodedPage(NamedTuple):
    """A page as all clients get it that ask for it at the same time."""

    content: Content
    previous_cursor: str | None
    next_cursor: str | None
    last_page: int


def encode_page(
    query: ListQuery,
    page: Page,
    more: Mapping[str, object],
    headers: Mapping[str, str] | None = None,
) -> EncodedPage:
    """Encode `{"movies": [...], "metadata": {...}}`; `more`: metadata that only some lists have.

    `headers`: those that all responses with this page have.
    """
    encode = partial(cursors.encode, total=page.total, filters=query.filter, sort=query.sort)
    previous_cursor = encode(page.previous, backwards=True) if page.previous else None
    next_cursor = encode(page.next, backwards=False) if page.next else None
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
    metadata |= more
    payload = {"movies": [movie_json(movie) for movie in page.movies], "metadata": metadata}
    content = make_content(encode_json(payload), headers=headers)
    return EncodedPage(content, previous_cursor, next_cursor, last_page)


def make_link(request: web.Request, query: ListQuery, page: EncodedPage) -> str:
    """Return the header `Link` (RFC 8288), with the parameters as the client wrote them."""
    current, last_page = query.page_number or 1, page.last_page
    url = _remove_place(request.path_qs)
    links = {
        "first": url,
        "prev": _make_target(
            url, query, page.previous_cursor, min(current - 1, last_page), last_page
        ),
        "next": _make_target(url, query, page.next_cursor, current + 1, last_page),
    }
    return ", ".join([f'<{target}>; rel="{rel}"' for rel, target in links.items() if target])


def _make_target(
    url: str, query: ListQuery, cursor: str | None, number: int, last_page: int
) -> str | None:
    """Link by number if the client asked by number and numbers reach that far, else by cursor."""
    # A page after the last one is empty and has no cursor, so it links back by number.
    is_before = query.page_number is not None and 0 < number < query.page_number
    separator = "&" if "?" in url else "?"
    if query.page_number and (cursor or is_before) and number <= last_page:
        return f"{url}{separator}page={number}"
    return f"{url}{separator}cursor={cursor}" if cursor else None


def _remove_place(target: str) -> str:
    """Remove page, cursor and fragment, which a request target should not have (RFC 9112, 3.2).

    yarl quotes the query anew, so that no value can end the link.
    """
    url = URL(target, encoded=True).with_fragment(None)
    pairs = [pair for pair in url.query.items() if pair[0] not in ("page", "cursor")]
    return str(url.with_query(pairs))
