"""A page of movies as an answer: the list, its metadata, and links to the pages next to it."""

from typing import Any

from yarl import URL

from service.catalogue.movie import movie_json
from service.catalogue.paging import Key, Page
from service.web.movies import cursors
from service.web.movies.parameters import Wanted
from service.web.request_cycle.compression import LargeResponse
from service.web.responses import content_response


def page_response(url: URL, wanted: Wanted, page: Page) -> LargeResponse:
    """Answer with `{"movies": [...], "metadata": {...}}` and `Link` (RFC 8288)."""
    previous = _cursor(page.previous, page.total, wanted, backwards=True)
    following = _cursor(page.next, page.total, wanted, backwards=False)
    last_page = page.last_page(wanted.size)
    metadata: dict[str, Any] = {
        "page_size": wanted.size,
        "total_records": page.total,
        "total_is_estimate": page.total_is_estimate,
        "next_cursor": following,
        "previous_cursor": previous,
    }
    if wanted.page:
        metadata["current_page"] = wanted.page
        metadata["last_page"] = last_page
    links = {
        "first": _without_place(url),
        "prev": _link(url, wanted, previous, min((wanted.page or 1) - 1, last_page), last_page),
        "next": _link(url, wanted, following, (wanted.page or 1) + 1, last_page),
    }
    return content_response(
        {"movies": [movie_json(movie) for movie in page.movies], "metadata": metadata},
        headers={
            "Link": ", ".join(f'<{link}>; rel="{rel}"' for rel, link in links.items() if link)
        },
    )


def _cursor(key: Key | None, total: int, wanted: Wanted, *, backwards: bool) -> str | None:
    return key and cursors.encode(key, total, wanted.filter, wanted.sort, backwards=backwards)


def _link(url: URL, wanted: Wanted, cursor: str | None, number: int, last_page: int) -> URL | None:
    """The page before or after, by number as long as numbers are asked for and reach that far."""
    base = _without_place(url)
    behind_all = wanted.page and 0 < number < wanted.page  # of which an empty page has no cursor
    if wanted.page and (cursor or behind_all) and number <= last_page:
        return base.update_query(page=number)
    return base.update_query(cursor=cursor) if cursor else None


def _without_place(url: URL) -> URL:
    """The query anew, as yarl quotes it: nothing that a client sent can end the link early."""
    return url.with_query([pair for pair in url.query.items() if pair[0] not in ("page", "cursor")])
