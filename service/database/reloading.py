"""Replaces the queries of a running process by those that the files hold now (SIGHUP)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from service.database.queries import Query
from service.errors import OperatorError

log = structlog.get_logger()


class Reloader:
    """Reloads `queries`, the mapping that statements are sent from.

    `load` reads the files and `verify` compares them with the database; either raises
    `OperatorError` where something is wrong, and then the old queries stay.
    """

    def __init__(
        self,
        queries: dict[str, Query],
        load: Callable[[], dict[str, Query]],
        verify: Callable[[Mapping[str, Query]], Awaitable[object]],
    ) -> None:
        self._queries = queries
        self._load = load
        self._verify = verify
        self._lock = asyncio.Lock()  # of two reloads, the later one must win
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Reload in a task of its own."""
        task = asyncio.create_task(self.reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def reload(self) -> None:
        """Reload, and log the result. Statements under way end as they began."""
        async with self._lock:
            try:
                found = self._load()
                await self._verify(found)
            except OperatorError as error:
                log.warning("queries not reloaded", reason=str(error))
                return
            changed = [name for name in found if found[name] != self._queries.get(name)]
            self._queries.clear()
            self._queries.update(found)
            log.info("queries reloaded", changed=changed)
