"""Suggests titles if a search finds nothing; docs/decisions/0017-suggest-searches.md."""

from collections.abc import Mapping, Sequence

from service.context import RequestContext
from service.database.query import Expected
from service.database.statements import Statements
from service.errors import Unavailable
from service.movies.listing import NOTHING
from service.movies.paging import Filter

QUERIES: Mapping[str, Expected] = {
    "suggest_titles": Expected(
        {"title": str}, [NOTHING], "listing movies: a search that finds nothing"
    )
}


class Suggestions:
    """Suggests titles."""

    def __init__(self, statements: Statements) -> None:
        self._fetch = statements.fetch

    async def find(self, wanted: Filter, waiting: Sequence[RequestContext]) -> list[str]:
        """Return up to five titles that match the other filters, the closest first.

        `waiting`: the requests that it is for. The list is empty if the query takes too long, or
        without a database.
        """
        try:
            rows = await self._fetch(
                "suggest_titles", wanted.parameters(), expects_timeout=True, waiting=waiting
            )
        except Unavailable:
            return []
        return [title for (title,) in rows]
