"""/v1/genres: list."""

from aiohttp import web

from service.catalogue.genres import Genres as GenreCounts
from service.web.conditions import unless_known
from service.web.movies.parameters import read_nothing
from service.web.responses import content_response


class Genres:
    """The handlers of /v1/genres."""

    def __init__(self, genres: GenreCounts) -> None:
        self._genres = genres

    async def list(self, request: web.Request) -> web.Response:
        """200, every genre with its number of movies, and the time of the count."""
        read_nothing(request.rel_url.raw_query_string)
        counts = await self._genres.get()
        response = content_response(
            {
                "genres": [{"genre": genre, "movies": movies} for genre, movies in counts.genres],
                "metadata": {"total_records": counts.total, "as_of": counts.as_of},
            }
        )
        return unless_known(request, response)
