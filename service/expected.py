"""Every query that the service expects in queries/*.sql."""

from collections.abc import Mapping

from service import genres
from service.changes import feed as changes
from service.clients import clients, commands
from service.config import Config
from service.database import cache, clearing, freshness, query_files, verification
from service.database.query import Expected, Query
from service.movies import exporting, filters, importing, restoring, search_help
from service.movies import keys as idempotency
from service.movies.movie import MOVIES

EXPECTED: Mapping[str, Expected] = {
    **cache.QUERIES,
    **changes.QUERIES,
    **clearing.QUERIES,
    **clients.QUERIES,
    **commands.QUERIES,
    **exporting.QUERIES,
    **freshness.QUERIES,
    **genres.QUERIES,
    **idempotency.QUERIES,
    **importing.QUERIES,
    **filters.QUERIES,
    **MOVIES.expect_queries(),
    **restoring.QUERIES,
    **search_help.QUERIES,
    **verification.QUERIES,
}


def load_queries(config: Config) -> dict[str, Query]:
    """Load queries/*.sql and compare it with what the service expects."""
    return query_files.load(config.queries, EXPECTED)
