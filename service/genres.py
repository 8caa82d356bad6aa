"""/v1/genres: list."""

from aiohttp import web

from service.genre_counts import GenreCounts
from service.web.contexts import CONTEXT
from service.web.query_strings import reject_query_string
from service.web.responses import cacheable_response, encode_json, make_content


class Genres:
    """The handlers of /v1/genres."""

    def __init__(self, genres: GenreCounts, cache_seconds: int) -> None:
        self._genres = genres
        self._cache_seconds = cache_seconds

    async def list(self, request: web.Request) -> web.StreamResponse:
        """200, every genre with its number of movies, and the time of the count."""
        reject_query_string(request)
        counts = await self._genres.get(request[CONTEXT])
        payload = {
            "genres": [{"genre": genre, "movies": movies} for genre, movies in counts.genres],
            "metadata": {"total_records": counts.total, "as_of": counts.as_of},
        }
        content = make_content(encode_json(payload))
        return cacheable_response(request, content, cache_seconds=self._cache_seconds)
