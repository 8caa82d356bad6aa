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
from gunicorn.arbiter import Arbiter

from service import __version__, logs
from service import config as settings
from service.access.clients import Clients
from service.access.limits import Limits
from service.catalogue.genres import GenreCounts
from service.catalogue.idempotency import OnceOnly
from service.catalogue.listing import Listing
from service.catalogue.movies import Catalogue
from service.config import Config
from service.database.pool import Pool
from service.database.statements import Statements, suppress_timeout_reports
from service.database.urls import check_tls
from service.errors import OperatorError, Unavailable
from service.metrics import Metrics
from service.queries import SqlFiles
from service.tracing import Tracing
from service.web.access import AccessControl
from service.web.bodies import BodyReader
from service.web.genres import Genres
from service.web.health import Health
from service.web.movies.handlers import Movies
from service.web.operators import MetricsPage, make_operations
from service.web.reference.handlers import Reference
from service.web.request_cycle.error_responses import respond_to_errors
from service.web.request_cycle.headers import COMMON_HEADERS, CommonHeaders
from service.web.request_cycle.in_flight import IN_FLIGHT, InFlight
from service.web.request_cycle.request_spans import TRACING
from service.web.request_cycle.server import (
    MAX_CONNECTIONS,
    METRICS,
    OPERATIONS,
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


def create_app(
    config: Config, *, refuse_mistakes: bool = True, metrics_folder: Path | None = None
) -> web.Application:
    """Build the application; `OperatorError` where a query or migration file is wrong.

    Without `refuse_mistakes`, the application starts with wrong files, too. It responds 503 and
    reads them again until the database is verified. `metrics_folder`: what several processes count.
    """
    metrics = Metrics(is_enabled=config.operations.are_metrics_on, folder=metrics_folder)
    files = SqlFiles(config)
    if refuse_mistakes:
        files.load()
    check_tls(config.database)
    tracing = Tracing(config)
    pool = Pool(config.database, files.verify, metrics)
    timeout, slow = config.database.statement_timeout, config.log.slow_statement
    statements = Statements(pool, files.queries, timeout, slow)
    lists = Statements(pool, files.queries, timeout, slow, pool.lists)
    once_only = OnceOnly(statements, config.sharing)
    in_flight = InFlight(config.server.request_timeout)
    headers = CommonHeaders(config.server)
    require_migrations = partial(files.require_migrations, statements)
    health = Health(config.service.environment, require_migrations, in_flight)
    limits = Limits(config.limits, metrics)
    movies = Movies(
        Catalogue(statements, config.sharing),
        once_only,
        Listing(lists),
        BodyReader(config.server.body_timeout),
        limits.quotas,
        require_if_match=config.server.require_if_match,
    )

    # The outermost first: `limit_time` also sees the responses to errors.
    app = web.Application(middlewares=[in_flight.limit_time, respond_to_errors])
    access = AccessControl(config.access, Clients(statements, config.sharing), limits)
    app.add_routes(routes(access, health, movies, Genres(GenreCounts(lists)), Reference()))
    if token := config.operations.token:
        app.router.add_get("/metrics", MetricsPage(metrics, token).show_with_token)
    app.on_response_prepare.append(headers.on_response_prepare)
    app.cleanup_ctx.append(tracing.run)
    app.cleanup_ctx.append(lambda _: _run_pool(pool, refuse_mistakes=refuse_mistakes))
    app.cleanup_ctx.append(lambda _: once_only.clear_regularly())
    app.cleanup_ctx.append(limits.run)
    app.cleanup_ctx.append(in_flight.check_deadlines)
    app.cleanup_ctx.append(metrics.sample_regularly)
    metrics.describe_process(__version__, config.service.environment)
    metrics.add_sampler(lambda: metrics.requests_in_flight.set(in_flight.count))
    app[METRICS] = metrics
    app[OPERATIONS] = make_operations(health, metrics, headers, config.server.request_timeout)
    app[POOL] = pool
    app[COMMON_HEADERS] = headers
    app[IN_FLIGHT] = in_flight
    app[TRACING] = tracing
    app[MAX_CONNECTIONS] = choose_max_connections(config)
    app[RELOAD_QUERIES] = files.make_reloader()
    return app


async def _run_pool(pool: Pool, *, refuse_mistakes: bool) -> AsyncIterator[None]:
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
    operations_sockets: ClassVar[tuple[socket.socket, ...]] = ()
    metrics_folder: ClassVar[Path | None] = None

    async def setup(self) -> None:
        """Start the application, and accept connections."""
        with _end_on_operator_error():
            await super().setup()
        await self.listen(self.sockets)
        await self.listen_to_operators(self.operations_sockets)
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
        app = create_app(
            config,
            refuse_mistakes=not Worker.replaces_another,
            metrics_folder=Worker.metrics_folder,
        )
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
