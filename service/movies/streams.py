"""A whole list as a stream of NDJSON or CSV: all movies that match, from one snapshot."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from aiohttp import HttpVersion11, hdrs, web

from service.context import RequestContext
from service.database.listing import Listing
from service.errors import UpgradeRequired
from service.movies.movie import OUTPUT_FORMS, Form, Movie, movie_json
from service.movies.parameters import parse_list_query
from service.web.bodies import ClientGone
from service.web.contexts import CONTEXT
from service.web.headers import parse_qualities, prefers_gzip

READ_TIMEOUT_S = 10.0  # for a client to read what was sent
MAX_STREAM_S = 3600.0  # VACUUM keeps dead rows as long as a snapshot may see them
# Returns the headers with which a copy of all movies begins; called before the list is read.
BeginCopy = Callable[[RequestContext], Awaitable[dict[str, str]]]
STREAMS = {"application/x-ndjson": OUTPUT_FORMS["ndjson"], "text/csv": OUTPUT_FORMS["csv"]}


def choose_form(request: web.Request) -> Form | None:
    """Return the form of a stream that `Accept` names and prefers; None: send JSON."""
    qualities = parse_qualities(",".join(request.headers.getall(hdrs.ACCEPT)))
    name = max(STREAMS, key=lambda name: qualities.get(name, 0))
    others = qualities.get("application/*", qualities.get("*/*", 0))
    # At the same quality, JSON is preferred if it is named, and not if a wildcard stands for it.
    json = qualities.get("application/json", others - 0.0005)
    return STREAMS[name] if qualities.get(name, 0) > max(json, 0) else None


async def stream_movies(
    request: web.Request, listing: Listing[Movie], begin_copy: BeginCopy | None, form: Form
) -> web.StreamResponse:
    """Send all movies that match the query string; for HEAD, only the headers.

    An error before the first movies is a problem document. A later one resets the connection:
    otherwise the client would take the list for complete, as every client of HTTP/1.0 would.
    """
    context = request[CONTEXT]
    context.route = "/v1/movies (stream)"  # in logs and metrics: it takes longer than others
    if request.version < HttpVersion11:
        raise UpgradeRequired
    query = parse_list_query(request, is_stream=True)
    headers = {"Content-Type": form.media_type, "Vary": "Accept, Accept-Encoding"}
    response = web.StreamResponse(headers=headers)
    if begin_copy:  # before the list, to miss no change
        response.headers.update(await begin_copy(context))
    if request.method == hdrs.METH_HEAD:
        return response
    if prefers_gzip(",".join(request.headers.getall(hdrs.ACCEPT_ENCODING, ()))):
        response.enable_compression(web.ContentCoding.gzip)
    context.deadline += MAX_STREAM_S
    context.has_left = lambda: request.transport is None
    text = form.head
    try:
        async with aclosing(listing.stream(query.filter, query.sort, context)) as chunks:
            async for rows in chunks:
                text += b"".join([form.encode(movie_json(Movie._make(row))) for row in rows])
                async with asyncio.timeout(READ_TIMEOUT_S):
                    await response.prepare(request)
                    await response.write(text)
                text = b""
        await response.prepare(request)
        await response.write(text)  # of an empty list: the head of a CSV
    except BaseException as error:
        if response.prepared and request.transport:
            request.transport.abort()
        if isinstance(error, OSError):
            context.reason = str(error) or "the client does not read"
            raise ClientGone from error
        raise
    return response
