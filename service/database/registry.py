"""The queries that a process uses, and their reload."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import aiopg
import structlog

from service.config import Config
from service.database.migrations.files import list_versions
from service.database.query import Query
from service.database.statements import Statements
from service.database.verification import require_migrations, verify_database, verify_queries
from service.errors import Refusal, Unavailable

log = structlog.get_logger()


class LoadedQueries(dict[str, Query]):
    """The queries by name; `Unavailable` if mistakes have kept them from being loaded so far."""

    def __missing__(self, name: str) -> NoReturn:
        """Refuse the request."""
        raise Unavailable(f"{name} is not loaded yet: an earlier line says why", Refusal.NOT_READY)


class QueryRegistry:
    """What a process uses of queries/*.sql and migrations/*.sql.

    `read_files` reads and checks the query files. What must stay true: no request sends a query
    that was not verified; a reload replaces all queries or none.
    """

    def __init__(self, config: Config, read_files: Callable[[], Mapping[str, Query]]) -> None:
        self.queries = LoadedQueries()
        self.on_reload: Callable[[], None] = lambda: None  # called when queries were replaced
        self._read_files = read_files
        self._versions: Sequence[str] = []  # of the migrations
        self._missing = ""  # which migration is, as it was logged
        self._config = config
        self._reloading: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Read the files; `OperatorError` where one is wrong."""
        self._versions = list_versions(self._config.migrations)
        self.queries.update(self._read_files())

    async def verify(self, connection: aiopg.Connection) -> None:
        """Read the files and verify them against the database.

        After a failure, the next call reads the files again: somebody may have corrected them.
        """
        self.load()
        await verify_database(connection, self._versions, self.queries)

    async def require_migrations(self, statements: Statements) -> None:
        """Raise `Unavailable` unless all migrations have been applied; log when that changes."""
        applied = await statements.fetch("get_applied_migrations")
        before, self._missing = self._missing, ""
        try:
            require_migrations(self._versions, applied)
        except Unavailable as error:
            self._missing = str(error)
            if self._missing != before:
                log.warning("not ready", reason=self._missing)
            raise
        if before:
            log.info("ready")

    def reload(self) -> None:
        """Start to replace the queries by those that the files hold now.

        If one of them is wrong, or the database cannot verify them now, the old queries stay.
        Statements under way end as they began. A reload that is running is given up: it may have
        read other files.
        """
        if self._reloading:
            self._reloading.cancel()
        self._reloading = asyncio.create_task(self._reload())

    async def _reload(self) -> None:
        try:
            found = self._read_files()
            await verify_queries(self._config, found)
            versions = list_versions(self._config.migrations)  # one may have been taken back
        except Exception as error:  # noqa: BLE001 - nobody waits for this task
            log.warning("queries not reloaded", reason=str(error) or repr(error))
            return
        changed = [name for name in found if found[name] != self.queries.get(name)]
        self.queries.clear()
        self.queries.update(found)
        self._versions = versions
        self.on_reload()
        log.info("queries reloaded", changed=changed)
