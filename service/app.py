"""The one composition root: production and tests put the parts together here, and nowhere else."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psycopg2
import structlog
from aiohttp import web
from gunicorn.errors import AppImportError

from service import config as settings
from service import logs
from service.catalogue import genres, idempotency, listing, movies
from service.catalogue.genres import GenreCounts
from service.catalogue.idempotency import OnceOnly
from service.catalogue.listing import Listing
from service.catalogue.movies import Catalogue
from service.config import Config
from service.database import query_files, verification
from service.database.connections import connect
from service.database.migrations import files as migration_files
from service.database.pool import Pool
from service.database.queries import Query
from service.database.reloading import make_reloader
from service.database.statements import Statements, suppress_timeout_reports
from service.database.verification import require_migrations, verify_database
from service.errors import OperatorError, Unavailable
from service.transfer import queries as transfer
from service.web.bodies import BodyReader
from service.web.genres import Genres as GenresHandlers
from service.web.health import Health
from service.web.movies.handlers import Movies
from service.web.reference.handlers import Reference
from service.web.request_cycle.headers import COMMON_HEADERS, CommonHeaders
from service.web.request_cycle.in_flight import InFlight
from service.web.request_cycle.middlewares import middlewares
from service.web.request_cycle.server import (
    IN_FLIGHT,
    Runner,
    exempt_from_collection,
)
from service.web.routes import routes

log = structlog.get_logger()

RESTART_PAUSE_S = 1.0  # before gunicorn starts the next worker
POOL = web.AppKey("pool", Pool)
RELOAD_QUERIES = web.AppKey[Callable[[], None]]("reload_queries")
ONCE_ONLY = web.AppKey("once_only", OnceOnly)
EXPECTED = {
    **genres.QUERIES,
    **idempotency.QUERIES,
    **listing.QUERIES,
    **movies.QUERIES,
    **transfer.QUERIES,
    **verification.QUERIES,
}


def create_app(config: Config) -> web.Application:
    """Build the application; `OperatorError` where a query or migration file is wrong."""
    loaded = load_queries(config)
    versions = migration_files.list_versions(config.root / "migrations")
    pool = Pool(
        config.database,
        partial(verify_database, versions=versions, queries=loaded, expected=EXPECTED),
    )
    statements = Statements(
        pool, loaded, config.database.statement_timeout, config.log.slow_statement
    )
    in_flight = InFlight(config.server.request_timeout)
    headers = CommonHeaders(config.server)

    async def require_database() -> None:
        applied = await statements.fetch("get_applied_migrations", retry=True)
        require_migrations(versions, applied)

    app = web.Application(middlewares=middlewares(in_flight))
    app.on_response_prepare.append(headers.on_response_prepare)
    app[POOL] = pool
    app[IN_FLIGHT] = in_flight
    app[COMMON_HEADERS] = headers
    app[RELOAD_QUERIES] = make_reloader(
        loaded, partial(load_queries, config), partial(verify, config)
    )
    app[ONCE_ONLY] = OnceOnly(statements, config.sharing)
    app.add_routes(
        routes(
            Health(config.service.environment, require_database, in_flight),
            Movies(
                Catalogue(statements, config.sharing),
                app[ONCE_ONLY],
                Listing(statements),
                BodyReader(config.server.body_timeout),
                require_if_match=config.server.require_if_match,
            ),
            GenresHandlers(GenreCounts(statements)),
            Reference(),
        )
    )
    app.cleanup_ctx.append(_database)
    app.cleanup_ctx.append(in_flight.check_deadlines)
    return app


def load_queries(config: Config) -> dict[str, Query]:
    """Load queries/*.sql and compare it with what the service expects."""
    return query_files.load(config.root / "queries", EXPECTED)


async def verify(config: Config, loaded: Mapping[str, Query]) -> bool:
    """Verify the queries against the database, as the first connection of a process does.

    Returns False where the database is read-only, so that not all of it was possible.
    """
    versions = migration_files.list_versions(config.root / "migrations")
    suppress_timeout_reports(asyncio.get_running_loop())
    try:
        connection = await connect(config.database)
        try:
            return await verify_database(connection, versions, loaded, EXPECTED)
        finally:
            connection.close()
    except (Unavailable, psycopg2.Error, TimeoutError) as error:
        raise OperatorError(
            " ".join(str(error).split()) or "the database does not answer"
        ) from error


async def _database(app: web.Application) -> AsyncIterator[None]:
    """Verify the database before the first request, if it is there; close the pool at the end.

    In between, old idempotency keys are cleared.

    Where it is away, or waits for its migrations, the service starts all the same and answers 503
    until it is there. A query that does not fit the schema stops the start.
    """
    pool = app[POOL]
    suppress_timeout_reports(asyncio.get_running_loop())
    try:
        with suppress(Unavailable):
            await _try(pool)
        async with app[ONCE_ONLY].clear_regularly():
            yield
    finally:
        await pool.close(timeout=2)


async def _try(pool: Pool) -> None:
    try:
        async with pool.connection():
            pass
    except Unavailable as error:
        if isinstance(error.__cause__, OperatorError):
            raise error.__cause__ from None
        raise


class Worker(Runner):
    """What each of gunicorn's workers runs; SIGHUP, which the master passes on, reloads queries."""

    replaces_another = False  # set by gunicorn.conf.py

    async def setup(self) -> None:
        """Start; a worker that cannot start ends the master only if it is one of the first."""
        with _ending_the_worker():
            await super().setup()
        exempt_from_collection()


async def gunicorn() -> Worker:
    """Make a worker: `gunicorn service.app:gunicorn`."""
    path = Path(os.environ.get("CATALOGUE_CONFIG", "config.toml"))
    config = settings.load(path, os.environ)
    logs.configure(config.log)
    worker: Worker

    def reload() -> None:
        worker.app[RELOAD_QUERIES]()

    # Before the files are read, to miss no change; the loop calls it once there is an app.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    with _ending_the_worker():
        worker = Worker(create_app(config), config.server)
    return worker


@contextmanager
def _ending_the_worker() -> Iterator[None]:
    """Turn a mistake of an operator into the end of the worker.

    gunicorn prints AppImportError as one line and stops, with all other workers. So a worker that
    replaces another one ends alone: the others go on with the queries that they have, and gunicorn
    starts the next one.
    """
    try:
        yield
    except OperatorError as error:
        if not Worker.replaces_another:
            raise AppImportError(str(error)) from error
        log.error("worker not started", reason=str(error))  # noqa: TRY400 - one line says it all
        time.sleep(RESTART_PAUSE_S)
        raise SystemExit(1) from error
