"""The lists of movies: pages, movies by their ids, and streams."""

from dataclasses import dataclass

from aiohttp import hdrs, web

from service.catalogue.changes import Feed
from service.catalogue.listing import Listing
from service.catalogue.movies import Catalogue
from service.catalogue.paging import Filter, Page
from service.catalogue.suggestions import Suggestions
from service.web.movies.cursors import CHANGES_CURSOR, encode_change
from service.web.movies.pages import page_response
from service.web.movies.parameters import ListQuery, parse_list_query
from service.web.movies.streams import choose_form, stream_movies
from service.web.request_cycle.contexts import CONTEXT
from service.web.responses import allow_caching


@dataclass(frozen=True)
class Lists:
    """The handler of lists; `feed`: whose cursor comes with a list of all movies."""

    catalogue: Catalogue
    listing: Listing
    suggestions: Suggestions
    feed: Feed | None
    has_streams: bool
    cache_seconds: int

    async def list(self, request: web.Request) -> web.StreamResponse:
        """200 and a page of the movies that match the query string, or all of them as a stream."""
        if self.has_streams and hdrs.ACCEPT in request.headers and (form := choose_form(request)):
            return await stream_movies(request, self.listing, self.feed, form)
        query = parse_list_query(request)
        if query.ids:
            return await self._list_ids(request, query)
        place = None
        if self.feed and query.is_whole_list:  # before the list: no change may be missed
            place = await self.feed.find_end(request[CONTEXT])
        page = await self.listing.fetch_page(
            query.filter, query.sort, query.place, query.page_size, request[CONTEXT]
        )
        more = {}
        if query.filter.title and not page.total:
            more["suggestions"] = await self.suggestions.find(query.filter, request[CONTEXT])
        response = page_response(request, query, page, more)
        # Copies of all movies are made page by page: none may be older than the first one's cursor.
        if self.cache_seconds and (query.filter != Filter() or not query.place.key):
            allow_caching(request, response, self.cache_seconds)
        if place:
            response.headers[CHANGES_CURSOR] = encode_change(place)
        return response

    async def _list_ids(self, request: web.Request, query: ListQuery) -> web.StreamResponse:
        """200 and the movies with these ids, in this order."""
        found = await self.catalogue.get_several(query.ids, [request[CONTEXT]])
        movies = [found[each] for each in query.ids if each in found]
        missing = [each for each in dict.fromkeys(query.ids) if each not in found]
        page = Page(movies, previous=None, next=None, total=len(movies))
        return page_response(request, query, page, {"missing_ids": missing})
