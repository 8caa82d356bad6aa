"""All queries that the service expects in queries/*.sql; loading and verifying them."""

import asyncio
from collections.abc import Mapping
from typing import NoReturn

import psycopg2

from service.catalogue import genres, idempotency, listing, movies
from service.config import Config
from service.database import query_files, verification
from service.database.connections import Connector
from service.database.driver_errors import describe_error
from service.database.migrations import files as migration_files
from service.database.queries import Query
from service.database.statements import suppress_timeout_reports
from service.errors import OperatorError, Unavailable
from service.transfer import queries as transfer

EXPECTED = {
    **genres.QUERIES,
    **idempotency.QUERIES,
    **listing.QUERIES,
    **movies.QUERIES,
    **transfer.QUERIES,
    **verification.QUERIES,
}


class LoadedQueries(dict[str, Query]):
    """The queries by name; `Unavailable` if mistakes have kept them from being loaded so far."""

    def __missing__(self, name: str) -> NoReturn:
        """Refuse the request."""
        raise Unavailable(f"{name} is not loaded")


def load_queries(config: Config) -> dict[str, Query]:
    """Load queries/*.sql and compare it with what the service expects."""
    return query_files.load(config.root / "queries", EXPECTED)


async def verify_queries(config: Config, queries: Mapping[str, Query]) -> bool:
    """Verify the queries against the database, on a connection that is closed afterwards.

    Returns False if the database is read-only: then the columns of writes cannot be verified.
    """
    versions = migration_files.list_versions(config.root / "migrations")
    suppress_timeout_reports(asyncio.get_running_loop())
    try:
        connection = await Connector(config.database).connect()
        try:
            return await verification.verify_database(connection, versions, queries, EXPECTED)
        finally:
            connection.close()
    except TimeoutError as error:
        raise OperatorError("the database does not respond") from error
    except (Unavailable, psycopg2.Error) as error:
        raise OperatorError(describe_error(error)) from error
