"""The lists of movies: pages, movies by their ids, and streams."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from weakref import WeakValueDictionary

from aiohttp import hdrs, web

from service.database.cache import ResultCache
from service.database.listing import Listing, Page, PageTerms
from service.database.sharing import MAX_WAITING, Rows, SharedStatements, list_callers
from service.database.statements import Statements
from service.database.store import Store
from service.movies import search_help
from service.movies.exporting import BeginCopy, choose_form, stream_movies
from service.movies.movie import Form, Movie, movie_json
from service.movies.parameters import Filter, ListQuery, parse_list_query
from service.web.context import CONTEXT
from service.web.pages import EncodedPage, encode_page, make_link
from service.web.responses import cacheable_response, make_content
from service.web.route import Access

TRIES = 3
LIST_UNITS = 10  # of the rate limit, by CPU time: a movie by id takes 0.1 ms, a page 1.1 ms
FACETS_UNITS = 20  # more
PAGE_BYTES = 4096  # of a page in memory, besides its body
SharedFetches = WeakValueDictionary[ListQuery, SharedStatements[EncodedPage]]


@dataclass(frozen=True)
class Lists:
    """The handler of lists; `begin_copy`: returns headers for a list of all movies.

    Requests for the same page that wait while it is fetched share the next fetch, and its encoded
    body. Each page has shared statements of its own, which live as long as requests wait for it.
    """

    store: Store[Movie]
    listing: Listing[Movie]
    statements: Statements  # of the facets and suggestions
    begin_copy: BeginCopy | None
    has_streams: bool
    cache_seconds: int
    cache: ResultCache[EncodedPage]
    access: Access
    _shared: SharedFetches = field(default_factory=WeakValueDictionary, init=False)

    async def list(self, request: web.Request) -> web.StreamResponse:
        """Return a page of the movies that match the query string, or all of them as a stream."""
        form = choose_form(request) if self.has_streams and hdrs.ACCEPT in request.headers else None
        if form and request.query.keys().isdisjoint(("id", "external_id")):
            return await stream_movies(request, self.listing, self.begin_copy, form)
        query = parse_list_query(request.rel_url.raw_query_string)
        caller = request[CONTEXT].caller
        if query.by:
            return await self._list_ids(request, query, form)
        if query.facets:
            await self.access.charge_more(request, caller, LIST_UNITS + FACETS_UNITS, LIST_UNITS)
        page, caller = await self.cache.get(query, caller)
        if not page:
            if not (shared := self._shared.get(query)):
                fetch = partial(self._fetch, query)
                shared = SharedStatements(fetch, max_rows=MAX_WAITING, takes_all=True)
                self._shared[query] = shared
            page = cast("EncodedPage", await shared.submit(0, caller=caller))
        # Copies of all movies are made page by page: none may be older than the first one's cursor.
        is_later_copy = query.place.key is not None and query.filter == Filter()
        return _respond(request, query, page, 0 if is_later_copy else self.cache_seconds)

    async def _fetch(self, query: ListQuery, rows: Rows[EncodedPage]) -> dict[int, EncodedPage]:
        """Fetch and encode the page for the callers of these rows, which all have the key 0."""
        callers, headers = list_callers(rows), dict[str, str]()
        start = self.cache.start(callers)
        if self.begin_copy and query.is_whole_list:  # before the list: no change may be missed
            # A replica must show what any of the callers must see: one is enough.
            headers |= await self.begin_copy(callers[0])
        filters = query.filter.as_json()
        terms = PageTerms(filters, query.sort, query.place, query.page_size)
        counted, more = None, dict[str, Any]()
        for _ in range(TRIES):  # until the facets do not contradict the total
            if query.facets:
                counted, more["facets"] = await search_help.count_facets(
                    self.statements, filters, query.facets, callers
                )
            page = await self.listing.fetch_page(terms, callers, counted)
            if not counted or counted.matches == page.total:
                break
        else:  # movies come and go all the time
            for facet in more["facets"].values():
                facet["is_estimate"] = True
        if query.filter.title and not page.total:
            suggested = await search_help.suggest(self.statements, filters, callers)
            more["suggestions"] = [movie.title for movie in suggested]
            more["suggested_movies"] = [movie_json(movie) for movie in suggested]
        movies = [movie_json(movie) for movie in page.items]
        encoded = encode_page(query, page, {"movies": movies}, more, headers)
        if more.get("suggestions") != []:  # there may only have been no time for some
            # It may be compressed, too; a character of the query takes up to 4 bytes, twice.
            size = 2 * len(encoded.content.body) + 8 * len(repr(query)) + PAGE_BYTES
            self.cache.keep(query, encoded, size, start)
        return {0: encoded}

    async def _list_ids(
        self, request: web.Request, query: ListQuery, form: Form | None
    ) -> web.StreamResponse:
        """Return the movies with these ids, in this order; in a form of streams, or as JSON."""
        find: Any = self.store.get_several if query.by == "id" else self.store.find
        found: dict[int | str, Movie] = await find(query.ids, [request[CONTEXT].caller])
        movies = [movie_json(found[each]) for each in query.ids if each in found]
        if form:
            body = form.head + b"".join(map(form.encode, movies))
            content = make_content(body, form.media_type, {"Vary": "Accept, Accept-Encoding"})
            return cacheable_response(request, content)
        missing = [each for each in dict.fromkeys(query.ids) if each not in found]
        page = Page(movies, previous=None, next=None, total=len(movies))
        more = {f"missing_{query.by}s": missing}
        return _respond(request, query, encode_page(query, page, {"movies": movies}, more))


def _respond(
    request: web.Request, query: ListQuery, page: EncodedPage, cache_seconds: int = 0
) -> web.StreamResponse:
    link = make_link(request, query, page, only_first=["facets"])
    headers = {"Link": link, "Vary": "Accept, Accept-Encoding"}
    return cacheable_response(request, page.content, headers, cache_seconds)
