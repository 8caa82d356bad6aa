"""The response with a page of movies: the list, its metadata, and links to the pages around it."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from aiohttp import web
from yarl import URL

from service.catalogue.movie import movie_json
from service.catalogue.paging import Page
from service.web.movies import cursors
from service.web.movies.parameters import ListQuery
from service.web.request_cycle.compression import LargeResponse
from service.web.responses import cacheable_response, encode_json


def page_response(
    request: web.Request, query: ListQuery, page: Page, more: Mapping[str, Any]
) -> LargeResponse:
    """Return `{"movies": [...], "metadata": {...}}` and `Link` (RFC 8288), or 304.

    `more`: further metadata, that only some lists have.
    """
    url = request.rel_url
    encode = partial(cursors.encode, total=page.total, filters=query.filter, sort=query.sort)
    previous_cursor = page.previous and encode(page.previous, backwards=True)
    next_cursor = page.next and encode(page.next, backwards=False)
    last_page = page.last_page(query.page_size)
    metadata: dict[str, Any] = {
        "page_size": query.page_size,
        "total_records": page.total,
        "total_is_estimate": page.total_is_estimate,
        "next_cursor": next_cursor,
        "previous_cursor": previous_cursor,
    }
    if query.page_number:
        metadata["current_page"] = query.page_number
        metadata["last_page"] = last_page
    metadata |= more
    current = query.page_number or 1
    links = {
        "first": _remove_place(url),
        "prev": _make_link(url, query, previous_cursor, min(current - 1, last_page), last_page),
        "next": _make_link(url, query, next_cursor, current + 1, last_page),
    }
    link = ", ".join(f'<{target}>; rel="{rel}"' for rel, target in links.items() if target)
    payload = {"movies": [movie_json(movie) for movie in page.movies], "metadata": metadata}
    headers = {"Link": link, "Vary": "Accept"}
    return cacheable_response(request, encode_json(payload), headers=headers)


def _make_link(
    url: URL, query: ListQuery, cursor: str | None, number: int, last_page: int
) -> URL | None:
    """Link by number if the client asked by number and numbers reach that far, else by cursor."""
    base = _remove_place(url)
    # A page after the last one is empty and has no cursor, so it links back by number.
    is_before = query.page_number is not None and 0 < number < query.page_number
    if query.page_number and (cursor or is_before) and number <= last_page:
        return base.update_query(page=number)
    return base.update_query(cursor=cursor) if cursor else None


def _remove_place(url: URL) -> URL:
    """Remove page, cursor and fragment, which a request target should not have (RFC 9112, 3.2).

    yarl quotes the query anew, so that no value can end the link.
    """
    return url.with_fragment(None).with_query(
        [pair for pair in url.query.items() if pair[0] not in ("page", "cursor")]
    )
