"""The .sql files that the service uses: all queries that it expects, and how they are verified."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NoReturn

import aiopg
import psycopg2

from service.access import administration, clients
from service.catalogue import genres, idempotency, listing, movies
from service.config import Config
from service.database import query_files, verification
from service.database.connections import Connector
from service.database.driver_errors import describe_error
from service.database.migrations import files as migration_files
from service.database.queries import Query
from service.database.reloading import make_reloader
from service.database.statements import Statements, suppress_timeout_reports
from service.errors import OperatorError, Refusal, Unavailable
from service.transfer import exporting, importing

EXPECTED = {
    **administration.QUERIES,
    **clients.QUERIES,
    **exporting.QUERIES,
    **genres.QUERIES,
    **idempotency.QUERIES,
    **importing.QUERIES,
    **listing.QUERIES,
    **movies.QUERIES,
    **verification.QUERIES,
}


class LoadedQueries(dict[str, Query]):
    """The queries by name; `Unavailable` if mistakes have kept them from being loaded so far."""

    def __missing__(self, name: str) -> NoReturn:
        """Refuse the request."""
        raise Unavailable(f"{name} is not loaded", Refusal.NOT_READY)


def load_queries(config: Config) -> dict[str, Query]:
    """Load queries/*.sql and compare it with what the service expects."""
    return query_files.load(config.root / "queries", EXPECTED)


async def verify_queries(config: Config, queries: Mapping[str, Query]) -> bool:
    """Verify the queries against the database, on a connection that is closed afterwards.

    Returns False if the database is read-only: then the columns of writes cannot be verified.
    """
    try:
        return await _verify(config, queries)
    except TimeoutError as error:
        raise OperatorError("the database does not respond") from error
    except (Unavailable, psycopg2.Error) as error:
        raise OperatorError(describe_error(error)) from error


async def refuse_mistakes(config: Config) -> None:
    """Raise `OperatorError` if a query does not fit the schema; nothing if there is no database."""
    with suppress(TimeoutError, Unavailable, psycopg2.Error):
        await _verify(config, load_queries(config))


async def _verify(config: Config, queries: Mapping[str, Query]) -> bool:
    versions = migration_files.list_versions(config.root / "migrations")
    suppress_timeout_reports(asyncio.get_running_loop())
    connection = await Connector(config.database).connect()
    try:
        return await verification.verify_database(connection, versions, queries, EXPECTED)
    finally:
        connection.close()


class SqlFiles:
    """What a process uses of queries/*.sql and migrations/*.sql."""

    def __init__(self, config: Config) -> None:
        self.queries = LoadedQueries()
        self._versions: list[str] = []  # of the migrations
        self._config = config
        self._verify = verification.make_verifier(self._versions, self.queries, EXPECTED)
        self._is_loaded = False

    def load(self) -> None:
        """Read the files; `OperatorError` where one is wrong."""
        self._versions[:] = migration_files.list_versions(self._config.root / "migrations")
        self.queries.update(load_queries(self._config))
        self._is_loaded = True

    async def verify(self, connection: aiopg.Connection) -> bool:
        """Verify the files against the database; False if that must be done again.

        After a failure, the next call reads the files again: somebody may have corrected them.
        """
        if not self._is_loaded:
            self.load()
        self._is_loaded = False
        is_writable = await self._verify(connection)
        self._is_loaded = True
        return is_writable

    async def require_migrations(self, statements: Statements) -> None:
        """Raise `Unavailable` unless all migrations have been applied."""
        applied = await statements.fetch("get_applied_migrations", retry=True)
        verification.require_migrations(self._versions, applied)

    def make_reloader(self) -> Callable[[], None]:
        """Return a function that starts to read and verify the queries again."""
        return make_reloader(
            self.queries, partial(load_queries, self._config), partial(verify_queries, self._config)
        )
