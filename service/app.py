"""The composition root: production and tests put the parts together here, and nowhere else."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog
from aiohttp import web

from service import __version__, genres
from service.changes import feed as changes_feed
from service.changes import handlers as changes
from service.changes.feed import DETECT, Feed
from service.changes.handlers import Changes, begin_copy
from service.changes.waiting import LongPolls
from service.clients.access import AccessControl
from service.clients.clients import Clients
from service.clients.limits import RateLimiter
from service.config import Config, Operations
from service.database import query_files
from service.database.cache import ResultCache
from service.database.clearing import Clearing, Measure
from service.database.listing import Listing
from service.database.pool import Pool
from service.database.query import Query, collect_expected
from service.database.replicas import Replicas
from service.database.statements import Statements
from service.database.store import Store
from service.database.streaming import Streams
from service.database.urls import check_tls
from service.database.verification import QueryRegistry, verify_queries
from service.errors import OperatorError, Refusal, Unavailable
from service.genres import GenreCounts, Genres
from service.movies import keys
from service.movies import routes as movies
from service.movies.batches import Batches
from service.movies.handlers import REPRESENTATION, Movies
from service.movies.keys import IdempotentCreates
from service.movies.lists import Lists
from service.movies.movie import MOVIES
from service.movies.restoring import RESTORE_ERRORS, Restores
from service.telemetry.metrics import Metrics
from service.web import health as health_routes
from service.web import reference
from service.web.access_log import AccessLog
from service.web.bodies import BodyReader
from service.web.health import Health, MetricsPage
from service.web.middleware import RequestCycle, run_beside
from service.web.openapi import build_document
from service.web.pages import EncodedPage
from service.web.reference import Reference
from service.web.route import Route, Scope
from service.web.server import OPERATIONS_APP, choose_max_connections

log = structlog.get_logger()

# Every query that the service expects in queries/*.sql: modules that use queries have `QUERIES`.
EXPECTED = collect_expected(
    "service.changes", "service.clients", "service.database", "service.genres", "service.movies"
)
VERIFY_RETRY_S = 1.0  # between attempts to verify the database
MAX_OPERATORS_CONNECTIONS = 32
LISTS, STREAMS = "lists", "streams"  # limits of the pool
POOL = web.AppKey("pool", Pool)
REGISTRY = web.AppKey("files", QueryRegistry)


def load_queries(config: Config) -> dict[str, Query]:
    """Load queries/*.sql and compare it with what the service expects."""
    return query_files.load(config.queries, EXPECTED)


@dataclass(frozen=True)
class Sources:
    """What the stores and lists use: statements, and the replicas for reads."""

    files: QueryRegistry
    replicas: Replicas | None
    make_statements: Callable[..., Statements]  # takes `limit` and `standbys` of `Statements`


def create_app(
    config: Config, *, files: QueryRegistry | None = None, metrics_folder: Path | None = None
) -> web.Application:
    """Build the application; `OperatorError` where a query or migration file is wrong.

    `files`: those that the master of several processes has read. With them, a query that does not
    fit the schema does not prevent the start: the application responds 503 until it is corrected.
    `metrics_folder`: of several processes.
    """
    metrics = Metrics(is_enabled=config.operations.are_metrics_on, folder=metrics_folder)
    if refuse_mistakes := not files:
        files = QueryRegistry(config, partial(load_queries, config))
        files.load()
    for url in (config.database.url, *config.database.replica_urls):
        check_tls(replace(config.database, url=url))
    server = replace(config.server, max_connections=choose_max_connections(config))
    max_open = config.database.max_open
    limits = {  # how many connections lists (with genres and the feed) and streams may use
        LISTS: max(1, max_open * 3 // 10),
        STREAMS: max(1, min(config.server.max_streams, max_open // 5)),
    }
    pool = Pool(config.database, files.verify, metrics, limits)
    replicas = None
    if config.database.replica_urls:
        replicas = Replicas(config.database, files.queries, pool, limits)
    timeout = config.database.statement_timeout
    require_migrations = partial(files.require_migrations, Statements(pool, files.queries, timeout))
    make_statements = partial(
        Statements,
        pool,
        files.queries,
        timeout,
        slow=config.log.slow_statement,
        require_migrations=require_migrations,
    )
    statements = make_statements()
    rate_limits = RateLimiter(config.limits, metrics)
    access = AccessControl(config.access, Clients(statements), rate_limits)
    cycle = RequestCycle(server, access, metrics, AccessLog(metrics, config.log))
    health = Health(config.service, require_migrations, cycle)
    sources = Sources(files, replicas, make_statements)
    routes = _make_routes(config, sources, access, health, cycle)
    if token := config.operations.token:
        page = MetricsPage(metrics, token)
        routes.append(Route("GET", "/metrics", page.show, Scope.NONE))
    app = cycle.make_application(routes)
    # They start in this order and stop in reverse: the others use the pool.
    app.cleanup_ctx.append(partial(_run_pool, pool, refuse_mistakes=refuse_mistakes))
    if metrics.is_enabled:
        app.cleanup_ctx.append(partial(run_beside, health.measure_regularly))
        app.cleanup_ctx.append(partial(run_beside, metrics.sample_regularly))
    if replicas:
        app.cleanup_ctx.append(replicas.run)
    clearing = _make_clearing(statements, config.changes.keep_days)
    app.cleanup_ctx.extend([partial(run_beside, clearing.clear_regularly), rate_limits.run])
    metrics.info.labels(__version__, config.service.commit, config.service.environment).set(1)
    metrics.processes.set(1)
    metrics.start_time.set(time.time())
    metrics.samplers.append(pool.sample)
    metrics.samplers.append(lambda: metrics.requests_in_flight.set(cycle.in_flight))
    app[OPERATIONS_APP] = _make_operations(config, access, health, metrics)
    app[POOL] = pool
    app[REGISTRY] = files
    return app


def _make_routes(
    config: Config, sources: Sources, access: AccessControl, health: Health, cycle: RequestCycle
) -> list[Route]:
    """Make the store, the lists and the feed, and the routes on top of them."""
    make, replicas, server = sources.make_statements, sources.replicas, config.server
    statements = make()
    slow = make(limit=LISTS, standbys=replicas)
    streams = Streams(make(limit=STREAMS, standbys=replicas))
    listing = Listing(MOVIES, slow, streams)
    store = Store(MOVIES, statements, make(standbys=replicas), RESTORE_ERRORS)
    creates = IdempotentCreates(store, statements)
    feed = None
    if config.changes.keep_days:
        feed = Feed(make(limit=LISTS), slow, replicas)
    bodies = BodyReader(server.body_timeout)
    cache = ResultCache[EncodedPage](statements, DETECT if feed else "", replicas)
    sources.files.on_reload = cache.clear
    max_lag = config.database.max_replica_lag if replicas else 0
    lists = Lists(
        store,
        listing,
        statements=slow,
        begin_copy=partial(begin_copy, feed) if feed else None,
        has_streams=server.max_streams > 0,
        cache_seconds=server.cache_seconds,
        cache=cache,
        access=access,
    )
    batches = Batches(
        store, creates, bodies=bodies, access=access, require_if_match=server.require_if_match
    )
    single = Movies(
        REPRESENTATION,
        store,
        bodies=bodies,
        require_if_match=server.require_if_match,
        idempotent_creates=creates,
    )
    restores = Restores(store, bodies, server.require_if_match)
    routes = [
        *movies.make_routes(single, lists, batches, restores),
        *changes.make_routes(Changes(feed, LongPolls(feed), cycle, access) if feed else None),
        *genres.make_routes(Genres(GenreCounts(slow, max_lag), server.cache_seconds)),
        *health_routes.make_routes(health),
        *reference.make_routes(Reference(lambda: build_document(routes, access.anonymous))),
    ]
    return routes


def _make_clearing(statements: Statements, keep_days: int) -> Clearing:
    """Make what clears and measures regularly; `keep_days`: of the feed (0: there is none)."""
    metrics = statements.metrics
    expiries = [keys.EXPIRY]
    measures = [
        Measure("estimate_idempotency_keys", metrics.idempotency_keys),
        Measure("get_schema_faults", metrics.schema_faults, len),
    ]
    if keep_days:
        expiries.append(changes_feed.make_expiry(keep_days))
        measures.append(Measure("measure_changes_delay", metrics.changes_delay))
    return Clearing(statements, expiries, measures)


def _make_operations(
    config: Config, access: AccessControl, health: Health, metrics: Metrics
) -> web.Application:
    """Build the application of the operations port, which is neither logged nor measured."""
    server = replace(config.server, max_connections=MAX_OPERATORS_CONNECTIONS, drain_delay=0)
    no_metrics = Metrics(is_enabled=False)
    # So that a stop waits for no connection of this port.
    cycle = RequestCycle(server, access, no_metrics, AccessLog(no_metrics), keeps_connections=False)
    return cycle.make_application(
        [
            Route("GET", "/live", health.show, Scope.NONE),
            Route("GET", "/ready", health.ready, Scope.NONE),
            Route("GET", "/metrics", MetricsPage(metrics).show, Scope.NONE),
        ]
    )


async def check_start(config: Config) -> QueryRegistry:
    """Return the files for the workers; `OperatorError` if they or the settings are wrong.

    The database need not be reachable: the service starts without it, and is not ready.
    """
    # Without metrics: the sums of the workers must not include the gauges of their master.
    files = create_app(replace(config, operations=Operations()))[REGISTRY]
    with suppress(Unavailable):  # each worker logs it
        await verify_queries(config, files.queries)
    return files


async def _run_pool(pool: Pool, _: object, *, refuse_mistakes: bool) -> AsyncIterator[None]:
    """Verify the database before the first request; close the pool at the end.

    If the database is unreachable or lacks migrations, the service starts anyway and responds 503
    until that changes. With `refuse_mistakes`, a query that does not fit the schema prevents the
    start, however long the check takes.
    """
    error = await _try_connection(pool)
    while refuse_mistakes and error and error.refusal is Refusal.POOL_TIMEOUT:
        error = await _try_connection(pool)
    if refuse_mistakes and error and isinstance(error.__cause__, OperatorError):
        raise error.__cause__
    retry = asyncio.create_task(_connect_until_ready(pool, str(error))) if error else None
    yield
    if retry:
        retry.cancel()
    await pool.close()


async def _connect_until_ready(pool: Pool, reason: str) -> None:
    while True:  # the pool has logged the first reason
        await asyncio.sleep(VERIFY_RETRY_S)
        error = await _try_connection(pool)
        if not error:
            log.info("ready")
            return
        if str(error) != reason:
            reason = str(error)
            log.warning("not ready", reason=reason)


async def _try_connection(pool: Pool) -> Unavailable | None:
    try:
        async with pool.connection():
            return None
    except Unavailable as error:
        return error
