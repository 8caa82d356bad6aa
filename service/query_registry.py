"""All queries that the service expects: loaded, verified and reloaded."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NoReturn

import aiopg
import psycopg2
import structlog

from service.access import administration, clients
from service.catalogue import genres, idempotency, listing, movies
from service.config import Config
from service.database import query_files, verification
from service.database.connections import Connector
from service.database.driver_errors import describe_error
from service.database.migrations.files import list_versions
from service.database.query import Expected, Query, suppress_timeout_reports
from service.database.statements import Statements
from service.errors import OperatorError, Refusal, Unavailable
from service.transfer import exporting, importing

log = structlog.get_logger()

EXPECTED: Mapping[str, Expected] = {
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


def load_queries(config: Config) -> dict[str, Query]:
    """Load queries/*.sql and compare it with what the service expects."""
    queries = query_files.load(config.root / "queries", EXPECTED)
    listing.check_filters(queries)
    return queries


async def verify_queries(config: Config, queries: Mapping[str, Query]) -> bool:
    """Verify the queries against the database, on a connection that is closed afterwards.

    Returns False if the database is read-only: then the columns of writes cannot be verified.
    Raises `OperatorError` for a wrong query; `Unavailable` also if there is no database.
    """
    suppress_timeout_reports(asyncio.get_running_loop())
    versions = list_versions(config.root / "migrations")
    try:
        with closing(await Connector(config.database).connect()) as connection:
            return await verification.verify_database(connection, versions, queries, EXPECTED)
    except (TimeoutError, psycopg2.Error) as error:
        is_silent = isinstance(error, TimeoutError)
        reason = "the database does not respond" if is_silent else describe_error(error)
        raise Unavailable(reason, Refusal.NO_DATABASE) from error


class LoadedQueries(dict[str, Query]):
    """The queries by name; `Unavailable` if mistakes have kept them from being loaded so far."""

    def __missing__(self, name: str) -> NoReturn:
        """Refuse the request."""
        raise Unavailable(f"{name} is not loaded", Refusal.NOT_READY)


class QueryRegistry:
    """What a process uses of queries/*.sql and migrations/*.sql."""

    def __init__(self, config: Config) -> None:
        self.queries = LoadedQueries()
        self._versions: Sequence[str] = []  # of the migrations
        self._config = config
        self._is_loaded = False
        self._are_reads_verified = False
        self._reloading: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Read the files; `OperatorError` where one is wrong."""
        self._versions = list_versions(self._config.root / "migrations")
        self.queries.update(load_queries(self._config))
        self._is_loaded = True

    async def verify(self, connection: aiopg.Connection) -> bool:
        """Verify the files against the database; False if that must be done again.

        After a failure, the next call reads the files again: somebody may have corrected them. On a
        standby, reads are verified only once.
        """
        if self._are_reads_verified and not await verification.is_writable(connection):
            return False
        if not self._is_loaded:
            self.load()
        self._is_loaded = False
        is_writable = await verification.verify_database(
            connection, self._versions, self.queries, EXPECTED
        )
        self._is_loaded = self._are_reads_verified = True
        return is_writable

    async def require_migrations(self, statements: Statements) -> None:
        """Raise `Unavailable` unless all migrations have been applied."""
        applied = await statements.fetch("get_applied_migrations")
        verification.require_migrations(self._versions, applied)

    def reload(self) -> None:
        """Start to replace the queries by those that the files hold now.

        If one of them is wrong, the old queries stay. Statements under way end as they began. A
        reload that is running is given up: it may have read other files.
        """
        if self._reloading:
            self._reloading.cancel()
        self._reloading = asyncio.create_task(self._reload())

    async def _reload(self) -> None:
        try:
            found = load_queries(self._config)
            await verify_queries(self._config, found)
        except (OperatorError, Unavailable) as error:
            log.warning("queries not reloaded", reason=str(error))
            return
        changed = [name for name in found if found[name] != self.queries.get(name)]
        self.queries.clear()
        self.queries.update(found)
        log.info("queries reloaded", changed=changed)
