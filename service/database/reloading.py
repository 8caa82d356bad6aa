"""Replaces the queries of a running process by those that the files hold now (SIGHUP)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from service.database.queries import Query
from service.errors import OperatorError

log = structlog.get_logger()


def make_reloader(
    queries: dict[str, Query],
    load: Callable[[], dict[str, Query]],
    verify: Callable[[Mapping[str, Query]], Awaitable[object]],
) -> Callable[[], None]:
    """Return a function that starts a reload of `queries`, from which statements are sent.

    `load` reads the files and `verify` compares them with the database. If either raises
    `OperatorError`, the old queries stay. Statements under way end as they began.
    """
    lock = asyncio.Lock()  # of two reloads, the later one must win
    tasks: set[asyncio.Task[None]] = set()  # the loop holds no strong reference to a task

    async def reload() -> None:
        async with lock:
            try:
                found = load()
                await verify(found)
            except OperatorError as error:
                log.warning("queries not reloaded", reason=str(error))
                return
            changed = [name for name in found if found[name] != queries.get(name)]
            queries.clear()
            queries.update(found)
            log.info("queries reloaded", changed=changed)

    def start() -> None:
        task = asyncio.create_task(reload())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return start
