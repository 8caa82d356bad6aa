"""The composition root: production and tests put the parts together here, and nowhere else."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import structlog
from aiohttp import web
from gunicorn.errors import AppImportError

from service import config as settings
from service import logs
from service.catalogue.genres import GenreCounts
from service.catalogue.idempotency import OnceOnly
from service.catalogue.listing import Listing
from service.catalogue.movies import Catalogue
from service.config import Config
from service.database.migrations import files as migration_files
from service.database.pool import Pool
from service.database.reloading import make_reloader
from service.database.statements import Statements, suppress_timeout_reports
from service.database.verification import make_verifier, require_migrations
from service.errors import OperatorError, Unavailable
from service.queries import EXPECTED, load_queries, verify_queries
from service.web.bodies import BodyReader
from service.web.genres import Genres
from service.web.health import Health
from service.web.movies.handlers import Movies
from service.web.reference.handlers import Reference
from service.web.request_cycle.error_responses import respond_to_errors
from service.web.request_cycle.headers import COMMON_HEADERS, CommonHeaders
from service.web.request_cycle.in_flight import IN_FLIGHT, InFlight
from service.web.request_cycle.server import Runner, exempt_from_collection
from service.web.routes import routes

log = structlog.get_logger()

RESTART_PAUSE_S = 1.0  # before gunicorn starts the next worker
CLOSE_TIMEOUT_S = 2.0  # for statements in flight when the process stops
POOL = web.AppKey("pool", Pool)
RELOAD_QUERIES = web.AppKey[Callable[[], None]]("reload_queries")


def create_app(config: Config) -> web.Application:
    """Build the application; `OperatorError` where a query or migration file is wrong."""
    queries = load_queries(config)
    versions = migration_files.list_versions(config.root / "migrations")
    pool = Pool(config.database, make_verifier(versions, queries, EXPECTED))
    timeout, slow = config.database.statement_timeout, config.log.slow_statement
    statements = Statements(pool, queries, timeout, slow)
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
                Listing(statements),
                BodyReader(config.server.body_timeout),
                require_if_match=config.server.require_if_match,
            ),
            Genres(GenreCounts(statements)),
            Reference(),
        )
    )
    app.on_response_prepare.append(headers.on_response_prepare)
    app.cleanup_ctx.append(partial(_run_pool, pool))
    app.cleanup_ctx.append(lambda _: once_only.clear_regularly())
    app.cleanup_ctx.append(in_flight.check_deadlines)
    app[POOL] = pool
    app[COMMON_HEADERS] = headers
    app[IN_FLIGHT] = in_flight
    reload = partial(load_queries, config), partial(verify_queries, config)
    app[RELOAD_QUERIES] = make_reloader(queries, *reload)
    return app


async def _run_pool(pool: Pool, _: web.Application) -> AsyncIterator[None]:
    """Verify the database before the first request; close the pool at the end.

    If the database is unreachable or lacks migrations, the service starts anyway and responds 503
    until that changes. A query that does not fit the schema prevents the start.
    """
    suppress_timeout_reports(asyncio.get_running_loop())
    try:
        async with pool.connection():
            pass
    except Unavailable as error:
        if isinstance(error.__cause__, OperatorError):
            raise error.__cause__ from None
    yield
    await pool.close(CLOSE_TIMEOUT_S)


class Worker(Runner):
    """Runs in each of gunicorn's workers."""

    replaces_another = False  # set by gunicorn.conf.py

    async def setup(self) -> None:
        """Start; a worker that cannot start ends the master only if it is one of the first."""
        with _end_worker_on_error():
            await super().setup()
        exempt_from_collection()


async def gunicorn() -> Worker:
    """Make a worker: `gunicorn service.app:gunicorn`. SIGHUP reloads its queries."""
    path = Path(os.environ.get("CATALOGUE_CONFIG", "config.toml"))
    config = settings.load(path, os.environ)
    logs.configure(config.log)
    worker: Worker

    def reload() -> None:
        worker.app[RELOAD_QUERIES]()

    # Before the files are read, to miss no change; the loop calls it when there is an app.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    with _end_worker_on_error():
        worker = Worker(create_app(config), config.server)
    return worker


@contextmanager
def _end_worker_on_error() -> Iterator[None]:
    """End the worker on an `OperatorError`.

    gunicorn prints AppImportError as one line and stops, with all other workers. So a worker that
    replaces another one ends alone: the others continue with their queries, and gunicorn starts
    the next one.
    """
    try:
        yield
    except OperatorError as error:
        if not Worker.replaces_another:
            raise AppImportError(str(error)) from error
        log.error("worker not started", reason=str(error))  # noqa: TRY400 - one line says it all
        time.sleep(RESTART_PAUSE_S)
        raise SystemExit(1) from error
