"""The composition root: production and tests put the parts together here, and nowhere else."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar

import structlog
from aiohttp import web
from aiopg import Connection
from gunicorn.arbiter import Arbiter

from service import config as settings
from service import logs
from service.catalogue.genres import GenreCounts
from service.catalogue.idempotency import OnceOnly
from service.catalogue.listing import Listing
from service.catalogue.movies import Catalogue
from service.config import Config
from service.database.connections import check_tls
from service.database.migrations import files as migration_files
from service.database.pool import Pool
from service.database.reloading import make_reloader
from service.database.statements import Statements, suppress_timeout_reports
from service.database.verification import make_verifier, require_migrations
from service.errors import OperatorError, Unavailable
from service.queries import EXPECTED, LoadedQueries, load_queries, verify_queries
from service.web.bodies import BodyReader
from service.web.genres import Genres
from service.web.health import Health
from service.web.movies.handlers import Movies
from service.web.reference.handlers import Reference
from service.web.request_cycle.error_responses import respond_to_errors
from service.web.request_cycle.headers import COMMON_HEADERS, CommonHeaders
from service.web.request_cycle.in_flight import IN_FLIGHT, InFlight
from service.web.request_cycle.server import (
    MAX_CONNECTIONS,
    Runner,
    choose_max_connections,
    exempt_from_collection,
)
from service.web.routes import routes

log = structlog.get_logger()

RETRY_S = 1.0  # while the database could not be verified
CLOSE_TIMEOUT_S = 2.0  # for statements in flight when the process stops
POOL = web.AppKey("pool", Pool)
RELOAD_QUERIES = web.AppKey[Callable[[], None]]("reload_queries")


def create_app(config: Config, *, refuse_mistakes: bool = True) -> web.Application:
    """Build the application; `OperatorError` where a query or migration file is wrong.

    Without `refuse_mistakes`, the application starts with wrong files, too. It responds 503 and
    reads them again until the database is verified.
    """
    versions: list[str] = []
    queries = LoadedQueries()
    verify_loaded = make_verifier(versions, queries, EXPECTED)
    is_loaded = False

    def load_files() -> None:
        versions[:] = migration_files.list_versions(config.root / "migrations")
        queries.update(load_queries(config))

    async def verify(connection: Connection) -> bool:
        nonlocal is_loaded
        if not is_loaded:
            load_files()
        is_loaded = False  # if verifying fails, somebody may edit the files before the next time
        is_writable = await verify_loaded(connection)
        is_loaded = True
        return is_writable

    if refuse_mistakes:
        load_files()
        is_loaded = True
    check_tls(config.database)
    pool = Pool(config.database, verify)
    timeout, slow = config.database.statement_timeout, config.log.slow_statement
    statements = Statements(pool, queries, timeout, slow)
    lists = Statements(pool, queries, timeout, slow, pool.lists)
    once_only = OnceOnly(statements, config.sharing)
    in_flight = InFlight(config.server.request_timeout)
    headers = CommonHeaders(config.server)

    async def require_database() -> None:
        applied = await statements.fetch("get_applied_migrations", retry=True)
        require_migrations(versions, applied)

    # The outermost first: `limit_time` also sees the responses to errors.
    app = web.Application(middlewares=[in_flight.limit_time, respond_to_errors])
    app.add_routes(
        routes(
            Health(config.service.environment, require_database, in_flight),
            Movies(
                Catalogue(statements, config.sharing),
                once_only,
                Listing(lists),
                BodyReader(config.server.body_timeout),
                require_if_match=config.server.require_if_match,
            ),
            Genres(GenreCounts(lists)),
            Reference(),
        )
    )
    app.on_response_prepare.append(headers.on_response_prepare)
    app.cleanup_ctx.append(partial(_run_pool, pool, refuse_mistakes))
    app.cleanup_ctx.append(lambda _: once_only.clear_regularly())
    app.cleanup_ctx.append(in_flight.check_deadlines)
    app[POOL] = pool
    app[COMMON_HEADERS] = headers
    app[IN_FLIGHT] = in_flight
    app[MAX_CONNECTIONS] = choose_max_connections(config)
    reload = partial(load_queries, config), partial(verify_queries, config)
    app[RELOAD_QUERIES] = make_reloader(queries, *reload)
    return app


async def _run_pool(
    pool: Pool,
    refuse_mistakes: bool,  # noqa: FBT001 - of a partial
    _: web.Application,
) -> AsyncIterator[None]:
    """Verify the database before the first request; close the pool at the end.

    If the database is unreachable or lacks migrations, the service starts anyway and responds 503
    until that changes. With `refuse_mistakes`, a query that does not fit the schema prevents the
    start.
    """
    suppress_timeout_reports(asyncio.get_running_loop())
    retry = None
    try:
        async with pool.connection():
            pass
    except Unavailable as error:
        if refuse_mistakes and isinstance(error.__cause__, OperatorError):
            raise error.__cause__ from None
        retry = asyncio.create_task(_connect_until_ready(pool, str(error)))
    yield
    if retry:
        retry.cancel()
    await pool.close(CLOSE_TIMEOUT_S)


async def _connect_until_ready(pool: Pool, reason: str) -> None:
    log.warning("not ready", reason=reason)
    while True:
        await asyncio.sleep(RETRY_S)
        try:
            async with pool.connection():
                log.info("ready")
                return
        except Unavailable as error:
            if str(error) != reason:
                reason = str(error)
                log.warning("not ready", reason=reason)


class Worker(Runner):
    """Runs in each of gunicorn's workers; gunicorn.conf.py sets these."""

    config: ClassVar[Config | None] = None
    replaces_another: ClassVar[bool] = False
    sockets: ClassVar[tuple[socket.socket, ...]] = ()

    async def setup(self) -> None:
        """Start."""
        with _end_on_operator_error():
            await super().setup()
        await self.listen(self.sockets)
        exempt_from_collection()


async def gunicorn() -> Worker:
    """Make a worker: `gunicorn service.app:gunicorn`. SIGHUP reloads its queries."""
    path = Path(os.environ.get("CATALOGUE_CONFIG", "config.toml"))
    config = Worker.config or settings.load(path, os.environ)
    logs.configure(config.log)
    worker: Worker

    def reload() -> None:
        worker.app[RELOAD_QUERIES]()

    # Before the files are read, to miss no change; the loop calls it when there is an app.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    with _end_on_operator_error():
        app = create_app(config, refuse_mistakes=not Worker.replaces_another)
        worker = Worker(app, config.server)
    return worker


@contextmanager
def _end_on_operator_error() -> Iterator[None]:
    """Log an `OperatorError` in one line, and end with the status that stops gunicorn."""
    try:
        yield
    except OperatorError as error:
        logs.log_start_failure(error)
        raise SystemExit(Arbiter.APP_LOAD_ERROR) from error
